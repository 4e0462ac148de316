"""Dialects of a ``PackedBatch``: the trainers' batch formats, each loaded when it is used.

A ``Dialect`` has the table of its keys, from which docs, tests and reserved names are read. In the
tables T is the tokens of the row with its padding, S its segments with the padding at the end,
(B, L) rows and their tokens, and ``*`` any length. The third column says what a key holds, in the
same words in all dialects, and what else a trainer must know.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, NamedTuple

from brimful.base.checks import check_type
from brimful.base.optional import optional
from brimful.errors import SettingsError

__all__ = ["DIALECTS", "Dialect", "DialectKey", "dialect_of"]


class DialectKey(NamedTuple):
    """A key of a batch, or one form of it: a key with two forms is there twice.

    Attributes:
        name: of the key; a point is between the key of a mapping and a key in it.
        form: dtype and shape of a tensor, ``int64[1, T]``; a type of Python, ``int``, with its
            length, ``list[B]``; or a constant.
        holds: what the values are, such as ``tokens``, ``shifted labels``, ``boundaries``.
        note: further facts; begins with ``only`` if a batch may lack the key.
    """

    name: str
    form: str
    holds: str
    note: str


@dataclass(frozen=True, slots=True)
class Dialect:
    """Properties of a dialect that decide how a batch is laid out for it.

    Attributes:
        name: its function is ``to_<name>``.
        module: file in this folder that has the function, or a module of another package.
        table: a line for each key, or for several of one form; ``keys`` has it as tuples. Columns of
            packs, and inputs for attachments, are in each batch under their own names.
        row_per_pack: each pack is its own row, ``(B, L)``; otherwise all packs are in one row.
        row_per_sample: each sample is its own row. The function then takes one batch without
            padding, and ``length`` and ``pad_token_id`` of the rows.
        spare_tokens: padding tokens of each row beyond ``pad_to``.
        any_start: positions may begin at a number other than 0; trainers of the other dialects find
            boundaries by zeros.
        takes_sharing: it has words for rows whose samples share, which the wing of what they share
            converts (``wing_of``).
    """

    name: str
    module: str
    table: str = field(repr=False)
    row_per_pack: bool = False
    row_per_sample: bool = False
    spare_tokens: int = 0
    any_start: bool = False
    takes_sharing: bool = False

    @property
    def labels_shifted(self) -> bool:
        """True if labels are shifted left by one inside each segment: the model must not shift
        them.
        """
        return "shifted labels" in self.table

    @property
    def keys(self) -> tuple[DialectKey, ...]:
        """Keys of the batches.

        >>> dialect_of("megatron").keys[1]
        DialectKey(name='labels', form='int64[T]', holds='shifted labels', note='0 without a target')
        """
        keys = []
        for line in filter(None, self.table.splitlines()):
            names, form, text = re.split(" {2,}", line.strip())
            holds, _, note = text.partition("; ")
            keys += [DialectKey(name, form, holds, note) for name in names.split(", ")]
        return tuple(keys)

    def load(self, module: str = "") -> Callable[..., dict[str, Any]]:
        """Import the function ``to_<name>``, of another module if it is given; it takes a list of
        batches if each pack is a row, otherwise one batch.

        Raises:
            MissingExtraError: torch is not installed.
        """
        with optional("torch", "torch", f"the dialect {self.name}"):
            name = module or self.module
            functions = import_module(name if "." in name else f"{__name__}.{name}")
        function: Callable[..., dict[str, Any]] = getattr(functions, f"to_{self.name}")
        return function


_ROW = """
    input_ids                     int64[1, T]          tokens
    labels                        int64[1, T]          labels
    position_ids                  int64[1, T]          positions
    position_ids                  int64[4, 1, T]       positions; only with mRoPE, text first
"""
_WEIGHTS = """
    loss_weights                  float32[1, T]        weights; only if the batch has any
"""
_FLASH = """
    cu_seq_lens_q, cu_seq_lens_k  int32[S + 1]         boundaries
    max_length_q, max_length_k    int                  longest segment
"""
_NO_TARGET = """
    num_items_in_batch            int                  divisor; only without a target: 1, so that the loss is 0, not NaN
"""
_NO_CACHE = f"""{_NO_TARGET}
    use_cache                     False                constant
"""
_SHARING = """
    parents                       int32[S]             sharing; only in rows that share
    tree_in, tree_out             int32[T]             sharing; only in rows that share
    loss_index                    int64[M]             sharing; only with branch="index"
    loss_targets                  int64[M]             sharing; only with branch="index"
    loss_samples                  int64[M]             sharing; only with branch="index"
    loss_weights                  float32[M]           weights; only with branch="index"
