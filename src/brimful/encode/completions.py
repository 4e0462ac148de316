"""Targets of preferences: the tokens after the common tokens of prompt, chosen and rejected."""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np

from brimful.encode.tokenizer import Tokenizer
from brimful.tables import Ragged
from brimful.typing import LossMask, TokenIds

PromptAndRival: TypeAlias = tuple[str, str]
"""Text of a preference's prompt alone, and of its other conversation; the second is empty if it has none."""


def mark_completions(
    mask: LossMask,
    ids: Ragged,
    texts: Sequence[str],
    sides: Mapping[int, PromptAndRival],
    tokenizer: Tokenizer,
) -> None:
    """Set the targets of chosen and rejected samples, in place.

    The completion begins at the first token in which prompt, chosen and rejected differ, as in TRL's ``DPOTrainer``::

        prompt      Q : _        the space merges with one of the answers
        chosen      Q : _4       targets _4
        rejected    Q : _ 5      targets _ 5: both completions begin after the colon

    Args:
        mask: ``bool[num_tokens]`` of all samples.
        ids: tokens of all texts, without marks.
        texts: of all samples.
        sides: prompt and other text, by the index of each such sample.
        tokenizer: of the texts.
    """
    # The three texts of a preference are tokenized once if chosen and rejected are both in the batch.
    known_rows = {text: index for index, text in enumerate(texts)}
    further = list(dict.fromkeys(text for pair in sides.values() for text in pair if text and text not in known_rows))
    further_ids = tokenizer.tokenize(further).ids
    further_rows = {text: index for index, text in enumerate(further)}

    def ids_of(text: str) -> TokenIds:
        return ids.row(known_rows[text]) if text in known_rows else further_ids.row(further_rows[text])

    for index, (prompt, rival) in sides.items():
        tokens = ids.row(index)
        prompt_ids = ids_of(prompt)
        begin = _common_length(prompt_ids, tokens)
        if rival:
            begin = min(begin, _common_length(prompt_ids, ids_of(rival)))
        start = int(ids.offsets[index])
        mask[start : start + begin] = False
        mask[start + begin : start + len(tokens)] = True


def _common_length(one: TokenIds, other: TokenIds) -> int:
    """Return the number of leading tokens that both share.

    >>> _common_length(np.array([1, 2, 3]), np.array([1, 2, 4, 5]))
    2
    """
    length = min(len(one), len(other))
    differences = np.flatnonzero(one[:length] != other[:length])
    return int(differences[0]) if len(differences) else length
