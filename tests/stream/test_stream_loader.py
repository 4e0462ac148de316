"""Ranks serve a stream in lockstep, each pack once, and go on anywhere by one integer."""

from __future__ import annotations

import contextlib
import itertools
import json
import multiprocessing
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brimful.errors import (
    CorruptFileError,
    NotAPackStoreError,
    SettingsError,
    ShardExpiredError,
    StateError,
    StreamTimeoutError,
)
from brimful.serve.order import signed
from brimful.store.shards import ShardReader
from brimful.stream import LazyShardedDataset, StreamLoader
from brimful.testing.toys import ToyProducer, toy_stream

LANES = 4


def ids(batch):
    """Samples of a batch; -1 without loss."""
    assert all(bool(pack.num_loss_tokens) == bool((pack.sample_ids >= 0).all()) for pack in batch)
    return [int(pack.sample_ids[0]) for pack in batch]


def loaders(directory, world_size, **options):
    return [
        StreamLoader(directory, dp_rank=rank, dp_world_size=world_size, lanes=LANES, **options)
        for rank in range(world_size)
    ]


def global_batches(ranks):
    """The batches of each step with all ranks together; ranks must have equally many."""
    steps = zip(*(map(ids, loader) for loader in ranks), strict=True)
    return [sorted(sample for batch in step for sample in batch if sample >= 0) for step in steps]


@settings(max_examples=12)
@given(st.lists(st.integers(1, 4), max_size=9), st.sampled_from(["lane", "pack"]), st.sampled_from(["pad", "drop"]))
def test_the_batches_are_the_same_for_every_world_size(tmp_path_factory, packs, assign, tail):
    """C3, C7: a run that comes back on fewer nodes trains what it would have trained, and no rank is a step ahead."""
    stream = toy_stream(tmp_path_factory.mktemp("stream"), packs)
    batches = [global_batches(loaders(stream, size, assign=assign, tail=tail)) for size in (1, 2, 4)]
    assert batches[0] == batches[1] == batches[2]
    served = sorted(itertools.chain(*batches[0]))
    if tail == "pad":
        assert served == list(range(sum(packs)))
    else:
        assert len(set(served)) == len(served) == LANES * len(batches[0])
    assert len(batches[0]) == loaders(stream, 1, assign=assign, tail=tail)[0].steps_per_epoch


@pytest.mark.parametrize("assign", ["lane", "pack"])
def test_resumed_at_every_step_is_never_stopped(tmp_path, assign):
    """C4: at each step, also with another number of ranks and other micro-batches."""
    stream = toy_stream(tmp_path, [3, 2, 2, 3, 1, 2])
    whole = global_batches(loaders(stream, 1, assign=assign))
    for step in range(len(whole) + 1):
        first = loaders(stream, 2, assign=assign)
        begun = [list(map(ids, itertools.islice(loader, step))) for loader in first]
        states = [json.loads(json.dumps(loader.state_dict())) for loader in first]
        assert states[0] == states[1]
        assert (states[0]["step"], states[0]["places"]) == (step, 0)
        for world_size in (1, 2, 4):
            rest = loaders(stream, world_size, assign=assign)
            for loader in rest:
                loader.load_state_dict(states[0])
            assert global_batches(rest) == whole[step:]
        together = zip(*begun, strict=True)
        assert [sorted(i for i in a + b if i >= 0) for a, b in together] == whole[:step]


def test_resumed_within_a_step(tmp_path):
    """Gradient accumulation: a state between two micro-batches fits ranks that meet it, and others say why not."""
    stream = toy_stream(tmp_path, [3, 3, 3, 3])

    def made(size, per_micro_batch):
        return loaders(stream, size, assign="lane", packs_per_micro_batch=per_micro_batch)

    whole = [ids(batch) for batch in made(1, 1)[0]]
    (loader,) = made(1, 1)
    assert [ids(batch) for batch in itertools.islice(loader, 6)] == whole[:6]
    state = loader.state_dict()
    first, second = made(2, 1)
    for rank in (first, second):
        rank.load_state_dict(state)
    assert [a + b for a, b in zip(map(ids, first), map(ids, second), strict=True)] == [
        a + b for a, b in zip(whole[6::2], whole[7::2], strict=True)
    ]
    with pytest.raises(StateError, match=r"within a step, after 2 of 4 packs, and micro-batches of 1 × 4 ranks do not"):
        made(4, 1)[0].load_state_dict(state)


