"""Settings of a producer, with validation."""

from dataclasses import dataclass
from typing import Any

from brimful.checks import choice_of, is_number, setting_number
from brimful.errors import SettingsError
from brimful.materialize.write import SHARD_BYTES
from brimful.measure.job import OnBadSample
from brimful.messages import setting
from brimful.plan import NoTarget, Overflow
from brimful.plan.stream.lookahead import Lookahead

MAX_AGE = 30.0
"""Seconds without a shard after which all samples leave, unless another age is given."""


@dataclass(frozen=True)
class ProducerSettings:
    """Settings of a producer; attributes are arguments of ``PackingProducer``.

    Raises:
        SettingsError: values that contradict each other.

    >>> ProducerSettings(capacity=1 << 20).packs_per_shard
    16
    """

    capacity: int
    lookahead: int = 1024
    max_wait: int | None = None
    algorithm: str = "best_fit_decreasing"
    min_fill: float = 1.0
    overflow: Overflow | str = Overflow.ERROR
    no_target: NoTarget | str = NoTarget.ERROR
    on_bad_sample: OnBadSample = "error"
    packs_per_shard: int | None = None
    max_age: float | None = MAX_AGE
    lanes: int = 1

    def __post_init__(self) -> None:
        capacity = setting_number("capacity", self.capacity, minimum=1, maximum=2**31 - 1)
        if self.on_bad_sample not in ("error", "skip"):
            raise SettingsError(f"{setting('on_bad_sample')} {self.on_bad_sample!r} is unknown: use one of error, skip")
        if self.max_age is not None and not (is_number(self.max_age) and self.max_age > 0):
            raise SettingsError(f"{setting('max_age')} must be a number of seconds above 0 and is {self.max_age!r}")
        num_packs = max(1, SHARD_BYTES // (4 * capacity)) if self.packs_per_shard is None else self.packs_per_shard
        values: dict[str, Any] = {
            "capacity": capacity,
            "packs_per_shard": setting_number("packs_per_shard", num_packs, minimum=1),
            "lanes": setting_number("lanes", self.lanes, minimum=1),
            "lookahead": setting_number("lookahead", self.lookahead, minimum=1),
            "no_target": choice_of(NoTarget, self.no_target, argument="no_target"),
            "overflow": Overflow.named(self.overflow),
        }
        values["max_wait"] = 4 * values["lookahead"] if self.max_wait is None else self.max_wait
        vars(self).update(values)
        self.planner()  # rejects contradictory settings before anything is read

    @property
    def _window(self) -> dict[str, Any]:
        assert isinstance(self.overflow, Overflow)
        return {
            "capacity": self.capacity,
            "size": self.lookahead,
            "max_wait": self.max_wait,
            "algorithm": self.algorithm,
            "min_fill": self.min_fill,
            "overflow": self.overflow.value,
        }

    def planner(self) -> Lookahead:
        """Return a planner without samples."""
        return Lookahead(**self._window)

    @property
    def shard_packs(self) -> int:
        """Packs of one shard."""
        assert self.packs_per_shard is not None
        return self.packs_per_shard

    @property
    def registered(self) -> dict[str, Any]:
        """Settings that a producer must keep: others would make other shards."""
        assert isinstance(self.no_target, NoTarget)
        return {
            **self._window,
            "packs_per_shard": self.packs_per_shard,
            "no_target": self.no_target.value,
            "on_bad_sample": self.on_bad_sample,
        }
