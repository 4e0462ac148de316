"""Serving packs to ranks."""

# mypy: disable-error-code="arg-type"

import pickle
from itertools import islice
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brimful import PackLoader, open_packs, open_source, pack_dataset
from brimful.errors import CorruptFileError, SettingsError, StateError
from brimful.plan.schedule import Tail, schedule_packs
from brimful.serve.order import signed
from brimful.testing.toys import toy_chat_encoder, toy_packs


def ids(batch):
    return [int(pack.sample_ids[0]) for pack in batch]


def test_schedule_pads_drops_or_repeats_the_tail():
    """Five packs on two ranks: each policy keeps the ranks equal in steps in its own way."""
    options = {"dp_world_size": 2, "micro_batches": 1, "packs_per_micro_batch": 1, "epoch": 0, "seed": None}
    rows = lambda tail: schedule_packs(5, tail=tail, **options).reshape(-1, 2).tolist()  # noqa: E731
    assert rows(Tail.PAD) == [[0, 1], [2, 3], [4, -1]]
    assert rows(Tail.DROP) == [[0, 1], [2, 3]]
    assert rows(Tail.REPEAT) == [[0, 1], [2, 3], [4, 0]]


def test_fewer_packs_than_ranks_repeats_round_and_round():
    """One pack on four ranks: an index error in an existing system."""
    array = schedule_packs(
        1, dp_world_size=4, micro_batches=1, packs_per_micro_batch=1, epoch=0, seed=0, tail=Tail.REPEAT
    )
    assert array.reshape(-1).tolist() == [0, 0, 0, 0]


def test_the_dropped_tail_is_not_the_same_every_epoch():
    """Eleven packs on four ranks: an existing sampler never serves packs 8, 9 and 10 in any epoch."""
    for seed in (0, None):
        seen = set()
        for epoch in range(12):
            array = schedule_packs(
                11, dp_world_size=4, micro_batches=1, packs_per_micro_batch=1, epoch=epoch, seed=seed, tail=Tail.DROP
            )
            seen |= set(array.reshape(-1).tolist())
        assert seen == set(range(11))


@given(
    packs=st.integers(1, 60),
    world=st.integers(1, 5),
    micro=st.integers(1, 3),
    each=st.integers(1, 3),
    tail=st.sampled_from(list(Tail)),
    seed=st.sampled_from([None, 0, 1]),
)
def test_ranks_are_disjoint_equal_in_steps_and_together_complete(packs, world, micro, each, tail, seed):
    """The law of every sampler, by construction."""
    array = schedule_packs(
        packs, dp_world_size=world, micro_batches=micro, packs_per_micro_batch=each, epoch=1, seed=seed, tail=tail
    )
    assert array.shape[1:] == (world, micro, each)
    served = [index for index in array.reshape(-1).tolist() if index >= 0]
    if tail is Tail.REPEAT:
        assert set(served) == set(range(packs))
    else:
        assert len(served) == len(set(served))
        assert packs - len(served) == (0 if tail is Tail.PAD else packs % (world * micro * each))


@given(stop=st.integers(0, 11), world=st.integers(1, 3), tail=st.sampled_from(["pad", "repeat"]))
def test_stopped_anywhere_and_resumed_is_never_stopped(stop, world, tail):
    """Byte for byte, over the end of an epoch too."""

    def loader(rank):
        return PackLoader(toy_packs(7), dp_rank=rank, dp_world_size=world, seed=1, tail=tail)

    def forever(one):
        while True:
            yield from one

    for rank in range(world):
        whole = forever(loader(rank))
        expected = [ids(next(whole)) for _ in range(14)]
        first = loader(rank)
        stream = forever(first)
        got = [ids(next(stream)) for _ in range(stop)]
        second = loader(rank)
        second.load_state_dict(first.state_dict())
        stream = forever(second)
        got += [ids(next(stream)) for _ in range(14 - stop)]
        assert got == expected


def test_a_rank_without_a_pack_gets_one_without_loss():
    """The last step of an epoch keeps all ranks in the collective."""
    loader = PackLoader(toy_packs(3), dp_rank=1, dp_world_size=2, seed=None, tail="pad")
    last = list(loader)[-1]
    assert [pack.num_loss_tokens for pack in last] == [0]
    assert len(last[0]) == 4


def test_epochs_differ_and_repeat_with_the_seed():
    """Same order every epoch is a known cause of stair-step losses."""
    loader = PackLoader(toy_packs(20), seed=3)
    first, second = [ids(batch) for batch in loader], [ids(batch) for batch in loader]
    assert first != second
    assert sorted(first) == sorted(second)
    loader.set_epoch(0)
    assert [ids(batch) for batch in loader] == first


