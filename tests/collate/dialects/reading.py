"""Small steps that several readers share: cutting rows at boundaries, and pairing tokens with labels."""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from brimful.collate import AttachedInputs, PackExtras, dialect_of
from brimful.serve import Pack
from brimful.testing.toys import toy_pack

F32, I32, I64 = torch.float32, torch.int32, torch.int64


def key_of(dialect: str, *holds: str) -> str | None:
    """The first key of a dialect that holds one of these; None if none does."""
    return next((key.name for key in dialect_of(dialect).keys if key.holds in holds), None)


def between(ids: torch.Tensor, edges: Sequence[int]) -> list[list[int]]:
    """The tokens of a row between each two boundaries."""
    return [ids[start:stop].tolist() for start, stop in pairwise(edges)]


def at_places(ids: torch.Tensor, places: torch.Tensor, real: torch.Tensor) -> list[list[int]]:
    """The tokens of segments that lie where ``places`` says, and are as long as ``real`` says, in running sums."""
    return [
        ids[start : start + stop - begin].tolist()
        for start, (begin, stop) in zip(places.tolist(), pairwise(real.tolist()), strict=False)
        if stop > begin
    ]


def changes(numbers: Iterable[int]) -> list[int]:
    """Boundaries of a row where each token has the number of its segment.

    >>> changes([1, 1, 2, 0])
    [0, 2, 3, 4]
    """
    numbers = list(numbers)
    return [0, *(place for place in range(1, len(numbers)) if numbers[place] != numbers[place - 1]), len(numbers)]


def pairs(ids: torch.Tensor, labels: torch.Tensor, *, labels_shifted: bool) -> list[tuple[int, int]]:
    """Each token of some rows that has a label, with the token that it predicts; -100 is not a label.

    A trainer whose labels are not shifted moves them itself: the model's output at a token meets the next label.
    """
    ids, labels = ids.reshape(-1, ids.shape[-1]), labels.reshape(-1, labels.shape[-1])
    if not labels_shifted:
        ids, labels = ids[:, :-1], labels[:, 1:]
    return [pair for pair in zip(ids.flatten().tolist(), labels.flatten().tolist(), strict=True) if pair[1] != -100]


def count_labels(batch: Any) -> int:
    """Labels that are not -100."""
    return int((batch["labels"] != -100).sum())


ROPE = [[0, 1, 1, 2, 0, 1], [0, 1, 1, 2, 0, 1], [0, 1, 2, 3, 0, 1]]
"""Time, height and width of six tokens: an image in a segment of four, and a segment of two."""


def pack_with_image() -> tuple[Pack, PackExtras]:
    """Segments of 4 and 2 tokens with positions of mRoPE, the first with an image."""
    image = AttachedInputs("image", np.array([0], dtype=np.int32), {"image_grid_thw": np.array([[1, 2, 4]])})
    return toy_pack([4, 2]), PackExtras(rope_positions=np.array(ROPE), attached=(image,))
