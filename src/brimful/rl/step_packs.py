"""Packs of the samples of one step, and the inverse: values of their tokens in order of arrival."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from brimful.base.checks import choice_of, position
from brimful.base.ragged import offsets_of, ranges
from brimful.base.tables import Ragged
from brimful.base.typing import (
    AnyArray,
    BoolArray,
    Float64Array,
    Int64Array,
    LossMask,
    Offsets,
    TokenIds,
)
from brimful.collate.batch import PackedBatch
from brimful.collate.columns import Column, ColumnPlace, check_column_name, check_fill
from brimful.collate.extras import PackExtras
from brimful.errors import CollateError
from brimful.rl.step_plan import StepPlan, StepTrees
from brimful.store.shards import Pack, assemble_pack
from brimful.trees.collate.visibility import terms_of_samples
from brimful.trees.pack_tree import ends_of, tree_of
from brimful.trees.packs import assemble_tree


@dataclass(frozen=True, slots=True, eq=False)
class SampleColumn:
    """Column of all samples of a step, in order of arrival.

    Attributes:
        name: key in the batch.
        values: ``[length, …]`` for each sample; or one array ``[num_samples]`` with one number for
            all tokens of a sample, such as the advantages of GRPO.
        fill: value at padding, and at tokens without a prediction.
        place: whether values belong to the token that is read (``token``), or to the token that is
            predicted (``target``).
    """

    name: str
    values: Sequence[npt.ArrayLike] | AnyArray
    fill: float = 0
    place: ColumnPlace | str = ColumnPlace.TARGET

    def __post_init__(self) -> None:
        check_column_name(self.name)
        object.__setattr__(self, "place", choice_of(ColumnPlace, self.place, argument="place"))

    def __repr__(self) -> str:
        return (
            f"SampleColumn({self.name!r}, {len(self.values):,} samples, of the "
            f"{ColumnPlace(self.place).value})"
        )

    def of(self, samples: Sequence[int], lengths: Sequence[int]) -> Column:
        """Return the column for a pack of these samples.

        Raises:
            CollateError: values for another number of tokens; names the sample.
        """
        if (
            isinstance(self.values, np.ndarray)
            and self.values.dtype != object
            and self.values.ndim == 1
        ):
            values = np.repeat(self.values[list(samples)], lengths)
        else:
            arrays = [np.asarray(self.values[sample]) for sample in samples]
            for sample, length, array in zip(samples, lengths, arrays, strict=True):
                if array.ndim == 0 or len(array) != length:
                    raise CollateError(
                        f"sample {sample}: column {self.name!r} has the shape {array.shape} and "
                        f"the sample {length:,} tokens: give one value for each token, answers "
                        f"with {self.fill:g} before them for the prompt"
                    )
            values = np.concatenate(arrays)
        if values.dtype == np.float64:
            values = values.astype(
                np.float32
            )  # Python numbers; no trainer computes these in double precision
        check_fill(self.name, self.fill, values.dtype)
        return Column(self.name, values, self.fill, ColumnPlace(self.place))


def pack_step(
    step: StepPlan,
    input_ids: Sequence[npt.ArrayLike],
    *,
    dp_rank: int,
    loss_masks: Sequence[npt.ArrayLike] | None = None,
    columns: Sequence[SampleColumn] = (),
    weights: npt.NDArray[np.floating[Any]] | None = None,
) -> list[tuple[Pack, PackExtras]]:
    """Make one pack for each micro-batch of a rank; its samples are numbered by their index in the
    step.

    ``PackCollator`` accepts each: ``collate([pack])``. The same packs serve the log-probability
    pass and the training pass, and ``restore_tokens`` puts model outputs back into the order of
    arrival.

    Args:
        step: plan from ``plan_step``, with the lengths of these samples.
        input_ids: tokens of each sample of the step, prompt and answer.
        dp_rank: rank whose packs are made.
        loss_masks: ``bool[length]`` of each sample, true at targets; all tokens except the first if
            None.
        columns: additional values of each token.
        weights: ``float[num_samples]``, weight of each target of a sample: ``step.weights(…)``. 1
            if None.

    Raises:
        CollateError: samples that differ from the planned samples, or values for another number of
            tokens; names the sample.
        SettingsError: no such rank.

    >>> from brimful.rl import plan_step
    >>> step = plan_step([2, 3], capacity=5, dp_world_size=1)
    >>> old = SampleColumn("old_log_probs", [[0, -0.5], [0, -0.25, -0.75]])
    >>> ((pack, extras),) = pack_step(step, [[5, 6], [7, 8, 9]], dp_rank=0, columns=[old])
    >>> pack.sample_ids.tolist(), extras.columns[0].values.tolist()
    ([0, 1], [0.0, -0.5, 0.0, -0.25, -0.75])
    """
    arguments = [("input_ids", input_ids), ("loss_masks", loss_masks), ("weights", weights)]
    for name, values in [
        *arguments,
        *((f"column {column.name!r}", column.values) for column in columns),
    ]:
        if values is not None and len(values) != len(step):
            raise CollateError(
                f"{name} must have one entry for each of the {len(step):,} samples of the step and "
                f"has {len(values):,}"
            )
    packs = []
    for index, rows in enumerate(step.micro_batches(dp_rank)):
        samples: list[int] = rows.tolist()
        ids: list[TokenIds] = [np.asarray(input_ids[sample], dtype=np.int32) for sample in samples]
        lengths = [len(row) for row in ids]
        if step.trees is None and sum(lengths) > step.capacity:
            raise CollateError(
                f"micro-batch {index} of rank {dp_rank} has {sum(lengths):,} tokens and the "
                f"capacity is {step.capacity:,}: these are not the samples that were planned, or "
                "their lengths differ"
            )
        if 0 in lengths:
            raise CollateError(f"sample {samples[lengths.index(0)]} of the step has no tokens")
        masks = [
            _mask(loss_masks, sample, length)
            for sample, length in zip(samples, lengths, strict=True)
        ]
        of_samples = tuple(column.of(samples, lengths) for column in columns)
        if step.trees is None:
            pack = assemble_pack(ids, masks, samples)
            target_weights = None if weights is None else np.repeat(weights[rows], lengths)
        else:
            trees = step.trees.micro_batch(dp_rank * step.num_micro_batches + index)
            pack, positions = _tree_of(
                trees, dict(zip(samples, zip(ids, masks, strict=True), strict=True))
            )
            of_samples = tuple(_once(column, pack, positions) for column in of_samples)
            target_weights = None if weights is None else _mean_weights(weights[rows], pack)
        extras = PackExtras(
            loss_weights=None if target_weights is None else target_weights.astype(np.float32),
            columns=of_samples,
        )
        packs.append((pack, extras))
    return packs


def _tree_of(
    trees: StepTrees, samples: Mapping[int, tuple[TokenIds, LossMask]]
) -> tuple[Pack, Ragged]:
    """Assemble the trees of a micro-batch from the tokens and targets of its samples, and return the
    places of each sample too.

    Raises:
        CollateError: samples that differ from the planned ones, in length or in what they share.
    """
    sample_ids, parents = trees.sample_ids, trees.parents
    for segment in ends_of(parents, sample_ids, trees.lengths).tolist():
        sample = int(sample_ids[segment])
        planned_length = int(trees.starts[segment] + trees.lengths[segment])
        num_tokens = len(samples[sample][0])
        if num_tokens != planned_length:
            raise CollateError(
                f"sample {sample} has {num_tokens:,} tokens and was planned with "
                f"{planned_length:,}: give pack_step the samples of the plan"
            )
    ids, masks = zip(*(samples[sample] for sample in sample_ids.tolist()), strict=True)
    pack = assemble_tree(ids, masks, sample_ids, trees.lengths, parents)
    positions = tree_of(pack).positions(pack.cu_seqlens)
    tokens = np.concatenate([ids[segment] for segment in tree_of(pack).ends.tolist()])
    if (wrong := np.flatnonzero(pack.input_ids[positions.values] != tokens)).size:
        row = int(np.searchsorted(positions.offsets, wrong[0], side="right")) - 1
        token = int(wrong[0] - positions.offsets[row])
        raise CollateError(
            f"sample {int(sample_ids[tree_of(pack).ends[row]])} has another token {token} than the "
            "samples that share it in the plan: find prefixes in the samples that are packed"
        )
    return pack, positions


def _once(column: Column, pack: Pack, positions: Ragged) -> Column:
    """Return a column of a tree with one value for each token of its row, from a column of all
    tokens of its samples.

    Raises:
        CollateError: samples that share a token have different values there, each of which counts.
    """
    tree = tree_of(pack)
    values = np.full((len(pack), *column.values.shape[1:]), column.fill, column.values.dtype)
    values[positions.values] = column.values
    indices = np.arange(len(positions.values))
    if column.place is ColumnPlace.TARGET:
        # The value of a target is of a sample that trains it.
        indices = tree.target_positions(Ragged(indices, positions.offsets)).values
        values[positions.values[indices]] = column.values[indices]
    row_values, sample_values = values[positions.values[indices]], column.values[indices]
    # NaN counts as equal to NaN.
    differs = (row_values != sample_values) & ~(np.isnan(row_values) & np.isnan(sample_values))
    rows = np.flatnonzero(differs.reshape(len(indices), -1).any(axis=1))
    if len(rows):
        token = indices[rows[0]]
        row = int(np.searchsorted(positions.offsets, token, side="right")) - 1
        raise CollateError(
            f"column {column.name!r}: sample {int(pack.sample_ids[tree.ends[row]])} and another "
            f"one share token {int(token - positions.offsets[row])} and have different values there: "
            "leave the column out, and take values of samples by restore_index"
        )
    return replace(column, values=values)


def _mean_weights(weights: npt.NDArray[np.floating[Any]], pack: Pack) -> Float64Array:
    """Return the mean weight of the samples that train each token, which counts once for each of
    them: ``float64[num_tokens]``.
    """
    ranges_of_row = tree_of(pack).target_ranges(pack.cu_seqlens)
    counts = ranges_of_row.sums(np.ones(len(weights)), len(pack))
    return ranges_of_row.sums(weights, len(pack)) / np.maximum(counts, 1)


def _mask(loss_masks: Sequence[npt.ArrayLike] | None, sample: int, length: int) -> LossMask:
    if loss_masks is None:
        return np.ones(length, dtype=np.bool_)
    mask: BoolArray = np.asarray(loss_masks[sample], dtype=np.bool_)
    if mask.shape != (length,):
        raise CollateError(
            f"sample {sample}: its loss mask has the shape {mask.shape} and the sample {length:,} "
            "tokens"
        )
    return mask


@dataclass(frozen=True, slots=True, eq=False)
class RestoredTokens:
    """Values of the tokens of samples, sample by sample in order of arrival.

    Attributes:
        sample_ids: ``int64[num_samples]``, ascending: indices in the step.
        offsets: ``int64[num_samples + 1]``: the values of sample ``i`` are
            ``values[offsets[i]:offsets[i + 1]]``.
        values: ``[tokens, …]``.
    """

    sample_ids: Int64Array
    offsets: Offsets
    values: AnyArray

    def __len__(self) -> int:
        return len(self.sample_ids)

    def __getitem__(self, index: int) -> AnyArray:
        index = position(index, len(self), "sample")
        return self.values[self.offsets[index] : self.offsets[index + 1]]

    def __iter__(self) -> Iterator[AnyArray]:
        return (self[index] for index in range(len(self)))

    def __repr__(self) -> str:
        return f"RestoredTokens({len(self):,} samples, {len(self.values):,} tokens)"


def restore_tokens(
    batches: Sequence[PackedBatch],
    outputs: Sequence[npt.ArrayLike],
    *,
    predicted: bool = False,
    fill: float = 0,
) -> RestoredTokens:
    """Return token values of micro-batches by sample, in order of arrival.

    ::

        row of samples 4 and 2      4a 4b 4c  .  2a 2b  .  .        . is padding
        values                       1  2  3  9   5  6  9  9
        restored                    2: 5 6      4: 1 2 3
        if predicted                2: . 5      4: . 1 2            a value at 4a belongs to its prediction, 4b

    This is one gather, without a loop over samples. A token that several samples of a tree share is
    there once for each. Values that are split over ranks of context
    parallelism must be gathered first (``gather_from_context_parallel``).

    Args:
        batches: batches before the dialect, from ``PackCollator.rows``.
        outputs: ``[T, …]`` or ``[1, T, …]`` for each batch, with a value for every token of the
            row, including padding. If rows have the terms of their loss (``branch="index"``),
            values of predictions are one for each term.
        predicted: values are at the token that predicts, like log-probabilities from logits, and
            are moved to the token that is predicted, as in a column of targets. The first token of
            a sample gets ``fill``.
        fill: value of tokens that no token predicts, or that have no term.

    Raises:
        CollateError: values for another number of tokens, or a sample in two segments; names the
            sample.

    >>> from brimful.collate import Padding, lay_out
    >>> from brimful.testing.toys import toy_pack
    >>> batch = lay_out([toy_pack([2, 3], first_sample=0)], padding=Padding(to=6))
    >>> [values.tolist() for values in restore_tokens([batch], [[1, 2, 3, 4, 5, 9]])]
    [[1, 2], [3, 4, 5]]
    """
    if len(batches) != len(outputs) or not len(batches):
        raise CollateError(
            f"{len(batches):,} batches and {len(outputs):,} outputs were given: give one output "
            "for each"
        )
    arrays = []
    for batch_index, (batch, output) in enumerate(zip(batches, outputs, strict=True)):
        size, noun = _size_of_output(batch, predicted)
        array = np.asarray(output)
        array = array[0] if array.ndim > 1 and len(array) == 1 != size else array
        if array.ndim == 0 or len(array) != size:
            raise CollateError(
                f"output {batch_index} has the shape {array.shape} and its row {size:,} {noun}: give "
                f"one value for each{', including padding' if noun == 'tokens' else ''}"
            )
        arrays.append(array)
    index = restore_index(batches, predicted=predicted)
    values = np.concatenate(arrays)[index.values]
    values[index.values < 0] = fill
    return replace(index, values=values)


def restore_index(batches: Sequence[PackedBatch], *, predicted: bool = False) -> RestoredTokens:
    """Return where the value of each token of samples is in the outputs of micro-batches.

    ``torch.cat(outputs)[torch.from_numpy(index.values)]`` has the values of ``restore_tokens``, and
    their gradients: of a tree, a place has the sum of the gradients of all samples that pass
    through it.

    Args:
        batches, predicted: as in ``restore_tokens``.

    Returns:
        ``int64[tokens]``, sample by sample: the place in the concatenated outputs; -1 for tokens
        that no token predicts.

    Raises:
        CollateError: a sample in two segments; names the sample.

    >>> from brimful.collate import lay_out
    >>> from brimful.testing.toys import toy_tree
    >>> rows = [lay_out([toy_tree([[5, 6, 7], [5, 6, 8]])])]
    >>> [positions.tolist() for positions in restore_index(rows)]
    [[0, 1, 2], [0, 1, 3]]
    >>> [positions.tolist() for positions in restore_index(rows, predicted=True)]
    [[-1, 0, 1], [-1, 0, 1]]
    """
    positions, sizes, sample_ids, first = [], [], [], 0
    for batch in batches:
        of_row, samples = _positions_of(batch, predicted)
        positions.append(np.where(of_row.values >= 0, of_row.values + first, -1))
        sizes.append(np.diff(of_row.offsets))
        sample_ids.append(samples)
        first += _size_of_output(batch, predicted)[0]
    samples = np.concatenate(sample_ids)
    order = np.argsort(samples, kind="stable")
    samples = samples[order]
    if (repeats := np.flatnonzero(samples[1:] == samples[:-1])).size:
        raise CollateError(
            f"sample {int(samples[repeats[0]])} is in two segments: number the samples of a step "
            "by their index in it, as pack_step does, and restore each once"
        )
    lengths = np.concatenate(sizes)
    sample_starts = offsets_of(lengths)[:-1]
    values = np.concatenate(positions)[ranges(sample_starts[order], lengths[order])]
    return RestoredTokens(samples, offsets_of(lengths[order]), values)


def _size_of_output(batch: PackedBatch, predicted: bool) -> tuple[int, str]:
    """Return the number of values of a row, and of what they are."""
    if predicted and batch.loss_terms is not None:
        return len(batch.loss_terms.index), "terms of the loss"
    return len(batch.input_ids), "tokens"


def _positions_of(batch: PackedBatch, predicted: bool) -> tuple[Ragged, Int64Array]:
    """Return the place of the value of each token of each sample of a row, -1 for none, and the
    samples.
    """
    tree = None if batch.sharing is None else tree_of(batch)
    if tree is None:
        sizes = batch.real_lengths[: batch.num_segments]
        segment_starts = batch.cu_seqlens[: batch.num_segments]
        positions, samples = (
            Ragged(ranges(segment_starts, sizes), offsets_of(sizes)),
            batch.sample_ids,
        )
    else:
        positions, samples = tree.positions(batch.cu_seqlens), batch.sample_ids[tree.ends]
    if not predicted:
        return positions, samples
    if tree is not None and batch.loss_terms is not None:
        values = np.full(len(positions.values), -1, dtype=np.int64)
        indices = Ragged(np.arange(len(values)), positions.offsets)
        values[tree.target_positions(indices).values] = terms_of_samples(batch).values
    else:
        values = np.roll(positions.values, 1)
        values[positions.offsets[:-1]] = -1
    return Ragged(values, positions.offsets), samples
