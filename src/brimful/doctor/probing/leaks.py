"""Movement of tokens that should stand, and whether it is a leak or rounding.

In a dense model no token of another sample moves, to the last bit. Where numbers depend on the
whole batch (experts that are computed in groups, scales of FP8), rounding moves a few tokens
everywhere. Tokens that no leak reaches show how far: ::

    rows        a a | X X | c c        X is exchanged; a leak would move c, or a in a model that
                d d d | e e .          looks both ways; nothing but rounding can move d and e

A leak moves the tokens within its reach densely, or much farther than rounding does.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from brimful.base.typing import BoolArray, Float32Array
from brimful.doctor.batch.view import RowSegment
from brimful.doctor.probing.model_facts import parity_limit_of
from brimful.doctor.probing.modes import LOW_PRECISIONS

_NOISE_FACTOR = 8
"""Movement that passes ÷ movement where no leak reaches."""

_DENSE = 0.5
"""Share of a segment's tokens that move if another segment is seen."""

_SPARSE = 1 / 16
"""Share of tokens that rounding moves at most in the layer where it begins."""

_ROUNDINGS = 4
"""Roundings of a low precision that may add up in one token."""


class Reach(NamedTuple):
    """Tokens of the recorded rows by what a change of one segment may do to them.

    Attributes:
        own: ``bool[R, T]``: the changed segment; nothing if this rank has changed none.
        exposed: ``bool[R, T]``: other samples that a leak would reach.
        protected: ``bool[R, T]``: other samples that no leak reaches.
        segments: of the recorded rows; their rows are numbers among the recorded ones.
        rows: rows of the batch that are recorded.
    """

    own: BoolArray
    exposed: BoolArray
    protected: BoolArray
    segments: tuple[RowSegment, ...]
    rows: tuple[int, ...]


class LayerMovement(NamedTuple):
    """Movement in one layer.

    Attributes:
        name: of the layer; ``loss`` for the losses of tokens.
        sizes: ``float32[R, T]``: relative movement of each token.
    """

    name: str
    sizes: Float32Array


class LayerLeak(NamedTuple):
    """Movement of a neighbor.

    Attributes:
        layer: number among the layers in which a neighbor moved first.
        name: of that layer.
        segment: the neighbor that moved most there, by its row of the batch.
        moved: tokens of it that moved.
        size: largest relative movement there.
    """

    layer: int
    name: str
    segment: RowSegment
    moved: int
    size: float


def rounding_of(dtype: torch.dtype) -> float:
    """Return the relative movement of one token that rounding explains."""
    if dtype in LOW_PRECISIONS:
        return _ROUNDINGS * torch.finfo(dtype).eps
    return parity_limit_of(torch.float32)


def find_leak(
    layers: Sequence[LayerMovement], reach: Reach, dtype: torch.dtype, *, is_coupled: bool
) -> LayerLeak | None:
    """Return the first layer in which a neighbor moved farther than rounding moves it; None if
    none did.

    Args:
        layers: in the order in which they ran.
        reach: which tokens may move.
        dtype: lowest precision of the layers.
        is_coupled: numbers of a token may depend on the whole batch, as with experts.
    """
    is_low = dtype in LOW_PRECISIONS
    rounding = rounding_of(dtype)
    # In float32 rounding is far below any leak; in low precision a leak may be smaller.
    threshold = 0.0 if is_low else rounding
    is_first = True
    for number, layer in enumerate(layers):
        sizes = np.nan_to_num(layer.sizes, nan=0.0, posinf=np.inf)
        exposed_sizes, noise = sizes * reach.exposed, sizes[reach.protected]
        if not exposed_sizes.any():
            continue
        neighbors = [
            (segment, values)
            for segment in reach.segments
            if (values := exposed_sizes[segment.row, segment.start : segment.stop]).any()
        ]
        largest_noise = float(noise.max(initial=0.0))
        noise_share = float((noise > threshold).mean()) if noise.size else 0.0
        is_dense = noise_share < _SPARSE and any(
            (values > threshold).mean() >= _DENSE and (is_first or values.mean() > rounding)
            for _, values in neighbors
        )
        # A router that chooses another expert moves a token far, here and there.
        is_far = not (is_coupled and is_low) and float(exposed_sizes.max()) > max(
            rounding, _NOISE_FACTOR * largest_noise
        )
        if is_dense or is_far:
            segment, values = max(neighbors, key=lambda pair: float(pair[1].max()))
            segment = segment._replace(row=reach.rows[segment.row])
            num_moved = int((values > threshold).sum())
            return LayerLeak(number, layer.name, segment, num_moved, float(values.max()))
        is_first = False
    return None


def moves_everywhere(
    layers: Sequence[LayerMovement], reach: Reach, dtype: torch.dtype, is_coupled: bool
) -> LayerMovement | None:
    """Return the first layer in which tokens that no leak reaches move as a leak would move them;
    None if they stand, or if only some of them move and rounding may be the reason.
    """
    share = _DENSE if is_coupled or dtype in LOW_PRECISIONS else 0.0
    for layer in layers:
        noise = np.nan_to_num(layer.sizes[reach.protected], nan=0.0)
        if noise.size and float((noise > rounding_of(dtype)).mean()) > share:
            return layer
    return None
