"""What a loop of its own makes of a batch: the object of Megatron-Core, and an example of TRL."""

from dataclasses import fields
from typing import TypeVar

from brimful.base.wording import setting
from brimful.collate.batch import PackedBatch
from brimful.collate.dialects.megatron import packed_seq_params
from brimful.collate.dialects.tensors import row
from brimful.errors import CollateError

_Params = TypeVar("_Params")


def build_packed_seq_params(batch: PackedBatch, cls: type[_Params]) -> _Params:
    """Build an instance of Megatron's class, with the fields of its version beyond ``packed_seq_params``."""
    field_names = {field.name for field in fields(cls)}  # type: ignore[arg-type]
    newer_fields = {
        "total_tokens": len(batch.input_ids),
        "seq_idx": row(batch.segment_index),
        "pad_between_seqs": batch.has_gaps,
    }
    params = {
        **packed_seq_params(batch),
        **{key: newer_fields[key] for key in newer_fields.keys() & field_names},
    }
    return cls(**params)


def trl_example(batch: PackedBatch) -> dict[str, list[int]]:
    """Return the row as an example of TRL's packed data set: ``input_ids``, ``labels``, ``seq_lengths``; no padding."""
    if batch.columns:
        raise CollateError(
            f"the column {batch.columns[0].name!r} has no key in a data set of TRL, which has only "
            f"tokens and labels: leave it out, or collate with {setting('dialect', 'trl')}"
        )
    is_token = ~batch.padding_mask
    return {
        "input_ids": batch.input_ids[is_token].tolist(),
        "labels": batch.labels[is_token].tolist(),
        "seq_lengths": batch.real_lengths[: batch.num_segments].tolist(),
    }
