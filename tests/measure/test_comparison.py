"""A share of the rows is encoded by the reference too: one difference stops the job, and is remembered."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("fastokens", reason="the fast tokenizer comes with brimful[fast]")

from brimful.encode import ChatEncoder
from brimful.encode.tokenizer import Tokenizer
from brimful.encode.verdicts import save_verdict
from brimful.errors import CacheMismatchError, EncodersDifferError
from brimful.fast.fast_tokenizer import FastTokenizer
from brimful.measure import LengthTable, comparison, measure_lengths, pending
from brimful.measure.block import measure_block
from brimful.measure.block_task import BlockContext, BlockTask
from brimful.sources import open_source
from tests.measure.planted import chats, lose_tokens, shift_targets


@pytest.fixture
def source(put, fresh_cache, monkeypatch):
    monkeypatch.setattr(pending, "_SMALL_BYTES", 0)  # however few, the fast library encodes them
    return open_source(put("chats.jsonl", chats()))


def test_few_rows_are_encoded_by_the_reference(put, small_qwen, fresh_cache, monkeypatch, tmp_path):
    """Loading a fast tokenizer takes more time than encoding a thousand rows without it."""

    def ids(self, texts):
        raise RuntimeError("loaded")

    monkeypatch.setattr(FastTokenizer, "ids", ids)
    fast = Tokenizer(small_qwen)._fast
    assert isinstance(fast, FastTokenizer)
    save_verdict(fast.subject, {"reason": ""})
    data = put("a.jsonl", chats())
    table = measure_lengths(data, Tokenizer(small_qwen), path=tmp_path / "lengths.arrow")
    assert [libraries.split()[0] for libraries in table.provenance["encoded_by"]] == ["tokenizers"]
    monkeypatch.setattr(pending, "_SMALL_BYTES", 1000)  # few rows, and much text
    with pytest.raises(RuntimeError, match="loaded"):
        measure_lengths(
            data, Tokenizer(small_qwen), path=tmp_path / "lengths again.arrow", cache_dir=tmp_path / "other"
        )


def test_a_difference_stops_the_job_and_is_remembered(source, small_qwen, monkeypatch, tmp_path):
    """Without it a fast library with a rare fault would spoil a run in silence."""
    path = tmp_path / "lengths.arrow"
    before = measure_lengths(source, ChatEncoder(Tokenizer(small_qwen)), path=path)
    assert "fastokens" in ChatEncoder(Tokenizer(small_qwen)).engine.name
    lose_tokens(monkeypatch)
    with pytest.raises(
        EncodersDifferError, match=r"chats\.jsonl:3 \(sample 2\): fastokens .* tokens, and \d+ by the reference"
    ):
        measure_lengths(source, ChatEncoder(Tokenizer(small_qwen)), cache_dir=tmp_path / "other")
    # Never again for this tokenizer: neither the library nor what it measured.
    encoder = ChatEncoder(Tokenizer(small_qwen))
    assert encoder.engine.name.startswith("tokenizers ")
    assert "it differed from the reference on" in encoder.engine.name
    with pytest.raises(CacheMismatchError, match="later found to give other tokens than the reference"):
        measure_lengths(source, encoder, path=path)
    after = measure_lengths(source, encoder, path=path, on_mismatch="rebuild")
    assert after.tokens.tolist() == before.tokens.tolist()
    assert LengthTable.open(path).provenance.get("engines") is None


def test_other_targets_are_found_in_kept_tokens(source, small_qwen, monkeypatch, tmp_path):
    """Lengths may be right while a label is not."""
    from brimful.store import pack_dataset

    shift_targets(monkeypatch)
    with pytest.raises(EncodersDifferError, match=r"target \d+ is False, and True by the reference"):
        pack_dataset(source, ChatEncoder(Tokenizer(small_qwen)), tmp_path / "packs", capacity=512)


def test_other_targets_are_found_where_no_tokens_are_kept(source, small_qwen, monkeypatch):
    """The lengths are right: only the places of the targets tell."""
    shift_targets(monkeypatch)
    with pytest.raises(EncodersDifferError, match=r"target \d+ is False, and True by the reference"):
        measure_lengths(source, ChatEncoder(Tokenizer(small_qwen)))


def test_long_documents_are_compared_up_to_their_characters(fresh_cache, small_qwen, monkeypatch):
    """Sixteen documents of a megabyte would keep the reference busy for longer than their whole block takes."""
    monkeypatch.setattr(pending, "_SMALL_BYTES", 0)
    monkeypatch.setattr(comparison, "_CHARACTERS", 100)
    places = []
    few_of = comparison._few_of
    monkeypatch.setattr(comparison, "_few_of", lambda *place: places.append([*few_of(*place)]) or places[-1])
    rows = [{"text": letter * 60} for letter in "abcdefgh"]
    measure_lengths(open_source(rows), ChatEncoder(Tokenizer(small_qwen)))
    # The second reaches the number; the place of the block may be its last row.
    assert [sample.sample_id for sample in places[0]] == [0, 1]
    assert [len(samples) in (1, 2) for samples in places] == [True, True]


def test_targets_without_the_fast_library_are_compared_too(put, fresh_cache, small_qwen, monkeypatch, tmp_path):
    """Tokens are the reference's, and the places of the targets are found by counting bytes."""
    monkeypatch.setattr(pending, "_SMALL_BYTES", 0)
    from brimful.store import pack_dataset

    monkeypatch.setattr(FastTokenizer, "version", lambda: None)
    data, encoder = put("a.jsonl", chats()), ChatEncoder(Tokenizer(small_qwen))
    with monkeypatch.context() as fault:
        shift_targets(fault)
        with pytest.raises(EncodersDifferError, match=r"tokenizers .* target \d+ is False, and True by the reference"):
            pack_dataset(data, encoder, tmp_path / "packs", capacity=512)
        # Bytes are not counted any more.
        for again in (encoder, ChatEncoder(Tokenizer(small_qwen))):
            assert "bytes of tokens" not in again.engine.id
            pack_dataset(data, again, tmp_path / "packs", capacity=512)


