"""Weights of targets by source, for a mixture that weights the loss instead of drawing samples."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from brimful.base.typing import Float32Array, Float64Array, Int64Array
from brimful.base.wording import setting
from brimful.collate.batch import PackedBatch
from brimful.errors import CollateError, SettingsError
from brimful.mixtures.proportions import sources_of_record
from brimful.plan import Plan


class SourceWeights:
    """Weight of each target by the source of its sample, for ``PackCollator(loss_weights=…)``.

    Every sample is packed once, and a target of source ``i`` has the weight
    ``requested share ÷ actual share``: the weights of a source add up to its requested share of all
    targets. The mean weight of a target over the data set is 1.

    Picklable, so that workers of a loader can be spawned.

    Args:
        starts: ``int64[num_sources]``, first sample of each source, ascending from 0.
        factors: ``float64[num_sources]``, weight of the targets of each source.

    Raises:
        SettingsError: the number of factors differs from the number of sources, or a factor is not
            a valid weight.

    >>> from brimful.testing.toys import toy_pack
    >>> from brimful.collate.torch import PackCollator
    >>> weights = SourceWeights([0, 1], [2.0, 0.5])
    >>> PackCollator(loss_weights=weights)([toy_pack([3, 2])])["loss_weights"].tolist()
    [[0.0, 2.0, 2.0, 0.0, 0.5]]
    """

    def __init__(
        self, starts: Sequence[int] | Int64Array, factors: Sequence[float] | Float64Array
    ) -> None:
        self.starts: Int64Array = np.asarray(starts, dtype=np.int64)
        self.factors: Float64Array = np.asarray(factors, dtype=np.float64)
        starts_ascend = self.starts[:1].tolist() == [0] and (np.diff(self.starts) > 0).all()
        are_weights = (np.isfinite(self.factors) & (self.factors >= 0)).all()
        if self.starts.shape != self.factors.shape or not starts_ascend or not are_weights:
            raise SettingsError(
                "weights of sources need sources that begin at sample 0 and follow each other, and "
                f"a number of at least 0 for each: {self.starts.tolist()}, {self.factors.tolist()}"
            )

    @classmethod
    def of_plan(cls, plan: Plan) -> SourceWeights:
        """Make the weights that a plan with ``Mixture(weighting="loss")`` requires.

        Raises:
            SettingsError: the plan has no mixture with ``weighting="loss"``.
        """
        records = sources_of_record(plan.outcome.drawn)
        if not records or any(record.factor is None for record in records):
            raise SettingsError(
                f"the plan has no weights of tokens: plan with {setting('mixture')} and weighting "
                "loss, or leave the weights of sources out"
            )
        return cls(
            [record.begin for record in records],
            [float(record.factor or 0.0) for record in records],
        )

    def __call__(self, batch: PackedBatch) -> Float32Array:
        """Return the weight of each token of a batch: ``float32[T]``.

        Raises:
            CollateError: a sample that belongs to no source.
        """
        ids = np.asarray(batch.sample_ids[: batch.num_segments])
        # An empty place has sample id -1 and no target, so its weight does not matter.
        if batch.num_loss_tokens and int(ids.min()) < 0:
            raise CollateError(
                f"sample {int(ids.min())} is of no source: weights of sources need the ids of "
                "samples"
            )
        of_segment = np.ones(len(batch.cu_seqlens) - 1, dtype=np.float32)
        of_segment[: len(ids)] = self.factors[np.searchsorted(self.starts, ids, side="right") - 1]
        weights: Float32Array = np.repeat(of_segment, np.diff(batch.cu_seqlens))
        return weights
