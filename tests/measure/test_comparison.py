"""A share of the rows is encoded by the reference too: one difference stops the job, and is remembered."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("fastokens", reason="the fast tokenizer comes with brimful[fast]")

from brimful.encode import ChatEncoder
from brimful.encode.fast_tokenizer import FastTokenizer
from brimful.encode.tokenizer import Tokenizer
from brimful.errors import CacheMismatchError, EncodersDifferError
from brimful.measure import LengthTable, job, measure_lengths
from brimful.sources import open_source
from brimful.tables import Ragged


def _rows(count=60):
    return "".join(
        json.dumps(
            {"messages": [{"role": "user", "content": f"q {n}"}, {"role": "assistant", "content": "a " * (n + 1)}]}
        )
        + "\n"
        for n in range(count)
    )


@pytest.fixture
def source(put, fresh_cache, monkeypatch):
    monkeypatch.setattr(job, "_FEW_ROWS", 0)  # however few, the fast library encodes them
    return open_source(put("chats.jsonl", _rows()))


def _plant(monkeypatch):
    """Make the fast tokenizer lose the last token of texts that hold ``a a a``; its other texts stay right."""
    real = FastTokenizer.ids

    def ids(self, texts):
        right = real(self, texts)
        rows = [
            row[: -1 if "a a a" in text else None]
            for text, row in zip(texts, map(right.row, range(len(texts))), strict=True)
        ]
        import numpy as np

        from brimful.ragged import offsets_of

        return Ragged(np.concatenate([np.empty(0, np.int32), *rows]), offsets_of([len(row) for row in rows]))

    monkeypatch.setattr(FastTokenizer, "ids", ids)


def test_a_difference_stops_the_job_and_is_remembered(source, qwen_tokenizer, monkeypatch, tmp_path):
    """Without it a fast library with a rare fault would spoil a run in silence."""
    path = tmp_path / "lengths.arrow"
    before = measure_lengths(source, ChatEncoder(Tokenizer(qwen_tokenizer)), path=path)
    assert "fastokens" in ChatEncoder(Tokenizer(qwen_tokenizer)).engine.name
    _plant(monkeypatch)
    with pytest.raises(
        EncodersDifferError, match=r"chats\.jsonl:3 \(sample 2\): fastokens .* tokens, and \d+ by the reference"
    ):
        measure_lengths(source, ChatEncoder(Tokenizer(qwen_tokenizer)), cache_dir=tmp_path / "other")
    # Never again for this tokenizer: neither the library nor what it measured.
    encoder = ChatEncoder(Tokenizer(qwen_tokenizer))
    assert encoder.engine.name.startswith("tokenizers ")
    assert "it differed from the reference on" in encoder.engine.name
    with pytest.raises(CacheMismatchError, match="found to give other tokens than the reference since"):
        measure_lengths(source, encoder, path=path)
    after = measure_lengths(source, encoder, path=path, on_mismatch="rebuild")
    assert after.tokens.tolist() == before.tokens.tolist()
    assert LengthTable.open(path).provenance.get("engines") is None


def test_other_targets_are_found_in_kept_tokens(source, qwen_tokenizer, monkeypatch, tmp_path):
    """Lengths may be right while a label is not."""
    from brimful.encode import tokenized
    from brimful.materialize import pack_dataset

    real = tokenized.ByteAlignedTexts.runs

    def runs(self, rows, starts, ends):
        firsts, lasts = real(self, rows, starts, ends)
        return firsts + 1, lasts

    monkeypatch.setattr(tokenized.ByteAlignedTexts, "runs", runs)
    with pytest.raises(EncodersDifferError, match=r"target \d+ is False, and True by the reference"):
        pack_dataset(source, ChatEncoder(Tokenizer(qwen_tokenizer)), tmp_path / "packs", capacity=512)


def test_few_rows_are_encoded_by_the_reference(put, qwen_tokenizer, monkeypatch, tmp_path):
    """Loading a fast tokenizer takes longer than encoding a thousand rows without it."""
    from brimful.materialize import pack_dataset

    monkeypatch.setattr(FastTokenizer, "ids", lambda *_: pytest.fail("loaded"))
    summary = pack_dataset(put("a.jsonl", _rows()), Tokenizer(qwen_tokenizer), tmp_path / "packs", capacity=512)
    assert "encoded by     tokenizers" in str(summary)


def test_rows_of_an_earlier_job_keep_their_library(put, fresh_cache, qwen_tokenizer, monkeypatch, tmp_path):
    """Without it a few appended rows would hide which library measured the rows before them."""
    monkeypatch.setattr(job, "_FEW_ROWS", 0)
    path = tmp_path / "lengths.arrow"
    tokenizer = Tokenizer(qwen_tokenizer)
    measure_lengths(put("a.jsonl", _rows(5)), tokenizer, path=path)
    monkeypatch.setattr(job, "_FEW_ROWS", 3000)
    table = measure_lengths(put("a.jsonl", _rows(7)), tokenizer, path=path)
    assert [libraries.split()[0] for libraries in table.provenance["encoded_by"]] == ["fastokens", "tokenizers"]
    assert len(table.provenance["engines"]) == 1
    ChatEncoder(tokenizer).engine.distrust("planted")
    with pytest.raises(CacheMismatchError, match="found to give other tokens"):
        measure_lengths(put("a.jsonl", _rows(7)), ChatEncoder(Tokenizer(qwen_tokenizer)), path=path)


def test_without_fast_libraries_transformers_renders(put, fresh_cache, qwen_tokenizer):
    """``fast=False`` is for whoever suspects one of them: few rows must not bring Jinja back."""
    encoder = ChatEncoder(Tokenizer(qwen_tokenizer, fast=False))
    assert encoder.engine.reference is encoder
    table = measure_lengths(put("a.jsonl", _rows(5)), encoder)
    assert table.provenance["encoded_by"] == [encoder.engine.name]
    assert encoder.engine.name.endswith("templates by Transformers")


def test_a_tokenizer_whose_fast_form_is_changed_is_caught_before(fresh_cache, qwen_tokenizer, monkeypatch):
    """The hard texts are compared before the first use."""
    _plant(monkeypatch)
    monkeypatch.setattr("brimful.encode.tokenizer.hard_texts", lambda: iter(["x", "a a a"]))
    tokenizer = Tokenizer(qwen_tokenizer)
    assert not tokenizer.is_fast
    assert tokenizer.engine.endswith("(fastokens gives other tokens for 'a a a')")
