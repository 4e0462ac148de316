"""NeMo AutoModel 0.7: batches by the packing contract that a model declares."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from brimful.collate import Padding
from brimful.collate.layout import indexed_mask
from brimful.collate.torch import PackCollator
from brimful.errors import CollateError, MissingExtraError
from brimful.store.shards import Pack

__all__ = ["ContractCollator"]


_KEYS = {"input_ids", "labels", "position_ids", "seq_lens", "seq_lens_padded", "qkv_format"}
"""Keys of dialect ``nemo_automodel`` without media, weights and columns."""


class ContractCollator:
    """Collator of rows as AutoModel's ``neat`` packing makes them, for models without THD attention.

    AutoModel's own ``neat_packed_collater`` makes the keys: ``input_ids``, ``labels`` (shifted) and
    ``position_ids``, ``int64[B, T]`` with T tokens a row, and by ``packed_mask_type``

    ==========================================  =====================================================
    ``block_causal``                            ``attention_mask``, ``bool[B, 1, T, T]``, for SDPA and eager attention
    ``document_ids``                            ``attention_mask``, ``int64[B, T]``: 1, 2, … in segments, 0 in padding
    ``flash_varlen``                            ``cu_seq_lens_q, cu_seq_lens_k``, ``int32[S + 1]`` of S segments, and
                                                ``max_length_q, max_length_k``, Python integers
    ==========================================  =====================================================

    Source: ``PackedSequenceContract`` of NeMo AutoModel 0.7.

    Args:
        packed_mask_type: what the model declares; ``get_packing_capabilities`` of AutoModel tells
            it of a model, and is accepted in its place.
        requires_packed_sequence_metadata: also make ``packed_token_indices``, ``cu_seqlens`` and
            ``max_seqlen``, as models with recurrent layers declare.
        to: T; as many as the longest pack has if None.
        pad_token_id: token of the padding.

    Raises:
        CollateError: when called, if packs have media or weights: AutoModel reads neither here.
        MissingExtraError: when called, without AutoModel.

    >>> ContractCollator("document_ids", to=4096)
    ContractCollator('document_ids')
    """

    def __init__(
        self,
        packed_mask_type: Any = "block_causal",
        *,
        requires_packed_sequence_metadata: bool = False,
        to: int | None = None,
        pad_token_id: int = 0,
    ) -> None:
        contract = packed_mask_type
        self.packed_mask_type: str = getattr(contract, "packed_mask_type", contract)
        self.requires_packed_sequence_metadata: bool = getattr(
            contract, "requires_packed_sequence_metadata", requires_packed_sequence_metadata
        )
        self._collator = PackCollator(
            dialect="nemo_automodel", padding=Padding(to=to), pad_token_id=pad_token_id
        )

    def __repr__(self) -> str:
        return f"ContractCollator({self.packed_mask_type!r})"

    def __call__(self, packs: Sequence[Pack]) -> dict[str, Any]:
        try:
            from nemo_automodel.components.datasets.utils import neat_packed_collater
        except ImportError as error:
            raise MissingExtraError(
                f"ContractCollator needs NeMo AutoModel 0.7 ({error}): pip install nemo-automodel"
            ) from error
        batches = self._collator.rows(packs)
        tensors = self._collator.convert(batches)
        others = sorted(set(tensors) - _KEYS)
        if others:
            raise CollateError(
                f"{', '.join(others)} of packs are in no packing contract of AutoModel: leave them "
                "out, or take dialect nemo_automodel"
            )
        tensors["attention_mask"] = torch.from_numpy(
            np.stack([indexed_mask(batch) for batch in batches]).astype(np.int64)
        )
        names = ("input_ids", "labels", "position_ids", "attention_mask")
        rows = [{name: tensors[name][row] for name in names} for row in range(len(batches))]
        batch: dict[str, Any] = neat_packed_collater(rows, packing=self)
        return batch