"""
_TRL = f"""{_ROW}{_FLASH}{_WEIGHTS}
    seq_idx                       int32[1, T]          segments; for Mamba and gated delta nets
"""
_TRANSFORMERS = _TRL + _NO_CACHE
_MS_SWIFT = f"""{_FLASH}
    input_ids                     int64[1, T]          tokens
    labels                        int64[1, T]          labels
    position_ids                  int64[1, T]          positions
    position_ids                  int64[3, 1, T]       positions; only with mRoPE
    text_position_ids             int64[1, T]          positions; only with mRoPE
    loss_scale                    float32[1, T]        weights; only if the batch has any
"""
_UNSLOTH = f"""{_TRL}
    packed_seq_lengths            int32[S]             lengths
"""
_MEGATRON = """
    tokens                        int64[T]             tokens
    labels                        int64[T]             shifted labels; 0 without a target
    position_ids                  int64[T]             positions
    position_ids                  int64[3, 1, T]       positions; only with mRoPE
    loss_mask                     float32[T]           weights
    padding_mask                  bool[T]              padding; for routers of experts
    cu_seqlens                    int32[S + 1]         boundaries without padding
    cu_seqlens_padded             int32[S + 1]         boundaries
    max_seqlen                    int32[1]             longest segment
    packed_seq_params.qkv_format            'thd'         constant
    packed_seq_params.cu_seqlens_q          int32[S + 1]  boundaries without padding
    packed_seq_params.cu_seqlens_kv         int32[S + 1]  boundaries without padding
    packed_seq_params.cu_seqlens_q_padded   int32[S + 1]  boundaries; None without padding after segments
    packed_seq_params.cu_seqlens_kv_padded  int32[S + 1]  boundaries; None without padding after segments
    packed_seq_params.max_seqlen_q          int           longest segment
    packed_seq_params.max_seqlen_kv         int           longest segment
"""
_MEGATRON_BRIDGE = """
    input_ids                     int64[1, T]          tokens
    labels                        int64[1, T]          shifted labels
    position_ids                  int64[1, T]          positions
    position_ids                  int64[3, 1, T]       positions; only with mRoPE
    loss_mask                     float32[1, T]        weights
    padding_mask                  bool[1, T]           padding
    attention_mask                None                 constant
    cu_seqlens_q, cu_seqlens_kv   int32[S + 1]         boundaries without padding
    cu_seqlens_q_padded           int32[S + 1]         boundaries; only with padding after segments
    cu_seqlens_kv_padded          int32[S + 1]         boundaries; only with padding after segments
    max_seqlen_q, max_seqlen_kv   int32[]              longest segment; in host memory
    total_tokens                  int                  number of tokens
"""
_MEGATRON_BRIDGE_LEGACY = """
    tokens                        int64[1, T]          tokens
    labels                        int64[1, T]          shifted labels; 0 without a target
    position_ids                  int64[1, T]          positions
    loss_mask                     float32[1, T]        weights
    attention_mask                None                 constant
    cu_seqlens                    int32[1, S + 2]      boundaries; then -1
    cu_seqlens_argmin             int64[1, 1]          index of -1
    cu_seqlens_unpadded           int32[1, S + 2]      boundaries without padding; only with padding after segments, then -1
    cu_seqlens_unpadded_argmin    int64[1, 1]          index of -1; only with padding after segments
    max_seqlen                    int32[1, 1]          longest segment
    token_count                   list[1]              number of tokens
"""
_TRANSFORMER_ENGINE = """
    input_ids                     int64[T]             tokens
    labels                        int64[T]             labels
    position_ids                  int64[T]             positions
    position_ids                  int64[3, T]          positions; only with mRoPE
    qkv_format                    'thd'                constant
    cu_seqlens_q, cu_seqlens_kv   int32[S + 1]         boundaries without padding; 0 3 5 9
    cu_seqlens_q_padded           int32[S + 1]         boundaries; 0 4 8 13
    cu_seqlens_kv_padded          int32[S + 1]         boundaries
    max_seqlen_q, max_seqlen_kv   int                  longest segment
    pad_between_seqs              bool                 whether the two differ; if not, they are the same tensor
    loss_weights                  float32[T]           weights; only if the batch has any
"""
_NEMO_AUTOMODEL = """
    input_ids                     int64[B, L]          tokens
    labels                        int64[B, L]          shifted labels
    position_ids                  int64[B, L]          positions
    position_ids                  int64[3, B, L]       positions; only with mRoPE
    seq_lens                      int64[B, S]          lengths without padding; -1000 is filler
    seq_lens_padded               int64[B, S]          lengths; -1000 is filler
    qkv_format                    'thd'                constant
    loss_weights                  float32[B, L]        weights; only if the batch has any
