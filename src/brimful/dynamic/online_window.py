"""Online window: ``Lookahead`` packs samples as they arrive, and no sample waits longer than a
bound.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, asdict, dataclass
from typing import Any

import numpy as np

from brimful.dynamic.compose import ComposerMark, MicroBatchComposer, SampleSegment
from brimful.dynamic.token_budget import SampleCount
from brimful.plan import Overflow
from brimful.stream.lookahead import Lookahead
from brimful.stream.stream_packs import StreamPacks


@dataclass(frozen=True)
class Window:
    """Packs from a window of samples, each with at most ``capacity`` tokens (``Lookahead``).

    Args:
        capacity: maximum tokens of a pack.
        size: number of samples that may be seen before packs must be served.
        max_wait: maximum number of packs that are served before a waiting sample; four times the
            window if None.
        algorithm: one of ``LOOKAHEAD_ALGORITHMS``.
        min_fill: share of the capacity from which a pack is served at once.
        overflow: treatment of a sample above the capacity (``Overflow``).

    >>> Window(8192, size=1000).max_wait
    4000
    """

    capacity: int
    _: KW_ONLY
    size: int = 1000
    max_wait: int = None  # type: ignore[assignment]  # becomes a number below
    algorithm: str = "best_fit_decreasing"
    min_fill: float = 1.0
    overflow: Overflow = Overflow.ERROR

    def __post_init__(self) -> None:
        object.__setattr__(self, "overflow", Overflow.named(self.overflow))
        if self.max_wait is None:
            object.__setattr__(self, "max_wait", 4 * self.size)
        self.planner()  # refuses invalid settings

    def planner(self) -> Lookahead:
        """Return a planner with these settings. The composer cuts or refuses samples above the
        capacity first.
        """
        settings = {
            name: getattr(self, name)
            for name in ("capacity", "size", "max_wait", "algorithm", "min_fill")
        }
        return Lookahead(**settings, overflow=Overflow.ERROR)

    def as_dict(self) -> dict[str, Any]:
        """Return the settings for JSON, as they are stored and compared in saved states."""
        plain = {**asdict(self), "overflow": self.overflow.value, "min_fill": float(self.min_fill)}
        return {
            "kind": "window",
            **plain,
            **{key: int(plain[key]) for key in ("capacity", "size", "max_wait")},
        }


class WindowComposer(MicroBatchComposer):
    """Composer whose micro-batches are the packs of a ``Lookahead``. It sees only lengths.

    Segments are numbered as they arrive; the planner identifies them by number. They wait in the
    planner's window, then in packs that are ready::

        window of 4, capacity 10, lengths 7 6 4 2 5 3      in the window    ready          leaves
        0 1 2 3 came in                                    0 3              1 2            1 2
        4 5                                                4 3              0 5            0 5
        the end                                                             4 3            4 3
    """

    settings: Window  # type: ignore[assignment]  # another type than in the base class

    def __init__(self, settings: Window) -> None:
        super().__init__(SampleCount(1))
        self.settings = settings
        self._planner = settings.planner()
        self._numbered: dict[int, SampleSegment] = {}
        self._next_index = 0
        self._arrived: list[int] = []  # numbers that the planner has not seen yet
        self._num_in_window = 0  # segments of the planner
        self._packs: list[tuple[int, ...]] = []

    def __len__(self) -> int:
        return len(self._numbered)

    @property
    def waiting(self) -> Sequence[SampleSegment]:
        """Segments that are not in a micro-batch yet, in order of arrival."""
        return tuple(self._numbered.values())

    def _push(self, segment: SampleSegment) -> None:
        index = self._next_index
        self._next_index += 1
        self._numbered[index] = segment
        self._count_arrived(segment)
        self._arrived.append(index)
        if self._num_in_window + len(self._arrived) == self.settings.size:
            self._give_to_planner()

    def _give_to_planner(self) -> None:
        """Give the new segments to the planner; a full window is planned, and some of its packs
        become ready.
        """
        arrived, self._arrived = self._arrived, []
        lengths = [self._numbered[index].length for index in arrived]
        self._num_in_window += len(arrived)
        self._receive(
            self._planner.add(np.array(arrived, dtype=np.int64), np.array(lengths, dtype=np.int32))
        )

    def _receive(self, packs: StreamPacks) -> None:
        for indices, _, _ in packs:
            self._packs.append(tuple(indices.tolist()))
            self._num_in_window -= len(indices)

    def is_ready(self, step: int) -> bool:
        """Return true if a pack is ready."""
        return bool(self._packs)

    def take(self, step: int) -> list[SampleSegment]:
        """Remove the next pack and return its segments; at least one segment must wait, and no
        later one may arrive.
        """
        if not self._packs:
            self._give_to_planner()
            self._receive(self._planner.finish())
        batch = [self._numbered.pop(index) for index in self._packs.pop(0)]
        self._count_taken(batch)
        return batch

    def mark(self) -> ComposerMark:
        """Return a snapshot for ``go_to``."""
        # Segments that the planner has not seen do not fill its window, so nothing is planned here:
        # packs depend only on the order of the samples, not on how they are given to the planner.
        if self._arrived:
            self._give_to_planner()
        packs = [list(indices) for indices in self._packs]
        plan = {
            "numbers": list(self._numbered),
            "packs": packs,
            "planner": self._planner.state_dict(),
        }
        return ComposerMark(self.waiting, self.ledger, plan)

    def go_to(self, mark: ComposerMark) -> None:
        """Go back to a snapshot of this composer, or of another composer with the same settings."""
        plan = mark.plan
        self._planner = self.settings.planner()
        self._planner.load_state_dict(plan["planner"])
        self._numbered = dict(zip(plan["numbers"], mark.segments, strict=True))
        self._packs = [tuple(pack) for pack in plan["packs"]]
        self._next_index = max(plan["numbers"], default=-1) + 1
        self._num_in_window = len(plan["planner"]["sample_ids"])
        self._arrived = []
        self._count_waiting(mark)
