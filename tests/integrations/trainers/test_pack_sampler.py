"""The schedule under trainers that deal out a sampler's batches: Accelerate's own sharding, and ``Trainer`` resumed."""

# mypy: disable-error-code="import-untyped"

import json
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("accelerate")
transformers = pytest.importorskip("transformers")

from accelerate.data_loader import BatchSamplerShard, SkipBatchSampler  # noqa: E402
from torch.utils.data import BatchSampler  # noqa: E402

from brimful import PackLoader  # noqa: E402
from brimful.errors import SettingsError, StateError  # noqa: E402
from brimful.integrations.trainers.pack_sampler import PackSampler, ServedPacks  # noqa: E402
from brimful.integrations.trainers.transformers import follow_schedule  # noqa: E402
from brimful.testing.toys import toy_packs  # noqa: E402
from tests.integrations.trainers.test_transformers import Recorder, StopAt, make_trainer  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")

COSTS = np.random.default_rng(0).lognormal(1.0, 1.0, 37)


def numbers(packs):
    """Packs of a batch; negative where they have no loss."""
    return [int(pack.sample_ids[0]) if pack.num_loss_tokens else -1 for pack in packs]


def dealt_out(sampler, world_size, per_batch, *, split=False, skipped=0):
    """What each rank gets of Accelerate, batch by batch."""
    served = ServedPacks(toy_packs(37))
    whole = BatchSampler(sampler, per_batch * (world_size if split else 1), drop_last=False)
    ranks = [BatchSamplerShard(whole, world_size, rank, split_batches=split) for rank in range(world_size)]
    return [
        [numbers(served.__getitems__(batch)) for batch in (SkipBatchSampler(rank, skipped) if skipped else rank)]
        for rank in ranks
    ]


class Together(list):
    """Packs that are read several at once, as the ones that are encoded on the fly."""

    fingerprint = "together"
    calls = 0

    def __getitems__(self, indices):
        self.calls += 1
        return [self[index] for index in indices]


def test_packs_read_together_are_those_read_one_by_one():
    """Among them the first without loss, which fills the last step where the epoch begins with pack 0."""
    served = ServedPacks(packs := Together(toy_packs(3)))
    for places in product(range(6), repeat=2):
        assert numbers(served.__getitems__(places)) == numbers([served[place] for place in places])
    assert numbers(served.__getitems__(range(6))) == [0, 1, 2, -1, -1, -1]
    assert packs.calls == 3 * 3, "batches that need no pack without loss"


@pytest.mark.parametrize("world_size", [1, 2, 4])
@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("tail", ["pad", "drop", "repeat"])
def test_accelerate_deals_out_what_the_loader_serves(world_size, split, tail):
    """By its real sharding: each rank the packs of ``PackLoader``, in the same order, and as many batches."""
    options = {
        "dp_world_size": world_size,
        "micro_batches": 2,
        "packs_per_micro_batch": 2,
        "tail": tail,
        "costs": COSTS,
    }
    sampler = PackSampler(toy_packs(37), **options)
    for epoch in (0, 1):
        sampler.set_epoch(epoch)
        ranks = dealt_out(sampler, world_size, 2, split=split)
        assert len({len(batches) for batches in ranks}) == 1
        for rank, batches in enumerate(ranks):
            loader = PackLoader(toy_packs(37), numbers, dp_rank=rank, **options)
            loader.start_epoch(epoch)
            expected = list(loader)
            assert [[n for n in batch if n >= 0] for batch in batches] == [[n for n in b if n >= 0] for b in expected]


def test_costs_stay_balanced_where_the_sampler_of_the_trainer_deals_packs_out():
    """Mean over micro-batches of the heaviest rank ÷ the mean of the ranks: the time that a step waits."""
    from torch.utils.data import RandomSampler

    costs = np.random.default_rng(1).lognormal(1.0, 1.0, 400)

    def imbalance(sampler):
        ranks = [BatchSamplerShard(BatchSampler(sampler(), 1, drop_last=False), 4, rank) for rank in range(4)]
        by_rank = np.array([[costs[batch[0] % 400] for batch in rank] for rank in ranks])
        return float((by_rank.max(axis=0) / by_rank.mean(axis=0)).mean())

    ours = imbalance(lambda: PackSampler(toy_packs(400), dp_world_size=4, costs=costs))
    theirs = imbalance(lambda: RandomSampler(range(400), generator=torch.Generator().manual_seed(0)))
    assert ours < 1.05
    assert theirs > 1.6


def test_other_ranks_go_on_with_the_same_global_batches():
    """Four ranks, then two that accumulate twice as much, in the middle of the second epoch and to the end of the third."""
    first = PackSampler(toy_packs(37), dp_world_size=4, micro_batches=1, costs=COSTS, window_steps=4)
    later = PackSampler(toy_packs(37), dp_world_size=2, micro_batches=2, costs=COSTS, window_steps=4)

    def steps(sampler, epoch, world_size, skipped=0):
        sampler.set_epoch(epoch)
        per_rank = 4 // world_size
        ranks = dealt_out(sampler, world_size, 1, skipped=skipped)
        flat = [[number for batch in rank for number in batch] for rank in ranks]
        return [
            sorted(n for rank in flat for n in rank[at : at + per_rank] if n >= 0)
            for at in range(0, len(flat[0]), per_rank)
        ]

    expected = [steps(first, epoch, 4) for epoch in range(3)]
    for step in (0, 9, 10, 13, 20, 29):
        for sampler in (first, PackSampler(toy_packs(37), dp_world_size=4)):
            state = sampler.state_at(step)
            assert (state["epoch"], state["step"]) == divmod(step, 10)
    first.set_epoch(1)
    state = json.loads(json.dumps(first.state_at(13)))
    assert (state["epoch"], state["step"]) == (1, 3)
    later.load_state_dict(state)
    assert steps(later, 1, 2, skipped=6) == expected[1][3:]
    again = PackSampler(toy_packs(37), dp_world_size=4, costs=COSTS, window_steps=4)
    again.load_state_dict(json.loads(json.dumps(later.state_at(15))))
    assert steps(again, 1, 4, skipped=5) == expected[1][5:]
    assert steps(later, 2, 2) == steps(again, 2, 4) == expected[2]
    with pytest.raises(StateError, match="steps of 2 packs and these settings 4"):
        first.load_state_dict({**state, "shapes": [[9, 4, 1], [9, 2, 1]]})  # as it was last
    with pytest.raises(StateError, match="steps of 4 packs and these settings 2: change the accumulation"):
        PackSampler(toy_packs(37), dp_world_size=2, costs=COSTS).load_state_dict(state)


