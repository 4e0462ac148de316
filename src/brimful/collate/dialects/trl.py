"""Batch that ``SFTTrainer`` of TRL gets from its own padding-free collator."""

from typing import Any

from brimful.base.wording import setting
from brimful.collate.batch import PackedBatch
from brimful.collate.dialects.transformers import to_transformers
from brimful.errors import CollateError

_KEYS_OF_THE_TRAINER = ("use_cache", "num_items_in_batch")


def to_trl(batch: PackedBatch) -> dict[str, Any]:
    """Convert a batch to one row with the keys of TRL's ``DataCollatorForLanguageModeling(padding_free=True)``.

    These are the keys of ``transformers`` without ``use_cache`` and ``num_items_in_batch``, which the trainer sets
    itself. TRL gives padding tokens position 0, which makes each of them a segment; here the padding is one segment.
    """
    return {key: value for key, value in to_transformers(batch).items() if key not in _KEYS_OF_THE_TRAINER}


def trl_example(batch: PackedBatch) -> dict[str, list[int]]:
    """Return the row as an example of TRL's packed data set: ``input_ids``, ``labels``, ``seq_lengths``; no padding.

    Raises:
        CollateError: the batch has columns, for which a data set of TRL has no key.
    """
    if batch.columns:
        raise CollateError(
            f"the column {batch.columns[0].name!r} has no key in a data set of TRL, which has only tokens and labels: "
            f"leave it out, or collate with {setting('dialect', 'trl')}"
        )
    is_token = ~batch.padding_mask
    return {
        "input_ids": batch.input_ids[is_token].tolist(),
        "labels": batch.labels[is_token].tolist(),
        "seq_lengths": batch.real_lengths[: batch.num_segments].tolist(),
    }
