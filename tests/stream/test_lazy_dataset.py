"""Packs of a growing stream by number: every sampler of every trainer delivers each of them exactly once."""

from __future__ import annotations

import itertools
import pickle
import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from brimful.base.blobs import open_blob_store  # noqa: E402
from brimful.errors import (  # noqa: E402
    SettingsError,
    ShardExpiredError,
    StateError,
    StreamTimeoutError,
    UnfinishedStoreError,
)
from brimful.stream import (  # noqa: E402
    LazyShardedDataset,
    StreamLoader,
    remove_acknowledged,
)
from brimful.stream.acks import Acks  # noqa: E402
from brimful.testing.toys import ToyProducer, toy_stream  # noqa: E402
from tests.stream import megatron_samplers  # noqa: E402

LANES = 4


def sample(pack):
    """Sample of a pack: -1 in one without loss, so that no account by samples counts one twice."""
    assert bool(pack.num_loss_tokens) == bool((pack.sample_ids >= 0).all())
    return int(pack.sample_ids[0])


def samples(packs):
    return [sample(pack) for pack in packs]


def loader_of(dataset, batches, **options):
    return torch.utils.data.DataLoader(dataset, batch_sampler=list(batches), collate_fn=samples, **options)


def served(ranks):
    """Samples of all ranks, which must be equally many steps."""
    return sorted(i for step in zip(*ranks, strict=True) for batch in step for i in batch if i >= 0)


def is_real_there():
    return pytest.param("real", marks=pytest.mark.skipif(megatron_samplers.real() is None, reason="megatron-bridge"))


@pytest.mark.parametrize("kind", ["own", is_real_there()])
@pytest.mark.parametrize("world_size", [1, 2, 4])
@pytest.mark.parametrize("assign", ["lane", "pack"])
def test_samplers_of_megatron_deliver_each_pack_once(tmp_path, kind, world_size, assign):
    """Seed 000: numbers of one rank read as its own lost three quarters of the rows, silently."""
    in_order = megatron_samplers.in_order if kind == "own" else megatron_samplers.real_in_order
    at_random = megatron_samplers.at_random if kind == "own" else megatron_samplers.real_at_random
    packs = [3, 2, 4, 1, 2, 1]
    dataset = LazyShardedDataset(toy_stream(tmp_path, packs), lanes=LANES, assign=assign)
    total = len(dataset)
    micro_batch = LANES // world_size
    for micro in {1, micro_batch}:
        ranks = [loader_of(dataset, in_order(total, 0, micro, rank, world_size)) for rank in range(world_size)]
        assert served(ranks) == list(range(sum(packs)))
        for is_sharded in (True, False):
            ranks = [
                loader_of(dataset, at_random(total, 0, micro, rank, world_size, is_sharded))
                for rank in range(world_size)
            ]
            assert served(ranks) == list(range(sum(packs)))


@pytest.mark.skipif(megatron_samplers.real() is None, reason="megatron-bridge is not installed")
@given(st.integers(1, 40), st.integers(0, 9), st.integers(1, 3), st.sampled_from([1, 2, 4]), st.booleans())
def test_the_arithmetic_written_down_is_that_of_megatron(total, steps, micro, world_size, is_sharded):
    """What the tests above rest on where Megatron is not installed."""
    consumed = steps * micro * world_size
    if consumed >= total // (micro * world_size) * micro * world_size:
        return
    for rank in range(world_size):
        numbers = (total, consumed, micro, rank, world_size)
        assert list(megatron_samplers.in_order(*numbers)) == list(megatron_samplers.real_in_order(*numbers))
        assert list(megatron_samplers.at_random(*numbers, is_sharded)) == list(
            megatron_samplers.real_at_random(*numbers, is_sharded)
        )


@pytest.mark.parametrize("shuffle", [False, True])
def test_the_sampler_of_pytorch_delivers_each_pack_once(tmp_path, shuffle):
    """DistributedSampler repeats the first packs to make ranks equal, unless the length is a multiple."""
    packs = [3, 2, 4, 1]
    dataset = LazyShardedDataset(toy_stream(tmp_path, packs), lanes=LANES)
    for world_size in (1, 2, 4):
        ranks = []
        for rank in range(world_size):
            sampler = torch.utils.data.DistributedSampler(dataset, world_size, rank, shuffle=shuffle)
            ranks.append(torch.utils.data.DataLoader(dataset, sampler=sampler, collate_fn=samples, batch_size=1))
        assert served(ranks) == list(range(sum(packs)))


