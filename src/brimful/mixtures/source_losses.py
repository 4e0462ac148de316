"""Losses of each source of the samples, summed on the device between two log entries."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import torch
import torch.distributed as dist

from brimful.base.checks import whole_number
from brimful.base.typing import IGNORE_INDEX, Int64Array
from brimful.base.wording import setting
from brimful.collate.batch import PackedBatch
from brimful.collate.columns import Column
from brimful.collate.loss_torch import means_by_name, shift_left, token_losses, widest_float
from brimful.collate.torch import PackCollator
from brimful.errors import CollateError, SettingsError
from brimful.mixtures.proportions import sources_of_record
from brimful.plan import Plan

__all__ = ["SOURCE_IDS", "SourceLosses", "SourceNames", "SourceCounts"]

SOURCE_IDS = "source_ids"
"""Key in the batch: the source of each label, −1 without a target."""

SourceCounts: TypeAlias = Mapping[str, int] | Sequence[tuple[str, int]] | Plan
"""Names and sample counts of the sources, in order; or a plan with a mixture, which records
them.
"""


class SourceNames:
    """Names of the sources, and the samples of each. Picklable, so that workers of a loader can be
    spawned.

    Args:
        parts: name and sample count of each source, in order: ``{"chat": 7473, "code": 1319}``,
            ``source.rows.members``, the entry ``parts`` of ``LengthTable.provenance``, or a plan
            with a mixture.

    Raises:
        SettingsError: no sources, a name that occurs twice, or a plan that does not record its
            sources.

    >>> names = SourceNames({"chat": 2, "code": 5})
    >>> names.of(np.array([0, 1, 2, 6])).tolist()
    [0, 0, 1, 1]
    """

    def __init__(self, source_counts: SourceCounts) -> None:
        if isinstance(source_counts, Plan):
            sources = sources_of_record(source_counts.outcome.drawn)
            ends = [*(source.begin for source in sources[1:]), source_counts.ledger.samples_in]
            source_counts = [
                (source.source, end - source.begin)
                for source, end in zip(sources, ends[: len(sources)], strict=True)
            ]
        pairs = list(source_counts.items() if isinstance(source_counts, Mapping) else source_counts)
        if not pairs:
            raise SettingsError(
                f"{setting('by_source')} has no sources, as a plan without a mixture: give names "
                "and numbers of samples, such as source.rows.members"
            )
        self.names = [str(name) for name, _ in pairs]
        if len(set(self.names)) < len(self.names):
            twice = next(name for name in self.names if self.names.count(name) > 1)
            raise SettingsError(
                f"{setting('by_source')} names {twice} twice: give each source a name of its own"
            )
        counts = [
            whole_number(f"the number of samples of {name}", count, minimum=0)
            for name, count in pairs
        ]
        self._ends = np.cumsum(counts, dtype=np.int64)

    def __len__(self) -> int:
        return len(self.names)

    def of(self, sample_ids: Int64Array) -> Int64Array:
        """Return the number of the source of each sample: ``int64[n]``, -1 for sample -1 of an
        empty place.

        Raises:
            SettingsError: a sample id after the last source.
        """
        ids = np.asarray(sample_ids)
        index = np.where(ids < 0, -1, np.searchsorted(self._ends, ids, side="right"))
        is_outside = index >= len(self.names)
        if is_outside.any():
            sample = int(ids[is_outside].max())
            raise SettingsError(
                f"sample {sample} is of no source: the {len(self.names)} sources have "
                f"{int(self._ends[-1]):,} samples together"
            )
        return index

    def marked(self, rows: Sequence[PackedBatch]) -> list[PackedBatch]:
        """Return the rows of a batch with the column ``source_ids``, the source of each label:
        ``int32[T]``.

        Raises:
            SettingsError: a row of trees, whose tokens may belong to several sources.
        """
        result = []
        for batch in rows:
            if batch.sharing is not None:
                raise SettingsError(
                    "losses of sources are of labels of one sample each, and samples of trees "
                    "share theirs: use evaluate_samples(…).by_source"
                )
            sources = np.zeros(len(batch.cu_seqlens) - 1, dtype=np.int32)
            sources[: batch.num_segments] = self.of(batch.sample_ids[: batch.num_segments])
            values = np.repeat(sources, batch.lengths)
            # Padding has no target, and some dialects write token 0 as the label of tokens without one.
            values[batch.labels == IGNORE_INDEX] = -1
            column = Column(SOURCE_IDS, values, fill=-1)
            result.append(replace(batch, columns=(*batch.columns, column)))
        return result


class SourceLosses:
    """Sums of loss, targets and hits of each source since the last ``take``.

    For custom training loops, Lightning and Accelerate; ``log_packing(trainer, by_source=…)``
    includes one. ``add`` does not wait for the device or for other ranks: ranks are summed when the
    means are requested.

    Args:
        sources: see ``SourceNames``.

    >>> from brimful.testing.toys import toy_pack
    >>> losses = SourceLosses({"chat": 1, "code": 1})
    >>> batch = losses.marking(PackCollator())([toy_pack([3, 2])])
    >>> source_ids = batch.pop("source_ids")  # int32[1, T], aligned with the labels
    >>> source_ids.tolist()
    [[-1, 0, 0, -1, 1]]
    >>> losses.add(torch.zeros(1, 5, 1000), batch["labels"], source_ids)
    >>> {name: round(mean, 3) for name, mean in losses.means().items() if name.startswith("loss")}
    {'loss/chat': 6.908, 'loss/code': 6.908}
    """

    def __init__(self, sources: SourceCounts | SourceNames) -> None:
        self.names = sources if isinstance(sources, SourceNames) else SourceNames(sources)
        self._sums = torch.zeros(3, len(self.names) + 1)

    def marking(self, collator: PackCollator) -> Callable[[Sequence[Any]], dict[str, Any]]:
        """Return a collator of the same batches with ``source_ids`` added, in the shape of the
        labels.
        """
        return partial(_marked_batch, collator, self.names)

    def add(
        self,
        logits: torch.Tensor,
        labels: torch.Tensor,
        source_ids: torch.Tensor,
        *,
        labels_shifted: bool = False,
    ) -> None:
        """Add the targets of a micro-batch.

        Args:
            logits: ``[T, V]`` or ``[B, T, V]``.
            labels: ``int64[T]`` or ``[B, T]``, labels of the batch.
            source_ids: sources from the batch, in the shape of the labels.
            labels_shifted: ``labels_shifted`` of the dialect.
        """
        with torch.no_grad():
            losses = token_losses(logits.detach(), labels, labels_shifted=labels_shifted)
            flat = source_ids.reshape(-1).to(logits.device)
            self.add_tokens(*losses, flat if labels_shifted else shift_left(flat, -1))

    def add_tokens(
        self,
        nll: torch.Tensor,
        is_target: torch.Tensor,
        is_correct: torch.Tensor,
        source_ids: torch.Tensor,
    ) -> None:
        """Add tokens with known losses, for a trainer that makes no logits; all tensors have one
        shape.

        Raises:
            CollateError: the number of sources differs from the number of tokens.
        """
        if source_ids.numel() != nll.numel():
            raise CollateError(
                f"{source_ids.numel():,} sources were given for {nll.numel():,} tokens"
            )
        device, is_counted = nll.device, is_target.reshape(-1)
        dtype = widest_float(device)
        if (self._sums.device, self._sums.dtype) != (device, dtype):
            self._sums = self._sums.to(device, dtype)
        columns = (nll.reshape(-1), is_counted, is_correct.reshape(-1) & is_counted)
        table = torch.stack([column.to(dtype) for column in columns])
        # Tokens without a target or a source are added to an extra last column, so that nothing
        # waits for the device.
        flat = source_ids.reshape(-1).to(device, torch.int64)
        self._sums.index_add_(
            1, torch.where(is_counted & (flat >= 0), flat, len(self.names)), table
        )

    def take(self) -> torch.Tensor:
        """Return the sums of loss, targets and hits of each source, ``float[3, num_sources]``, and
        reset them.
        """
        sums = self._sums[:, :-1].clone()
        self._sums.zero_()
        return sums

    def means(self, *, over_ranks: bool = False, group: Any = None) -> dict[str, float]:
        """Return ``loss/NAME`` and ``token_acc/NAME`` of each source that had targets, and reset
        the sums.

        Args:
            over_ranks: sum over the ranks of ``group`` (all if None). Every rank must call it.
            group: the process group of the data-parallel ranks.
        """
        sums = self.take()
        if over_ranks:
            dist.all_reduce(sums, group=group)
        return self.means_of(sums)

    def means_of(self, sums: torch.Tensor) -> dict[str, float]:
        """Return the means for sums that ``take`` returned, summed over ranks or not."""
        return means_by_name(sums, [f"/{name}" for name in self.names.names])


def _marked_batch(
    collator: PackCollator, names: SourceNames, features: Sequence[Any]
) -> dict[str, Any]:
    return collator.convert(names.marked(collator.rows(features)))
