"""Rows for verl's SFT trainer, against its own collator and engine where verl can be imported."""

import importlib
import math

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from brimful import PackCollator, open_packs  # noqa: E402
from brimful.errors import SettingsError  # noqa: E402
from brimful.integrations.trainers.verl import VerlSamples  # noqa: E402
from brimful.rl.compat import verl  # noqa: E402
from brimful.testing.toys import toy_stream  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # of the libraries

CONFIG = {"pad_mode": "no_padding", "max_length": 1024}


def real(module):
    """A module of verl, or a skip with the reason: it needs more than it says."""
    try:
        return importlib.import_module(module)
    except Exception as error:
        pytest.skip(f"{module} cannot be imported here: {str(error).splitlines()[0] if str(error) else error!r}")


@pytest.fixture
def stores(tmp_path):
    return [toy_stream(tmp_path / name, packs) for name, packs in (("a", [3, 1]), ("b", [2]))]


def test_rows_are_the_samples_of_all_stores_in_order(stores):
    """Whole rows: tokens as packed, positions from 0, targets without a shift."""
    samples = VerlSamples(stores, None, CONFIG, processor=None, max_samples=-1)
    packs = [pack for store in stores for pack in open_packs(store)]
    expected = [
        (pack.segment(place).tolist(), pack.take([place]).loss_mask.astype(int).tolist())
        for pack in packs
        for place in range(pack.num_segments)
    ]
    rows = [samples[number] for number in range(len(samples))]
    assert [(row["input_ids"].tolist(), row["loss_mask"].tolist()) for row in rows] == expected
    assert [row["position_ids"].tolist() for row in rows] == [list(range(len(ids))) for ids, _ in expected]
    assert {value.dtype for row in rows for value in row.values()} == {torch.int64}


def test_the_first_samples_alone(stores):
    assert [len(VerlSamples(stores, None, CONFIG, max_samples=number)) for number in (-1, 2, 100)] == [6, 2, 6]
    assert len(VerlSamples(stores[1], None, CONFIG)) == 2


def test_padded_rows_are_refused(stores):
    """verl would count padding as tokens of a micro-batch."""
    with pytest.raises(SettingsError, match=r"pad_mode=right fills .* set data.pad_mode=no_padding"):
        VerlSamples(stores, None, {"pad_mode": "right"})


def test_media_are_refused(media_packs):
    """Their tokens without their features would train on placeholders."""
    with pytest.raises(SettingsError, match="has media, and rows of verl hold features of its own processor"):
        VerlSamples(str(media_packs), None, CONFIG)


def test_the_collator_of_verl_makes_our_batch(stores):
    """Its nested rows are the dialect's, in values and offsets."""
    collate = real("verl.utils.dataset.dataset_utils").SFTTensorCollator("no_padding")
    samples = VerlSamples(stores[0], None, CONFIG)
    found = collate([samples[number] for number in range(len(samples))])
    expected = PackCollator(dialect="verl")(list(open_packs(stores[0])))
    for name in ("input_ids", "position_ids", "loss_mask"):
        assert torch.equal(found[name].values(), expected[name].values().to(torch.int64)), name
        assert torch.equal(found[name].offsets(), expected[name].offsets()), name
    assert int(found["loss_mask"].sum()) == expected["batch_num_tokens"]


def test_an_engine_of_verl_makes_our_micro_batches(monkeypatch):
    """Its own function for all engines: rows within the budget, in the order of its own balance, and each once."""
    utils, tensors = real("verl.workers.engine.utils"), real("verl.utils.tensordict_utils")
    balancing = real("verl.utils.seqlen_balancing")
    for module in (utils, balancing):  # so that they are put back
        monkeypatch.setattr(module, "rearrange_micro_batches", balancing.rearrange_micro_batches)
    lengths = np.random.default_rng(0).lognormal(math.log(1500), 1, 64).clip(16, 8192).astype(int).tolist()
    ids = [torch.full((length,), number) for number, length in enumerate(lengths)]
    nested = torch.nested.as_nested_tensor(ids, layout=torch.jagged)
    settings = {"use_dynamic_bsz": True, "max_token_len_per_gpu": 8192, "sp_size": 1}

    def micro_batches():
        rows, places = utils.prepare_micro_batches(tensors.get_tensordict({"input_ids": nested}, dict(settings)))
        assert [[int(row[0]) for row in micro["input_ids"].unbind()] for micro in rows] == places
        assert sorted(sample for row in places for sample in row) == list(range(64))
        return places

    theirs = micro_batches()
    assert set(verl.install()) >= {"verl.utils.seqlen_balancing", "verl.workers.engine.utils"}
    ours = micro_batches()
    assert len(ours) <= len(theirs)
    assert max(sum(lengths[sample] for sample in row) for row in ours) <= 8192, "verl 0.9.0 itself has one of 8,317"
    in_order = torch.tensor([sample for row in ours for sample in row])
    assert balancing.restore_dynamic_batch(in_order, ours).tolist() == list(range(64))
    for places in (theirs, ours):
        costs = [sum(24576 * lengths[sample] + lengths[sample] ** 2 for sample in row) for row in places]
        top = costs.index(max(costs))
        assert costs[: top + 1] == sorted(costs[: top + 1])
        assert costs[top:] == sorted(costs[top:], reverse=True)
    with_pairs, places = utils.prepare_micro_batches(
        tensors.get_tensordict(
            {"input_ids": nested}, {**settings, "force_group_size": 2, "max_token_len_per_gpu": 16384}
        )
    )
    assert len(with_pairs) == len(places)
    assert all({sample ^ 1 for sample in row} == set(row) for row in places)
