"""Elements of a mixture, to draw from: samples, or packs of one source each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from brimful.base.ragged import ranges, sums_of
from brimful.base.typing import AnyIntArray, Int64Array, Offsets
from brimful.plan.policies.mixture.draw import MixtureDraw, Pool, draw
from brimful.plan.policies.mixture.spec import Mixture, MixUnit
from brimful.plan.policies.overflow import Segments

_Elements = TypeVar("_Elements", bound="Elements")


@dataclass(frozen=True, eq=False)
class Elements:
    """Samples or packs, source after source.

    Attributes:
        names: names of the sources.
        bounds: ``int64[num_sources + 1]``, first element of each source.
        tokens: ``int64[num_elements]``.
        uses: ``int64[num_elements]``, how often each element was consumed before.
    """

    names: Sequence[str]
    bounds: Int64Array
    tokens: Int64Array
    uses: Int64Array

    def draw(self, mixture: Mixture, *, seed: int, epoch: int, num_tokens: int | None = None) -> MixtureDraw:
        """Draw one epoch; see ``draw``."""
        pools = []
        for name, begin, end in zip(self.names, self.bounds[:-1], self.bounds[1:], strict=True):
            tokens = self.tokens[begin:end]
            sizes = tokens if mixture.unit is MixUnit.TOKENS else np.ones_like(tokens)
            pools.append(Pool(name, sizes, tokens, self.uses[begin:end]))
        return draw(pools, mixture, seed=seed, epoch=epoch, num_tokens=num_tokens)

    def numbers(self, draws: MixtureDraw) -> Int64Array:
        """Return the element of each draw: ``int64[num_draws]``."""
        numbers: Int64Array = self.bounds[draws.sources] + draws.elements
        return numbers

    def after(self: _Elements, draws: MixtureDraw) -> _Elements:
        """Return the elements with these draws counted as consumed."""
        return replace(self, uses=self.uses + np.bincount(self.numbers(draws), minlength=len(self.uses)))


@dataclass(frozen=True, eq=False)
class MixedSamples(Elements):
    """The samples of a mixture that can be packed, and their segments.

    Dropped and rejected samples are not among them: shares refer to packed samples.

    Attributes:
        begins: ``int64[num_sources + 1]``, first sample of each source, counting dropped and rejected samples.
        segment_offsets: ``int64[num_samples + 1]``, segments of each sample.
    """

    begins: Offsets
    segment_offsets: Offsets

    @classmethod
    def of(cls, segments: Segments, names: Sequence[str], sources: Offsets, uses: Int64Array) -> MixedSamples:
        """Find the samples among the segments.

        Args:
            segments: segments to pack, by ascending sample.
            names: names of the sources.
            sources: ``int64[num_sources + 1]``, first sample of each source.
            uses: ``int64[num_samples]``, for all samples.
        """
        segment_ids = segments.ids()
        edges = np.flatnonzero(np.r_[True, segment_ids[1:] != segment_ids[:-1]]) if len(segment_ids) else segment_ids
        offsets = np.r_[edges, len(segment_ids)].astype(np.int64)
        ids = segment_ids[edges]
        tokens = sums_of(segments.lengths, offsets)
        return cls(names, np.searchsorted(ids, sources), tokens, uses[ids], sources, offsets)

    def rows(self, samples: AnyIntArray) -> Int64Array:
        """Return the segments of these samples, in their order."""
        return ranges(self.segment_offsets[samples], np.diff(self.segment_offsets)[samples])

    def draws_of(self, rows: AnyIntArray) -> Int64Array:
        """Count how often each sample is among the segments: ``int64[num_samples]``."""
        return np.bincount(rows, minlength=int(self.segment_offsets[-1]))[self.segment_offsets[:-1]]
