"""Rows that are already tokenized."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from brimful.base.tokenized import TARGET_MASKS, read_tokenized
from brimful.base.typing import IGNORE_INDEX
from brimful.errors import CollateError
from brimful.sources.formats.row_format import RowFormat
from brimful.sources.sample import MalformedRowError

_NAMES = ("input_ids", "labels", "attention_mask", *TARGET_MASKS, "position_ids", "seq_lengths")


class Tokens(RowFormat):
    """``{"input_ids": [ … ], "labels": [ … ]}``, as tokenizing scripts write them (``brimful.base.tokenized``).

    Targets are the labels other than -100, or the tokens that a mask marks, or else all tokens. Padding that an
    ``attention_mask`` marks is cut off. A row that holds several samples is refused: packs are made of samples.

    >>> Tokens().convert({"input_ids": [5, 6, 7, 0], "labels": [-100, 6, 7, -100], "attention_mask": [1, 1, 1, 0]})
    {'input_ids': [5, 6, 7], 'labels': [-100, 6, 7]}
    """

    name = "tokens"
    default_fields = {name: name for name in _NAMES}
    required_fields = ("input_ids",)

    def convert(self, row: Mapping[str, Any]) -> dict[str, Any]:
        self.get(row, "input_ids")
        columns = {name: value for name in self.fields if (value := self.optional(row, name)) is not None}
        try:
            tokens = read_tokenized(columns, "the row")
        except CollateError as error:
            raise MalformedRowError(error.message) from error
        num_samples = len(tokens.cu_seqlens) - 1
        if num_samples > 1:
            raise MalformedRowError(f"the row is already a pack of {num_samples} samples: give one sample a row")
        ids = tokens.input_ids.tolist()
        if min(ids) < 0:
            raise MalformedRowError(f"the row has {min(ids)} in {self.fields['input_ids']!r}, which is not a token id")
        labels = np.where(tokens.loss_mask, tokens.input_ids, IGNORE_INDEX)
        return {"input_ids": ids, "labels": labels.tolist()}