def test_a_stream_is_served_once_unless_asked(tmp_path):
    """A run that is started again after its last step must not train everything a second time."""
    stream = toy_stream(tmp_path, [2, 2])
    (loader,) = loaders(stream, 1)
    assert [ids(batch) for batch in loader] == [[0, 1, 2, 3]]
    again = loaders(stream, 1)[0]
    again.load_state_dict(loader.state_dict())
    assert list(again) == list(loader) == []
    loader.set_epoch(1)
    assert [ids(batch) for batch in loader] == [[0, 1, 2, 3]]
    endless = loaders(stream, 1, repeat=True)[0]
    assert [ids(batch) for batch in itertools.islice(endless, 3)] == [[0, 1, 2, 3]] * 3
    assert endless.state_dict()["epoch"] == 2
    assert list(loaders(toy_stream(tmp_path / "empty", []), 1, repeat=True)[0]) == []


def test_ranks_follow_a_stream_that_grows(tmp_path):
    """The whole point: training begins with the first shard, and every rank ends after the same step."""
    packs = [2, 1, 3, 2, 2, 1]
    expected = global_batches(loaders(toy_stream(tmp_path / "finished", packs), 2, assign="lane"))
    producer = ToyProducer(tmp_path / "growing")
    producer.append(packs[0])
    ranks = loaders(tmp_path / "growing", 2, assign="lane", timeout=30)
    found = [[], []]

    def consume(rank):
        for batch in ranks[rank]:
            found[rank].append(ids(batch))

    threads = [threading.Thread(target=consume, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for num_packs in packs[1:]:
        time.sleep(0.02)
        producer.append(num_packs)
    producer.close()
    for thread in threads:
        thread.join()
    assert [sorted(i for i in a + b if i >= 0) for a, b in zip(*found, strict=True)] == expected


def test_a_step_that_others_drop_is_not_served(tmp_path):
    """C7: a rank whose lanes are full must wait for the others: the stream may end without them, and it would hang."""
    producer = ToyProducer(tmp_path)
    for num_packs in (2, 1, 2, 2):
        producer.append(num_packs)
    loader = loaders(tmp_path, 2, assign="lane", tail="drop", timeout=0)[0]
    batches = iter(loader)
    assert ids(next(batches)) == [0, 3]
    with pytest.raises(StreamTimeoutError, match="waiting for step 1"):
        next(batches)
    producer.close()
    resumed = loaders(tmp_path, 2, assign="lane", tail="drop")[0]
    resumed.load_state_dict(loader.state_dict())
    assert list(resumed) == []


@pytest.mark.parametrize("assign", ["pack", "lane"])
def test_a_state_knows_what_becomes_of_the_tail(tmp_path, assign):
    """With another tail an epoch has other steps: a run that went on would end elsewhere than it began to."""
    producer = ToyProducer(tmp_path)
    for num_packs in (2, 1, 2, 2):
        producer.append(num_packs)
    producer.close()
    loader = loaders(tmp_path, 1, assign=assign, tail="pad")[0]
    next(iter(loader))
    with pytest.raises(StateError, match=r"tail \(pad in the state, drop here\)"):
        loaders(tmp_path, 1, assign=assign, tail="drop")[0].load_state_dict(loader.state_dict())


def read_on(arguments):
    directory, rank, state = arguments
    loader = StreamLoader(directory, dp_rank=rank, dp_world_size=2, lanes=LANES)
    if state is not None:
        loader.load_state_dict(state)
    return [ids(batch) for batch in itertools.islice(loader, 2)], loader.state_dict()


def test_ranks_in_processes_of_their_own(tmp_path):
    """A rank is a process: nothing but the directory tells them what to serve."""
    stream = toy_stream(tmp_path, [2, 3, 2, 3, 1])
    state, steps = None, []
    with multiprocessing.get_context("fork").Pool(2) as pool:
        while state is None or state["step"] < 5:
            (first, state), (second, other_state) = pool.map(read_on, [(stream, rank, state) for rank in range(2)])
            assert state == other_state
            steps += [sorted(i for i in a + b if i >= 0) for a, b in zip(first, second, strict=True)]
            if not first:
                break
    assert steps == global_batches(loaders(stream, 1))


def damage(directory, kind):
    """Damage shard 1, which holds packs 2 and 3."""
    (path,) = (directory / "shards").glob("00000001-*")
    if kind == "truncated":
        path.write_bytes(path.read_bytes()[:-1])
    elif kind == "empty":
        path.write_bytes(b"")
    elif kind == "flipped":
        data = bytearray(path.read_bytes())
        checksum = ShardReader(str(path), size=len(data))._open_batch(0).checksums[0]
        data[data.index(checksum.to_bytes(8, "little"))] ^= 1
        path.write_bytes(data)
    elif kind == "missing":
        path.unlink()
    else:
        # A shard of the same size that is whole, with valid checksums of its packs: of another place, or another stream.
        (foreign_path,) = (directory / "shards").glob("00000003-*")
        path.write_bytes(foreign_path.read_bytes())


DAMAGES = {
    "truncated": r"00000001-.*bytes and was committed with",
    "empty": r"00000001-.*has 0 bytes and was committed with",
    "flipped": r"00000001-.*(has other bytes|is damaged|cannot be read as a shard)",
    "missing": r"00000001-.*is missing: its packs were committed",
    "foreign": r"00000001-.*has other bytes than were committed",
}


@pytest.mark.parametrize("kind", DAMAGES)
@pytest.mark.parametrize("assign", ["lane", "pack"])
def test_damaged_shards_are_found_before_use(tmp_path, kind, assign):
    """R1: served as if they were right, they train other samples; mapped, one that was cut short kills the process."""
    stream = toy_stream(tmp_path, [2, 2, 2, 2])
    damage(tmp_path, kind)
    with pytest.raises(CorruptFileError, match=DAMAGES[kind]):
        list(loaders(stream, 1, assign=assign)[0])
    # Of several ranks, where packs follow one another each opens the shard for some of them.
    found = 0
    for rank in loaders(stream, 2, assign=assign):
        with contextlib.suppress(CorruptFileError):
            list(rank)
            continue
        found += 1
    assert found == (2 if assign == "pack" else 1)


def test_a_damaged_shard_is_not_taken_for_one_that_was_removed(tmp_path):
    """Nothing was removed, or only shards before it: the way out is another copy, not a later checkpoint."""
    stream = toy_stream(tmp_path, [1] * 4)
    for number in (0, 2):
        (path,) = (tmp_path / "shards").glob(f"{number:08d}-*")
        path.write_bytes(b"")
        loader = StreamLoader(stream)
        if number:
            (tmp_path / "expired.json").write_text(json.dumps({"below": number}))
            loader.load_state_dict(signed({**loader.state_dict(), "step": number}))
        with pytest.raises(CorruptFileError, match=f"{number:08d}-.*has 0 bytes") as refused:
            next(iter(loader))
        assert not isinstance(refused.value, ShardExpiredError)


@pytest.mark.parametrize("kind", DAMAGES)
def test_damaged_shards_are_skipped_in_step(tmp_path, logged, kind):
    """R1: a rank that stops alone hangs the others, and one that serves less is a step late."""
    stream = toy_stream(tmp_path, [2, 2, 2, 2])
    damage(tmp_path, kind)
    (loader,) = loaders(stream, 1, assign="lane", on_corrupt="skip")
    assert [ids(batch) for batch in loader] == [[0, 4, 6], [1, 5, 7]]
    assert loader.num_skipped == 2
    assert "skipped: " in logged[0]
    ranks = loaders(stream, 4, assign="lane", on_corrupt="skip")
    assert [[ids(batch) for batch in loader] for loader in ranks] == [[[0], [1]], [[-1], [-1]], [[4], [5]], [[6], [7]]]
    assert [loader.num_skipped for loader in ranks] == [0, 2, 0, 0]
    ranks[0].ack("run-1")
    # By numbers too, as samplers ask.
    with pytest.raises(CorruptFileError, match=DAMAGES[kind]):
        list(LazyShardedDataset(stream, lanes=LANES))
    dataset = LazyShardedDataset(stream, lanes=LANES, assign="lane", on_corrupt="skip")
    assert [ids([pack]) for pack in dataset] == [[0], [-1], [4], [6], [1], [-1], [5], [7]]
    assert dataset.num_skipped == 2


def test_one_after_another_packs_go_on_in_steps_of_another_size(tmp_path):
    """Half the ranks, and the same accumulation: the packs that no step has served, each once, in their order."""
    stream = toy_stream(tmp_path, [3, 3, 2, 2])
    (first,) = loaders(stream, 1)
    assert ids(next(iter(first))) == [0, 1, 2, 3]
    later = StreamLoader(stream, lanes=2)
    later.load_state_dict(first.state_dict())
    assert [ids(batch) for batch in later] == [[4, 5], [6, 7], [8, 9]]


def test_what_does_not_fit_is_refused(tmp_path):
    """A state of another stream or order would be continued in silence, and train other samples."""
    stream = toy_stream(tmp_path / "a", [2, 2])
    state = loaders(stream, 1)[0].state_dict()
    with pytest.raises(StateError, match=r"does not fit: assign \(pack in the state, lane here\)"):
        loaders(stream, 1, assign="lane")[0].load_state_dict(state)
    by_lanes = loaders(stream, 1, assign="lane")[0].state_dict()
    with pytest.raises(StateError, match=r"lanes \(4 in the state, 2 here\)"):
        StreamLoader(stream, lanes=2, assign="lane").load_state_dict(by_lanes)
    with pytest.raises(StateError, match=r"lanes \(4 in the state, 3 here\), and its 4 packs end within a step of 3"):
        StreamLoader(stream, lanes=3).load_state_dict(signed({**state, "step": 1}))
    with pytest.raises(StateError, match=r"kind \(packs in the state, stream here\)"):
        StreamLoader(stream, lanes=4).load_state_dict({**state, "kind": "packs"})
    for damage in ({"step": -1}, {"step": 1.5}, {"epoch": None}, {"step": 400}, {"places": 4}):
        with pytest.raises(StateError, match="damaged"):
            loaders(stream, 1)[0].load_state_dict({**state, **damage})
    with pytest.raises(SettingsError, match="lanes=4 is not a multiple of dp_world_size 3"):
        StreamLoader(stream, lanes=4, dp_world_size=3)
    with pytest.raises(SettingsError, match="packs_per_micro_batch 3 does not divide the 4 packs"):
        StreamLoader(stream, lanes=4, packs_per_micro_batch=3)
    with pytest.raises(SettingsError, match='tail="repeat" needs a finished store'):
        StreamLoader(stream, tail="repeat")
    with pytest.raises(SettingsError, match="on_corrupt 'ignore' is unknown"):
        StreamLoader(stream, on_corrupt="ignore")
    with pytest.raises(SettingsError, match="assign 'rank' is unknown: use one of lane, pack"):
        StreamLoader(stream, assign="rank")
    with pytest.raises(NotAPackStoreError):
        StreamLoader(tmp_path)
    ToyProducer(tmp_path / "b").append(1)
    with pytest.raises(StreamTimeoutError, match="waiting for step 1"):
        list(StreamLoader(tmp_path / "b", timeout=0))


@pytest.mark.parametrize("is_late", [True, False])
def test_a_shard_that_is_shown_after_its_record_is_waited_for(tmp_path, monkeypatch, is_late):
    """A mount that keeps listings shows the names of two folders at two times: ``skip`` would lose packs that are there. One
    that was deleted is waited for once, whatever packs it had."""
    stream, pauses = toy_stream(tmp_path / "stream", [2, 2]), []
    shard = next(Path(stream, "shards").glob("00000001-*"))
    hidden = shard.rename(tmp_path / "hidden")

    def sleep(seconds):
        pauses.append(seconds)
        if is_late and len(pauses) == 2:
            hidden.rename(shard)

    monkeypatch.setattr("brimful.base.blobs.interface._LATE_PAUSES", (1.0, 2.0, 3.0))
    monkeypatch.setattr("time.sleep", sleep)
    loader = StreamLoader(stream, on_corrupt="skip")
    packs = [pack for batch in loader for pack in batch if pack.num_loss_tokens]
    assert (len(packs), loader.num_skipped, pauses) == ((4, 0, [1.0, 2.0]) if is_late else (2, 2, [1.0, 2.0, 3.0]))


def test_facts_of_a_stream(tmp_path):
    """What a trainer shows, and asks for."""
    loader = StreamLoader(toy_stream(tmp_path, [2, 3, 1]), lanes=2)
    assert (loader.packs.log.num_packs, loader.steps_per_epoch, loader.packs_together) == (6, 3, 2)
    assert not loader.is_repeated
    assert StreamLoader(tmp_path, repeat=True).is_repeated
    assert (loader.settings.lanes, loader.settings.packs_per_micro_batch) == (2, 2)
    assert loader.collate_fn([]) == []
    assert loader.identity["capacity"] == 4
    ToyProducer(tmp_path / "growing").append(3)
    growing = StreamLoader(tmp_path / "growing")
    assert (growing.packs.log.num_packs, growing.steps_per_epoch) == (3, None)


def test_a_stream_of_which_nothing_can_be_read(tmp_path):
    """A filler is of the last shard that is whole; without any nothing would keep a rank in step with."""
    stream = toy_stream(tmp_path, [1, 1])
    loader = loaders(stream, 2, on_corrupt="skip")[1]
    assert loader.packs._filler().sample_ids.tolist() == [-1]
    shards = sorted((tmp_path / "shards").iterdir())
    shards[1].write_bytes(b"")
    assert (
        StreamLoader(stream).packs._filler().input_ids.tolist()
        == next(iter(StreamLoader(stream)))[0].input_ids.tolist()
    )
    shards[0].write_bytes(b"")
    with pytest.raises(CorruptFileError, match="no shard of the stream can be read"):
        StreamLoader(stream).packs._filler()


def test_an_acknowledgement_has_a_name(tmp_path):
    stream = toy_stream(tmp_path, [2, 2])
    loader = StreamLoader(stream, lanes=2)
    with pytest.raises(SettingsError, match=r'ack needs the name of the training: ack\("run-1"\)'):
        loader.ack()
    within = StreamLoader(stream, lanes=2, packs_per_micro_batch=1)
    next(iter(within))
    with pytest.raises(StateError, match="ack within a step, after 1 packs"):
        within.ack("run")
