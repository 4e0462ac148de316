"""Acknowledgments of what training has made durable, and removal of shards that cannot be requested
again.

::

    acks/<group>/<packs>.json    one for each checkpoint: the position, and the first shard needed to resume from it
    acks/<group>/rank-<r>.json   for inspection: the last position that this rank acknowledged
    expired.json                 shards below this number were removed
    shards/<name>.completed      empty, for inspection: every group has acknowledged all packs of this shard

A delivered pack may be lost with the process that trained on it. Only a model checkpoint makes its
training durable, so only shards before the oldest checkpoint from which any group of ranks may
still resume are removed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from brimful.base.blobs import BlobStore, open_blob_store
from brimful.base.checks import check_type, setting_number
from brimful.base.typing import AnyPath
from brimful.base.wording import counted, differences, setting
from brimful.errors import CorruptFileError, SettingsError, StateError
from brimful.store.shards import ShardRecord, StreamLog

_EXPIRED = "expired.json"
_COMPLETED = ".completed"
_RANK = re.compile(r"/rank-\d{6}\.json$")
_GROUP = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


def check_group(group: str) -> None:
    """Refuse an invalid name of a group of ranks.

    Raises:
        SettingsError: the name has characters that are not allowed in file names on every system.
    """
    check_type("group", group, str, "the name of a training")
    if not _GROUP.fullmatch(group):
        raise SettingsError(
            f"{setting('group', group)} must be a name of letters, digits, dots, dashes and "
            "underscores"
        )


class Acks:
    """Acknowledgments of one group of ranks, which train one model on the stream.

    Args:
        store: blob store of the stream.
        group: name of the group: letters, digits, dots, dashes and underscores.

    >>> import tempfile
    >>> acks = Acks(open_blob_store(tempfile.mkdtemp()), "run-1")
    >>> acks.write({"packs_delivered": 8, "frontier": 1})
    >>> acks.write({"packs_delivered": 8, "frontier": 1})
    >>> acks.positions()
    [8]
    """

    def __init__(self, store: BlobStore, group: str) -> None:
        check_group(group)
        self._store, self.group = store, group

    def write(self, ack: Mapping[str, Any], *, notes: Mapping[str, Any] | None = None) -> None:
        """Acknowledge a position; a repeated acknowledgment has no effect.

        Args:
            ack: ``packs_delivered``, ``frontier``, and values that must be equal if the position is
                acknowledged again.
            notes: values that may differ in that case.

        Raises:
            StateError: another run has acknowledged this position after different packs.
        """
        key = self._key(ack["packs_delivered"])
        if not self._store.put_if_absent(
            key, json.dumps({"ack": dict(ack), "notes": dict(notes or {})}).encode()
        ):
            # The frontier depends on how much of the log a rank has seen: each frontier is safe,
            # and the first one is kept.
            facts = [name for name in ack if name != "frontier"]
            text = differences(self.read(ack["packs_delivered"])[0], ack, facts, show=str)
            if text:
                raise StateError(
                    f"{self._store.url}/{key} was acknowledged with different values: "
                    f"{text.replace(' in the state', ' there')}. Two runs share "
                    f"{setting('group', self.group)}: give each its own"
                )

    def read(self, position: int) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the acknowledgment of a position, and its notes.

        Raises:
            CorruptFileError: the acknowledgment is damaged.
        """
        key = self._key(position)
        ack, notes = _values(self._store.get(key), f"{self._store.url}/{key}", "ack", "notes")
        return ack, notes

    def positions(self) -> list[int]:
        """Return the acknowledged positions, in order; files with other names are none."""
        keys = self._store.list(f"acks/{self.group}")
        names = (key.rpartition("/")[2].removesuffix(".json") for key in keys)
        positions = sorted(int(name) for name in names if name.isdecimal())
        return [position for position in positions if self._key(position) in keys]

    def check_in_log(self, position: int, shards: Sequence[ShardRecord]) -> None:
        """Refuse an acknowledged position that the log does not reach.

        Raises:
            StateError: names it.
        """
        ack, num_packs = self.read(position)[0], shards[-1].cum_packs if shards else 0
        lanes = ack.get("lanes", 1)
        # By lanes, places of a step stay empty; otherwise only in the last one.
        most = num_packs * (lanes if ack.get("assign") == "lane" else 1) + lanes - 1
        # A run that asks for shards again passes the log, and lets none of them go.
        if ack["frontier"] and (position > most or ack["frontier"] > len(shards)):
            raise StateError(
                f"{self._store.url}/{self._key(position)} is ahead of the log, which has "
                f"{counted(num_packs, 'pack')} in {counted(len(shards), 'shard')}: nothing is "
                "removed. Restore the log, or delete this acknowledgment"
            )

    def write_rank(self, dp_rank: int, position: Mapping[str, Any]) -> None:
        """Write the position of one rank for inspection; replaces its earlier position."""
        self._store.put_atomic(
            f"acks/{self.group}/rank-{dp_rank:06d}.json", json.dumps(dict(position)).encode()
        )

    def ranks(self) -> dict[int, dict[str, Any]]:
        """Return the position that each rank acknowledged last, for ranks that acknowledge.

        Raises:
            CorruptFileError: a position is damaged.
        """
        keys = [key for key in self._store.list(f"acks/{self.group}") if _RANK.search(key)]
        names = ("packs_delivered", "skipped")
        return {
            int(key[-11:-5]): dict(
                zip(names, _values(text, f"{self._store.url}/{key}", *names), strict=True)
            )
            for key, text in zip(keys, self._store.get_many(keys), strict=True)
        }

    def _key(self, position: int) -> str:
        return f"acks/{self.group}/{position:015d}.json"


