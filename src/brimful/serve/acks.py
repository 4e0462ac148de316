"""Acknowledgements of what training has made durable, and removal of shards that nobody can ask for again.

::

    acks/<group>/<packs>.json    one for each checkpoint: the position, and the first shard that resuming from it needs
    acks/<group>/rank-<r>.json   for people: the last position that this rank acknowledged
    expired.json                 shards below this number were removed
    shards/<name>.completed      empty, for people: every group has acknowledged all packs of this shard

A pack that was delivered may be lost with the process that trained on it. Only a model checkpoint makes its training
durable, so shards are removed below the oldest checkpoint that may still be resumed from, of every group of ranks.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from typing import Any

from brimful.blobs import BlobStore, open_blob_store
from brimful.checks import check_type, setting_number
from brimful.errors import CorruptFileError, SettingsError, StateError
from brimful.messages import differences, setting
from brimful.shards import StreamLog

_EXPIRED = "expired.json"
_COMPLETED = ".completed"
_GROUP = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


def check_group(group: str) -> None:
    """Refuse what is no name of a group of ranks.

    Raises:
        SettingsError: other characters than files may have everywhere.
    """
    check_type("group", group, str, "the name of a training")
    if not _GROUP.fullmatch(group):
        raise SettingsError(
            f"{setting('group', group)} must be a name of letters, digits, dots, dashes and underscores"
        )


class Acks:
    """Acknowledgements of one group of ranks, which train one model on the stream.

    Args:
        store: of the stream.
        group: its name, of letters, digits, dots, dashes and underscores.

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
        """Acknowledge a position; the same twice is once.

        Args:
            ack: ``packs_delivered``, ``frontier``, and what must be equal if the position is acknowledged again.
            notes: what may differ then.

        Raises:
            StateError: another run has acknowledged this position with other packs behind it.
        """
        key = self._key(ack["packs_delivered"])
        if not self._store.put_if_absent(key, json.dumps({"ack": dict(ack), "notes": dict(notes or {})}).encode()):
            # What a rank knows of the log decides how far its frontier goes: each of them is safe, and the first stays.
            facts = [name for name in ack if name != "frontier"]
            text = differences(self.read(ack["packs_delivered"]), ack, facts, show=str)
            if text:
                raise StateError(
                    f"{self._store.url}/{key} was acknowledged otherwise: {text.replace(' in the state', ' there')}. Two "
                    f"runs share {setting('group', self.group)}: give each its own"
                )

    def read(self, position: int) -> dict[str, Any]:
        """Return the acknowledgement of a position.

        Raises:
            CorruptFileError: it is damaged.
        """
        return self.read_with_notes(position)[0]

    def read_with_notes(self, position: int) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the acknowledgement of a position, and the notes beside it.

        Raises:
            CorruptFileError: it is damaged.
        """
        key = self._key(position)
        try:
            values = json.loads(self._store.get(key))
            return dict(values["ack"]), dict(values["notes"])
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptFileError(f"{self._store.url}/{key} is damaged: {error!r}") from error

    def positions(self) -> list[int]:
        """Return the positions that were acknowledged, in order."""
        names = (key.rpartition("/")[2].removesuffix(".json") for key in self._store.list(f"acks/{self.group}"))
        return sorted(int(name) for name in names if name.isdecimal())

    def write_rank(self, dp_rank: int, position: Mapping[str, Any]) -> None:
        """Say for people how far one rank is; replaces what it said before."""
        self._store.put_atomic(f"acks/{self.group}/rank-{dp_rank:06d}.json", json.dumps(dict(position)).encode())

    def ranks(self) -> dict[int, dict[str, Any]]:
        """Return the position that each rank acknowledged last, of those that do."""
        keys = [key for key in self._store.list(f"acks/{self.group}") if "/rank-" in key]
        return {int(key[-11:-5]): json.loads(text) for key, text in zip(keys, self._store.get_many(keys), strict=True)}

    def _key(self, position: int) -> str:
        return f"acks/{self.group}/{position:015d}.json"


def expired_below(store: BlobStore) -> int:
    """Return the number of the first shard that was not removed."""
    try:
        return int(json.loads(store.get(_EXPIRED))["below"])
    except FileNotFoundError:
        return 0


def remove_acknowledged(directory: str | os.PathLike[str], groups: list[str], *, keep: int = 2) -> int:
    """Remove the shards that no checkpoint of any group needs.

    Killed anywhere, the same call goes on. Records of the log stay: they are small, and positions follow from them.

    Args:
        directory: path or URL of the stream.
        groups: all that train on it. One that has acknowledged fewer than ``keep`` positions keeps everything.
        keep: checkpoints of each group that may be resumed from.

    Returns:
        Number of the first shard that is still there.

    Raises:
        SettingsError: no group is named: nobody could say what is needed.
    """
    if not groups:
        raise SettingsError("name the groups that train on the stream: what they need stays")
    setting_number("keep", keep, minimum=1)
    store = open_blob_store(directory)
    frontiers = []
    for group in groups:
        acks = Acks(store, group)
        retained = acks.positions()[-keep:]
        frontiers.append(acks.read(retained[0])["frontier"] if len(retained) == keep else 0)
    first, first_needed = expired_below(store), min(frontiers)
    shards, _ = StreamLog(store).records()
    first_needed = min(first_needed, len(shards))
    if first_needed > first:
        # Said before it is done: who misses a shard then knows that it was no accident.
        store.put_atomic(_EXPIRED, json.dumps({"below": first_needed}).encode())
    for record in shards[: max(first, first_needed)]:
        store.delete(record.file)
        # Media of a stream that grows are with the shard that uses them; those of a planned store may serve later shards.
        if record.state is not None and record.media is not None:
            store.delete(record.media["file"])
    return max(first, first_needed)


def mark_completed(directory: str | os.PathLike[str], groups: list[str]) -> int:
    """Put an empty ``.completed`` file beside each shard whose packs every group has acknowledged.

    They are for people and for programs that wait for such files, and follow from the acknowledgements: nothing here
    reads them. They stay when their shards are removed.

    Args:
        directory: path or URL of the stream.
        groups: all that train on it.

    Returns:
        Number of shards that are complete: those below it.

    Raises:
        SettingsError: no group is named.
    """
    if not groups:
        raise SettingsError(
            "name the groups that train on the stream: a shard is complete once all have acknowledged it"
        )
    store = open_blob_store(directory)
    frontiers = []
    for group in groups:
        acks = Acks(store, group)
        positions = acks.positions()
        frontiers.append(acks.read(positions[-1])["frontier"] if positions else 0)
    shards, _ = StreamLog(store).records()
    first_needed = min(min(frontiers), len(shards))
    marked_items = {key for key in store.list("shards/") if key.endswith(_COMPLETED)}
    for record in shards[:first_needed]:
        if record.file + _COMPLETED not in marked_items:
            store.put_atomic(record.file + _COMPLETED, b"")
    return first_needed
