"""The loader contract of torchtitan: pairs of one shape, documents by positions, a state, no end."""

import pytest

torch = pytest.importorskip("torch")

from brimful.errors import CollateError, SettingsError, StateError  # noqa: E402
from brimful.integrations.trainers.torchtitan import TorchtitanLoader  # noqa: E402
from brimful.serve.order import signed  # noqa: E402
from brimful.testing.toys import ToyPacks, toy_pack, toy_packs  # noqa: E402
from tests.integrations.trainers import tiny  # noqa: E402


def take(loader, count):
    batches = iter(loader)
    return [next(batches) for _ in range(count)]


def test_a_batch_is_what_the_trainer_takes():
    """Whole output: labels shifted inside of samples, padding cut into documents that fit the context."""
    packs = ToyPacks([toy_pack([3, 2])])
    ids = packs[0].input_ids.tolist()
    ((inputs, labels),) = take(TorchtitanLoader(packs, num_tokens_per_batch=10, max_context_length=4), 1)
    ((shorter, _),) = take(TorchtitanLoader(packs, num_tokens_per_batch=9, max_context_length=4), 1)
    assert shorter["positions"].tolist() == [0, 1, 2, 0, 1, 0, 1, 2, 3]
    ((longer, _),) = take(
        TorchtitanLoader(ToyPacks([toy_pack([4, 3])]), num_tokens_per_batch=13, max_context_length=4), 1
    )
    assert longer["positions"].tolist() == [0, 1, 2, 3, 0, 1, 2, 0, 1, 2, 3, 0, 1]
    assert set(inputs) == {"input", "positions"}, "every other key would be handed to the model"
    assert inputs["input"].tolist() == ids + [0] * 5
    assert inputs["positions"].tolist() == [0, 1, 2, 0, 1, 0, 1, 2, 3, 0]
    assert labels.tolist() == [ids[1], ids[2], -100, ids[4], -100] + [-100] * 5
    assert {inputs["input"].dtype, inputs["positions"].dtype, labels.dtype} == {torch.int64}


def test_releases_take_rows():
    """A pack a row; rows that the end of an epoch has no pack for are padding, in documents that fit the context."""
    packs = ToyPacks([toy_pack([3, 2]), toy_pack([4]), toy_pack([1])])
    loader = TorchtitanLoader(packs, seq_len=6, local_batch_size=2, max_context_length=4, seed=None, repeat=False)
    (first, labels), (last, no_labels) = loader
    assert first["input"].tolist() == [[*packs[0].input_ids, 0], [*packs[1].input_ids, 0, 0]]
    assert first["positions"].tolist() == [[0, 1, 2, 0, 1, 0], [0, 1, 2, 3, 0, 1]]
    assert labels.tolist()[1] == [*packs[1].input_ids[1:], -100, -100, -100]
    assert last["positions"].tolist()[1] == [0, 1, 2, 3, 0, 1]
    assert last["input"].shape == no_labels.shape == (2, 6)
    assert no_labels.tolist()[1] == [-100] * 6


def test_every_rank_has_its_part_and_no_rank_ends_first():
    """Five packs on two ranks: three batches an epoch each, and each pack once."""
    seen = []
    for rank in (0, 1):
        loader = TorchtitanLoader(toy_packs(5), num_tokens_per_batch=4, dp_rank=rank, dp_world_size=2)
        assert len(loader) == 3
        seen.append([inputs["input"].tolist() for inputs, labels in take(loader, 3) if (labels != -100).any()])
    assert sorted(seen[0] + seen[1]) == sorted(toy_packs(5)[index].input_ids.tolist() for index in range(5))


@pytest.mark.parametrize("stop", [1, 3, 4])
def test_resumed_anywhere_it_goes_on(stop):
    """Three batches an epoch: in the middle, at its end, in the next one."""
    options = {"num_tokens_per_batch": 24, "max_context_length": 24}
    whole = [labels.tolist() for _, labels in take(TorchtitanLoader(tiny.packs(3), **options), 8)]  # type: ignore[arg-type]
    first = TorchtitanLoader(tiny.packs(3), **options)  # type: ignore[arg-type]
    take(first, stop)
    second = TorchtitanLoader(tiny.packs(3), **options)  # type: ignore[arg-type]
    second.load_state_dict({})
    second.load_state_dict(first.state_dict())
    assert [labels.tolist() for _, labels in take(second, 8 - stop)] == whole[stop:]


def test_the_state_is_the_same_on_all_ranks_and_other_ranks_go_on():
    """A distributed checkpoint keeps one copy of what has one name."""
    states = [
        TorchtitanLoader(toy_packs(8), num_tokens_per_batch=4, dp_rank=rank, dp_world_size=4).state_dict()
        for rank in range(4)
    ]
    assert all(state == states[0] for state in states)
    loader = TorchtitanLoader(toy_packs(8), num_tokens_per_batch=4, dp_world_size=2, repeat=False)
    loader.load_state_dict(signed({**states[0], "step": 1}))
    assert len(list(loader)) == 2, "four packs are left, two in each step now"
    with pytest.raises(StateError, match="fingerprint"):
        TorchtitanLoader(toy_packs(9), num_tokens_per_batch=4, dp_world_size=4).load_state_dict(states[0])


def test_one_epoch_ends_if_asked_to():
    assert len(list(TorchtitanLoader(toy_packs(3), num_tokens_per_batch=4, repeat=False))) == 3


def test_what_does_not_fit_is_refused():
    with pytest.raises(CollateError, match="24"):
        take(TorchtitanLoader(ToyPacks([toy_pack([24])]), num_tokens_per_batch=16), 1)
    with pytest.raises(SettingsError, match="a sample has 9 tokens and max_context_length is 8"):
        take(TorchtitanLoader(ToyPacks([toy_pack([9])]), num_tokens_per_batch=16, max_context_length=8), 1)
    for lengths in ({}, {"seq_len": 4, "num_tokens_per_batch": 4}):
        with pytest.raises(SettingsError, match="give seq_len and local_batch_size"):
            TorchtitanLoader(toy_packs(1), **lengths)  # type: ignore[arg-type]
    with pytest.raises(SettingsError, match="at least 1"):
        TorchtitanLoader(toy_packs(1), num_tokens_per_batch=4, max_context_length=0)
