"""State of a loader: the identity of its data, the epoch, the step in the epoch, and the served places of that step.

::

    version      3: states of other versions are refused
    kind         "packs", "stream" or "composed"
    fingerprint  of the packs or samples that the position counts
    epoch, step  steps that all ranks have completed in this epoch
    places       packs (in a composed step: micro-batches) of the next step that all ranks have served; 0 between steps
    of           description of the packs or samples, for the error about a state that does not fit; not for plain lists

So the state is equal on all ranks. Settings that decide which packs come next are stored with these keys, each under
its own name.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from brimful.base.checks import check_type, is_whole_number
from brimful.base.fingerprint import short
from brimful.base.typing import Fingerprint
from brimful.base.wording import differences
from brimful.errors import StateError

STATE_VERSION = 3
"""Version in every state; states of other versions are refused."""


class Position(NamedTuple):
    """Place of the next batch among the batches of all ranks."""

    epoch: int
    """Number of the pass over the data, from 0."""
    step: int
    """Completed steps of the epoch."""
    places: int
    """Places of the next step that all ranks have served; 0 between steps."""


def make_state(
    kind: str, fingerprint: Fingerprint, position: Position, of: Mapping[str, Any] | None = None, **settings: Any
) -> dict[str, Any]:
    """Return a state for JSON; ``of`` is never compared, and describes the fingerprinted data in messages.

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
    """Return a description of the packs of a directory for ``make_state``, without the path, which may differ."""
    prints = {name: short(identity[name]) for name in ("source", "encoder")}
    return {
        "directory": os.path.basename(directory),
        **prints,
        "capacity": identity["capacity"],
        **identity.get("settings", {}),
    }


def check_state(state: Any, own_state: Mapping[str, Any], keys: Iterable[str]) -> Position:
    """Return the position of a state; refuse a state from a loader with other samples or settings.

    Args:
        state: state from a checkpoint, so it may be anything.
        own_state: state of the loader that reads it.
        keys: settings that must be equal, in addition to version, kind and fingerprint.

    Raises:
        StateError: names each key whose values differ, with both values, and describes the other packs or samples; or
            names the impossible numbers.
    """
    check_type("state", state, Mapping, "what state_dict returned")
    # A state of another version or kind differs everywhere: one reason is enough.
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
    """Describe how the packs or samples of a state differ."""
    saved, own = state.get("of"), own_state.get("of", {})
    known = isinstance(saved, Mapping) and differences(
        saved, {**dict.fromkeys(saved), **own}, {**own, **saved}, show=str
    )
    prints = differences(state, own_state, ["fingerprint"], show=lambda value: short(str(value)))
    return f"it is of other data or settings: {known or prints}"


def damaged(reason: str) -> StateError:
    """Return the error for a state that no loader could have saved."""
    return StateError(f"the loader state is damaged: {reason}")
