"""Rows that are tokenised already."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from brimful.sources.formats.row_format import RowFormat, shown
from brimful.sources.sample import MalformedRowError
from brimful.typing import IGNORE_INDEX

__all__ = ["Tokens"]

_MASKS = ("loss_mask", "completion_mask", "assistant_masks")
_MOST = 2**31 - 1


class Tokens(RowFormat):
    """``{"input_ids": [ … ], "labels": [ … ]}``, as tokenising scripts write them.

    Targets are the labels that are not -100, else what ``loss_mask``, ``completion_mask`` or ``assistant_masks`` mark
    (all that are there must), else all tokens. An ``attention_mask`` may mark padding at either end, which is cut off.

    >>> Tokens().convert({"input_ids": [5, 6, 7, 0], "labels": [-100, 6, 7, -100], "attention_mask": [1, 1, 1, 0]})
    {'input_ids': [5, 6, 7], 'labels': [-100, 6, 7]}
    """

    name = "tokens"
    default_fields = {
        "input_ids": "input_ids",
        "labels": "labels",
        "attention_mask": "attention_mask",
        **{name: name for name in _MASKS},
    }

    def matches(self, row: Any) -> bool:
        return self.has(row, "input_ids")

    def convert(self, row: Mapping[str, Any]) -> dict[str, Any]:
        ids = _numbers(self.get(row, "input_ids"), self.fields["input_ids"])
        if not ids:
            raise MalformedRowError(f"{self.fields['input_ids']!r} is empty: a sample needs at least one token")
        wrong = next((token for token in ids if not 0 <= token <= _MOST), None)
        if wrong is not None:
            raise MalformedRowError(f"{self.fields['input_ids']!r} holds {wrong}, which is no token")
        labels = self._beside(row, "labels", ids)
        if labels is not None:
            at = next((n for n, label in enumerate(labels) if label not in (IGNORE_INDEX, ids[n])), None)
            if at is not None:
                raise MalformedRowError(
                    f"{self.fields['labels']!r} has {labels[at]} at position {at}, which is neither the token there, "
                    f"{ids[at]}, nor {IGNORE_INDEX}: labels must not be shifted"
                )
        for name in _MASKS:
            mask = self._mask(row, name, ids)
            if mask is not None:
                before = ids if labels is None else labels
                labels = [label if there else IGNORE_INDEX for label, there in zip(before, mask, strict=True)]
        begin, end = self._unpadded(row, ids)
        return {"input_ids": ids[begin:end], "labels": None if labels is None else labels[begin:end]}

    def _beside(self, row: Mapping[str, Any], name: str, ids: list[int]) -> list[int] | None:
        value = self.optional(row, name)
        if value is None:
            return None
        numbers = _numbers(value, self.fields[name])
        if len(numbers) != len(ids):
            raise MalformedRowError(f"{self.fields[name]!r} has {len(numbers)} numbers for {len(ids)} tokens")
        return numbers

    def _mask(self, row: Mapping[str, Any], name: str, ids: list[int]) -> list[int] | None:
        mask = self._beside(row, name, ids)
        if mask is not None and not set(mask) <= {0, 1}:
            raise MalformedRowError(f"{self.fields[name]!r} must hold 0 and 1 and holds {max(mask)}")
        return mask

    def _unpadded(self, row: Mapping[str, Any], ids: list[int]) -> tuple[int, int]:
        """First token that is no padding, and the one behind the last."""
        mask = self._mask(row, "attention_mask", ids)
        if mask is None:
            return 0, len(ids)
        if 1 not in mask:
            raise MalformedRowError(f"{self.fields['attention_mask']!r} marks every token as padding")
        begin, end = mask.index(1), len(mask) - mask[::-1].index(1)
        if 0 in mask[begin:end]:
            raise MalformedRowError(f"{self.fields['attention_mask']!r} marks padding between tokens")
        return begin, end


def _numbers(value: Any, key: str) -> list[int]:
    if not isinstance(value, Sequence) or isinstance(value, (str, bytes)):
        tolist = getattr(value, "tolist", None)  # arrays of NumPy and tensors
        value = tolist() if callable(tolist) else value
    if not isinstance(value, Sequence) or isinstance(value, (str, bytes)):
        raise MalformedRowError(f"{key!r} must be a list of whole numbers and is {shown(value)}")
    numbers = list(value)
    wrong = next((n for n, number in enumerate(numbers) if not isinstance(number, int)), None)
    if wrong is not None:
        raise MalformedRowError(f"{key!r} must hold whole numbers and holds {shown(numbers[wrong])}")
    return [int(number) for number in numbers]  # booleans of a mask too
