"""State of a loader: what it is a position of, the epoch, the step in it, and the places of that step that were served.

::

    version      3: states of others are refused
    kind         "packs", "stream" or "composed"
    fingerprint  of the packs or samples that the position counts
    epoch, step  steps of all ranks that this epoch has served in full
    places       of the next step: packs (of a composed step: micro-batches) that all ranks have served; 0 between steps
    of           what the packs or samples are, for the message of a state that does not fit; in no state of plain lists

So it is equal on all ranks. Settings that decide which packs come next stand beside these, each under its own name.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from brimful.checks import check_type, is_whole_number
from brimful.errors import StateError
from brimful.fingerprint import short
from brimful.messages import differences
from brimful.typing import Fingerprint

STATE_VERSION = 3
"""Version in every state; states of others are refused."""


class Position(NamedTuple):
    """Place of the next batch among those of all ranks."""

    epoch: int
    """Number of the pass over the data, from 0."""
    step: int
    """Steps of the epoch that were served in full."""
    places: int
    """Places of the next step that all ranks have served; 0 between steps."""


def make_state(
    kind: str, fingerprint: Fingerprint, position: Position, of: Mapping[str, Any] | None = None, **settings: Any
) -> dict[str, Any]:
    """Return a state for JSON; ``of`` is never compared, and tells people what the fingerprint is of.

    >>> make_state("packs", "41396dc", Position(0, 7, 0), seed=0)
    {'version': 3, 'kind': 'packs', 'fingerprint': '41396dc', 'epoch': 0, 'step': 7, 'places': 0, 'seed': 0}
    """
    facts = {"of": dict(of)} if of else {}
    return {
        "version": STATE_VERSION,
        "kind": kind,
        "fingerprint": fingerprint,
        **position._asdict(),
        **facts,
        **settings,
    }


def facts_of_store(directory: str, identity: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the packs of a directory are, for ``make_state``; without the path, which may differ between ranks."""
    prints = {name: short(identity[name]) for name in ("source", "encoder")}
    return {
        "directory": os.path.basename(directory),
        **prints,
        "capacity": identity["capacity"],
        **identity.get("settings", {}),
    }


def check_state(state: Any, own_state: Mapping[str, Any], keys: Iterable[str]) -> Position:
    """Return the position of a state, and refuse one of a loader with other samples or settings.

    Args:
        state: from a checkpoint, so it may be anything.
        own_state: of the loader that reads it.
        keys: settings that must be equal, beside version, kind and fingerprint.

    Raises:
        StateError: names each key whose values differ, with both, and what the other packs or samples are; or the numbers
            that cannot be.
    """
    check_type("state", state, Mapping, "what state_dict returned")
    # A state of another version or kind differs in everything: one reason is enough.
    for names in (["version"], ["kind"], keys):
        text = differences(state, own_state, names, show=str)
        if names is keys and state.get("fingerprint") != own_state["fingerprint"]:
            text = ", ".join(filter(None, (_others(state, own_state), text)))
        if text:
            raise StateError(f"the loader state does not fit: {text}")
    values: list[Any] = [state.get(name) for name in Position._fields]
    if not all(map(is_whole_number, values)) or min(values) < 0:
        raise damaged(", ".join(f"{name} {value!r}" for name, value in zip(Position._fields, values, strict=True)))
    return Position(*map(int, values))


def _others(state: Mapping[str, Any], own_state: Mapping[str, Any]) -> str:
    """Describe in what the packs or samples of a state are others."""
    saved, own = state.get("of"), own_state.get("of", {})
    known = isinstance(saved, Mapping) and differences(
        saved, {**dict.fromkeys(saved), **own}, {**own, **saved}, show=str
    )
    prints = differences(state, own_state, ["fingerprint"], show=lambda value: short(str(value)))
    return f"it is of other data or settings: {known or prints}"


def damaged(reason: str) -> StateError:
    """Return the error for a state that no loader could have saved."""
    return StateError(f"the loader state is damaged: {reason}")
