"""One batch of two samples and a token of padding, told in the words of many loaders."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

IDS = [[5, 6, 7, 8, 9, 0]]
STARTS = [(0, 0, 3), (0, 3, 5)]
"""Segments of three and two tokens, and one token of padding."""

BY_MASK = {"attention_mask": [[1, 1, 1, 1, 1, 0]]}
PAIRS = np.tril(np.equal.outer([1, 1, 1, 2, 2, 0], [1, 1, 1, 2, 2, 0]))[None, None]

WORDS: list[dict[str, Any]] = [
    {"position_ids": [[0, 1, 2, 0, 1, 0]]},
    {"position_ids": [[0, 1, 2, 0, 1, 1]], **BY_MASK},
    {"position_ids": [[2, 3, 4, 2, 3, 2]]},
    {"position_ids": np.array([[[0, 1, 2, 0, 1, 0]]] * 3)},
    {"position_ids": np.array([[[0, 1, 1, 0, 1, 0]], [[0, 1, 1, 0, 1, 0]], [[0, 1, 2, 0, 1, 0]]])},
    {"text_position_ids": [[0, 1, 2, 0, 1, 0]], "position_ids": np.arange(18).reshape(3, 1, 6)},
    {"attention_mask": [[1, 1, 1, 2, 2, 0]]},
    {"attention_mask": [0, 3, 5]},
    {"attention_mask": PAIRS},
    {"attention_mask": np.where(PAIRS, 0, -1e9)},
    {"seq_idx": [[0, 0, 0, 1, 1, 2]]},
    {"seq_idx": [[0, 0, 0, 1, 1, -1]]},
    {"segment_ids": [[1, 1, 1, 2, 2, 0]]},
    {"inputs_segmentation": [[1, 1, 1, 2, 2, 0]]},
    {"document_ids": [0, 0, 0, 1, 1, 2]},
    {"seq_lengths": [[3, 2]]},
    {"packed_seq_lengths": torch.tensor([3, 2], dtype=torch.int32)},
    {"packed_seq_lengths": [3, 2, 1]},
    {"doc_lens": [[3, 2, 1, 0]]},
    {"seq_lens": [[3, 2, -1000]], **BY_MASK},
    {"cu_seqlens": [0, 3, 5]},
    {"cu_seq_lens_q": [0, 3, 5, 6]},
    {"cu_seqlens": [[0, 3, 5, 6, -1]], "cu_seqlens_argmin": [[4]]},
    {"cu_doc_lens": [0, 3, 5, 6]},
    {"flash_attn_kwargs": {"cu_seqlens_q": [0, 3, 5, 6], "cu_seqlens_k": [0, 3, 5, 6]}},
    {"packed_seq_params": SimpleNamespace(qkv_format="thd", cu_seqlens_q=torch.tensor([0, 3, 5, 6]), max_seqlen_q=3)},
    {"packing_params": [{"sequence_boundaries": [0, 3, 5, 6], "right_padding_length": 1}]},
    {"cu_seqlens_q_padded": torch.tensor([0, 3, 6]), "cu_seqlens_q": torch.tensor([0, 3, 5])},
]  # fmt: skip


def told_by(words: dict[str, Any]) -> dict[str, Any]:
    return {"input_ids": IDS, "labels": [[-100, 6, 7, -100, 9, -100]], **words}
