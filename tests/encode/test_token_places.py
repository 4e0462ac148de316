"""Runs of tokens by the bytes of a vocabulary are those that the ``tokenizers`` library gives."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("tokenizers", reason="tokenizers come with brimful[text]")

from brimful.base.ragged import offsets_of
from brimful.base.tables import Ragged
from brimful.encode.token_places import ByteAlignedTexts, TokenBytes, aligned_by_offsets

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


@pytest.mark.parametrize("normalizer", [False, True])
@settings(max_examples=2 * settings.default.max_examples)
@given(
    texts=st.lists(st.lists(st.sampled_from(PIECES), max_size=8).map("".join), min_size=1, max_size=4), data=st.data()
)
def test_runs_are_those_of_the_reference(normalizer, texts, data):
    """Without it a label would begin or end at another token as soon as a text holds more than plain letters."""
    backend = _tokenizer(normalizer=normalizer)
    sizes = TokenBytes.of(json.loads(backend.to_str()))
    assert sizes is not None

    def reference(some):
        encodings = backend.encode_batch(list(some), add_special_tokens=False)
        ids = [encoding.ids for encoding in encodings]
        flat = np.array([token for row in ids for token in row], dtype=np.int32)
        return aligned_by_offsets(Ragged(flat, offsets_of([len(row) for row in ids])), some, encodings)

    expected = reference(texts)
    rows = np.repeat(np.arange(len(texts)), 3)
    starts = np.array([data.draw(st.integers(0, len(texts[row]))) for row in rows])
    ends = np.array([data.draw(st.integers(start, len(texts[row]))) for row, start in zip(rows, starts, strict=True)])
    aligned = ByteAlignedTexts(texts, expected.ids, sizes, reference)
    for ours, theirs in zip(aligned.runs(rows, starts, ends), expected.runs(rows, starts, ends), strict=True):
        assert ours.tolist() == theirs.tolist()


def test_texts_in_another_form_go_to_the_reference():
    """A decomposed accent has other bytes than its tokens: counting bytes would shift everything behind it."""
    backend = _tokenizer(normalizer=True)
    sizes = TokenBytes.of(json.loads(backend.to_str()))
    assert sizes is not None
    asked = []

    def reference(some):
        asked.extend(some)
        encodings = backend.encode_batch(list(some), add_special_tokens=False)
        ids = np.array(encodings[0].ids, dtype=np.int32)
        return aligned_by_offsets(Ragged(ids, offsets_of([len(ids)])), some, encodings)

    texts = ["plain", "cafe\u0301 x"]
    encodings = backend.encode_batch(texts, add_special_tokens=False)
    ids = np.array([token for encoding in encodings for token in encoding.ids], dtype=np.int32)
    tokens = ByteAlignedTexts(texts, Ragged(ids, offsets_of([len(e.ids) for e in encodings])), sizes, reference)
    firsts, lasts = tokens.runs(np.array([0, 1]), np.array([1, 6]), np.array([3, 7]))
    assert asked == ["cafe\u0301 x"]
    assert encodings[1].ids[int(firsts[1]) : int(lasts[1])] == backend.encode("x", add_special_tokens=False).ids


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