@settings(max_examples=15)
@given(st.lists(st.integers(1, 3), min_size=1, max_size=9), st.sampled_from(["lane", "pack"]), st.data())
def test_batches_are_those_of_the_loader_and_resume_at_every_step(tmp_path_factory, packs, assign, data):
    """C3, C4: whatever the world size before and after the stop, and with any micro-batch."""
    stream = toy_stream(tmp_path_factory.mktemp("stream"), packs)
    dataset = LazyShardedDataset(stream, lanes=LANES, assign=assign)
    whole = [sorted(i for i in samples(batch) if i >= 0) for batch in StreamLoader(stream, lanes=LANES, assign=assign)]
    assert len(dataset) == LANES * len(whole)
    for step in range(len(whole)):
        world_size = data.draw(st.sampled_from([1, 2, 4]))
        micro = data.draw(st.sampled_from([m for m in (1, 2, 4) if LANES % (m * world_size) == 0]))
        ranks = [
            loader_of(dataset, megatron_samplers.in_order(len(dataset), step * LANES, micro, rank, world_size))
            for rank in range(world_size)
        ]
        micro_batches = [list(itertools.chain(*parts)) for parts in zip(*ranks, strict=True)]
        accumulation = LANES // (micro * world_size)
        batches = [
            sorted(i for part in micro_batches[begin : begin + accumulation] for i in part if i >= 0)
            for begin in range(0, len(micro_batches), accumulation)
        ]
        assert batches == whole[step:]


@pytest.mark.parametrize(("context", "num_workers"), [("fork", 2), pytest.param("spawn", 1, marks=pytest.mark.long)])
def test_workers_follow_a_stream_that_grows(tmp_path, context, num_workers):
    """R9: workers wait for packs that were not there when they started; nothing is shared between them."""
    producer = ToyProducer(tmp_path, lanes=2)
    producer.append(2)
    dataset = LazyShardedDataset(tmp_path, num_packs=12, timeout=60)
    assert sample(dataset[0]) == 0  # a shard is mapped before the fork

    def produce():
        for num_packs in (2, 3, 3, 1, 1):
            time.sleep(0.02)
            producer.append(num_packs)
        producer.close()

    thread = threading.Thread(target=produce)
    thread.start()
    numbers = megatron_samplers.in_order(12, 0, 2, 0, 1)
    loader = loader_of(dataset, numbers, num_workers=num_workers, multiprocessing_context=context)
    batches = list(loader)
    thread.join()
    assert batches == [[0, 2], [1, 3], [4, 7], [5, 8], [6, 9], [10, 11]]


def test_lengths(tmp_path):
    """Samplers ask for a length before the first pack: one that the stream cannot know is refused with the way out."""
    producer = ToyProducer(tmp_path, lanes=2)
    producer.append(3)
    dataset = LazyShardedDataset(tmp_path)
    with pytest.raises(UnfinishedStoreError, match=r"still grows \(3 packs so far\).*declare num_packs, at .* × 2"):
        len(dataset)
    for lanes, declared, right in ((2, 5, 6), (4, 5, 8), (3, 10, 12), (7, 8, 14)):
        with pytest.raises(
            SettingsError, match=rf"num_packs={declared} is not .* lanes={lanes}, so .*: declare {right}$"
        ):
            LazyShardedDataset(tmp_path, num_packs=declared, lanes=lanes)
    growing = LazyShardedDataset(tmp_path, num_packs=4)
    assert len(growing) == 4
    assert "growing, 4 declared, lanes 2" in repr(growing)
    producer.append(3)
    producer.close()
    assert samples(dataset) == list(itertools.chain(*zip([0, 1, 2], [3, 4, 5], strict=True)))
    assert len(dataset) == dataset.end == 6
    assert sample(dataset[-1]) == 5
    with pytest.raises(IndexError, match="no pack -7: a data set of 6 begins at -6"):
        dataset[-7]


def test_a_length_that_leaves_packs_out_is_told(tmp_path, logged):
    """A number that was declared too small must not lose the rest in silence."""
    stream = toy_stream(tmp_path, [3, 3], lanes=2)
    dataset = LazyShardedDataset(stream, num_packs=4)
    assert "num_packs=4 leaves out 2 packs" in "\n".join(logged)
    assert samples(dataset) == [0, 3, 1, 4]
    logged.clear()
    more = toy_stream(tmp_path / "more", [5, 5], lanes=2)
    assert LazyShardedDataset(more, num_packs=4).end == LazyShardedDataset(more, num_packs=10).end == 10
    assert ["leaves out 6 packs" in text for text in logged] == [True], "the whole stream leaves out nothing"


