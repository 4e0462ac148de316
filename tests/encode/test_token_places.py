"""Runs of tokens by the bytes of a vocabulary equal the ``tokenizers`` library's."""

from __future__ import annotations

import json
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("transformers", reason="tokenizers need the extra brimful[text]")

from brimful.encode.token_places import TextSpans, TokenBytes
from brimful.encode.tokenizer import Tokenizer

PIECES = [
    "a",
    " b",
    "  ",
    "\n\n",
    "é",
    "e\u0301",
    "漢字",
    "👨\u200d👩",
    "<|end|>",
    " <|end|>",
    "12",
    "\u00a0",
    "\t",
    "𝄞",
    "क्षि",
]


def _tokenizer(*, normalizer: bool):
    """Byte-level, with a few merges that join blanks, halves of characters and letters."""
    from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers, processors

    vocab = {letter: number for number, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    merges = [("Ġ", "Ġ"), ("Ġ", "b"), ("Ã", "©"), ("ä", "º"), ("¦", "Ġ"), ("¼", "¢"), ("č", "Ċ"), ("Ċ", "Ċ")]
    merges = [pair for pair in merges if set(pair) <= set(vocab)]
    vocab |= {left + right: len(vocab) + number for number, (left, right) in enumerate(merges)}
    backend = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.post_processor = processors.ByteLevel(trim_offsets=False)
    if normalizer:
        backend.normalizer = normalizers.NFC()
    backend.add_special_tokens([AddedToken("<|end|>", special=True, normalized=False)])
    return backend


@cache
def _aligning(*, normalizer: bool) -> Tokenizer:
    """A tokenizer that counts the bytes of its tokens."""
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(PreTrainedTokenizerFast(tokenizer_object=_tokenizer(normalizer=normalizer)))
    assert tokenizer.facts.sizes is not None
    return tokenizer


@pytest.mark.parametrize("normalizer", [False, True])
@settings(max_examples=2 * settings.default.max_examples)
@given(
    texts=st.lists(st.lists(st.sampled_from(PIECES), max_size=8).map("".join), min_size=1, max_size=4), data=st.data()
)
def test_runs_are_those_of_the_reference(normalizer, texts, data):
    """Without it a label would begin or end at another token as soon as a text holds more than plain letters."""
    tokenizer = _aligning(normalizer=normalizer)
    rows = np.repeat(np.arange(len(texts)), 3)
    starts = np.array([data.draw(st.integers(0, len(texts[row]))) for row in rows])
    ends = np.array([data.draw(st.integers(start, len(texts[row]))) for row, start in zip(rows, starts, strict=True)])
    spans = TextSpans(rows, starts, ends)
    (ids, *runs), (expected_ids, *expected_runs) = (one.align(texts, spans) for one in (tokenizer, tokenizer.reference))
    assert ids.values.tolist() == expected_ids.values.tolist()
    for ours, theirs in zip(runs, expected_runs, strict=True):
        assert ours.tolist() == theirs.tolist()


def test_texts_in_another_form_go_to_the_reference(monkeypatch):
    """A decomposed accent has other bytes than its tokens: counting bytes would shift everything after it."""
    tokenizer = _aligning(normalizer=True)
    asked = []
    real = Tokenizer._align_by_reference

    def recorded(self, texts, spans):
        asked.extend(texts)
        return real(self, texts, spans)

    monkeypatch.setattr(Tokenizer, "_align_by_reference", recorded)
    spans = TextSpans(np.array([0, 1]), np.array([1, 6]), np.array([3, 7]))
    ids, firsts, lasts = tokenizer.align(["plain", "cafe\u0301 x"], spans)
    assert asked == ["cafe\u0301 x"]
    assert ids.row(1)[int(firsts[1]) : int(lasts[1])].tolist() == tokenizer.ids(["x"])[0]


@pytest.mark.parametrize(
    "change",
    [
        {"normalizer": {"type": "Lowercase"}},
        {"pre_tokenizer": {"type": "Metaspace"}},
        {"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": True}},
        {"post_processor": {"type": "ByteLevel", "trim_offsets": True}},
        {"model": {"vocab": {"▁a": 0}}},
        {"model": {"vocab": [["a", -1.0]]}},
    ],
)
def test_vocabularies_of_other_kinds_have_no_sizes(change):
    """Their tokens do not spell the bytes of a text."""
    state = json.loads(_tokenizer(normalizer=False).to_str())
    assert TokenBytes.of({**state, **change}) is None
