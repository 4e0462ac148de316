"""Doors of trainers at their ends: packs that ranks do not divide, two rows of a batch, one pack, and what means "all".

One law for each door that serves packs: over all ranks each target once, equally many batches on each rank, and the same
shape where the trainer needs one.
"""

from itertools import islice
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from brimful import PackCollator, PackLoader  # noqa: E402
from brimful.integrations.trainers.lmms_engine import WindowPacking  # noqa: E402
from brimful.integrations.trainers.pack_sampler import PackSampler, ServedPacks  # noqa: E402
from brimful.integrations.trainers.torchtitan import TorchtitanLoader  # noqa: E402
from brimful.integrations.trainers.veomni import VeomniLoader  # noqa: E402
from brimful.integrations.trainers.verl import VerlSamples  # noqa: E402
from brimful.testing.toys import toy_packs, toy_stream  # noqa: E402


def of_labels(batches):
    return [(int((batch["labels"] != -100).sum()), tuple(batch["labels"].shape)) for batch in batches]


def pack_loader(packs, rank, world, rows):
    return of_labels(
        PackLoader(packs, PackCollator(), dp_rank=rank, dp_world_size=world, packs_per_micro_batch=rows, seed=None)
    )


def torchtitan_rows(packs, rank, world, rows):
    options = {"dp_rank": rank, "dp_world_size": world, "seed": None, "repeat": False}
    loader = TorchtitanLoader(packs, seq_len=8, local_batch_size=rows, **options)
    found = of_labels({"labels": labels} for _, labels in loader)
    assert len(found) == len(loader)
    assert {shape for _, shape in found} == {(rows, 8)}
    return found


def torchtitan_tokens(packs, rank, world, rows):
    options = {"dp_rank": rank, "dp_world_size": world, "seed": None, "repeat": False}
    loader = TorchtitanLoader(packs, num_tokens_per_batch=8 * rows, packs_per_batch=rows, **options)
    found = of_labels({"labels": labels} for _, labels in loader)
    assert {shape for _, shape in found} == {(8 * rows,)}
    return found


def veomni(packs, rank, world, rows):
    options = {"dp_rank": rank, "dp_world_size": world, "micro_batches": rows, "seed": None}
    loader = VeomniLoader(PackLoader(packs, PackCollator(dialect="veomni"), **options), rows)
    steps = list(loader)
    assert [len(step) for step in steps] == [rows] * len(loader)
    return [(int((batch["labels"] != -100).sum()), ()) for step in steps for batch in step]


def accelerate(packs, rank, world, rows):
    """What ``accelerator.prepare`` deals out: batch ``b`` to rank ``b % ranks``."""
    sampler = PackSampler(packs, dp_world_size=world, packs_per_micro_batch=rows, seed=None)
    places, served = list(sampler), ServedPacks(packs)
    assert len(places) == len(sampler) == sampler.steps_per_epoch * world * rows
    batches = [places[begin : begin + rows] for begin in range(0, len(places), rows)][rank::world]
    return of_labels(PackCollator()(served.__getitems__(batch)) for batch in batches)


def lightning(packs, rank, world, rows):
    pytest.importorskip("lightning")
    from brimful.integrations.trainers.lightning import PackDataModule

    module = PackDataModule(packs, PackCollator(), packs_per_micro_batch=rows, seed=None)
    # With two rows, two tensor-parallel ranks share a part, and the strategy knows the parts.
    parts = {"distributed_sampler_kwargs": {"rank": rank, "num_replicas": world}} if rows == 2 else {}
    module.trainer = SimpleNamespace(
        accumulate_grad_batches=1, strategy=SimpleNamespace(**parts), global_rank=rank * rows, world_size=world * rows
    )
    return of_labels(module.train_dataloader())


DOORS = [pack_loader, torchtitan_rows, torchtitan_tokens, veomni, accelerate, lightning]


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize("door", DOORS, ids=lambda door: door.__name__)
def test_each_target_once_and_equal_batches_on_each_rank(door, count, world, rows):
    """Without it a rank waits for ever in the last step, or trains what another did."""
    packs = toy_packs(count)
    ranks = [door(packs, rank, world, rows) for rank in range(world)]
    assert len(set(map(len, ranks))) == 1
    assert len(ranks[0]) == -(-count // (world * rows)) * (rows if door is veomni else 1)
    assert sum(targets for rank in ranks for targets, _ in rank) == sum(pack.num_loss_tokens for pack in packs)


@pytest.mark.parametrize(("most", "expected"), [(-1, 3), (0, 3), (1, 1), (2, 2), (3, 3), (9, 3)])
def test_a_number_of_samples_and_what_means_all_of_them(most, expected, tmp_path):
    """verl gives -1 by default, and a config file may say 0."""
    samples = VerlSamples(toy_stream(tmp_path / "packs", [2, 1]), None, {}, max_samples=most)
    assert len(samples) == expected
    assert [len(samples[index]["input_ids"]) for index in range(expected)] == [4] * expected


@pytest.mark.parametrize("size", [1, 2, 100])
@pytest.mark.parametrize("lengths", [[8], [1], [8, 8], [1, 8, 1], []], ids=str)
def test_windows_of_few_samples(lengths, size):
    """One sample, samples of a whole pack, a window that never fills, and no sample at all."""
    packing = WindowPacking(8, size=size)
    for _ in range(2):  # the next epoch too
        packs = [pack for number, length in enumerate(lengths) for pack in packing.add(number, length)]
        packs += packing.flush()
        assert sorted(number for pack in packs for number in pack) == list(range(len(lengths)))
        assert all(sum(lengths[number] for number in pack) <= 8 for pack in packs)


def test_an_endless_door_begins_again_with_the_same_shape():
    """One pack on two ranks: each epoch has one batch, and a rank without a pack has it without targets."""
    loaders = [TorchtitanLoader(toy_packs(1), seq_len=8, dp_rank=rank, dp_world_size=2) for rank in range(2)]
    found = [[int((labels != -100).sum()) for _, labels in islice(loader, 3)] for loader in loaders]
    assert sorted(found) == [[0, 0, 0], [3, 3, 3]]
