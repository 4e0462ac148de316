"""Orders: which packs of one rank come next, at which position, and the states that hold a
position.

A state has the identity of the data, the epoch, the step in the epoch, and the served places of
that step::

    version      4: states of other versions are refused
    kind         "packs", "stream" or "composed"
    fingerprint  of the packs or samples that the position counts
    epoch, step  steps that all ranks have completed in this epoch
    places       packs (in a composed step: micro-batches) of the next step that all ranks have served; 0 between steps
    of           description of the packs or samples, for the error about a state that does not fit; not for plain lists

So the state is equal on all ranks. Settings that decide which packs come next are stored with these
keys, each under its own name.
"""

from __future__ import annotations

import abc
import os
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from brimful.base.checks import check_rank, check_type
from brimful.base.fingerprint import fingerprint_of, short
from brimful.base.typing import Fingerprint
from brimful.base.wording import differences
from brimful.errors import StateError
from brimful.plan.schedule import Tail

AnyOrder = TypeVar("AnyOrder", bound="Order")

STATE_VERSION = 4
"""Version in every state; states of other versions are refused."""


@dataclass(frozen=True, kw_only=True, eq=False)
class RankSettings:
    """Options of the orders that know their packs or samples; ``PackLoader`` documents them."""

    dp_rank: int = 0
    dp_world_size: int = 1
    micro_batches: int = 1
    seed: int | None = 0
    tail: Tail | str = Tail.PAD


class Request(NamedTuple):
    """One micro-batch of this rank, by the keys of its packs.

    It holds all that a worker needs, because workers only read.
    """

    keys: Sequence[Any]
    """Keys that the data set of the loader takes: numbers of packs, positions, or segments of
    samples.
    """
    has_loss: bool = True
    """False if the rank has no pack in this micro-batch: it runs these without loss, in step with
    the others.
    """


class Order(abc.ABC):
    """Order of the packs of one data-parallel rank, epoch by epoch: what comes next. It never reads
    a pack.

    A loader asks for the next request (``next_request``), reads and collates its packs, and counts
    it (``advance``). Workers of a ``DataLoader`` go through all requests of their rank, and each
    worker makes every n-th batch.

    Attributes:
        dp_rank, dp_world_size: this rank among the ranks that see different data.
        tail: treatment of an incomplete last step.
        epoch: epoch of the next request. It increases at the end of an epoch.
    """

    knows_all = True
    """True if a request never waits for its packs to exist, so that requests may be made ahead."""

    step = 0
    """Completely served steps over all epochs, in orders that depend on them."""

    def __init__(self, dp_rank: int, dp_world_size: int, tail: Tail | str) -> None:
        self.dp_rank, self.dp_world_size = check_rank(dp_rank, dp_world_size)
        self.tail = Tail.named(tail)
        self.epoch = 0

    @abc.abstractmethod
    def start_epoch(self, epoch: int) -> None:
        """Go to the beginning of an epoch, which may be the current one."""

    def prepare(self) -> None:  # noqa: B027  # most orders need nothing
        """Make what the epoch needs if it does not exist; call it before a fork, or each process
        makes it.
        """

    def finish_epoch(self) -> None:  # noqa: B027  # most orders depend on the epoch alone
        """Count the steps of this epoch as served, before another epoch is begun."""

    @abc.abstractmethod
    def next_request(self) -> Request | None:
        """Return the next request; at the end move to the next epoch, if any, and return None."""

    @abc.abstractmethod
    def advance(self) -> bool:
        """Count the next request as served; return true if it is known to be the last of its
        epoch.
        """

    @abc.abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Return the position; it counts served requests, not batches that a consumer
        prefetched.
        """

    @abc.abstractmethod
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to the position of a state.

        Raises:
            StateError: the state does not fit; names the difference.
        """

    def fork(self: AnyOrder) -> AnyOrder:
        """Return an order of the same packs and settings with its own position, at the same place.

        Raises:
            SettingsError: the source cannot have two positions.
        """
        return copy(self)


class Position(NamedTuple):
    """Place of the next batch among the batches of all ranks."""

    epoch: int
    """Number of the pass over the data, from 0."""
    step: int
    """Completed steps of the epoch."""
    places: int
    """Places of the next step that all ranks have served; 0 between steps."""


def make_state(
    kind: str,
    fingerprint: Fingerprint,
    position: Position,
    of: Mapping[str, Any] | None = None,
    **settings: Any,
) -> dict[str, Any]:
    """Return a state for JSON; ``of`` is never compared, and describes the fingerprinted data in
    messages.

    >>> make_state("packs", "41396dc", Position(0, 7, 0), seed=0)  # doctest: +ELLIPSIS
    {'version': 4, 'kind': 'packs', 'fingerprint': '41396dc', 'epoch': 0, 'step': 7, 'places': 0, 'seed': 0, 'checksum': ...}
    """
    facts = {"of": dict(of)} if of else {}
    return signed(
        {
            "version": STATE_VERSION,
            "kind": kind,
            "fingerprint": fingerprint,
            **position._asdict(),
            **facts,
            **settings,
        }
    )


def signed(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a state with its checksum: one that was cut, edited or mixed from two is refused."""
    return {**state, "checksum": _checksum(state)}


def _checksum(state: Mapping[str, Any]) -> Fingerprint:
    # The state of a user's stream may hold values that JSON cannot.
    others = ("checksum", "source_state")
    return fingerprint_of({name: state[name] for name in state if name not in others})


def facts_of_store(directory: str, identity: Mapping[str, Any]) -> dict[str, Any]:
    """Return a description of the packs of a directory for ``make_state``, without the path, which
    may differ.
    """
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
        StateError: names each key whose values differ, with both values, and describes the other
            packs or samples; or the state is damaged.
    """
    check_type("state", state, Mapping, "what state_dict returned")
    # A state of another version or kind differs everywhere: one reason is enough.
    for names in (["version"], ["kind"], keys):
        if names is keys and state.get("checksum") != _checksum(state):
            raise StateError("the loader state is damaged: it has other values than were saved")
        text = differences(state, own_state, names, show=str)
        if names is keys and state["fingerprint"] != own_state["fingerprint"]:
            text = ", ".join(filter(None, (_others(state, own_state), text)))
        if text:
            raise StateError(f"the loader state does not fit: {text}")
    return Position(*(state[name] for name in Position._fields))


def _others(state: Mapping[str, Any], own_state: Mapping[str, Any]) -> str:
    """Describe how the packs or samples of a state differ."""
    saved, own = state.get("of", {}), own_state.get("of", {})
    known = differences(saved, {**dict.fromkeys(saved), **own}, {**own, **saved}, show=str)
    prints = differences(state, own_state, ["fingerprint"], show=lambda value: short(str(value)))
    return f"it is of other data or settings: {known or prints}"
