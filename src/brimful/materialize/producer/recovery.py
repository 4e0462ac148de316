"""Recovery of a producer: the state in the last record of its name, and its carry-over."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from brimful.blobs import BlobStore
from brimful.errors import CorruptFileError, StateError
from brimful.materialize.back_pressure import Clock
from brimful.materialize.carry_over import load_carry_over
from brimful.materialize.producer.records import SeenRecords
from brimful.materialize.producer.settings import ProducerSettings
from brimful.materialize.producer.window import PackingWindow
from brimful.shards import EndRecord

STATE_VERSION = 1
"""Version of the state in records; others are rejected."""

FIRST_WAIT = 0.02
"""Seconds between the first two checks for something that has not arrived."""

_LATE_LOOKS = 12
"""Checks for a file that must exist before it counts as lost: half a minute, as network mounts may need."""


@dataclass(frozen=True)
class Recovered:
    """State from which a producer resumes.

    Attributes:
        window: samples that were taken and are in no shard.
        cursors: of the feed, one for each own record.
        is_closing: the source was read to its end.
        end: of the stream, if it exists.
    """

    window: PackingWindow
    cursors: list[Any]
    is_closing: bool
    end: EndRecord | None


def recover(
    store: BlobStore,
    records: SeenRecords,
    settings: ProducerSettings,
    name: str,
    clock: Clock,
    carried_media: Any,
) -> Recovered:
    """Return the state in the last record of a producer.

    Raises:
        CorruptFileError: the carry-over is gone or damaged.
        StateError: the state is of another version.
    """
    carried_file = ""
    for _ in late_looks(clock):
        end = records.look()
        states = [record.state for record in records.own()]
        window = PackingWindow(settings)
        if carried_media is not None:
            carried_media.forget()
        try:
            if states:
                carried_file = (states[-1].get("carry_over") or {}).get("file", "")
                _load(window, store, name, states[-1], carried_media)
        except FileNotFoundError:
            # Another process of this name has committed more records, or a network mount shows the file late.
            continue
        is_closing = bool(states) and bool(states[-1]["is_closing"])
        return Recovered(window, [state["cursor"] for state in states], is_closing, end)
    raise CorruptFileError(
        f"{store.url}: {carried_file} is missing: what producer {name} has taken and not packed is lost; begin the "
        f"stream again"
    )


def _load(window: PackingWindow, store: BlobStore, name: str, state: dict[str, Any], carried_media: Any) -> None:
    if state.get("version") != STATE_VERSION:
        raise StateError(
            f"{store.url}: producer {name} has state of version {state.get('version')!r}; this brimful reads "
            f"{STATE_VERSION}"
        )
    carried = state["carry_over"]
    ready, segments = ([], []) if carried is None else load_carry_over(store, carried, carried_media)
    window.load(state["counts"], state["window"], ready, segments)


def late_looks(clock: Clock) -> Iterator[int]:
    """Yield the number of each check for something that a network mount may show late, with pauses in between."""
    for look in range(_LATE_LOOKS):
        if look:
            clock.sleep(min(FIRST_WAIT * 2 ** (look - 1), 5.0))
        yield look
