"""Packs of segments: what a plan says of the samples, as arrays and as questions about them.

Columns of the file, row ``i`` of pack ``i``:

==============  ==============================================  ================================================
``kind``        ``int8``                                        0: a pack; 1: the dropped samples (an optional
                                                                row after the packs); 2: the truncated samples
                                                                (an optional last row)
``sample_ids``  ``large_list<int32>`` or ``large_list<int64>``  sample of each segment
``lengths``     ``large_list<int32>``                           tokens of each segment; 0 for dropped samples;
                                                                for truncated ones, tokens of the whole sample
``starts``      ``large_list<int32>``                           first token of the sample in each segment; the
                                                                column is absent if all are 0
``parents``     ``large_list<int32>``                           only with ``--share prefixes``: the segment of
                                                                the same pack that each segment continues,
                                                                counted from the first; -1 for none
==============  ==============================================  ================================================

Keys of its description, JSON in the metadata of the schema:

===========================  ===================================================================================
``kind``, ``version``        ``"plan"``, and ``3`` with parents, ``2`` with a row of truncated samples,
                             otherwise ``1``
``num_packs``, ``capacity``  packs, and tokens
``ledger``                   where every sample and token went; names as in ``Ledger``
``settings``                 settings and their outcome: below
``bound``                    lower bound of the number of packs
``length_fingerprint``       of the lengths it was made from
``fingerprint``              of the packs
``truncated_fingerprint``    of the truncated samples and their lengths; only if samples were truncated
===========================  ===================================================================================

Keys of ``settings``; the first four are always present, the others only if they apply:

=====================================  =========================================================================
``algorithm``                          its full name, for every alias
``overflow``, ``seed``, ``capacity``   as given; ``seed`` may be ``null``
``budgets``                            limit of each budget except ``tokens``
``alignment``                          ``segment`` and ``total``, in tokens. ``lengths`` of the plan are real
                                       lengths: a reader rounds them up as the plan did
``min_fill``, ``epoch``, ``max_path``  as given
``share``                              ``prefixes``, if samples share the tokens that they begin with
``phases``                             the recipe of ``phased``, as text that ``--phases`` takes
``outcome``                            result of a search, in words
``phase_reports``                      one line for each phase
``dropped_by``                         samples that were dropped, by the budget that they exceed (the first
                                       one), and ``group_mate_rejected``. Written with several budgets or groups
``packs_below_min_fill``               two numbers: packs below ``min_fill`` before they were packed again, and
                                       after; the latter are the last packs
=====================================  =========================================================================
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, overload

import numpy as np

from brimful.base.checks import position
from brimful.base.ragged import sums_of
from brimful.base.sharing import SHARING, Sharing, wing_of
from brimful.base.tables import Ragged, open_table, write_table
from brimful.base.typing import (
    AnyIntArray,
    AnyPath,
    BoolArray,
    Float64Array,
    Int64Array,
    Lengths,
    Offsets,
)
from brimful.errors import CorruptFileError, LengthChangedError, PlanMismatchError, SettingsError
from brimful.lengths.table import LengthTable
from brimful.plan.ledger import Ledger
from brimful.plan.plan_settings import PlanSettings
from brimful.plan.policies.budgets import Alignment
from brimful.plan.policies.overflow import Truncated
from brimful.plan.schedule import CostModel, pack_component_costs, pack_costs
from brimful.plan.schedule.pack_costs import TOWER_SIZES


class Segment(NamedTuple):
    """A contiguous part of one sample in a pack: ``(sample_id, start, length)``. Other
    samples may share it: ``Plan.sharing`` says how.
    """

    sample_id: int
    """Index of the sample in its source."""
    start: int
    """First token of the sample that is in the pack."""
    length: int
    """Tokens."""


@dataclass(eq=False, repr=False, kw_only=True)
class PlannedPacks:
    """The packs of a ``Plan``, which explains the attributes."""

    capacity: int
    offsets: Offsets
    sample_ids: AnyIntArray
    starts: Lengths
    find_lengths: Callable[[], Lengths]
    dropped_ids: Int64Array
    truncated: Truncated
    ledger: Ledger
    settings: PlanSettings
    sharing: Sharing | None = None

    @cached_property
    def lengths(self) -> Lengths:
        """``int32[num_segments]``, tokens of each segment."""
        return self.find_lengths()

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
        return (
            self.ledger.tokens_packed / (self.num_packs * self.capacity) if self.num_packs else 1.0
        )

    @cached_property
    def ends_sample(self) -> BoolArray:
        """``bool[num_segments]``: true for the segments that end a sample, or a part of it that was
        split.
        """
        if self.sharing is None:
            return np.ones(self.num_segments, dtype=np.bool_)
        is_end: BoolArray = wing_of(self.sharing).ends_sample(self)
        return is_end

    @property
    def samples_of_packs(self) -> Int64Array:
        """``int64[num_packs]``: samples in each pack, where each part of a sample that was split
        counts.

        >>> from brimful import plan_packs
        >>> plan_packs([3, 3, 5, 6, 1, 1], capacity=7, seed=None).samples_of_packs.tolist()
        [2, 1, 3]
        """
        return sums_of(self.ends_sample, self.offsets)

    @cached_property
    def pack_tokens(self) -> Int64Array:
        """``int64[num_packs]``: tokens in each pack."""
        return sums_of(self.lengths, self.offsets)

    @cached_property
    def padding(self) -> tuple[int, int]:
        """Tokens that the alignment adds: after segments, and at the ends of rows without the
        tokens of ``pad_to``.

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

        A sample ends where its last segment ends; if ``truncate`` cut off its end, ``truncated``
        has its length.

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

    def check_sample_lengths(
        self, rows: slice, sample_lengths: AnyIntArray, where: Callable[[int], str]
    ) -> None:
        """Compare samples with the lengths that they were planned with: a sample that grew would be
        cut silently.

        Args:
            rows: range of segments.
            sample_lengths: ``int[num_rows]``, tokens that the complete sample of each segment has
                now.
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
                f"{where(sample_id)} (sample {sample_id}) encodes to {int(sample_lengths[row]):,} "
                f"tokens and was planned with {int(planned[row]):,}: the data or the tokenizer "
                "changed since. Measure and plan again"
            )

    def costs(self, model: CostModel, lengths: LengthTable | None = None) -> Float64Array:
        """Return the cost of each pack in the model's unit; for ``PackLoader(costs=…)``.

        Args:
            model: cost of tokens, and of patches and audio if the model has towers.
            lengths: the table that was planned, for the input of the towers; without it, only the
                language model counts its cost.

        Returns:
            ``float64[num_packs]`` without a table; ``float64[num_packs, num_parts]`` with one, a
            column for each of ``model.components``: schedules then balance the towers too.

        Raises:
            SettingsError: the model has a tower, and the table has media but not the column that
                its cost needs.
            PlanMismatchError: the table has a different number of samples.

        >>> from brimful import CostModel, LengthTable, plan_packs
        >>> table = LengthTable.from_lengths([5, 3], patches=[16, 0], patch_blocks=[1, 0])
        >>> model = CostModel(linear=1, quadratic=0, encoder_linear=2)
        >>> plan_packs(table, capacity=5, seed=None).costs(model, table).tolist()
        [[5.0, 32.0], [3.0, 0.0]]
        """
        depths = None if self.sharing is None else self.starts
        if lengths is None:
            return pack_costs(self.offsets, self.lengths, model, depths=depths)
        sizes = {
            name: size.factor * self.sums_by_pack(lengths, size.column)
            for name, size in TOWER_SIZES.items()
            if size.column in lengths.budgets
        }
        # Half of a tower's cost would make its media seem too cheap.
        measured_components = {TOWER_SIZES[name].component for name in sizes}
        for name, size in TOWER_SIZES.items():
            if (
                name not in sizes
                and getattr(model, size.term)
                and size.component in measured_components
            ):
                raise SettingsError(
                    f"the length table has no {size.column}, which the cost of the "
                    f"{size.component.value.replace('_', ' ')} needs: measure again, or leave lengths "
                    "out for costs of the language model alone"
                )
        return pack_component_costs(self.offsets, self.lengths, model, sizes, depths=depths)

    def sums_by_pack(self, lengths: LengthTable, budget: str) -> Int64Array:
        """Return how much of a measured budget the samples of each pack take, ``int64[num_packs]``.

        A sample in several parts counts in the pack of its first part: media are never cut. What
        samples share counts once, if the table says how much it is.

        Raises:
            PlanMismatchError: the table has a different number of samples.
        """
        if len(lengths) != self.ledger.samples_in:
            raise PlanMismatchError(
                f"the plan is of {self.ledger.samples_in:,} samples and the length table has "
                f"{len(lengths):,}"
            )
        if self.sharing is not None:
            return sums_of(wing_of(self.sharing).amounts(self, lengths, budget), self.offsets)
        amounts = lengths.budgets[budget][self.sample_ids].astype(np.int64)
        amounts[self.starts != 0] = 0
        return sums_of(amounts, self.offsets)

    def pack(self, index: int) -> list[Segment]:
        """Return the segments of one pack, in order."""
        index = position(index, self.num_packs, "pack")
        rows = range(int(self.offsets[index]), int(self.offsets[index + 1]))
        return [
            Segment(int(self.sample_ids[r]), int(self.starts[r]), int(self.lengths[r]))
            for r in rows
        ]

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
            return [self.pack(pack_index) for pack_index in range(*index.indices(self.num_packs))]
        return self.pack(index)

    def __iter__(self) -> Iterator[list[Segment]]:
        return (self.pack(index) for index in range(self.num_packs))

    @property
    def alignment(self) -> Alignment:
        """Multiples that segments and rows are padded up to: the collator must pad the same."""
        return self.settings.row_alignment

    @property
    def arrays(self) -> tuple[AnyIntArray, ...]:
        """The arrays that are the plan: of packs, of segments, of samples left out, and of what
        samples share.
        """
        flat = self.offsets, self.sample_ids, self.starts, self.lengths, self.dropped_ids
        return flat if self.sharing is None else (*flat, *self.sharing.columns.values())


_KIND = "plan"
_PLAIN, _WITH_TRUNCATED = 1, 2
"""Versions. The first has no row of truncated samples, and is written without one. A version of
``SHARING`` has what samples share, and that row if there are any.
"""
_PACK, _DROPPED, _TRUNCATED = 0, 1, 2


def save_plan(path: AnyPath, packs: PlannedPacks, description: Mapping[str, Any]) -> None:
    """Write packs and their description, atomically."""
    offsets, sample_ids, starts = packs.offsets, packs.sample_ids, packs.starts
    lengths, dropped_ids = packs.lengths, packs.dropped_ids
    truncated = packs.truncated
    row_types = np.full(packs.num_packs, _PACK, dtype=np.int8)
    further_rows = [(_DROPPED, dropped_ids, np.zeros(len(dropped_ids), dtype=np.int32))]
    version = _PLAIN
    if len(truncated):
        further_rows.append((_TRUNCATED, truncated.sample_ids, truncated.lengths))
        description = {**description, "truncated_fingerprint": truncated.fingerprint}
        version = _WITH_TRUNCATED
    further_columns: dict[str, Any] = {}
    if packs.sharing is not None:
        further_columns = packs.sharing.columns
        version = SHARING[packs.sharing.kind].plan_version
    for row_type, ids, ids_lengths in further_rows:
        if len(ids):
            row_types = np.append(row_types, np.int8(row_type))
            offsets = np.append(offsets, offsets[-1] + len(ids))
            sample_ids = np.concatenate([sample_ids, ids.astype(sample_ids.dtype)])
            starts = np.concatenate([starts, np.zeros(len(ids), dtype=np.int32)])
            lengths = np.concatenate([lengths, ids_lengths])
    columns: dict[str, Any] = {
        "kind": row_types,
        "sample_ids": Ragged(sample_ids, offsets),
        "lengths": Ragged(lengths, offsets),
    }
    if starts.any():
        columns["starts"] = Ragged(starts, offsets)
    for name, values in further_columns.items():
        # The rows after the packs share nothing.
        nothing = np.full(len(sample_ids) - len(values), -1, dtype=np.int32)
        columns[name] = Ragged(np.concatenate([values, nothing]), offsets)
    write_table(
        path,
        columns,
        {"kind": _KIND, "version": version, "num_packs": packs.num_packs, **description},
    )


def load_plan(path: AnyPath) -> tuple[dict[str, Any], Lengths, Truncated, dict[str, Any]]:
    """Return the arrays of a plan as views of its file, lengths, truncated samples and description.

    The arrays have their names in ``Plan`` as keys.
    """
    table = open_table(path)
    meta = table.description
    name = os.fspath(path)
    if meta.get("kind") != _KIND:
        raise CorruptFileError(f"{name} is a {meta.get('kind', 'file')} and not a plan")
    shares = {row_types.plan_version: share for share, row_types in SHARING.items()}
    if meta.get("version") not in (_PLAIN, _WITH_TRUNCATED, *shares):
        raise CorruptFileError(
            f"{name} has plan version {meta.get('version')}; this brimful reads {_PLAIN} to "
            f"{max(shares)}"
        )
    # Opens in milliseconds at any size: the arrays are compared with the fingerprint when they are
    # used.
    ids, lengths = table.ragged("sample_ids", checked=False), table.ragged("lengths", checked=False)
    offsets = ids.offsets[: meta["num_packs"] + 1]
    num_segments = int(offsets[-1])
    # With too large a number, arrays would be read until memory runs out, before their fingerprint
    # is checked.
    if len(offsets) != meta["num_packs"] + 1 or not 0 <= num_segments <= len(ids.values):
        raise CorruptFileError(
            f"{name}: the plan is damaged: its packs have {num_segments:,} segments and the file "
            f"{len(ids.values):,}"
        )
    starts = np.broadcast_to(np.zeros(1, dtype=np.int32), (num_segments,))
    if "starts" in table:
        starts = table.ragged("starts", checked=False).values[:num_segments]
    # After the packs come the row of dropped samples and the row of truncated samples, each only if
    # needed.
    row_types = table.flat("kind")
    last_row = len(row_types) - 1
    truncated = Truncated.none()
    if "truncated_fingerprint" in meta:
        if row_types[last_row] != _TRUNCATED:
            raise CorruptFileError(f"{name}: its last row does not name the truncated samples")
        truncated = Truncated(
            ids.row(last_row).astype(np.int64), lengths.row(last_row), meta["truncated_fingerprint"]
        )
        last_row -= 1
    dropped_ids = ids.row(last_row) if last_row >= meta["num_packs"] else ids.values[:0]
    arrays: dict[str, Any] = {
        "offsets": offsets,
        "sample_ids": ids.values[:num_segments],
        "starts": starts,
        "dropped_ids": dropped_ids.astype(np.int64),
    }
    if share := shares.get(meta["version"]):
        wing = wing_of(share)
        arrays["sharing"] = wing.PlanSharing(
            *(table.ragged(name, checked=False).values[:num_segments] for name in wing.PLAN_COLUMNS)
        )
    return arrays, lengths.values[:num_segments], truncated, meta
