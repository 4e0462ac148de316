"""Settings of a stream reader, in one frozen object that validates itself."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from brimful.base.checks import check_rank, choice_of, setting_number, whole_number
from brimful.base.wording import setting
from brimful.errors import SettingsError
from brimful.plan.schedule import Tail
from brimful.stream.acks import check_group
from brimful.stream.follow import check_timeout
from brimful.stream.order import Assignment

OnCorrupt: TypeAlias = Literal["error", "skip"]


@dataclass(frozen=True, kw_only=True)
class StreamSettings:
    """Validated and normalized options of ``StreamLoader``, which documents them.

    ``lanes``, ``assign`` and ``packs_per_micro_batch`` may be None until ``of_stream`` gets the lanes from the header.

    Raises:
        SettingsError: an impossible value, or two that contradict each other.

    >>> StreamSettings(dp_rank=1, dp_world_size=2, tail="drop").of_stream(8).packs_per_micro_batch
    4
    """

    dp_rank: int = 0
    dp_world_size: int = 1
    lanes: int | None = None
    assign: Assignment | str | None = None
    packs_per_micro_batch: int | None = None
    tail: Tail | str = Tail.PAD
    timeout: float | None = None
    on_corrupt: OnCorrupt = "error"
    repeat: bool = False
    group: str | None = None
    cache_dir: str | os.PathLike[str] | None = None
    cache_bytes: int | None = None

    def __post_init__(self) -> None:
        rank, world_size = check_rank(self.dp_rank, self.dp_world_size)
        tail = Tail.named(self.tail)
        if tail is Tail.REPEAT:
            raise SettingsError(f"{setting('tail', 'repeat')} needs a finished store and PackLoader: use pad or drop")
        if self.on_corrupt not in ("error", "skip"):
            raise SettingsError(f"{setting('on_corrupt')} {self.on_corrupt!r} is unknown: use one of error, skip")
        check_timeout(self.timeout)
        if self.group is not None:
            check_group(self.group)
        values: dict[str, Any] = {"dp_rank": rank, "dp_world_size": world_size, "tail": tail}
        if self.assign is not None:
            values["assign"] = choice_of(Assignment, self.assign, argument="assign")
        if self.packs_per_micro_batch is not None:
            values["packs_per_micro_batch"] = whole_number(
                "packs_per_micro_batch", self.packs_per_micro_batch, minimum=1
            )
        if self.lanes is not None:
            values["lanes"] = setting_number("lanes", self.lanes, minimum=1)
        # The object is frozen for users; here each value is replaced by its normalized form.
        self.__dict__.update(values, repeat=bool(self.repeat))

    def of_stream(self, stream_lanes: int) -> StreamSettings:
        """Return the settings with the values that follow from the lanes in the header of a stream.

        Raises:
            SettingsError: the number of ranks does not divide the lanes, or ``packs_per_micro_batch`` does not divide
                the packs of a rank.
        """
        lanes = stream_lanes if self.lanes is None else self.lanes
        if lanes % self.dp_world_size:
            raise SettingsError(
                f"{setting('lanes', lanes)} is not a multiple of dp_world_size {self.dp_world_size}: give "
                f"{setting('lanes')} as the packs of one global batch"
            )
        per_rank = lanes // self.dp_world_size
        per_micro_batch = per_rank if self.packs_per_micro_batch is None else self.packs_per_micro_batch
        if per_rank % per_micro_batch:
            raise SettingsError(
                f"packs_per_micro_batch {per_micro_batch} does not divide the {per_rank} packs that a rank has in a step"
            )
        assign = self.assign or (Assignment.LANE if stream_lanes > 1 else Assignment.PACK)
        return replace(self, lanes=lanes, packs_per_micro_batch=per_micro_batch, assign=assign)
