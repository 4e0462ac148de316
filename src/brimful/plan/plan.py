"""The plan: which samples share which pack. It does not hold the samples."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from brimful.base.checks import path_of
from brimful.base.fingerprint import fingerprint_array, fingerprint_of, short
from brimful.base.typing import AnyIntArray, AnyPath, Fingerprint
from brimful.errors import CorruptFileError, SettingsError
from brimful.plan.ledger import Ledger
from brimful.plan.packing import LengthsLike, PlanOutcome
from brimful.plan.plan_settings import PlanSettings
from brimful.plan.saved.planned_packs import PlannedPacks, load_plan, save_plan
from brimful.plan.saved.validation import validate_plan


@dataclass(eq=False, repr=False, kw_only=True)
class Plan(PlannedPacks):
    """All packs of a data set; immutable, and memory-mapped when opened from its file.

    Attributes:
        capacity: maximum tokens of a pack.
        offsets: ``int64[num_packs + 1]``; pack ``i`` is segments
            ``offsets[i] … offsets[i + 1] - 1``.
        sample_ids: ``int[num_segments]``, in the narrowest of int32 and int64 that holds them.
        starts: ``int32[num_segments]``, first token of the sample in the segment; 0 unless cut.
        sharing: how segments make samples that share tokens; None if a segment is a sample or a
            part of one.
        find_lengths, find_length_fingerprint: compute ``lengths`` and their fingerprint on first
            access.
        dropped_ids: ``int64``, samples that the overflow policy left out.
        truncated: samples that ``truncate`` cut, with their full lengths (``Truncated``).
        ledger: account of every sample and token.
        settings: the options that the plan was made with.
        outcome: results in addition to packs and ledger.
        bound: no plan of these lengths has fewer packs.
        saved_as: fingerprint in the plan's file, if it was opened from one.
        path: the file that the plan was saved to, or opened from.

    >>> from brimful import plan_packs
    >>> plan = plan_packs([3, 3, 5, 6, 1, 1], capacity=7, seed=None)
    >>> plan
    Plan(3 packs of 7, 6 samples, fill 90.48 %, auto, 686bbe4)
    >>> [segment.sample_id for segment in plan.pack(2)]
    [0, 1, 5]
    """

    outcome: PlanOutcome
    bound: int
    find_length_fingerprint: Callable[[], Fingerprint]
    saved_as: Fingerprint | None = None
    path: str | None = None

    @cached_property
    def length_fingerprint(self) -> Fingerprint:
        """Fingerprint of the lengths that were planned."""
        return self.find_length_fingerprint()

    @property
    def record(self) -> dict[str, Any]:
        """Settings and outcome as in the plan's file and reports: only values that differ from the
        defaults.
        """
        return {**self.settings.as_dict(), **self.outcome.as_dict()}

    @cached_property
    def fingerprint(self) -> Fingerprint:
        """Fingerprint of the packs: the same for the same arguments on any machine."""
        return self.saved_as or self._array_fingerprint()

    def _array_fingerprint(self) -> Fingerprint:
        return fingerprint_of([self.capacity, [fingerprint_array(array) for array in self.arrays]])

    def validate(self, lengths: LengthsLike, *, groups: AnyIntArray | None = None) -> None:
        """Prove the plan against the lengths: every token packed once or accounted for, nothing
        over capacity.

        Args:
            lengths: the lengths that were planned; a table, to check budgets of its columns too.
            groups: ``int[num_samples]``, if any were given: each group is contiguous in one pack,
                or in no pack.

        Raises:
            PlanMismatchError: names the first wrong pack or sample.
        """
        validate_plan(self, lengths, groups=groups)

    def save(self, path: AnyPath) -> None:
        """Write the plan to one file, atomically."""
        description = {
            "capacity": self.capacity,
            "ledger": self.ledger.as_dict(),
            "settings": self.record,
            "bound": self.bound,
            "length_fingerprint": self.length_fingerprint,
            "fingerprint": self.fingerprint,
        }
        save_plan(path, self, description)
        self.path = os.fspath(path)

    @classmethod
    def open(cls, path: AnyPath) -> Plan:
        """Map a plan into memory; takes milliseconds at any size.

        Raises:
            SourceNotFoundError: no such file.
            CorruptFileError: the file is cut short or not a plan.
        """
        name = path_of("path", path, "the path of a plan")
        try:
            arrays, lengths, truncated, meta = load_plan(name)
            ledger, record, fingerprint = (
                Ledger(**meta["ledger"]),
                meta["settings"],
                meta["length_fingerprint"],
            )
            settings = PlanSettings.of_record({"capacity": meta["capacity"], **record})
            return cls(
                capacity=meta["capacity"],
                **arrays,
                find_lengths=lambda: lengths,
                truncated=truncated,
                ledger=ledger,
                settings=settings,
                outcome=PlanOutcome.of_record(record),
                bound=meta["bound"],
                find_length_fingerprint=lambda: fingerprint,
                saved_as=meta["fingerprint"],
                path=name,
            )
        except (KeyError, TypeError, IndexError, AssertionError, SettingsError) as error:
            raise CorruptFileError(f"{name}: its description is damaged ({error!r})") from error

    def check_fingerprint(self) -> None:
        """Compare the arrays of an opened plan with the fingerprint that was saved with them.

        Raises:
            CorruptFileError: they differ from what was planned.
        """
        if self.saved_as not in (None, self._array_fingerprint()) or not self.truncated.is_intact:
            raise CorruptFileError(
                f"{self.path}: the plan is damaged: its arrays differ from the saved ones"
            )

    def __getstate__(self) -> dict[str, Any]:
        # The functions are closures, which cannot be pickled: their results are pickled instead.
        found = {"lengths": self.lengths, "length_fingerprint": self.length_fingerprint}
        return {**self.__dict__, **found, "find_lengths": None, "find_length_fingerprint": None}

    def __repr__(self) -> str:
        return (
            f"Plan({self.num_packs:,} packs of {self.capacity:,}, {self.ledger.samples_packed:,} "
            f"samples, fill {100 * self.fill_ratio:.2f} %, {self.settings.algorithm}, "
            f"{short(self.fingerprint)})"
        )