"""
_OLMO_CORE = """
    input_ids                     int64[B, L]          tokens
    label_mask                    bool[B, L]           targets; not shifted
    doc_lens                      int32[B, S]          lengths; 0 is filler
    max_doc_lens                  list[B]              longest segment; of each row
"""
_TORCHTITAN = """
    input                         int64[T]             tokens
    labels                        int64[T]             shifted labels
    positions                     int64[T]             positions; with mRoPE too
    mrope_positions               int64[3, T]          positions; only with mRoPE
    varlen_metadata.cu_seq_q      int32[S + 1]         boundaries
    varlen_metadata.cu_seq_k      int32[S + 1]         boundaries
    varlen_metadata.max_q         int                  longest segment
    varlen_metadata.max_k         int                  longest segment
    varlen_metadata.cu_seq_q_host  tuple[S + 1]        boundaries
    loss_weights                  float32[T]           weights; only if the batch has any
"""
_VEOMNI = f"""{_FLASH}{_WEIGHTS}
    input_ids                     int64[1, T]          tokens
    labels                        int64[1, T]          labels
    attention_mask                int64[1, T]          ones; VeOmni uses the boundaries
    position_ids                  int64[1, T]          positions
    position_ids                  int64[1, 3, T]       positions; only with mRoPE
    linear_attn_cu_seq_lens_q     int32[S + 1]         boundaries
    tail_padding_length           int32[]              padding at the end; only if the row ends in padding
    ds_idx                        int64[*]             source of each sample; only if known
"""
_VERL = """
    input_ids                     int64[B, *]          tokens; nested: input_ids.values()[None] is the row
    position_ids                  int64[B, *]          positions; nested
    position_ids                  int64[B, 4, *]       positions; only with mRoPE, nested
    loss_mask                     float32[B, *]        weights; nested, of each token as a target
    batch_num_tokens              int                  divisor; targets of this batch: sum it over ranks
"""
_ROWS = """
    input_ids                     int64[B, L]          tokens
    labels                        int64[B, L]          labels
    position_ids                  int64[B, L]          positions
    position_ids                  int64[4, B, L]       positions; only with mRoPE, text first
    loss_weights                  float32[B, L]        weights; only if the batch has any
"""
_LLAMA_FACTORY = f"""{_ROWS}
    attention_mask                int32[B, L]          segments; from 1, 0 at padding
    packing_params.sequence_boundaries   list[S + 1]   boundaries; a mapping for each row
    packing_params.right_padding_length  int           padding at the end
    packing_params.image_subseq_ids      list[*]       segments; of each image, 2**32 if none
    packing_params.video_subseq_ids      list[*]       segments; of each video, 2**32 if none
    packing_params.audio_subseq_ids      list[*]       segments; of each audio, 2**32 if none
"""
_AXOLOTL = f"""{_ROWS}
    attention_mask                int64[B, L]          segments; from 1, 0 at padding
"""
_PLAIN = f"""{_ROWS}{_NO_TARGET}
    attention_mask                int64[B, L]          mask; 1 at tokens, 0 at padding
"""
_FLEX_ATTENTION = f"""{_ROW}{_WEIGHTS}{_SHARING}
    document_ids                  int32[T]             segments; only in rows that do not share
    block_mask                    BlockMask[1, 1, T, T]  mask; causal inside of segments
"""
_DENSE_MASK = f"""{_ROW}{_WEIGHTS}{_NO_CACHE}{_SHARING}
    attention_mask                bool[1, 1, T, T]     mask; query, key: true if the query attends to the key
"""
_DENSE_MASK_ADDITIVE = f"""{_ROW}{_WEIGHTS}{_NO_CACHE}{_SHARING}
    attention_mask                float32[1, 1, T, T]  mask; query, key: 0 if the query attends to the key
"""
_TRANSFORMERS_TREE = f"""{_TRANSFORMERS}{_SHARING}
    tree_kv_index                 int64[*]             sharing; only in rows that share: the index of each key, run by run
    tree_cu_seqlens_q             int32[*]             sharing; only in rows that share: boundaries of the runs
    tree_cu_seqlens_k             int32[*]             sharing; only in rows that share: boundaries of the runs
    tree_max_length_q             int                  sharing; only in rows that share
    tree_max_length_k             int                  sharing; only in rows that share
