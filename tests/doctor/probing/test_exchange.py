"""The exchanged segment lies in the middle, and what trainers look for stays."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("torch")

from brimful.doctor.batch.view import RowSegment, read_batch
from brimful.doctor.probing.exchange import Trial, choose_trial
from tests.doctor.faults.jobs import LENGTHS, batch, documents, pairs

CONFIG = SimpleNamespace(eos_token_id=2, pad_token_id=0, image_token_id=9)


def choose(loaded, config=CONFIG):
    view = read_batch(loaded)
    trial, ids = choose_trial(view, config)
    return view, trial, ids


def test_a_segment_in_the_middle_of_the_fullest_row():
    view, trial, ids = choose(batch())
    assert trial.exchanged == RowSegment(0, 7, 16)
    assert trial.rows == (0, 1)
    assert trial.alone == (RowSegment(0, 22, 32), RowSegment(1, 20, 32))
    old = view.ids[0, 7:16]
    assert (ids != old).all()
    assert set(ids) <= set(view.ids.reshape(-1)), "only tokens that occur"


def test_special_tokens_and_marks_stay():
    """EOS and placeholders of the configuration, and a token that begins each sample."""
    loaded = batch()
    starts = loaded["position_ids"] == 0
    loaded["input_ids"][starts] = 33
    loaded["input_ids"][0, 9], loaded["input_ids"][0, 12], loaded["input_ids"][0, 15] = 2, 9, 2
    view, trial, ids = choose(loaded)
    assert trial.exchanged == RowSegment(0, 7, 16)
    same = ids == view.ids[0, 7:16]
    assert np.flatnonzero(same).tolist() == [0, 2, 5, 8]
    assert not np.isin(ids[~same], [33, 2, 9]).any()


def test_a_part_of_a_sample_is_not_exchanged_first():
    """Of a row that begins on another rank."""
    loaded = {name: value[:1, 3:] for name, value in batch().items()}
    view, trial, _ = choose(loaded)
    assert view.segments[0] == RowSegment(0, 0, 4)
    assert trial.has_parts
    assert trial.exchanged == RowSegment(0, 4, 13)
    two = {name: value[:1, 3:16] for name, value in batch().items()}
    assert choose(two)[1].exchanged == RowSegment(0, 4, 13)
    assert not choose(batch())[1].has_parts


def test_padding_is_exchanged_if_no_row_is_packed():
    loaded = batch(((32,), (32,)))
    loaded["attention_mask"] = np.arange(32) < np.array([[32], [20]])
    _, trial, ids = choose(loaded)
    assert (trial.exchanged, trial.is_padding) == (RowSegment(1, 20, 32), True)
    assert len(ids) == 12
    reach = trial.reach(is_coupled=False)
    assert reach.exposed[0, :20].all()
    assert not reach.exposed[0, 20:].any()
    assert reach.protected[1].all()


def test_nothing_to_exchange():
    view, trial, ids = choose(batch(((32,), (32,))))
    assert (trial.exchanged, ids) == (None, None)
    assert trial.alone == tuple(view.segments)
    one_token = {"input_ids": [[5, 5, 5, 5]], "labels": [[-100, 5, -100, 5]], "position_ids": [[0, 1, 0, 1]]}
    assert choose(one_token)[1].exchanged is None


def test_tokens_that_the_mask_lets_see_it_are_excused():
    """Answers that see a shared prompt."""
    seen = pairs(documents(((7, 15, 10), (12, 20))))[:, None].clone()
    seen[0, 0, 22:, 7:16] = True
    loaded = batch(LENGTHS, attention_mask=seen)
    del loaded["position_ids"]
    _, trial, _ = choose(loaded)
    assert trial.exchanged == RowSegment(0, 7, 22)
    assert trial.mask == "pairs"
    reach = trial.reach(is_coupled=False)
    assert np.argwhere(reach.own).tolist() == [[0, column] for column in range(7, 22)]
    assert np.argwhere(reach.exposed).tolist() == [[0, column] for column in range(7)]
    assert np.argwhere(reach.protected).tolist() == [[1, column] for column in range(32)]


def test_a_trial_goes_to_other_ranks():
    for loaded in (batch(), batch(((32,), (32,)))):
        trial = choose(loaded)[1]
        assert Trial.from_dict(json.loads(json.dumps(trial.as_dict()))) == trial
