"""Batch for FlexAttention of PyTorch: document ids, and a block mask made from the boundaries."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.nn.attention.flex_attention import BlockMask

from brimful.base.typing import BoolArray, CuSeqlens, Int32Array, Int64Array
from brimful.collate.batch import PackedBatch
from brimful.collate.dialects.tensors import other_tensors, token_row, tree_tensors

_MaskMod = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def to_flex_attention(batch: PackedBatch) -> dict[str, Any]:
    """Convert a batch to one row of T tokens and its block mask; labels are not shifted.

    ==========================================  =====================================================
    ``input_ids, labels``                       ``int64[1, T]``
    ``position_ids``                            ``int64[1, T]``; with mRoPE ``int64[4, 1, T]``
    ``document_ids``                            ``int32[T]``: the segment of each token; the padding has its own
    ``block_mask``                              ``BlockMask`` over ``(1, 1, T, T)``: causal inside of segments
    ``loss_weights``                            ``float32[1, T]``, only if the batch has any
    ==========================================  =====================================================

    A fixed T (``pad_to``) avoids recompilation. In workers of a loader use only ``document_ids``,
    and make the mask with ``block_mask_of`` on the device: a mask holds a function, which a queue
    cannot pickle. A row of trees has ``parents``, ``tree_in`` and ``tree_out`` in place of
    ``document_ids``, and its mask is from ``tree_block_mask``. Models of Transformers take the mask as
    ``attention_mask``.
    """
    if batch.tree is not None:
        trees = tree_tensors(batch)
        return {
            **token_row(batch),
            **trees,
            "block_mask": tree_block_mask(trees["tree_out"]),
            **other_tensors(batch),
        }
    documents = torch.from_numpy(batch.segment_index)
    return {
        **token_row(batch),
        "document_ids": documents,
        "block_mask": block_mask_of(batch.cu_seqlens, documents),
        **other_tensors(batch),
    }


def document_mask_mod(document_ids: torch.Tensor) -> _MaskMod:
    """Return a ``mask_mod`` with which a token attends to itself and to the earlier tokens of its
    segment.
    """

    def mask_mod(
        b: torch.Tensor, h: torch.Tensor, q_idx: torch.Tensor, kv_idx: torch.Tensor
    ) -> torch.Tensor:
        return (document_ids[q_idx] == document_ids[kv_idx]) & (q_idx >= kv_idx)

    return mask_mod


def block_mask_of(
    cu_seqlens: CuSeqlens, document_ids: torch.Tensor, *, block_size: int = 128
) -> BlockMask:
    """Make the same mask as ``create_block_mask`` from the boundaries, without computing all T²
    pairs.

    ::

        cu_seqlens 0 5 8, blocks of 2      kv    0  1  2  3
        q block 0 (tokens 0 1)                   p
                1 (2 3)                          f  p             f: full, all pairs are visible
                2 (4 5)                          p  p  p          p: partial, the mask_mod decides
                3 (6 7)                                p  p       empty: no pair is visible, the block is skipped

    A row of blocks attends to the blocks from the beginning of the segment of its first token up to
    the diagonal. A block before the diagonal is full if one segment contains all its keys and all
    its queries.

    Args:
        cu_seqlens: ``int32[S + 1]`` in host memory.
        document_ids: ``int32[T]``, on the device of the mask.
        block_size: tokens of a block.
    """
    size = int(cu_seqlens[-1])
    block = np.arange(-(-size // block_size), dtype=np.int64)
    first_token = block * block_size
    last_token = np.minimum(first_token + block_size, size) - 1
    segment = np.searchsorted(cu_seqlens, first_token, side="right") - 1
    segment_begin = cu_seqlens[segment].astype(np.int64)
    # Rows are blocks of queries, columns are blocks of keys. The last block may be shorter, so it
    # is never full.
    is_visible = (block >= (segment_begin // block_size)[:, None]) & (block <= block[:, None])
    in_one_segment = (last_token < cu_seqlens[segment + 1]) & (
        last_token - first_token == block_size - 1
    )
    is_full = (
        is_visible
        & (block < block[:, None])
        & in_one_segment[:, None]
        & (first_token >= segment_begin[:, None])
    )
    return BlockMask.from_kv_blocks(
        *_block_lists(is_visible & ~is_full, document_ids.device),
        *_block_lists(is_full, document_ids.device),
        BLOCK_SIZE=block_size,
        mask_mod=document_mask_mod(document_ids),
        seq_lengths=(size, size),
    )


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
        *_block_lists(is_visible & ~is_full, tree_out.device),
        *_block_lists(is_full, tree_out.device),
        BLOCK_SIZE=block_size,
        mask_mod=tree_mask_mod(tree_out, positions, window),
        seq_lengths=(size, size),
    )


def tree_mask_mod(
    tree_out: torch.Tensor, positions: torch.Tensor | None = None, window: int | None = None
) -> _MaskMod:
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


def _block_lists(mask: BoolArray, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the number of true blocks of each row, and the blocks of each row with the true ones
    first.

    The shapes are ``int32[1, 1, n]`` and ``int32[1, 1, n, n]``.
    """
    counts = mask.sum(axis=1, dtype=np.int32)
    indices = np.argsort(~mask, axis=1, kind="stable").astype(np.int32)
    return torch.from_numpy(counts).to(device)[None, None], torch.from_numpy(indices).to(device)[
        None, None
    ]