def expired_below(store: BlobStore) -> int:
    """Return the number of the first shard that was not removed."""
    try:
        return int(_values(store.get(_EXPIRED), f"{store.url}/{_EXPIRED}", "below")[0])
    except FileNotFoundError:
        return 0


def _values(text: bytes, location: str, *names: str) -> list[Any]:
    """Return values of a small document.

    Raises:
        CorruptFileError: it is damaged, or is another document.
    """
    try:
        values = json.loads(text)
        return [values[name] for name in names]
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptFileError(f"{location} is damaged: {error!r}") from error


def remove_acknowledged(directory: AnyPath, groups: list[str], *, keep: int = 2) -> int:
    """Remove the shards that no checkpoint of any group needs.

    If the process is killed at any point, the same call continues. Records of the log stay: they
    are small, and positions are computed from them.

    Args:
        directory: path or URL of the stream.
        groups: all groups that train on it. A group that has acknowledged fewer than ``keep``
            positions keeps everything.
        keep: number of checkpoints of each group from which a run may resume.

    Returns:
        Number of the first shard that still exists.

    Raises:
        SettingsError: no group is named, so it is unknown which shards are needed.
        StateError: a group has acknowledged more than the log has.
    """
    store, shards, first_needed = _first_needed(
        directory, groups, setting_number("keep", keep, minimum=1)
    )
    first = expired_below(store)
    if first_needed > first:
        # Written before the removal: a reader that misses a shard then knows that it was removed on
        # purpose.
        store.put_atomic(_EXPIRED, json.dumps({"below": first_needed}).encode())
    for record in shards[: max(first, first_needed)]:
        store.delete(record.file)
        # Media of a growing stream are stored with the shard that uses them; media of a planned
        # store may serve later shards.
        if record.state is not None and record.media is not None:
            store.delete(record.media["file"])
    return max(first, first_needed)


def mark_completed(directory: AnyPath, groups: list[str]) -> int:
    """Put an empty ``.completed`` file next to each shard whose packs every group has acknowledged.

    They are for inspection and for programs that wait for such files, and are derived from the
    acknowledgments: nothing here reads them. They stay when their shards are removed.

    Args:
        directory: path or URL of the stream.
        groups: all groups that train on it.

    Returns:
        Number of complete shards: all shards with a lower number are complete.

    Raises:
        SettingsError: no group is named.
    """
    store, shards, first_needed = _first_needed(directory, groups, 1)
    marked_items = {key for key in store.list("shards/") if key.endswith(_COMPLETED)}
    for record in shards[:first_needed]:
        if record.file + _COMPLETED not in marked_items:
            store.put_atomic(record.file + _COMPLETED, b"")
    return first_needed


def _first_needed(
    directory: AnyPath, groups: list[str], keep: int
) -> tuple[BlobStore, list[ShardRecord], int]:
    """Return store, shards, and the first shard that a group needs to resume from its ``keep``
    latest positions.
    """
    if not groups:
        raise SettingsError(
            "name the groups that train on the stream: what they have not acknowledged stays"
        )
    store = open_blob_store(directory)
    shards, _ = StreamLog(store).records()
    first_needed = len(shards)
    for group in groups:
        acks = Acks(store, group)
        positions = acks.positions()[-keep:]
        if positions:
            acks.check_in_log(positions[-1], shards)
        first_needed = min(
            first_needed, acks.read(positions[0])[0]["frontier"] if len(positions) == keep else 0
        )
    return store, shards, first_needed
