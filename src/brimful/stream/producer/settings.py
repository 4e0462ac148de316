"""Settings of a producer, with validation and help."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import MISSING, dataclass
from typing import Any

from brimful.base.arguments import option
from brimful.base.checks import choice_of, is_number, setting_number
from brimful.base.typing import AnyPath
from brimful.base.wording import setting
from brimful.errors import SettingsError
from brimful.measure.measure_settings import OnBadSample
from brimful.plan import NoTarget, Overflow
from brimful.sources.settings import RowSettings
from brimful.store.claim import SHARD_BYTES
from brimful.stream.lookahead import LOOKAHEAD_ALGORITHMS, Lookahead

MAX_AGE = 30.0
"""Seconds without a shard after which all samples leave, unless another age is given."""


@dataclass(frozen=True, kw_only=True)
class ProducerSettings(RowSettings):
    """Settings of a producer, with those of its rows.

    Attributes:
        capacity: maximum tokens of a pack.
        producer: name of this producer, unique in the stream.
        lookahead: samples that the planner sees at once.
        max_wait: packs that a sample may wait for, as in ``Lookahead``; four times the window if
            None.
        algorithm, min_fill, overflow: as in ``Lookahead``.
        no_target: action for samples without a target (``NoTarget``).
        on_bad_sample: ``error``, or ``skip``: malformed samples are counted and logged.
        packs_per_shard: packs of one shard; None for 64 MiB.
        max_age: seconds without a new shard after which all samples leave, even in packs that are
            not full, divided among the lanes; None for never.
        lanes: groups of shards that readers divide among them: the packs of a global batch. Set by
            the first producer.
        high_water: shards that may be ahead of training, which ``trainings`` names
            (``BackPressure``).
        trainings: names under which trainings acknowledge (``StreamLoader.ack``).
        min_free_bytes: bytes to keep free on the disk of the stream.
        format, fields, ignore, prompt, media_dir, media_outside, cache_dir: as for ``open_source``.
            Media are read if the encoder takes them, and their bytes go into the stream.

    Raises:
        SettingsError: values that contradict each other.

    >>> ProducerSettings(capacity=1 << 20).packs_per_shard
    16
    """

    capacity: int = option(
        MISSING,
        "Most tokens per pack.",
        "TOKENS",
        *("--max-length", "--capacity", "--packing-length", "--seq-length"),
    )
    overflow: Overflow | str = option(Overflow.ERROR, "What to do with samples longer than a pack.")
    no_target: NoTarget | str = option(
        NoTarget.ERROR,
        "What to do with samples without a target of the loss, before or after truncation.",
    )
    lookahead: int = option(1024, "Samples that are packed together.", "SAMPLES")
    max_wait: int | None = None
    algorithm: str = option(
        "best_fit_decreasing", f"How to pack them: {', '.join(LOOKAHEAD_ALGORITHMS)}.", "NAME"
    )
    min_fill: float = option(1.0, "Packs with less fill wait for samples that fit.", "SHARE")
    on_bad_sample: OnBadSample = option(
        "error", "A malformed row stops the job, or is counted and shown."
    )
    producer: str = option(
        "producer", "Name of this producer; each source of a stream has its own.", "NAME"
    )
    packs_per_shard: int | None = option(None, "Packs per shard (default: 64 MiB).", "N")
    max_age: float | None = option(
        MAX_AGE,
        "After this time without a shard, write all samples, at any fill (inf for never).",
        "SECONDS",
    )
    lanes: int = option(1, "Packs per global batch in training.", "N")
    high_water: int | None = option(
        None, "Shards that may be ahead of the slowest --training.", "SHARDS"
    )
    trainings: Sequence[str] = option(
        (), "Name of a training run that acknowledges.", "NAME", "--training"
    )
    min_free_bytes: int = option(0, "Bytes of the disk to keep free.", "BYTES")
    cache_dir: AnyPath | None = None

    def __post_init__(self) -> None:
        capacity = setting_number("capacity", self.capacity, minimum=1, maximum=2**31 - 1)
        if self.on_bad_sample not in ("error", "skip"):
            raise SettingsError(
                f"{setting('on_bad_sample')} {self.on_bad_sample!r} is unknown: use one of error, "
                "skip"
            )
        if self.max_age is not None and not (is_number(self.max_age) and self.max_age > 0):
            raise SettingsError(
                f"{setting('max_age')} must be a number of seconds above 0 and is {self.max_age!r}"
            )
        num_packs = (
            max(1, SHARD_BYTES // (4 * capacity))
            if self.packs_per_shard is None
            else self.packs_per_shard
        )
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
