"""The collator: packs to the tensors that a model takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from brimful.collate.dialects.transformers import to_transformers
from brimful.collate.layout import lay_out
from brimful.errors import CollateError, SettingsError
from brimful.shards import Pack
from brimful.typing import IGNORE_INDEX

__all__ = ["PackCollator"]


class PackCollator:
    """Turns packs into what a Transformers model takes as keyword arguments.

    Several packs are flattened into one row as well. Plain samples (mappings with ``input_ids`` and ``labels``)
    are taken like packs of one segment, so this also replaces ``DataCollatorWithFlattening``.

    Args:
        pad_to: fixed length of the row, for compiled models; None leaves it as long as it is.
        pad_token_id: what stands in the padding.

    >>> import numpy as np
    >>> from brimful.testing.toys import toy_pack
    >>> batch = PackCollator(pad_to=8)([toy_pack([4, 2])])
    >>> batch["cu_seq_lens_q"].tolist(), batch["position_ids"].tolist()
    ([0, 4, 6, 8], [[0, 1, 2, 3, 0, 1, 0, 1]])
    """

    def __init__(self, *, pad_to: int | None = None, pad_token_id: int = 0) -> None:
        if pad_to is not None and pad_to < 1:
            raise SettingsError(f"pad_to must be at least 1 and is {pad_to}")
        self.pad_to = pad_to
        self.pad_token_id = pad_token_id

    def __call__(self, features: Sequence[Pack | Mapping[str, Any]]) -> dict[str, Any]:
        """One batch; the packs are not changed.

        Raises:
            CollateError: nothing to collate, keys missing, or more tokens than ``pad_to``.
        """
        packs = [item if isinstance(item, Pack) else _as_pack(item, place) for place, item in enumerate(features)]
        return to_transformers(lay_out(packs, pad_to=self.pad_to, pad_token_id=self.pad_token_id))


def _as_pack(sample: Mapping[str, Any], place: int) -> Pack:
    """A plain sample as a pack of one segment."""
    for key in ("input_ids", "labels"):
        if key not in sample:
            raise CollateError(f"sample {place} of the batch has no {key!r} (found {sorted(map(str, sample))})")
    ids, labels = np.asarray(sample["input_ids"]), np.asarray(sample["labels"])
    if ids.shape != labels.shape or ids.ndim != 1 or len(ids) == 0:
        raise CollateError(
            f"sample {place} of the batch: input_ids {ids.shape} and labels {labels.shape} must be two rows of one "
            f"length, at least 1"
        )
    mask = labels != IGNORE_INDEX
    if bool((mask & (labels != ids)).any()):
        raise CollateError(f"sample {place} of the batch: a label is not its own token; labels must not be shifted")
    return Pack(
        ids.astype(np.int32, copy=False),
        mask,
        np.array([0, len(ids)], dtype=np.int32),
        np.array([place], dtype=np.int64),
        np.zeros(1, dtype=np.int32),
    )
