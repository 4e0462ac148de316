"""Samples encoded at access: together, in order, with the place of a bad one, and a share of them by the reference."""

from __future__ import annotations

import json
import pickle

import numpy as np
import pytest

from brimful import (
    ChatEncoder,
    PackedDataset,
    TokenBudgetBatches,
    measure_lengths,
    open_source,
    plan_packs,
    write_packs,
)
from brimful.base.tables import Ragged
from brimful.dynamic import TokenBudget
from brimful.encode import EncodedSample, EncodedSamples, encoded_samples
from brimful.encode.tokenizer import Tokenizer
from brimful.errors import BadSampleError, EncodersDifferError
from brimful.fast.fast_tokenizer import FastTokenizer
from tests.measure.encoders import Letters

TEXTS = ["aaa", "bB", "c", "dd", "eeee", "f"]


class Calls(Letters):
    """Remembers which texts it was asked for together."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def encode_batch(self, samples):
        self.calls.append([sample.text for sample in samples])
        return super().encode_batch(samples)


def _samples(texts=TEXTS):
    return EncodedSamples(open_source([{"text": text} for text in texts]), Calls())


def test_several_samples_are_encoded_in_one_call():
    """Without it a loader would call the tokenizer for each sample, which is three times as slow."""
    samples = _samples()
    texts = ["".join(map(chr, sample.input_ids)) for sample in samples.__getitems__([4, 0, -1, 4])]
    assert texts == ["eeee", "aaa", "f", "eeee"]
    assert samples.encoder.calls == [["eeee", "aaa", "f", "eeee"]]
    assert samples[1].loss_mask.tolist() == [True, False]
    with pytest.raises(IndexError):
        samples[6]
    assert len(pickle.loads(pickle.dumps(samples))) == 6


def test_iterating_reads_some_samples_ahead(monkeypatch):
    """The order is the source's; the encoder is asked for a few hundred samples at a time, not for all."""
    monkeypatch.setattr(encoded_samples, "_BATCH_SAMPLES", 4)
    samples = _samples()
    stream = iter(samples)
    assert next(stream).input_ids.tolist() == [97, 97, 97]
    assert samples.encoder.calls == [TEXTS[:4]]
    assert ["".join(map(chr, sample.input_ids)) for sample in stream] == TEXTS[1:]


def test_a_sample_that_cannot_be_encoded_is_named(put):
    """An epoch would end with a reason and no line to look at."""
    path = put("texts.jsonl", "".join(json.dumps({"text": text}) + "\n" for text in ("a", "!b", "c")))
    samples = EncodedSamples(path, Calls())
    assert len(samples.__getitems__([0, 2])) == 2
    with pytest.raises(BadSampleError, match=r"texts\.jsonl:2.* is shouted"):
        samples.__getitems__([2, 1])


def test_micro_batches_are_those_of_single_samples_and_states_too():
    """Asking for several samples at once changes neither their order nor what a saved state brings back."""
    texts = ["x" * (1 + n * 7 % 9) for n in range(40)]
    lengths, budget = [len(text) for text in texts], TokenBudget(12, min_buffered=5)
    together, single = _samples(texts), list(_samples(texts))

    def batches(source, state=None):
        loader = TokenBudgetBatches(source, budget, lengths=lengths, micro_batches=2)
        if state is not None:
            loader.load_state_dict(state)
        for (pack,) in loader:
            yield pack.sample_ids.tolist(), pack.input_ids.tolist(), json.dumps(loader.state_dict())

    served = list(batches(single))
    assert list(batches(together)) == served
    assert max(map(len, together.encoder.calls)) > 1
    assert list(batches(together, json.loads(served[4][2]))) == served[5:]


def test_a_pack_on_the_fly_is_encoded_in_one_call():
    """All samples of a pack, and of all packs that a loader asks for together; a split sample once."""
    source, encoder = open_source([{"text": text} for text in ["aaaaaaa", "bb", "cc", "dd"]]), Calls()
    plan = plan_packs(measure_lengths(source, encoder), capacity=4, overflow="split")
    packs = PackedDataset.from_plan(source, encoder, plan)
    single = [packs[index] for index in range(len(packs))]
    encoder.calls.clear()
    several = packs.__getitems__(list(range(len(packs))))
    assert [sorted(call) for call in encoder.calls] == [["aaaaaaa", "bb", "cc", "dd"]]
    assert [pack.input_ids.tolist() for pack in several] == [pack.input_ids.tolist() for pack in single]
    assert [pack.starts.tolist() for pack in several] == [pack.starts.tolist() for pack in single]
    assert packs[-1].sample_ids.tolist() == single[-1].sample_ids.tolist()


