"""Masks of rows of trees: of all pairs of tokens, and of blocks for FlexAttention of PyTorch."""

from __future__ import annotations

import numpy as np
import torch
from torch.nn.attention.flex_attention import BlockMask

from brimful.base.typing import BoolArray, Int32Array, Int64Array
from brimful.collate.dialects.flex_attention import MaskMod, block_lists


def tree_mask(tree_out: torch.Tensor) -> torch.Tensor:
    """Return the mask of a row of trees: ``bool[T, T]``, true if the query attends to the key.

    Args:
        tree_out: ``int32[T]``, as in the batch.

    >>> tree_mask(torch.tensor([4, 4, 3, 4])).int().tolist()
    [[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 0, 1]]
    """
    positions = torch.arange(len(tree_out), device=tree_out.device)
    # A key sees no query before itself: the rest is the subtree of its segment.
    return (positions[:, None] < tree_out[None, :]).tril_()


def tree_block_mask(
    tree_out: torch.Tensor,
    *,
    positions: torch.Tensor | None = None,
    window: int | None = None,
    block_size: int = 128,
) -> BlockMask:
    """Make the mask of a row of trees from its segments, without computing all T² pairs.

    Args:
        tree_out: ``int32[T]``, as in the batch, on the device of the mask.
        positions: ``int[T]``, the depth of each token; needed for a window only.
        window: a query sees the last ``window`` tokens of its path, itself included; all if None.
        block_size: tokens of a block.

    >>> mask = tree_block_mask(torch.tensor([6, 6, 4, 4, 6, 6]), block_size=2)
    >>> mask.to_dense()[0, 0].tolist()
    [[1, 0, 0], [1, 1, 0], [1, 0, 1]]
    """
    ends, size = tree_out.cpu().numpy(), len(tree_out)
    first_tokens = np.arange(0, size, block_size)
    last_tokens = np.minimum(first_tokens + block_size, size) - 1
    block = np.arange(len(first_tokens))
    # Keys of a block are visible from the block itself up to the end of the longest of their
    # subtrees, and to all queries before the end of the shortest. The last block may be shorter, so
    # it is never full.
    is_visible = (block <= block[:, None]) & (
        first_tokens[:, None] < np.maximum.reduceat(ends, first_tokens)
    )
    is_full = (
        (block < block[:, None])
        & (last_tokens[:, None] < np.minimum.reduceat(ends, first_tokens))
        & (last_tokens - first_tokens == block_size - 1)[:, None]
    )
    if window is not None:
        assert positions is not None
        is_near, is_inside = _blocks_in_window(ends, positions.cpu().numpy(), window, first_tokens)
        is_visible &= is_near
        is_full &= is_inside
    return BlockMask.from_kv_blocks(
        *block_lists(is_visible & ~is_full, tree_out.device),
        *block_lists(is_full, tree_out.device),
        BLOCK_SIZE=block_size,
        mask_mod=tree_mask_mod(tree_out, positions, window),
        seq_lengths=(size, size),
    )


def tree_mask_mod(
    tree_out: torch.Tensor, positions: torch.Tensor | None = None, window: int | None = None
) -> MaskMod:
    """Return a ``mask_mod`` with which a token attends to its path, or to the last ``window``
    tokens of its path.
    """

    def mask_mod(
        b: torch.Tensor, h: torch.Tensor, q_idx: torch.Tensor, kv_idx: torch.Tensor
    ) -> torch.Tensor:
        is_visible = (kv_idx <= q_idx) & (q_idx < tree_out[kv_idx])
        if window is None or positions is None:
            return is_visible
        return is_visible & (positions[q_idx] - positions[kv_idx] < window)

    return mask_mod


def _blocks_in_window(
    ends: Int32Array, positions: Int64Array, window: int, first_tokens: Int64Array
) -> tuple[BoolArray, BoolArray]:
    """Return which blocks hold a pair within the window, and of which every pair is: ``bool[n, n]``
    each, of queries and keys.

    Positions count up by one within a piece, a part of a segment that is in one block, so its first
    and last token decide.
    """
    size = len(ends)
    is_start = np.ones(size, dtype=np.bool_)
    is_start[1:] = (np.diff(ends) != 0) | (np.diff(positions) != 1)
    is_start[first_tokens] = True
    (starts,) = np.nonzero(is_start)
    last = positions[np.append(starts[1:], size) - 1]
    is_visible = (starts <= starts[:, None]) & (starts[:, None] < ends[starts])
    # From the first query to the last key; a piece and itself have distance 0.
    nearest = np.maximum(positions[starts][:, None] - last, 0)
    farthest = last[:, None] - positions[starts]
    pieces = np.searchsorted(starts, first_tokens)

    def by_blocks(reduce: np.ufunc, pairs: BoolArray) -> BoolArray:
        return np.asarray(reduce.reduceat(reduce.reduceat(pairs, pieces, axis=0), pieces, axis=1))

    return (
        by_blocks(np.logical_or, is_visible & (nearest < window)),
        by_blocks(np.logical_and, is_visible & (farthest < window)),
    )