@pytest.mark.parametrize("stop", [0, 1, 3, 4])
def test_setting_the_epoch_that_is_served_changes_nothing(stop):
    """Training loops load a state and then call ``set_epoch``: the epoch would begin again, and its packs come twice."""
    loader = PackLoader(toy_packs(4), seed=2)
    whole = [ids(batch) for batch in loader] + [ids(batch) for batch in loader]
    loader.start_epoch(0)
    for _ in zip(range(stop), loader, strict=False):  # range first: it takes no batch too many
        pass
    later = PackLoader(toy_packs(4), seed=2)
    later.load_state_dict(loader.state_dict())
    later.set_epoch(later.epoch)
    served = [ids(batch) for batch in later]
    assert served == (whole[stop:4] or whole[4:])
    if stop < 4:
        later.set_epoch(1)  # the next one, to which the loader went by itself
        assert [ids(batch) for batch in later] == whole[4:]


def test_an_epoch_begins_again_where_that_is_asked_for():
    """Validation takes the same packs each time, wherever the last one stopped."""
    loader = PackLoader(toy_packs(4), seed=None)
    next(iter(loader))
    loader.start_epoch(0)
    assert [ids(batch) for batch in loader] == [[0], [1], [2], [3]]


def test_an_error_of_the_collator_skips_no_pack():
    """A state that was saved after it would begin after a pack that was not served; the last pack of an epoch too."""

    def collate(packs):
        if ids(packs)[0] == wrong:
            raise RuntimeError("no batch of these")
        return packs

    for wrong in range(4):
        loader, served = PackLoader(toy_packs(4), collate, seed=None), []
        with pytest.raises(RuntimeError):
            served += (ids(batch)[0] for batch in loader)
        later = PackLoader(toy_packs(4), seed=None)
        later.load_state_dict(loader.state_dict())
        assert [ids(batch)[0] for batch in later] == list(range(wrong, 4))


def test_a_state_of_another_loader_is_refused():
    """Silently going on with other packs or ranks repeats and skips data."""
    loader = PackLoader(toy_packs(8), dp_world_size=2, micro_batches=2)
    next(iter(loader))
    state = loader.state_dict()
    with pytest.raises(
        StateError, match="after 2 of its 4 packs, by 2 ranks × 2 × 1 pack, and this run has 4 ranks × 1 × 1"
    ):
        PackLoader(toy_packs(8), dp_world_size=4).load_state_dict(state)
    with pytest.raises(StateError, match=r"fingerprint .*, seed \(0 in the state, 1 here\)"):
        PackLoader(toy_packs(9), dp_world_size=2, seed=1).load_state_dict(state)
    for key, message in (("version", r"version \(2 in the state, 4 here\)$"), ("kind", r"kind \(2 in the state")):
        with pytest.raises(StateError, match=message):
            PackLoader(toy_packs(8), dp_world_size=2, micro_batches=2).load_state_dict({**state, key: 2})


def test_impossible_ranks():
    """dp_rank outside its world, or no full step."""
    with pytest.raises(SettingsError, match="dp_rank must be from 0 to 1 and is 2"):
        PackLoader(toy_packs(4), dp_rank=2, dp_world_size=2)
    with pytest.raises(SettingsError, match="3 packs do not fill one step of 4 packs"):
        PackLoader(toy_packs(3), dp_world_size=4, tail="drop")


def test_a_store_is_a_sequence_that_pickles(tmp_path):
    """Loader workers get a copy; negative indices and ends behave like a list's."""
    source = open_source([{"text": "x" * (2 + number % 8)} for number in range(100)])
    pack_dataset(source, toy_chat_encoder(), tmp_path, capacity=16, shard_bytes=16 * 4 * 5)
    store = open_packs(tmp_path)
    assert store.num_shards > 3
    copy = pickle.loads(pickle.dumps(store))
    assert [pack.input_ids.tolist() for pack in copy] == [pack.input_ids.tolist() for pack in store]
    assert store[-1].input_ids.tolist() == store[len(store) - 1].input_ids.tolist()
    with pytest.raises(IndexError, match="is not in 0 …"):
        store[len(store)]


def test_a_flipped_bit_is_found_when_the_pack_is_read(tmp_path):
    """Not at the end of a training run: at the read, naming file and row."""
    pack_dataset(open_source([{"text": "abcdefgh"}] * 4), toy_chat_encoder(), tmp_path, capacity=8)
    path = next((tmp_path / "shards").iterdir())
    data = bytearray(path.read_bytes())
    at = data.index(b"a\x00\x00\x00b\x00\x00\x00")
    data[at] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptFileError, match=r"\.arrow: row 0 has other bytes than were written"):
        list(open_packs(tmp_path))


@pytest.mark.parametrize(
    "damage",
    [
        {"step": 99},
        {"step": -1},
        {"places": 1},
        {"epoch": None},
        {"epoch": -1},
        {"shapes": []},
        {"shapes": [[1, 1, 1, 1]]},
        {"shapes": [[0, 0, 1, 1]]},
        {"shapes": [[0, 1, 1, 1], [7, 1, 1, 1]]},
    ],
)
def test_a_damaged_state_is_refused(damage):
    """A number of batches that no epoch has would make every later epoch empty, in silence."""
    loader = PackLoader(toy_packs(5))
    with pytest.raises(StateError, match="the loader state is damaged"):
        loader.load_state_dict({**loader.state_dict(), **damage})


