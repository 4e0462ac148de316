"""Samples encoded at access: together, in order, and with the place of one that cannot be encoded."""

from __future__ import annotations

import json
import pickle

import pytest

from brimful import (
    EncodedSamples,
    PackedDataset,
    TokenBudget,
    TokenBudgetBatches,
    measure_lengths,
    open_source,
    plan_packs,
)
from brimful.encode import on_demand
from brimful.errors import BadSampleError
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
    assert samples._encoder.calls == [["eeee", "aaa", "f", "eeee"]]
    assert samples[1].loss_mask.tolist() == [True, False]
    with pytest.raises(IndexError):
        samples[6]
    assert len(pickle.loads(pickle.dumps(samples))) == 6


def test_iterating_reads_some_samples_ahead(monkeypatch):
    """The order is that of the source; the encoder is asked for a few hundred samples at a time, not for all."""
    monkeypatch.setattr(on_demand, "_BATCH_SAMPLES", 4)
    samples = _samples()
    stream = iter(samples)
    assert next(stream).input_ids.tolist() == [97, 97, 97]
    assert samples._encoder.calls == [TEXTS[:4]]
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
    assert max(map(len, together._encoder.calls)) > 1
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
