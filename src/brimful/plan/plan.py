"""The plan: which samples share which pack. It does not hold the samples."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, overload

import numpy as np

from brimful.base.checks import path_of, position, positions
from brimful.base.fingerprint import fingerprint_array, fingerprint_of, short
from brimful.base.ragged import sums_of
from brimful.base.typing import AnyIntArray, Fingerprint, Float64Array, Int64Array, Lengths, Offsets
from brimful.errors import CorruptFileError, LengthChangedError, PlanMismatchError, SettingsError
from brimful.lengths.table import LengthTable
from brimful.plan.ledger import Ledger
from brimful.plan.packing import PlanOutcome
from brimful.plan.policies.alignment import Alignment
from brimful.plan.policies.overflow import Truncated
from brimful.plan.saved.plan_file import load_plan, save_plan
from brimful.plan.saved.validate import validate_plan
from brimful.plan.schedule import CostModel, pack_costs, pack_part_costs
from brimful.plan.schedule.pack_costs import TOWER_SIZES
from brimful.plan.settings import PlanSettings


class Segment(NamedTuple):
    """A contiguous part of one sample in a pack: ``(sample_id, start, length)``."""

    sample_id: int
    """Index of the sample in its source."""
    start: int
    """First token of the sample that is in the pack."""
    length: int
    """Tokens."""


@dataclass(eq=False, repr=False, kw_only=True)
class Plan:
    """All packs of a data set; immutable, and memory-mapped when opened from its file.

    Attributes:
        capacity: maximum tokens of a pack.
        offsets: ``int64[num_packs + 1]``; pack ``i`` is segments ``offsets[i] … offsets[i + 1] - 1``.
        sample_ids: ``int[num_segments]``, in the narrowest of int32 and int64 that holds them.
        starts: ``int32[num_segments]``, first token of the sample in the segment; 0 unless cut.
        find_lengths, find_length_fingerprint: compute ``lengths`` and their fingerprint on first access.
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

    capacity: int
    offsets: Offsets
    sample_ids: AnyIntArray
    starts: Lengths
    find_lengths: Callable[[], Lengths]
    dropped_ids: Int64Array
    truncated: Truncated
    ledger: Ledger
    settings: PlanSettings
    outcome: PlanOutcome
    bound: int
    find_length_fingerprint: Callable[[], Fingerprint]
    saved_as: Fingerprint | None = None
    path: str | None = None

    @cached_property
    def lengths(self) -> Lengths:
        """``int32[num_segments]``, tokens of each segment."""
        return self.find_lengths()

    @cached_property
    def length_fingerprint(self) -> Fingerprint:
        """Fingerprint of the lengths that were planned."""
        return self.find_length_fingerprint()

    @property
    def num_packs(self) -> int:
        """Packs in the plan."""
        return len(self.offsets) - 1

    def __len__(self) -> int:
        return self.num_packs

    @property
    def num_segments(self) -> int:
        """Segments in all packs."""
        return len(self.sample_ids)

    @property
    def fill_ratio(self) -> float:
        """Real tokens ÷ (packs × capacity); 1.0 for a plan without packs."""
        return self.ledger.tokens_packed / (self.num_packs * self.capacity) if self.num_packs else 1.0

    @cached_property
    def pack_tokens(self) -> Int64Array:
        """``int64[num_packs]``: tokens in each pack."""
        return sums_of(self.lengths, self.offsets)

    @cached_property
    def padding(self) -> tuple[int, int]:
        """Tokens that the alignment adds: after segments, and at the ends of rows without the tokens of ``pad_to``.

        >>> from brimful.plan import Alignment, plan_packs
        >>> plan_packs([5, 9, 3, 13], capacity=48, alignment=Alignment(segment=4, total=16)).padding
        (10, 8)
        """
        if self.alignment.is_none:
            return 0, 0
        row_tokens = sums_of(self.alignment.rounded(self.lengths), self.offsets)
        aligned_tokens = int(row_tokens.sum())
        total = self.alignment.total
        padded_tokens = int((-(-row_tokens // total) * total).sum())
        return aligned_tokens - self.ledger.tokens_packed, padded_tokens - aligned_tokens

    @cached_property
    def sample_lengths(self) -> Lengths:
        """``int32[num_segments]``: tokens of the complete sample of each segment, as planned.

        A sample ends where its last segment ends; if ``truncate`` cut off its end, ``truncated`` has its length.

        >>> from brimful.plan import plan_packs
        >>> plan_packs([5, 9], capacity=4, overflow="split", seed=None).sample_lengths.tolist()
        [5, 9, 9, 5, 9]
        """
        lengths = self.lengths
        if self.starts.any():
            sample_ends = np.zeros(self.ledger.samples_in, dtype=np.int32)
            np.maximum.at(sample_ends, self.sample_ids, self.starts + lengths)
            lengths = sample_ends[self.sample_ids]
        return self.truncated.lengths_of(self.sample_ids, otherwise=lengths)

    def check_sample_lengths(self, rows: slice, sample_lengths: AnyIntArray, where: Callable[[int], str]) -> None:
        """Compare samples with the lengths that they were planned with: a sample that grew would be cut silently.

        Args:
            rows: range of segments.
            sample_lengths: ``int[num_rows]``, tokens that the complete sample of each segment has now.
            where: file and line of a sample, for the message.

        Raises:
            LengthChangedError: names the first sample that differs, and both numbers.
        """
        planned = self.sample_lengths[rows]
        differs = sample_lengths != planned
        if differs.any():
            row = int(np.argmax(differs))
            sample_id = int(self.sample_ids[rows][row])
            raise LengthChangedError(
                f"{where(sample_id)} (sample {sample_id}) encodes to {int(sample_lengths[row]):,} tokens and was planned "
                f"with {int(planned[row]):,}: the data or the tokenizer changed since. Measure and plan again"
            )

    def costs(self, model: CostModel, lengths: LengthTable | None = None) -> Float64Array:
        """Return the cost of each pack in the model's unit; for ``PackLoader(costs=…)``.

        Args:
            model: cost of tokens, and of patches and audio if the model has towers.
            lengths: the table that was planned, for the input of the towers; without it, only the language model counts
                its cost.

        Returns:
            ``float64[num_packs]`` without a table; ``float64[num_packs, num_parts]`` with one, a column for each of
            ``model.parts``: schedules then balance the towers too.

        Raises:
            SettingsError: the model has a tower, and the table has media but not the column that its cost needs.
            PlanMismatchError: the table has a different number of samples.

        >>> from brimful import CostModel, LengthTable, plan_packs
        >>> table = LengthTable.from_lengths([5, 3], patches=[16, 0], patch_blocks=[1, 0])
        >>> model = CostModel(linear=1, quadratic=0, encoder_linear=2)
        >>> plan_packs(table, capacity=5, seed=None).costs(model, table).tolist()
        [[5.0, 32.0], [3.0, 0.0]]
        """
        if lengths is None:
            return pack_costs(self.offsets, self.lengths, model)
        sizes = {
            name: size.factor * self.sums_by_pack(lengths, size.column)
            for name, size in TOWER_SIZES.items()
            if size.column in lengths.budgets
        }
        # Half of a tower's cost would make its media seem too cheap.
        measured_parts = {TOWER_SIZES[name].part for name in sizes}
        for name, size in TOWER_SIZES.items():
            if name not in sizes and getattr(model, size.term) and size.part in measured_parts:
                raise SettingsError(
                    f"the length table has no {size.column}, which the cost of the {size.part.value.replace('_', ' ')} "
                    f"needs: measure again, or leave lengths out for costs of the language model alone"
                )
        return pack_part_costs(self.offsets, self.lengths, model, sizes)

    def sums_by_pack(self, lengths: LengthTable, budget: str) -> Int64Array:
        """Return how much of a measured budget the samples of each pack take, ``int64[num_packs]``.

        A sample in several parts counts in the pack of its first part: media are never cut.

        Raises:
            PlanMismatchError: the table has a different number of samples.
        """
        if len(lengths) != self.ledger.samples_in:
            raise PlanMismatchError(
                f"the plan is of {self.ledger.samples_in:,} samples and the length table has {len(lengths):,}"
            )
        amounts = lengths.budgets[budget][self.sample_ids].astype(np.int64)
        amounts[self.starts != 0] = 0
        return sums_of(amounts, self.offsets)

    def pack(self, index: int) -> list[Segment]:
        """Return the segments of one pack, in order."""
        index = position(index, self.num_packs, "pack")
        rows = range(int(self.offsets[index]), int(self.offsets[index + 1]))
        return [Segment(int(self.sample_ids[r]), int(self.starts[r]), int(self.lengths[r])) for r in rows]

    @overload
    def __getitem__(self, index: int) -> list[Segment]: ...

    @overload
    def __getitem__(self, index: slice) -> list[list[Segment]]: ...

    def __getitem__(self, index: int | slice) -> list[Segment] | list[list[Segment]]:
        """Return one pack as its segments, or the packs of a slice, like a list.

        >>> from brimful import plan_packs
        >>> plan_packs([3, 3, 5, 6, 1, 1], capacity=7, seed=None)[-1]
        [Segment(sample_id=0, start=0, length=3), Segment(sample_id=1, start=0, length=3), Segment(sample_id=5, start=0, length=1)]
        """
        if isinstance(index, slice):
            return [self.pack(number) for number in positions(index, self.num_packs)]
        return self.pack(index)

    def __iter__(self) -> Iterator[list[Segment]]:
        return (self.pack(index) for index in range(self.num_packs))

    @property
    def alignment(self) -> Alignment:
        """Multiples that segments and rows are padded up to: the collator must pad the same."""
        return self.settings.row_alignment

    @property
    def record(self) -> dict[str, Any]:
        """Settings and outcome as in the plan's file and reports: only values that differ from the defaults."""
        return {**self.settings.as_dict(), **self.outcome.as_dict()}

    @cached_property
    def fingerprint(self) -> Fingerprint:
        """Fingerprint of the packs: the same for the same arguments on any machine."""
        return self.saved_as or self._array_fingerprint()

    def _array_fingerprint(self) -> Fingerprint:
        return fingerprint_of([self.capacity, [fingerprint_array(array) for array in self._arrays]])

    @property
    def _arrays(self) -> tuple[Offsets, AnyIntArray, Lengths, Lengths, Int64Array]:
        return self.offsets, self.sample_ids, self.starts, self.lengths, self.dropped_ids

    def validate(self, lengths: LengthTable | AnyIntArray, *, groups: AnyIntArray | None = None) -> None:
        """Prove the plan against the lengths: every token packed once or accounted for, nothing over capacity.

        Args:
            lengths: the lengths that were planned; a table, to check budgets of its columns too.
            groups: ``int[num_samples]``, if any were given: each group is contiguous in one pack, or in no pack.

        Raises:
            PlanMismatchError: names the first wrong pack or sample.
        """
        validate_plan(self, lengths, groups=groups)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the plan to one file, atomically."""
        description = {
            "capacity": self.capacity,
            "ledger": self.ledger.as_dict(),
            "settings": self.record,
            "bound": self.bound,
            "length_fingerprint": self.length_fingerprint,
            "fingerprint": self.fingerprint,
        }
        save_plan(path, *self._arrays, self.truncated, description)
        self.path = os.fspath(path)

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Plan:
        """Map a plan into memory; takes milliseconds at any size.

        Raises:
            SourceNotFoundError: no such file.
            CorruptFileError: the file is cut short or not a plan.
        """
        name = path_of("path", path, "the path of a plan")
        try:
            arrays, lengths, truncated, meta = load_plan(name)
            ledger, record, fingerprint = Ledger(**meta["ledger"]), meta["settings"], meta["length_fingerprint"]
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
            raise CorruptFileError(f"{self.path}: the plan is damaged: its arrays differ from the saved ones")

    def __getstate__(self) -> dict[str, Any]:
        # The functions are closures, which cannot be pickled: their results are pickled instead.
        found = {"lengths": self.lengths, "length_fingerprint": self.length_fingerprint}
        return {**self.__dict__, **found, "find_lengths": None, "find_length_fingerprint": None}

    def __repr__(self) -> str:
        return (
            f"Plan({self.num_packs:,} packs of {self.capacity:,}, {self.ledger.samples_packed:,} samples, "
            f"fill {100 * self.fill_ratio:.2f} %, {self.settings.algorithm}, {short(self.fingerprint)})"
        )
