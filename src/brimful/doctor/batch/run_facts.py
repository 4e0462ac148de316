"""Facts of a run that its batches do not hold: special tokens, settings, the divisor."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from brimful.base.checks import whole_number
from brimful.base.typing import BoolArray, Int64Array

WITHOUT_PADDING = "padding_free"
"""Setting of trainers that asks for one row without padding."""

_PACKING_SETTINGS = (WITHOUT_PADDING, "packing", "sample_packing", "neat_packing")
"""Settings of trainers that ask for several samples in each row."""

_ATTENTION_SETTINGS = ("attn_implementation", "_attn_implementation", "attention")

OPENING = 3
"""First tokens of a sample by which another beginning is recognized."""

_TURNS = [
    {"role": "user", "content": "a"},
    {"role": "assistant", "content": "b"},
    {"role": "user", "content": "c"},
    {"role": "assistant", "content": "d"},
]


@dataclass(frozen=True)
class RunFacts:
    """Facts of a run that its batches do not hold.

    Attributes:
        tokenizer: as given; None without one.
        eos, bos, pad: ids of the special tokens; several ends are possible, empty if unknown.
        ends: tokens that may end an answer: EOS, and the token that the chat template writes after
            one.
        inner_eos, inner_bos, inner_opening: true if a single sample of several turns may have EOS,
            BOS, or its own first tokens after EOS inside, by the chat template; true as well if no
            tokenizer can be asked.
        turns: tokens of a conversation by the chat template, up to its last answer.
        attention: attention implementation, such as ``sdpa``; empty if unknown.
        packing: setting that asks for packing, such as ``padding_free``; empty without one.
        segment_multiple, row_multiple: tokens to a multiple of which each segment, and each row,
            must come; 1 if unknown.
        max_length: tokens that fit into a row; 1 if unknown.
        num_items: divisor of the step; None if unknown.
    """

    tokenizer: Any = None
    eos: tuple[int, ...] = ()
    bos: tuple[int, ...] = ()
    pad: tuple[int, ...] = ()
    ends: tuple[int, ...] = ()
    inner_eos: bool = True
    inner_bos: bool = True
    inner_opening: bool = True
    turns: tuple[int, ...] = ()
    attention: str = ""
    packing: str = ""
    segment_multiple: int = 1
    row_multiple: int = 1
    max_length: int = 1
    num_items: int | None = None

    @classmethod
    def of(cls, tokenizer: Any, config: Any, num_items: int | None) -> "RunFacts":
        """Collect what a tokenizer and a configuration say.

        Args:
            tokenizer: any object with ``eos_token_id``; None without one.
            config: a mapping or an object with attributes: settings of a trainer, configuration of
                a model, or both in one mapping; None without one.
            num_items: divisor of the step.
        """
        eos = _ids(tokenizer, config, "eos_token_id")
        bos = _ids(tokenizer, config, "bos_token_id")
        turns = _tokens_of_turns(tokenizer)
        # The last special token of the template ends an answer; a newline may follow.
        special_ids = set(getattr(tokenizer, "all_special_ids", ()) or ())
        ending, inside = turns[-3:], turns[:-3]
        last = next((token for token in reversed(ending) if token in special_ids), None)
        # A tokenizer without a template is one of documents, which have no turns.
        is_open = tokenizer is None or bool(getattr(tokenizer, "chat_template", None) and not turns)
        repeats = reopenings(np.array(inside, dtype=np.int64), eos, turns[:OPENING])
        return cls(
            tokenizer=tokenizer,
            eos=eos,
            bos=bos,
            pad=_ids(tokenizer, config, "pad_token_id"),
            ends=eos if last is None or last in eos else (*eos, last),
            inner_eos=is_open or not set(eos).isdisjoint(inside),
            inner_bos=is_open or not set(bos).isdisjoint(inside[1:]),
            inner_opening=is_open or len(repeats) > 0,
            turns=tuple(inside),
            attention=next(
                (str(value) for name in _ATTENTION_SETTINGS if (value := _get(config, name))), ""
            ),
            packing=next(
                (name for name in _PACKING_SETTINGS if _get(config, name) not in (None, False)), ""
            ),
            segment_multiple=_size(config, "segment_multiple"),
            row_multiple=_size(config, "row_multiple"),
            max_length=_size(config, "max_length"),
            num_items=None
            if num_items is None
            else whole_number("num_items", num_items, minimum=0),
        )

    def is_eos(self, ids: Int64Array) -> BoolArray:
        """Mark the tokens that are EOS."""
        return np.isin(ids, self.eos)

    def is_bos(self, ids: Int64Array) -> BoolArray:
        """Mark the tokens that are BOS."""
        return np.isin(ids, self.bos)

    def begins_turns(self, opening: Sequence[int]) -> bool:
        """Return true if a later turn of a sample may begin with these tokens.

        Trainers have templates of their own: without the system prompt of the tokenizer's, a sample
        begins as each of its turns does.
        """
        turns = np.array(self.turns, dtype=np.int64)
        return self.inner_opening or len(reopenings(turns, self.eos, opening)) > 0


NO_FACTS = RunFacts()


def reopenings(ids: Int64Array, eos: tuple[int, ...], opening: Sequence[int]) -> Int64Array:
    """Return the places at which the first tokens of a sample follow an EOS.

    One token may stand between, such as the newline of a template.

    >>> reopenings(np.array([1, 5, 2, 1, 5, 2, 9, 1, 5]), (2,), [1, 5]).tolist()
    [3, 7]
    """
    if len(ids) <= len(opening) or not len(opening):
        return np.zeros(0, dtype=np.int64)
    windows = np.lib.stride_tricks.sliding_window_view(ids, len(opening))
    is_eos = np.isin(ids, eos)
    after = np.append(False, is_eos[:-1]) | np.append([False, False], is_eos[:-2])
    same = (windows == np.asarray(opening)).all(axis=1)
    return np.flatnonzero(same & after[: len(same)]).astype(np.int64)


def _get(config: Any, name: str) -> Any:
    if isinstance(config, Mapping):
        return config.get(name)
    return None if config is None else getattr(config, name, None)


def _ids(tokenizer: Any, config: Any, name: str) -> tuple[int, ...]:
    value = getattr(tokenizer, name, None)
    if value is None:
        value = _get(config, name)
    if value is None:
        return ()
    return tuple(int(item) for item in (value if isinstance(value, (list, tuple)) else [value]))


def _size(config: Any, name: str) -> int:
    value = _get(config, name)
    return 1 if value is None else whole_number(name, value, minimum=1)


def _tokens_of_turns(tokenizer: Any) -> list[int]:
    """Return the tokens of a conversation of two questions; empty without a chat template."""
    if not getattr(tokenizer, "chat_template", None):
        return []
    try:
        ids = tokenizer.apply_chat_template(_TURNS, tokenize=True, return_dict=False)
        return [int(token) for token in ids]
    except Exception:  # a template may refuse such turns in any way
        return []
