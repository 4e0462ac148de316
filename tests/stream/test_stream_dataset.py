"""Workers make the micro-batches of their rank in turn: as many as they are, the order is the loader's."""

from __future__ import annotations

import itertools
import json
import threading
import time
from copy import copy

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from brimful.errors import SettingsError, StateError, StreamTimeoutError  # noqa: E402
from brimful.stream import StreamDataset, StreamLoader  # noqa: E402
from brimful.testing.toys import ToyProducer, toy_stream  # noqa: E402

LANES = 4

# More workers than processors: waiting workers need none.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


def samples(packs):
    """Samples of a batch; -1 in packs without loss."""
    return [int(pack.sample_ids[0]) for pack in packs]


def batches(dataset, **options):
    return torch.utils.data.DataLoader(dataset, batch_size=None, **options)


def in_turn(dataset, num_workers):
    """What a DataLoader with workers gives, without their processes: one item of each in turn."""
    workers = []
    for number in range(num_workers):
        with pytest.MonkeyPatch.context() as patched:
            info = type("Info", (), {"id": number, "num_workers": num_workers})
            patched.setattr("torch.utils.data.get_worker_info", lambda info=info: info)
            # Each process has a copy of its own.
            own = copy(dataset)
            own._loader = dataset._loader.fork()
            iterator = iter(own)
            workers.append(itertools.chain([next(iterator, None)], iterator))
    for item in itertools.chain.from_iterable(itertools.zip_longest(*workers)):
        if item is not None:
            yield item


@settings(max_examples=15)
@given(
    st.lists(st.integers(1, 3), max_size=8),
    st.sampled_from(["lane", "pack"]),
    st.sampled_from(["pad", "drop"]),
    st.sampled_from([1, 2, 4]),
    st.integers(1, 4),
)
def test_any_number_of_workers_gives_the_batches_of_the_loader(
    tmp_path_factory, packs, assign, tail, world_size, num_workers
):
    """C3: and each rank has the same number of steps, which no worker may shorten."""
    stream = toy_stream(tmp_path_factory.mktemp("stream"), packs)
    options = {"dp_world_size": world_size, "lanes": LANES, "assign": assign, "tail": tail, "packs_per_micro_batch": 1}
    lengths = set()
    for rank in range(world_size):
        whole = list(StreamLoader(stream, samples, dp_rank=rank, **options))
        dataset = StreamDataset(StreamLoader(stream, samples, dp_rank=rank, **options))
        assert list(in_turn(dataset, num_workers)) == whole
        lengths.add(len(whole))
    assert len(lengths) == 1


@settings(max_examples=10)
@given(st.lists(st.integers(1, 3), min_size=1, max_size=6), st.integers(1, 3), st.integers(1, 3), st.booleans())
def test_resumed_at_every_batch_is_never_stopped(tmp_path_factory, packs, before, after, repeat):
    """C4: with other workers and another number of ranks; the state is of what was trained, not of what was prefetched."""
    stream = toy_stream(tmp_path_factory.mktemp("stream"), packs)
    options = {"lanes": LANES, "repeat": repeat}
    whole = list(itertools.islice(StreamLoader(stream, samples, **options), 12))
    for step in range(min(len(whole), 8) + 1):
        first = StreamDataset(StreamLoader(stream, samples, **options))
        assert list(itertools.islice(in_turn(first, before), step)) == whole[:step]
        state = json.loads(json.dumps(first.state_after(step)))
        loader = StreamLoader(stream, samples, **options)
        assert list(itertools.islice(loader, step)) == whole[:step]
        assert loader.state_dict() == state
        ranks = []
        for rank in range(2):
            rest = StreamDataset(StreamLoader(stream, samples, dp_rank=rank, dp_world_size=2, **options))
            rest.load_state_dict(state)
            ranks.append(itertools.islice(in_turn(rest, after), len(whole) - step))
        found = [sorted(a + b) for a, b in zip(*ranks, strict=True)]
        # A rank without a pack has one without loss of its own.
        assert [[i for i in batch if i >= 0] for batch in found] == [
            sorted(i for i in batch if i >= 0) for batch in whole[step:]
        ]


@pytest.mark.parametrize(("context", "num_workers"), [("fork", 3), pytest.param("spawn", 2, marks=pytest.mark.long)])
def test_workers_follow_a_stream_that_grows(tmp_path, context, num_workers):
    """R9: training begins with the first shard, in workers of their own processes."""
    packs = [2, 3, 2, 3, 1, 1]
    whole = list(StreamLoader(toy_stream(tmp_path / "whole", packs, lanes=2), samples))
    producer = ToyProducer(tmp_path / "growing", lanes=2)
    producer.append(packs[0])

    def produce():
        for num_packs in packs[1:]:
            time.sleep(0.02)
            producer.append(num_packs)
        producer.close()

    dataset = StreamDataset(StreamLoader(tmp_path / "growing", samples, timeout=60))
    thread = threading.Thread(target=produce)
    thread.start()
    found = list(batches(dataset, num_workers=num_workers, multiprocessing_context=context))
    thread.join()
    assert found == whole


def test_it_begins_again_if_asked(tmp_path):
    """Seed 002: a cyclic stream for trainings that end by steps; without asking every iteration is one pass."""
    stream = toy_stream(tmp_path, [2, 1], lanes=2)
    whole = [[0, 2], [1]]
    dataset = StreamDataset(StreamLoader(stream, samples))
    assert list(batches(dataset)) == list(batches(dataset)) == whole
    for num_workers in (0, 1, 2, 3):
        loader = batches(StreamDataset(StreamLoader(stream, samples, repeat=True)), num_workers=num_workers)
        assert list(itertools.islice(loader, 7)) == (whole * 4)[:7]
    assert list(batches(StreamDataset(StreamLoader(toy_stream(tmp_path / "empty", []), repeat=True)))) == []


def test_what_does_not_fit_is_refused(tmp_path):
    """In the training process, where the user sees it, and not in a worker."""
    stream = toy_stream(tmp_path / "a", [2, 2])
    with pytest.raises(SettingsError, match="lanes=4 is not a multiple of dp_world_size 3"):
        StreamDataset(StreamLoader(stream, lanes=4, dp_world_size=3))
    by_lanes = StreamLoader(stream, lanes=4, assign="lane").state_dict()
    with pytest.raises(StateError, match="lanes"):
        StreamDataset(StreamLoader(stream, lanes=2, assign="lane")).load_state_dict(by_lanes)
    ToyProducer(tmp_path / "b").append(1)
    with pytest.raises(StreamTimeoutError, match="waiting for step 1"):
        list(batches(StreamDataset(StreamLoader(tmp_path / "b", samples, timeout=0)), num_workers=1))