@pytest.mark.parametrize("name", ["micro_batches", "packs_per_micro_batch", "window_steps"])
@pytest.mark.parametrize("count", [0, -1, 1.5, True])
def test_counts_are_whole_and_at_least_one(name, count):
    """Otherwise the error is a division by zero, or comes with the first batch."""
    with pytest.raises(SettingsError, match=f"{name} must be a whole number of at least 1"):
        PackLoader(toy_packs(5), **{name: count})


def test_costs_even_out_ranks_and_are_part_of_the_state():
    """Without them a step waits for its heaviest rank; a state of another schedule would repeat and lose packs."""
    packs = toy_packs(40)
    costs = [1.0 + 9.0 * (number % 4 == 0) for number in range(40)]
    shared = {"dp_world_size": 2, "seed": 0}

    def imbalance(**options):
        ranks = [
            [costs[i] for batch in PackLoader(packs, dp_rank=r, **shared, **options) for i in ids(batch)]
            for r in (0, 1)
        ]
        return sum(max(step) / (sum(step) / 2) for step in zip(*ranks, strict=True)) / 20

    assert imbalance(costs=costs) == 1.0 < imbalance()
    loader = PackLoader(packs, dp_rank=0, costs=costs, **shared)
    whole = [ids(batch) for batch in PackLoader(packs, dp_rank=0, costs=costs, **shared)]
    head = [ids(batch) for _, batch in zip(range(7), loader, strict=False)]
    later = PackLoader(packs, dp_rank=0, costs=costs, **shared)
    later.load_state_dict(loader.state_dict())
    assert head + [ids(batch) for batch in later] == whole
    for other in ({}, {"costs": costs[::-1]}, {"costs": costs, "window_steps": 3}):
        with pytest.raises(StateError, match=r"costs|window_steps"):
            PackLoader(packs, dp_rank=0, **shared, **other).load_state_dict(loader.state_dict())
    with pytest.raises(SettingsError, match="40 packs"):
        PackLoader(packs, costs=[1.0])


def test_costs_below_one_are_part_of_the_state_too():
    """Cast to whole numbers they are all 0, and the loader would go on with other packs."""
    costs = [0.125, 0.5, 0.25, 0.75]
    state = PackLoader(toy_packs(4), costs=costs).state_dict()
    PackLoader(toy_packs(4), costs=np.array(costs, dtype=np.float32)).load_state_dict(state)  # the same numbers
    with pytest.raises(StateError, match="costs"):
        PackLoader(toy_packs(4), costs=costs[::-1]).load_state_dict(state)


@pytest.mark.parametrize("shape", [(1, 2, 3), (3, 2, 1), (2, 3, 2)])
@pytest.mark.parametrize("stop", range(4))
def test_within_a_step_of_several_micro_batches(shape, stop):
    """Ranks, packs and micro-batches of different numbers: exchanging any two of them goes on elsewhere."""
    world, each, micro = shape
    options = {"dp_world_size": world, "packs_per_micro_batch": each, "micro_batches": micro, "seed": 1}
    whole = [ids(batch) for batch in PackLoader(toy_packs(20), **options)]
    first = PackLoader(toy_packs(20), **options)
    served = [ids(batch) for batch in islice(first, stop)]
    state = first.state_dict()
    assert (state["step"], state["places"]) == (stop // micro, stop % micro * world * each)
    second = PackLoader(toy_packs(20), **options)
    second.load_state_dict(state)
    assert served + [ids(batch) for batch in second] == whole
    if state["places"]:
        with pytest.raises(StateError, match="damaged"):
            second.load_state_dict({**state, "places": state["places"] + 1})
        with pytest.raises(
            StateError, match=f"saved within a step, after {state['places']} of its {world * each * micro} packs"
        ):
            PackLoader(toy_packs(20), seed=1).load_state_dict(state)


def test_costs_belong_to_the_packs_of_one_epoch():
    packs: Any = toy_packs(4)
    packs.replans = True
    with pytest.raises(SettingsError, match="this data set plans again for each: replan=False"):
        PackLoader(packs, costs=[1, 2, 3, 4])
    with pytest.raises(SettingsError, match="3 packs do not fill one step of 4 packs: use tail='pad' or 'repeat'"):
        PackLoader(toy_packs(3), dp_world_size=4, tail="drop")
    told: list[int] = []
    packs.set_epoch = told.append
    loader = PackLoader(packs)
    list(loader)
    list(loader)
    assert told == [0, 1], "packs that are planned anew go to an epoch before its schedule is made"


@pytest.mark.parametrize(
    "change", [{"shapes": [[1, 1, 1, 1]]}, {"shapes": [[0, 1, 1]]}, {"shapes": []}, {"shapes": [[0, 1, 1, 0]]},
               {"shapes": [[0, 1, 1, 1], [3, 1, 1, 1], [2, 1, 1, 1]]}, {"shapes": [[0, 1, 1, "1"]]}, {"step": 4}],
)  # fmt: skip
def test_steps_and_shapes_that_no_loader_saved(change):
    state = PackLoader(toy_packs(4)).state_dict()
    PackLoader(toy_packs(4)).load_state_dict(signed({**state, "step": 3}))
    with pytest.raises(StateError, match="damaged"):
        PackLoader(toy_packs(4)).load_state_dict({**state, **change})
