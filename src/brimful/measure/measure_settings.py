"""Settings of jobs that measure, with their help."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, TypeAlias

from brimful.base.arguments import option
from brimful.base.execute import LOCAL, ExecutionLike, Resources, as_execution
from brimful.base.progress import Progress
from brimful.base.wording import setting
from brimful.encode.encoder import Encoder
from brimful.errors import SettingsError
from brimful.measure.filters import FILTERS, Filter
from brimful.sources.augmented import Transform

OnBadSample: TypeAlias = Literal["error", "skip"]
OnMismatch: TypeAlias = Literal["error", "rebuild"]

BUDGETS = ("tokens", "loss_tokens")
"""Budgets that can be measured for texts: all tokens, and the targets of the loss."""


@dataclass(frozen=True, kw_only=True)
class SampleSettings:
    """Settings of a job over all samples, of measuring and of packing."""

    on_bad_sample: OnBadSample = option(
        "error", "A malformed row stops the job, or is counted and written to a reject file."
    )
    filters: Sequence[Filter | str] | None = option(
        None,
        "Leave out samples of poor quality, counted and listed with the rejected rows: "
        f"{', '.join(each.form for each in FILTERS.values())}.",
        "NAME[=VALUE]",
        "--filter",
    )
    num_proc: int | None = option(
        None,
        "Processes (default: all cores, one for small data). Never changes the result.",
        minimum=1,
    )
    cache_dir: str | os.PathLike[str] | None = option(
        None,
        "Directory for indexes and measured lengths, but not for notes on tokenizers (default: $BRIMFUL_CACHE or "
        "~/.cache/brimful).",
    )
    execution: ExecutionLike = LOCAL
    progress: Progress | None = None

    def __post_init__(self) -> None:
        if self.on_bad_sample not in ("error", "skip"):
            raise SettingsError(f"{setting('on_bad_sample', self.on_bad_sample)} is unknown: use error or skip")

    @cached_property
    def resources(self) -> Resources:
        """Means of the job."""
        return Resources(self.num_proc, as_execution(self.execution), self.progress or Progress())


@dataclass(frozen=True, kw_only=True)
class MeasureSettings(SampleSettings):
    """Settings of ``measure_lengths``, which explains them."""

    budgets: Sequence[str] = ("tokens",)
    targets: bool = True
    path: str | os.PathLike[str] | None = None
    rejects_path: str | os.PathLike[str] | None = None
    augmentation: Mapping[str, Any] | None = None
    transforms: Sequence[Transform] = ()
    on_mismatch: OnMismatch = "error"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.on_mismatch not in ("error", "rebuild"):
            raise SettingsError(f"{setting('on_mismatch', self.on_mismatch)} is unknown: use error or rebuild")
        for name in self.budgets:
            if name not in BUDGETS:
                value = setting("budgets", name, python=f"budgets {name!r}")
                raise SettingsError(f"{value} cannot be measured here: use {', '.join(BUDGETS)}")

    def budgets_of(self, encoder: Encoder) -> tuple[str, ...]:
        """Return the budgets of a table: tokens first, then the requested ones, then the encoder's budgets of media."""
        return ("tokens", *(name for name in BUDGETS[1:] if name in self.budgets), *encoder.budgets)