"""
_TRL_TREE = """
    input_ids                     int64[T]             tokens
    position_ids                  int64[T]             positions; depths
    shift_labels                  int64[T]             shifted labels
    tree_kv_index                 int64[*]             sharing; tokens of the path to each segment, and its own
    tree_cu_seqlens_q             int32[S + 1]         boundaries
    tree_cu_seqlens_k             int32[S + 1]         boundaries; in tree_kv_index
    tree_max_seqlens              int64[2]             longest segment; and the longest path
    token_index                   int64[M]             sharing; the token that predicts each target
    segment_id                    int64[M]             sharing; the sample that trains it
    loss_weights                  float32[M]           weights; only if any is not 1
"""
_ART = """
    tokens                        int64[B, L]          tokens
    group_ids                     int64[B, L]          segments; from 1, -1 in the padding
    parent_ids                    int64[B, L]          sharing; the segment that it goes on from; its own if none
    input_pos                     int64[B, L]          positions; depths
    assistant_mask                bool[B, L]           targets; not shifted
    weights                       float32[B, L]        weights
"""
_NEMO_AUTOMODEL_TREE = """
    input_ids                     int64[1, T]          tokens
    labels                        int64[1, T]          shifted labels
    position_ids                  int64[1, T]          positions; depths
    position_ids                  int64[3, 1, T]       positions; only with mRoPE
    prefix_tree                   tuple[2]             sharing; tokens of each segment, and segments of each sample
    loss_weights                  float32[1, T]        weights; only if any is not 1
"""
_MAGI_ATTENTION = f"""{_ROW}{_WEIGHTS}{_SHARING}
    q_ranges, k_ranges            int32[*, 2]          mask; tokens that attend, and to which
    attn_type_map                 int32[*]             mask; 1 (causal) for the segment itself, 0 (full) for what it goes on from
"""

_SHARED = "brimful.trees.dialects"
"""Module of the dialects that exist only for rows whose samples share."""

DIALECTS: dict[str, Dialect] = {
    entry.name: entry
    for entry in (
        Dialect("transformers", "one_row", _TRANSFORMERS, any_start=True),
        Dialect("trl", "one_row", _TRL),
        Dialect("ms_swift", "one_row", _MS_SWIFT),
        Dialect("unsloth", "one_row", _UNSLOTH),
        Dialect("megatron", "megatron", _MEGATRON),
        Dialect("megatron_bridge", "megatron", _MEGATRON_BRIDGE),
        Dialect("megatron_bridge_legacy", "megatron", _MEGATRON_BRIDGE_LEGACY),
        Dialect("transformer_engine", "one_row", _TRANSFORMER_ENGINE, any_start=True),
        Dialect("nemo_automodel", "several_rows", _NEMO_AUTOMODEL, row_per_pack=True),
        Dialect("olmo_core", "several_rows", _OLMO_CORE, row_per_pack=True),
        Dialect("torchtitan", "one_row", _TORCHTITAN),
        Dialect("veomni", "one_row", _VEOMNI),
        Dialect("verl", "one_row", _VERL),
        Dialect("llama_factory", "several_rows", _LLAMA_FACTORY, row_per_pack=True, spare_tokens=1),
        Dialect("axolotl", "several_rows", _AXOLOTL, row_per_pack=True),
        Dialect(
            "flex_attention", "flex_attention", _FLEX_ATTENTION, any_start=True, takes_sharing=True
        ),
        Dialect("dense_mask", "masks", _DENSE_MASK, any_start=True, takes_sharing=True),
        Dialect(
            "dense_mask_additive", "masks", _DENSE_MASK_ADDITIVE, any_start=True, takes_sharing=True
        ),
        Dialect("plain", "several_rows", _PLAIN, row_per_sample=True, any_start=True),
        Dialect(
            "transformers_tree", _SHARED, _TRANSFORMERS_TREE, any_start=True, takes_sharing=True
        ),
        Dialect("trl_tree", _SHARED, _TRL_TREE, any_start=True, takes_sharing=True),
        Dialect("art", _SHARED, _ART, row_per_pack=True, any_start=True, takes_sharing=True),
        Dialect(
            "nemo_automodel_tree", _SHARED, _NEMO_AUTOMODEL_TREE, any_start=True, takes_sharing=True
        ),
        Dialect("magi_attention", _SHARED, _MAGI_ATTENTION, any_start=True, takes_sharing=True),
    )
}
"""Dialects by name."""


def dialect_of(name: str) -> Dialect:
    """Return a dialect by name; hyphens and capitals are accepted.

    >>> dialect_of("ms-swift").name, dialect_of("megatron").labels_shifted
    ('ms_swift', True)

    Raises:
        SettingsError: no such dialect; lists all dialects.
    """
    check_type("dialect", name, str, "a name")
    entry = DIALECTS.get(name.lower().replace("-", "_"))
    if entry is None:
        raise SettingsError(f"no dialect {name!r}: dialect must be one of {', '.join(DIALECTS)}")
    return entry