def stand_in_trainer(*, peers=None, split=False, per_batch=4):
    """What ``follow_schedule`` reads of a ``Trainer`` with four processes and an accumulation of three."""
    parallelism = None if peers is None else SimpleNamespace(non_data_parallel_size=peers)
    return SimpleNamespace(
        train_dataset=toy_packs(90),
        args=SimpleNamespace(train_batch_size=per_batch, gradient_accumulation_steps=3),
        accelerator=SimpleNamespace(num_processes=4, split_batches=split, parallelism_config=parallelism),
        callback_handler=SimpleNamespace(callbacks=["mine"]),
    )


@pytest.mark.parametrize(
    ("peers", "split", "together"), [(None, False, 16), (0, False, 16), (2, False, 8), (None, True, 4), (2, True, 4)]
)
def test_ranks_that_share_packs_and_batches_that_are_split(peers, split, together):
    """Tensor-parallel ranks are one; a step has the packs of all others, and other batches are refused when it begins."""
    trainer = stand_in_trainer(peers=peers, split=split)
    sampler = follow_schedule(trainer)
    assert trainer._get_train_sampler(None) is sampler
    assert (len(trainer.train_dataset), trainer.train_dataset[90].num_loss_tokens) == (90, 0)
    callback, mine = trainer.callback_handler.callbacks
    assert mine == "mine"
    assert len(sampler) == -(-90 // (3 * together)) * 3 * together
    state = SimpleNamespace(global_step=0, stateful_callbacks={})
    callback.on_train_begin(None, state, None)
    for number in (together - 1, together + 1):
        with pytest.raises(SettingsError, match=f"called for {together} packs .* and the trainer takes {number}"):
            callback.on_train_begin(None, state, None, train_dataloader=SimpleNamespace(total_batch_size=number))
    state.global_step = 1
    with pytest.raises(StateError, match="the checkpoint of step 1 was trained in the trainer's own order"):
        callback.on_train_begin(None, state, None)
    callback.on_step_end(None, state, None)
    again = stand_in_trainer(peers=peers, split=split)
    resumed = follow_schedule(again)
    again.callback_handler.callbacks[0].on_train_begin(
        None, state, None, train_dataloader=SimpleNamespace(total_batch_size=together)
    )
    assert list(resumed)[3 * together :] == list(sampler)[3 * together :]
    for epoch, number in ((1.999_999_9, 2), (1.9, 1), (None, 0)):
        callback.on_epoch_begin(None, SimpleNamespace(epoch=epoch), None)
        expected = PackSampler(toy_packs(90), dp_world_size=1, packs_per_micro_batch=together, micro_batches=3)
        expected.set_epoch(number)
        assert sorted(list(sampler)[: 3 * together]) == sorted(list(expected)[: 3 * together])


def test_split_batches_that_do_not_divide_are_refused():
    with pytest.raises(SettingsError, match="split_batches shares 6 packs among 4 ranks: give a multiple"):
        follow_schedule(stand_in_trainer(split=True, per_batch=6))


@pytest.mark.long
def test_trainer_resumes_in_the_schedule_and_refuses_another(tmp_path):
    """10 packs, 3 a step: 4 steps an epoch, the last with two places that no pack has; stopped in the second epoch."""

    def run(folder, steps, costs=COSTS[:10], resume=None, **options):
        recorder = Recorder()
        trainer = make_trainer(folder, steps=8, collator=recorder, gradient_accumulation_steps=3, **options)
        trainer.add_callback(StopAt(steps))
        if costs is not None:
            follow_schedule(trainer, costs=costs, window_steps=2)
        trainer.train(resume_from_checkpoint=resume)
        return recorder.seen, trainer

    whole, _ = run(tmp_path / "whole", 8)
    loader = PackLoader(
        make_trainer(tmp_path).train_dataset, numbers, micro_batches=3, costs=COSTS[:10], window_steps=2
    )
    expected = [batch[0] for _ in range(2) for batch in loader]
    assert [n for n, e in zip(whole, expected, strict=True) if e >= 0] == [e for e in expected if e >= 0]
    options = {"save_strategy": "steps", "save_steps": 6}
    run(tmp_path / "stopped", 6, **options)
    rest, _ = run(tmp_path / "stopped", 8, resume=True, **options)
    assert rest == whole[18:], "the same packs, and none read to be passed over"
    with pytest.raises(StateError, match="costs"):
        run(tmp_path / "stopped", 8, costs=COSTS[10:20], resume=str(tmp_path / "stopped" / "checkpoint-6"), **options)
    run(tmp_path / "own", 6, costs=None, **options)
    with pytest.raises(StateError, match="step 6 was trained in the trainer's own order of packs"):
        run(tmp_path / "own", 8, resume=True, **options)
    with pytest.raises(SettingsError, match="costs"):
        run(tmp_path / "wrong", 8, costs=[1.0])