def test_behind_the_end(tmp_path):
    """An upper bound as length: what comes after the end is chosen, and never a pack twice unasked."""
    stream = toy_stream(tmp_path, [2, 1], lanes=2)
    with pytest.raises(IndexError, match="ended with 4 packs, and pack 4 was requested: declare num_packs=4, or let"):
        LazyShardedDataset(stream, num_packs=8)[4]
    assert samples(LazyShardedDataset(stream, num_packs=8)) == [0, 2, 1, -1]
    assert samples(LazyShardedDataset(stream, num_packs=8, beyond="pad")) == [0, 2, 1, -1, -1, -1, -1, -1]
    assert samples(LazyShardedDataset(stream, num_packs=12, beyond="repeat")) == [0, 2, 1, -1] * 3
    assert samples(LazyShardedDataset(stream, beyond="repeat")) == [0, 2, 1, -1]
    empty = toy_stream(tmp_path / "empty", [])
    for beyond in ("error", "pad", "repeat"):
        with pytest.raises(IndexError, match="ended with 0 packs"):
            LazyShardedDataset(empty, beyond=beyond)[0]
    with pytest.raises(SettingsError, match="beyond 'stop' is unknown: use one of error, pad, repeat"):
        LazyShardedDataset(stream, beyond="stop")  # type: ignore[arg-type]


def test_waiting_names_the_pack(tmp_path, logged, monkeypatch):
    """C6: a run that stands still must show for what, in workers too."""
    ToyProducer(tmp_path, lanes=2).append(2)
    dataset = LazyShardedDataset(tmp_path, num_packs=8, timeout=0)
    message = r"waiting for pack 6 \(2 exist\), so for log/000000000001.json \(1 shard so far\)"
    with pytest.raises(StreamTimeoutError, match=message):
        dataset[6]
    with pytest.raises(StreamTimeoutError, match=message):
        list(loader_of(dataset, [[0], [6]], num_workers=1))
    monkeypatch.setattr("brimful.stream.followed_packs._WARN_SECONDS", 0.0)
    with pytest.raises(StreamTimeoutError):
        LazyShardedDataset(tmp_path, num_packs=8, timeout=0.05)[6]
    assert "waiting for pack 6 (2 exist)" in "\n".join(logged)


def test_pickled_with_its_settings(tmp_path):
    """Ray and spawned workers get the data set as bytes."""
    dataset = LazyShardedDataset(toy_stream(tmp_path, [2, 2], lanes=2), num_packs=8, beyond="repeat")
    again = pickle.loads(pickle.dumps(dataset))
    assert samples(again) == samples(dataset) == [0, 2, 1, 3] * 2


def test_acknowledged_steps_let_shards_go(tmp_path):
    """C5: by steps, as trainers count; who asks in another order, or comes again, keeps everything."""
    stream = toy_stream(tmp_path, [1] * 8, lanes=2)
    dataset = LazyShardedDataset(stream)
    for step in (1, 2, 3):
        dataset.ack(step, "model")
    acks = Acks(open_blob_store(stream), "model")
    assert acks.positions() == [2, 4, 6]
    loader = StreamLoader(stream)
    list(itertools.islice(loader, 2))
    loader.ack("model")  # the same position by the loader is the same acknowledgement
    assert remove_acknowledged(stream, ["model"], keep=2) == 4
    with pytest.raises(ShardExpiredError, match="shard 2 was removed"):
        dataset[2]
    assert sample(dataset[4]) == 4
    dataset.ack(2, "shuffled", in_order=False)
    LazyShardedDataset(stream, num_packs=16, beyond="repeat").ack(2, "cyclic")
    for group in ("shuffled", "cyclic"):
        assert Acks(open_blob_store(stream), group).read(4)[0]["frontier"] == 0
    LazyShardedDataset(stream, num_packs=16, beyond="pad").ack(7, "padded")  # three steps without packs
    assert Acks(open_blob_store(stream), "padded").read(8)[0]["frontier"] == 8
    dataset.ack(5, "ahead")  # the stream has four steps: a further pass needs its shards again
    LazyShardedDataset(stream, num_packs=16, beyond="repeat").ack(0, "begun")
    for group, position in (("ahead", 10), ("begun", 0)):
        assert Acks(open_blob_store(stream), group).read(position)[0]["frontier"] == 0
    dataset.ack(4, "whole")
    assert Acks(open_blob_store(stream), "whole").read(8)[0]["frontier"] == 8
    with pytest.raises(StateError, match="acknowledged with different values"):
        LazyShardedDataset(stream, lanes=4).ack(1, "model")