def test_rows_of_an_earlier_job_keep_their_library(put, fresh_cache, small_qwen, monkeypatch, tmp_path):
    """Without it appended rows would hide which library measured the rows before them."""
    monkeypatch.setattr(pending, "_SMALL_BYTES", 0)
    path = tmp_path / "lengths.arrow"
    tokenizer = Tokenizer(small_qwen)
    measure_lengths(put("a.jsonl", chats(5)), tokenizer, path=path)
    monkeypatch.setattr(FastTokenizer, "version", lambda: None)
    tokenizer = Tokenizer(small_qwen)
    table = measure_lengths(put("a.jsonl", chats(7)), tokenizer, path=path)
    assert [libraries.split()[0] for libraries in table.provenance["encoded_by"]] == ["fastokens", "tokenizers"]
    assert [name.split(",")[0].split()[0] for name in table.provenance["engines"]] == ["bytes", "fastokens"]
    engine = ChatEncoder(tokenizer).engine
    engine.disable(engine.id, "planted")
    with pytest.raises(CacheMismatchError, match="found to give other tokens"):
        measure_lengths(put("a.jsonl", chats(7)), ChatEncoder(Tokenizer(small_qwen)), path=path)


def test_without_fast_libraries_transformers_renders(put, fresh_cache, small_qwen):
    """``fast=False`` is for users who suspect one of them: it must not bring Jinja back."""
    encoder = ChatEncoder(Tokenizer(small_qwen, fast=False))
    assert encoder.engine.reference is encoder
    table = measure_lengths(put("a.jsonl", chats(5)), encoder)
    assert table.provenance["encoded_by"] == [encoder.engine.name]
    assert encoder.engine.name.endswith("templates by Transformers")


def test_a_tokenizer_whose_fast_form_is_changed_is_caught_before(fresh_cache, small_qwen, monkeypatch):
    """The hard texts are compared before the first use."""
    lose_tokens(monkeypatch)
    monkeypatch.setattr("brimful.fast.fast_tokenizer.hard_texts", lambda: iter(["x", "a a a"]))
    tokenizer = Tokenizer(small_qwen)
    assert not tokenizer.is_fast
    assert tokenizer.engine.endswith("(fastokens gives other tokens for 'a a a')")


@pytest.fixture
def compared(monkeypatch):
    """First rows of the blocks that were compared."""
    first_rows = []
    real = comparison._first_rows

    def recorded(task):
        first_rows.append(task.start)
        return real(task)

    monkeypatch.setattr(comparison, "_first_rows", recorded)
    return first_rows


def test_a_block_is_compared_once(put, fresh_cache, small_qwen, compared, monkeypatch):
    """Without a record each later job would compare all blocks again; without the comparison old caches stay unproved."""
    monkeypatch.setattr(pending, "_SMALL_BYTES", 0)
    encoder = ChatEncoder(small_qwen)

    def measured_again():
        for table in fresh_cache.glob("lengths/*/*.arrow"):
            table.unlink()
        compared.clear()
        measure_lengths(put("a.jsonl", chats()), encoder)
        return list(compared)

    assert measured_again() == [0]
    assert measured_again() == []
    (record,) = fresh_cache.glob("lengths/*/parts/*/*.compared")
    for damage in (record.unlink, lambda: record.write_bytes(b"\xff"), lambda: record.write_text("of other lengths")):
        damage()
        assert measured_again() == [0]
        assert measured_again() == []
    # What the reference encoded itself needs no comparison, and no record.
    record.unlink()
    measure_lengths(put("a.jsonl", chats(7)), ChatEncoder(Tokenizer(small_qwen, fast=False)))
    assert not list(fresh_cache.glob("lengths/*/parts/*/*.compared"))


def test_tokens_that_nobody_compared_are_compared_where_their_lengths_were(
    put, fresh_cache, small_qwen, compared, tmp_path
):
    """A record of lengths alone does not count for the tokens next to them, and missing tokens are no error."""
    encoder = ChatEncoder(small_qwen)
    source = open_source(put("a.jsonl", chats(5)))
    context = BlockContext(source, encoder, ("tokens",), False, True, True)
    task = BlockTask(0, 5, str(tmp_path / "part.arrow"), str(tmp_path / "tokens.arrow"))
    lengths_alone = replace(task, encoded_path=None)
    measure_block(context, task)
    assert not comparison.is_compared(lengths_alone)
    comparison.compare_block(context, lengths_alone)
    assert comparison.is_compared(lengths_alone)
    assert not comparison.is_compared(task)
    comparison.compare_block(context, task)
    assert comparison.is_compared(lengths_alone)
    assert comparison.is_compared(task)
    (tmp_path / "tokens.arrow").unlink()
    assert not comparison.is_compared(task)
    comparison.compare_block(context, task)