# ---------------------------------------------------------------- a share of them by the reference


def test_compared_samples_are_a_share_of_all_in_any_order():
    """By number alone, so that every process compares the same ones; and of rows that come by turns, each kind."""
    compared = [sample_id for sample_id in range(1 << 18) if encoded_samples.is_compared(sample_id)]
    assert len(compared) == (1 << 18) // 1024
    assert compared[0] == 0
    assert np.ptp(np.diff(compared)) < 1024
    for period in (2, 10, 256, 1000):
        kinds = {sample_id % period for sample_id in compared}
        assert len(kinds) > min(period, len(compared)) // 2


def _packs_on_the_fly(source, encoder, table, home):
    packs = PackedDataset.from_plan(source, encoder, plan_packs(table, capacity=512))
    return [packs[index] for index in range(len(packs))]


def _micro_batches(source, encoder, table, home):
    return list(TokenBudgetBatches(EncodedSamples(source, encoder), TokenBudget(512), lengths=table.tokens))


def _stream(source, encoder, table, home):
    return list(TokenBudgetBatches(EncodedSamples(source, encoder), TokenBudget(512)))


def _written(source, encoder, table, home):
    return write_packs(plan_packs(table, capacity=512), source, encoder, home / "packs", num_proc=1)


@pytest.fixture
def chats(put, fresh_cache, small_qwen, monkeypatch):
    """Chats and a new encoder of them, whose fast tokenizer passed the comparison before its first use."""
    pytest.importorskip("fastokens", reason="the fast tokenizer comes with brimful[fast]")
    monkeypatch.setattr("brimful.fast.fast_tokenizer.hard_texts", lambda: iter(["x"]))
    turns = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a b c"}]
    source = open_source(put("chats.jsonl", (json.dumps({"messages": turns}) + "\n") * 40))
    assert Tokenizer(small_qwen).is_fast
    return source, lambda: ChatEncoder(Tokenizer(small_qwen))


@pytest.mark.parametrize("way", [_packs_on_the_fly, _micro_batches, _stream, _written])
def test_a_difference_stops_whoever_encodes_after_measuring(way, chats, monkeypatch, tmp_path):
    """Lengths are right, and one token is not: without it a fast library would spoil a run in silence."""
    source, encoder = chats
    table = measure_lengths(source, encoder())
    real = FastTokenizer.ids

    def ids(self, texts):
        right = real(self, texts)
        values = right.values.copy()
        values[right.offsets[1:] - 1] += 1
        return Ragged(values, right.offsets)

    with monkeypatch.context() as fault:
        fault.setattr(FastTokenizer, "ids", ids)
        with pytest.raises(
            EncodersDifferError,
            match=r"chats\.jsonl:1 \(sample 0\): fastokens .* token \d+ is 199, and 198 by the reference.* begin again",
        ):
            way(source, encoder(), table, tmp_path)
        # Never again for this tokenizer: the reference encodes.
        assert "it differed from the reference on" in encoder().engine.name
        assert way(source, encoder(), table, tmp_path)


def test_other_targets_and_lengths_are_differences_too(chats, monkeypatch):
    """Tokens may be right while a label is not."""
    source, encoder = chats
    samples = EncodedSamples(source, encoder())
    right = samples[0]
    assert samples.encoder.engine.name.startswith("fastokens")
    for wrong, message in (
        (EncodedSample(right.input_ids, ~right.loss_mask), "target 0 is True, and False by the reference"),
        (EncodedSample(right.input_ids[1:], right.loss_mask[1:]), "tokens, and .* by the reference"),
        (BadSampleError("too odd", sample_id=0), "refused .too odd., but not by the reference"),
    ):
        monkeypatch.setattr(samples.encoder, "encode_batch", lambda some, result=wrong: [result] * len(some))
        with pytest.raises(EncodersDifferError, match=message):
            samples[0]


def test_encoders_without_fast_libraries_are_asked_once():
    """A reference of an encoder that is its own would double the work."""
    samples = _samples()
    samples[0]
    assert samples.encoder.calls == [["aaa"]]
