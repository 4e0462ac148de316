"""Micro-batches by a token budget: which samples go together, on which rank, and what a saved state brings back."""

# mypy: disable-error-code="arg-type"

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brimful import LengthTable
from brimful.dynamic.agreement import RankAgreement
from brimful.dynamic.compose import MicroBatchComposer
from brimful.dynamic.composed_batches import TokenBudgetBatches, WindowBatches
from brimful.dynamic.online_window import Window
from brimful.dynamic.token_budget import SampleCount, TokenBudget, Warmup
from brimful.encode.encoded import EncodedSample
from brimful.errors import (
    CollateError,
    EncodeError,
    LengthChangedError,
    OversizedSampleError,
    SettingsError,
    StateError,
)
from brimful.media import MediaKind, Medium, PlacedMedium
from brimful.serve.order import signed
from brimful.testing.toys import toy_pack, toy_packs, toy_tree

# ---------------------------------------------------------------- who serves them


class Samples:
    """By index; remembers what was asked for."""

    def __init__(self, lengths):
        self.lengths, self.asked = lengths, []

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, index):
        self.asked.append(index)
        ids = 100 * index + np.arange(self.lengths[index], dtype=np.int32)
        return EncodedSample(ids, ids % 3 > 0)


class Stream:
    """Samples one after the other, that knows its position."""

    def __init__(self, lengths):
        self.samples, self.at, self.epoch = Samples(lengths), 0, 0

    def set_epoch(self, epoch):
        self.epoch, self.at = epoch, 0

    def __iter__(self):
        while self.at < len(self.samples):
            self.at += 1
            yield self.samples[(self.at - 1 + self.epoch) % len(self.samples)]

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


def content(batch):
    return [
        (pack.sample_ids.tolist(), pack.starts.tolist(), pack.input_ids.tolist(), pack.loss_mask.tolist())
        for pack in batch
    ]


def by_index(lengths, settings=None, **options):
    settings = settings or TokenBudget(8, min_buffered=3)
    targets = [int(np.count_nonzero(Samples(lengths)[i].loss_mask[1:])) for i in range(len(lengths))]
    return TokenBudgetBatches(Samples(lengths), settings, lengths=lengths, loss_tokens=targets, **options)


def from_stream(lengths, settings=None, **options):
    options.pop("seed", None)
    return TokenBudgetBatches(Stream(lengths), settings or TokenBudget(8, min_buffered=3), **options)


LENGTHS = [3, 5, 2, 4, 8, 1, 1, 6, 2, 7, 3]


def test_micro_batches_are_packs():
    """One pack of whole samples, with their ids; what a collator takes."""
    batches = list(by_index([3, 5, 2], seed=None))
    assert content(batches[0]) == [
        ([0, 1], [0, 0], [0, 1, 2, 100, 101, 102, 103, 104], [False, True, True, False, True, False, True, True])
    ]
    assert content(batches[1]) == [([2], [0], [200, 201], [False, False])]


def test_a_rank_encodes_only_what_it_serves():
    """On 512 ranks any other way is 512 times the work."""
    one = by_index(LENGTHS, dp_rank=1, dp_world_size=3)
    served = sorted(i for batch in one for pack in batch for i in pack.sample_ids.tolist())
    assert sorted(one.order.feed._source.asked) == served
    assert len(served) < len(LENGTHS)


def test_stream_and_index_give_the_same():
    """The same samples in the same order, the same micro-batches: measuring first changes nothing."""
    for settings in (TokenBudget(8, min_buffered=3), TokenBudget(4, count="loss_tokens", capacity=8), SampleCount(2)):
        whole = [content(batch) for batch in by_index(LENGTHS, settings, seed=None)]
        assert [content(batch) for batch in from_stream(LENGTHS, settings)] == whole


@given(
    lengths=st.lists(st.integers(1, 8), min_size=1, max_size=25),
    world=st.integers(1, 4),
    micro=st.integers(1, 3),
    tail=st.sampled_from(["pad", "drop", "repeat"]),
    seed=st.sampled_from([None, 5]),
)
def test_ranks_are_equal_in_steps_and_together_complete(lengths, world, micro, tail, seed):
    """Without talking. Each sample once or accounted for."""
    served, steps = [], set()
    for rank in range(world):
        one = by_index(lengths, dp_rank=rank, dp_world_size=world, micro_batches=micro, tail=tail, seed=seed)
        expected = one.count_steps()
        batches = list(one)
        assert len(batches) == expected * micro
        assert one.step == expected
        steps.add(len(batches))
        served += [i for batch in batches for pack in batch for i in pack.sample_ids.tolist() if i >= 0]
        ledger = one.ledger
    assert len(steps) == 1
    assert ledger.samples_in == len(lengths)
    if tail == "drop":
        assert len(served) == len(set(served)) == len(lengths) - ledger.samples_dropped
    else:
        assert set(served) == set(range(len(lengths)))
        assert tail == "repeat" or len(served) == len(lengths), "a filler has no sample"


def test_the_tail():
    """Three micro-batches on two ranks."""
    serve = lambda rank, tail: [  # noqa: E731
        (pack.sample_ids.tolist(), pack.num_loss_tokens)
        for batch in by_index([8, 8, 8], dp_rank=rank, dp_world_size=2, seed=None, tail=tail)
        for pack in batch
    ]
    assert serve(0, "pad") == [([0], 5), ([2], 4)]
    assert serve(1, "pad") == [([1], 5), ([-1], 0)]
    assert serve(1, "drop") == [([1], 5)]
    assert serve(1, "repeat") == [([1], 5), ([2], 4)]


def test_epochs_have_orders_of_their_own():
    """The same order every epoch is a known cause of stair-step losses."""
    loader = by_index(LENGTHS)
    first, second = [[content(batch) for batch in loader] for _ in range(2)]
    assert first != second
    assert loader.epoch == 2
    loader.set_epoch(0)
    assert [content(batch) for batch in loader] == first


def test_packs_in_a_stream_stay_whole():
    """A stream of packs fills micro-batches by the same budget; single samples among them share a pack."""
    stream = [toy_pack([3, 2], first_sample=0), toy_pack([2], first_sample=7), toy_pack([1], first_sample=9)]
    batches = list(TokenBudgetBatches(stream, TokenBudget(8)))
    assert [[pack.sample_ids.tolist() for pack in batch] for batch in batches] == [[[0, 1], [7, 9]]]
    with pytest.raises(
        OversizedSampleError, match=r"the pack of 2 samples at 0 has 5 tokens .* Choose overflow drop, or"
    ):
        list(TokenBudgetBatches(stream, TokenBudget(4, overflow="truncate")))
    with pytest.raises(CollateError, match="a pack of 2 samples and 5 tokens, which is never cut"):
        list(TokenBudgetBatches(stream, TokenBudget(4, overflow="truncate"), lengths=[5, 2, 1], seed=None))


def test_trees_in_a_stream_stay_whole_and_are_in_its_state():
    """Counted by their samples and the targets of all of them, and saved with the samples that wait."""
    trees = [toy_tree([[5, 6, 7, 8], [5, 6, 7, 9]]), toy_tree([[3, 4]]), toy_tree([[5, 5], [5, 6]])]
    assert [[pack.sharing is not None for pack in batch] for batch in TokenBudgetBatches(trees, TokenBudget(7))] == [
        *([True, True], [True])
    ]
    by_targets = TokenBudgetBatches(trees, TokenBudget(6, count="loss_tokens", capacity=64))
    assert [len(batch) for batch in by_targets] == [1, 2]
    loader = TokenBudgetBatches(Rewound(trees), TokenBudget(5, min_buffered=3))
    first = next(iter(loader))
    state = json.loads(json.dumps(loader.state_dict()))
    assert "PackTree" in json.dumps(state)
    resumed = TokenBudgetBatches(Rewound(trees), TokenBudget(5, min_buffered=3))
    resumed.load_state_dict(state)
    served = [*first, *(pack for batch in resumed for pack in batch)]
    assert sorted(map(repr, served)) == sorted(map(repr, trees))
    assert all(pack in trees for pack in served)


class Rewound(list):
    """A stream that can go on from its position."""

    place = 0

    def __iter__(self):
        while self.place < len(self):
            self.place += 1
            yield self[self.place - 1]

    def state_dict(self):
        return {"place": self.place}

    def load_state_dict(self, state):
        self.place = state["place"]


def test_ranks_with_streams_of_their_own_end_together():
    """Rank 1 ends after two steps, rank 0 after three: a collective that only one enters hangs for ever."""

    def run(tail, reduce):
        ranks = [from_stream([8] * 3, tail=tail), from_stream([8] * 2, tail=tail)]
        # What a collective does: each step asks all ranks. Here the answers are known.
        has = [[True, True, True, False], [True, True, False, False]]
        served = []
        for rank, loader in enumerate(ranks):
            asked = iter(range(4))

            def agree(mine, asked=asked, rank=rank):
                step = next(asked)
                assert mine == has[rank][step]
                return reduce(has[0][step], has[1][step])

            loader.order._agree = agree
            served.append([(pack.sample_ids.tolist(), pack.num_loss_tokens) for batch in loader for pack in batch])
        return served, [loader.ledger.samples_dropped for loader in ranks]

    served, _ = run("pad", lambda a, b: a or b)
    assert served == [[([0], 5), ([1], 5), ([2], 4)], [([0], 5), ([1], 5), ([-1], 0)]]
    served, dropped = run("drop", lambda a, b: a and b)
    assert served == [[([0], 5), ([1], 5)]] * 2
    assert dropped == [1, 0]


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: by_index([3], dp_rank=2, dp_world_size=2), SettingsError, "dp_rank must be from 0 to 1 and is 2"),
        (lambda: by_index([3], dp_rank="0"), SettingsError, "dp_rank must be a whole number and is '0'"),
        (lambda: by_index([3], dp_world_size=0), SettingsError, "dp_world_size must be a whole number of at least 1"),
        (
            lambda: by_index([3], micro_batches=0),
            SettingsError,
            "micro_batches must be at least 1 and is 0",
        ),
        (lambda: from_stream([3], dp_world_size=2, agree=bool), SettingsError, "leave dp_world_size at 1"),
        (lambda: from_stream([3], loss_tokens=[3]), SettingsError, "loss_tokens needs lengths"),
        (lambda: TokenBudgetBatches(Samples([3, 4]), SampleCount(1), lengths=[3]), SettingsError, "the source 2"),
        (lambda: TokenBudgetBatches(Samples([0]), SampleCount(1), lengths=[0]), SettingsError, "sample 0 has length 0"),
        (lambda: from_stream([3]).count_steps(), SettingsError, "a stream has no number of steps"),
        (lambda: list(from_stream([3, 0])), EncodeError, "item 1 of the stream has no tokens"),
        (
            lambda: list(TokenBudgetBatches(Samples([3, 4]), SampleCount(2), lengths=[3, 5], seed=None)),
            LengthChangedError,
            "sample 1 encodes to 4 tokens and was measured with 5",
        ),
    ],
)
def test_what_cannot_be_served(make, error, message):
    """Each names the culprit and the way out."""
    with pytest.raises(error, match=message):
        make()


def test_rejected_samples_are_left_out_and_counted():
    """A length table marks rows that cannot be read with -1."""
    loader = TokenBudgetBatches(Samples([3, 9, 2]), TokenBudget(8), lengths=[3, -1, 2], seed=None)
    assert [pack.sample_ids.tolist() for batch in loader for pack in batch] == [[0, 2]]
    assert loader.ledger.samples_rejected == 1


# ---------------------------------------------------------------- stopped and resumed


def forever(loader):
    while True:
        yield from loader


@given(
    lengths=st.lists(st.integers(1, 11), min_size=1, max_size=14),
    stop=st.integers(0, 15),
    world=st.integers(1, 3),
    micro=st.integers(1, 3),
    tail=st.sampled_from(["pad", "repeat"]),
    settings=st.sampled_from(
        [
            TokenBudget(8, min_buffered=3, overflow="split"),
            TokenBudget(8, min_buffered=5, overflow="truncate_left", fit="exact", warmup=Warmup(steps=4, start=2)),
            TokenBudget(4, count="loss_tokens", capacity=11),
            SampleCount(2),
        ]
    ),
    make=st.sampled_from([by_index, from_stream]),
)
def test_stopped_anywhere_and_resumed_is_never_stopped(lengths, stop, world, micro, tail, settings, make):
    """Byte for byte, within steps, with samples that wait, over the ends of epochs, and through JSON."""
    for rank in range(world):

        def loader(rank=rank):
            return make(lengths, settings, dp_rank=rank, dp_world_size=world, micro_batches=micro, tail=tail)

        whole = loader()
        stream = forever(whole)
        expected = [content(next(stream)) for _ in range(16)]
        first = loader()
        stream = forever(first)
        got = [content(next(stream)) for _ in range(stop)]
        second = loader()
        state = json.loads(json.dumps(first.state_dict()))
        second.load_state_dict(state)
        assert second.state_dict() == state
        stream = forever(second)
        got += [content(next(stream)) for _ in range(16 - stop)]
        assert got == expected
        assert second.ledger == whole.ledger


@given(
    lengths=st.lists(st.integers(1, 8), min_size=1, max_size=14),
    stop=st.integers(0, 12),
    micro=st.integers(1, 3),
    make=st.sampled_from([by_index, from_stream]),
)
def test_setting_the_epoch_that_is_served_changes_nothing(lengths, stop, micro, make):
    """Training loops load a state and then call ``set_epoch``: samples that wait would be lost, and others come twice."""
    loader = make(lengths, micro_batches=micro)
    for _ in zip(range(stop), forever(loader), strict=False):  # range first: it takes no batch too many
        pass
    state = json.loads(json.dumps(loader.state_dict()))
    plain, told = make(lengths, micro_batches=micro), make(lengths, micro_batches=micro)
    plain.load_state_dict(state)
    told.load_state_dict(state)
    told.set_epoch(told.epoch)
    assert told.state_dict() == plain.state_dict()
    assert [content(batch) for batch in told] == [content(batch) for batch in plain]
    told.set_epoch(told.epoch)  # the next one, to which the loader went by itself
    assert [content(batch) for batch in told] == [content(batch) for batch in plain]


@given(
    lengths=st.lists(st.integers(1, 8), min_size=1, max_size=20),
    world=st.integers(1, 3),
    micro=st.integers(1, 3),
    tail=st.sampled_from(["pad", "drop", "repeat"]),
    settings=st.sampled_from(
        [
            TokenBudget(8, min_buffered=1, warmup=Warmup(steps=6, start=1)),
            TokenBudget(8, min_buffered=3, warmup=Warmup(steps=9, start=2), fit="exact"),
            TokenBudget(8, min_buffered=3),
            SampleCount(2),
        ]
    ),
    resumed=st.booleans(),
)
def test_counted_steps_are_those_that_come(lengths, world, micro, tail, settings, resumed):
    """At any moment of any epoch, in a warm-up too: a learning rate that is laid out over another number never ends."""
    options = {"micro_batches": micro, "dp_world_size": world, "tail": tail}
    loader = by_index(lengths, settings, **options)
    for epoch in range(3):
        counted, before = [loader.count_steps()], loader.step
        for _ in loader:
            if resumed:
                state, loader_then = loader.state_dict(), loader
                loader = by_index(lengths, settings, **options)
                loader.load_state_dict(state)
                counted.append(loader.count_steps())
                loader = loader_then
            assert loader.epoch == epoch
            counted.append(loader.count_steps())
        assert counted == [loader.step - before] * len(counted)


def test_an_error_of_the_collator_skips_no_sample():
    """A state that was saved after it would begin after a micro-batch that was not served."""
    whole = [content(batch) for batch in by_index(LENGTHS)]

    def collate(packs):
        if content(packs) == wrong:
            raise RuntimeError("no batch of these")
        return packs

    for number in range(len(whole)):
        wrong = whole[number]
        loader, later = by_index(LENGTHS, collate_fn=collate), by_index(LENGTHS)
        with pytest.raises(RuntimeError):
            list(loader)
        later.load_state_dict(loader.state_dict())
        assert [content(batch) for batch in later] == whole[number:]


@pytest.mark.parametrize("make", [by_index, from_stream])
def test_an_error_of_the_source_loses_no_sample_that_came_before_it(make, monkeypatch):
    """Micro-batches of a step that were composed when it came would be lost, for who goes on and for who resumes."""
    settings = TokenBudget(8, min_buffered=3)
    whole = [content(batch) for batch in make([*LENGTHS, 2], settings, micro_batches=3, seed=None)]
    loader = make([*LENGTHS, 2], settings, micro_batches=3, seed=None)
    add, seen = MicroBatchComposer.add, []

    def fail_once(self, key, *rest, **options):
        if key == 9 and not seen:
            seen.append(key)
            raise ConnectionError("try again")
        add(self, key, *rest, **options)

    monkeypatch.setattr(MicroBatchComposer, "add", fail_once)
    served = []
    with pytest.raises(ConnectionError):
        served.extend(content(batch) for batch in loader)
    later = make([*LENGTHS, 2], settings, micro_batches=3, seed=None)
    later.load_state_dict(json.loads(json.dumps(loader.state_dict())))
    assert served + [content(batch) for batch in later] == whole
    if make is by_index:
        assert served + [content(batch) for batch in loader] == whole
        assert loader.ledger == later.ledger


def test_a_sample_that_is_refused_is_not_counted_and_comes_again():
    """The account would not add up, so that no state could be saved after the error; and the sample would be gone."""
    loader = by_index([3, 20, 3], seed=None)
    for _ in range(2):
        with pytest.raises(OversizedSampleError, match="sample 1 has 20 tokens"):
            next(iter(loader))
        assert loader.ledger.samples_in == 0  # the step is composed again
    state = loader.state_dict()
    assert (state["taken"], state["waiting"]) == (0, [])


def test_a_state_of_another_version_is_refused_by_that_alone():
    """What it holds besides is not for this version to read."""
    state = {**by_index(LENGTHS).state_dict(), "version": 1, "tail": "drop"}
    with pytest.raises(StateError, match=r"does not fit: version \(1 in the state, 4 here\)$"):
        by_index(LENGTHS).load_state_dict(state)


def test_between_two_steps_the_number_of_ranks_may_change():
    """Two ranks serve the first step, four the rest: nothing comes twice, nothing is left out."""
    lengths, served = [8] * 14, []
    for rank in range(2):
        loader = by_index(lengths, dp_rank=rank, dp_world_size=2)
        stream = iter(loader)
        served += [content(next(stream)) for _ in range(1)]
        state = loader.state_dict()
    for rank in range(4):
        loader = by_index(lengths, dp_rank=rank, dp_world_size=4)
        loader.load_state_dict(state)
        served += [content(batch) for batch in loader]
    ids = sorted(i for batch in served for pack in batch for i in pack[0])
    assert ids == list(range(14))


def test_the_state_of_samples_by_index_is_small_and_has_no_tokens():
    """It goes into every checkpoint of every rank."""
    loader = by_index([5] * 5000, TokenBudget(64, min_buffered=200))
    next(iter(loader))
    text = json.dumps(loader.state_dict())
    assert len(text) < 8000
    assert "input_ids" not in text


def test_a_state_that_does_not_fit_is_refused():
    """With its name: going on with other samples, budgets or ranks repeats and skips data without a word."""
    loader = by_index(LENGTHS, dp_world_size=2, micro_batches=2)
    next(iter(loader))
    state = loader.state_dict()
    for other, message in [
        (by_index(LENGTHS, TokenBudget(9, min_buffered=3), dp_world_size=2, micro_batches=2), "batching"),
        (
            by_index([*LENGTHS, 1], dp_world_size=2, micro_batches=2),
            r"other data or settings: samples \(11 in the state, 12 here\)",
        ),
        (by_index(LENGTHS, dp_world_size=2, micro_batches=2, seed=1), r"settings: seed \(0 in the state, 1 here\)$"),
        (by_index(LENGTHS, dp_world_size=2, micro_batches=2, tail="repeat"), r"tail \(pad in the state, repeat here\)"),
        (by_index(LENGTHS, dp_world_size=4, micro_batches=2), "by 2 ranks × 2, and this run has 4 × 2"),
        (from_stream(LENGTHS, dp_world_size=2, micro_batches=2), r"kind \(None in the state, stream here\)"),
    ]:
        with pytest.raises(StateError, match=message):
            other.load_state_dict(state)


@pytest.mark.parametrize(
    "harm",
    [
        lambda state: state.pop("waiting"),
        lambda state: state.update(waiting=[[99, 0, 3, 3, 1]]),
        lambda state: state.update(waiting=[[0, 2, 3, 3, 1]]),
        lambda state: state.update(taken=99),
        lambda state: state.update(places=7),
        lambda state: state.update(ledger={"samples_lost": 1}),
        lambda state: state.update(epoch=-1),
    ],
)
def test_a_damaged_state_is_refused(harm):
    """A checkpoint that was cut or edited."""
    loader = by_index(LENGTHS)
    next(iter(loader))
    state = loader.state_dict()
    harm(state)
    with pytest.raises(StateError):
        by_index(LENGTHS).load_state_dict(state)


def test_tokens_in_a_state_are_checked():
    """One letter changed, and a sample would train on other tokens."""
    loader = from_stream(LENGTHS)
    next(iter(loader))
    state = loader.state_dict()
    item = next(iter(state["items"].values()))["input_ids"]
    item["data"] = ("B" if item["data"][0] == "A" else "A") + item["data"][1:]
    with pytest.raises(StateError, match="the loader state is damaged: it has other values than were saved"):
        from_stream(LENGTHS).load_state_dict(state)


def test_a_stream_that_cannot_say_where_it_stands():
    """Refused when a state is asked for, with both ways out; a state that repeats data would be worse than none."""
    loader = TokenBudgetBatches(list(toy_packs(5)), TokenBudget(8))
    next(iter(loader))
    with pytest.raises(StateError, match=r"the stream list cannot report its position: give it state_dict\(\)"):
        loader.state_dict()


def with_pictures(number):
    """A plain sample with a picture of four tokens, its own positions, a weight and a source; every third is text."""
    length = 6 + number % 3
    row = {
        "input_ids": np.arange(length) + 10,
        "position_ids": np.tile(np.arange(length), (3, 1)),
        "source_id": number % 2,
    }
    row["loss_weights"] = np.full(length, number + 1)
    if number % 3:
        marks = (np.arange(length) > 0) & (np.arange(length) < 5)
        picture = {"pixel_values": np.full((16, 3), number, np.float32), "image_grid_thw": np.array([[1, 4, 4]])}
        row |= {**picture, "mm_token_type_ids": marks.astype(np.int64)}
    return row


class Rows(list):
    """A stream of rows that can go back to an earlier position."""

    taken = 0

    def __iter__(self):
        while self.taken < len(self):
            self.taken += 1
            yield self[self.taken - 1]

    def state_dict(self):
        return {"taken": self.taken}

    def load_state_dict(self, state):
        self.taken = state["taken"]

    def set_epoch(self, epoch):
        self.taken = 0


@pytest.mark.parametrize("indexed", [True, False])
@pytest.mark.parametrize(
    "batching", [TokenBudget(20, min_buffered=3), SampleCount(3), Window(20, size=4)], ids=["budget", "count", "window"]
)
def test_plain_samples_keep_their_media_positions_and_weights(indexed, batching):
    """Each sample once with its own, in every way to compose; and again from a state between two steps."""
    torch = pytest.importorskip("torch")
    from brimful import PackCollator

    rows = [with_pictures(number) for number in range(14)]
    loader_class = WindowBatches if isinstance(batching, Window) else TokenBudgetBatches
    lengths = [len(row["input_ids"]) for row in rows] if indexed else None
    collate = PackCollator(pad_to=32)

    def loader():
        return loader_class(Rows(rows), batching, collate.rows, lengths=lengths, micro_batches=2)

    served = {}
    batches = [batch for (batch,) in loader()]
    for batch in batches:
        pictures = [(int(s), item.arrays["pixel_values"]) for item in batch.attached for s in item.segments]
        assert all(
            len(pixels) == 16 * len(item.segments)
            for item in batch.attached
            for pixels in [item.arrays["pixel_values"]]
        )
        owned = {segment: float(pixels[16 * n, 0]) for n, (segment, pixels) in enumerate(pictures)}
        for segment, sample in enumerate(batch.sample_ids.tolist()):
            begin = int(batch.cu_seqlens[segment])
            if sample >= 0:
                assert sample not in served
                weight = float(batch.loss_weights[begin + 1]), int(batch.source_ids[segment])
                served[sample] = (owned.get(segment), *weight, int(batch.rope_positions[0, begin + 1]))
    assert served == {n: (float(n) if n % 3 else None, n + 1.0, n % 2, 1) for n in range(14)}
    assert all(batch.num_loss_tokens == 0 and batch.attached for batch in batches if (batch.sample_ids < 0).any())
    first, second = loader(), loader()
    begun = iter(first)
    for _ in range(2):
        next(begun)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    rest = [batch for (batch,) in second]
    assert len(rest) == len(batches) - 2
    for batch, expected in zip(rest, batches[2:], strict=True):
        ours, theirs = collate.convert([batch]), collate.convert([expected])
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[key], theirs[key]) for key in ours if isinstance(ours[key], torch.Tensor))


def test_a_row_that_another_library_packed_is_a_pack():
    """Its samples have the number of the row and begin at their places in it, of which padding is one."""
    row = {"input_ids": [9, 1, 2, 3, 4, 5], "attention_mask": [0] + [1] * 5, "position_ids": [0, 0, 1, 0, 1, 2]}
    alone = {"input_ids": [6, 7]}
    (batch, other) = TokenBudgetBatches([row, alone, row], SampleCount(2))
    assert [(pack.input_ids.tolist(), pack.sample_ids.tolist(), pack.starts.tolist()) for pack in [*batch, *other]] == [
        ([1, 2, 3, 4, 5], [0, 0], [1, 3]),
        ([6, 7], [1], [0]),
        ([1, 2, 3, 4, 5], [2, 2], [1, 3]),
    ]


def test_media_lie_at_the_tokens_of_their_sample():
    """A pack of one sample may begin with its fourth token, and its picture lies in the pack, not in the sample."""
    image = PlacedMedium(Medium(MediaKind.IMAGE, "a"), start=1, length=2, num_tokens=2)
    alone = EncodedSample(np.arange(4, dtype=np.int32), np.ones(4, dtype=bool), (image,))
    part = replace(toy_pack([4], first_sample=7), starts=np.array([3], np.int32), attachments=(image,))
    ((pack,),) = TokenBudgetBatches([part, alone, part], TokenBudget(12))
    assert (pack.sample_ids.tolist(), pack.starts.tolist()) == ([7, 1, 7], [3, 0, 3])
    assert [(item.segment, item.start) for item in pack.attachments] == [(0, 1), (1, 5), (2, 9)]


def test_a_sample_with_media_is_never_cut():
    for overflow in ("truncate", "split"):
        with pytest.raises(CollateError, match="sample 1 has media and 7 tokens, and is never cut: raise capacity"):
            list(TokenBudgetBatches([with_pictures(n) for n in range(2)], TokenBudget(6, overflow=overflow)))


@pytest.mark.parametrize("size", [1, 3, 4, 100])
def test_samples_are_looked_up_in_parts_of_any_size(size, monkeypatch):
    """Eleven samples: parts that end with the epoch, before it, and after it."""
    whole = [content(batch) for batch in by_index(LENGTHS)]
    monkeypatch.setattr("brimful.dynamic.sample_feeds._LOOKUP_SAMPLES", size)
    assert [content(batch) for batch in by_index(LENGTHS)] == whole


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lengths": [3, 4], "loss_tokens": [3]}, "lengths has 2 samples and loss_tokens 1: measure again"),
        ({"lengths": [3, 0], "loss_tokens": None}, "sample 1 has length 0; every sample needs 1 token"),
    ],
)
def test_lengths_that_cannot_be(changes, message):
    with pytest.raises(SettingsError, match=message):
        TokenBudgetBatches(Samples([3, 4]), SampleCount(1), **changes)
    with pytest.raises(SettingsError, match="needs the targets of each sample: give loss_tokens with lengths"):
        TokenBudgetBatches(Samples([3]), TokenBudget(8, count="loss_tokens"), lengths=[3])


def test_a_data_set_that_answers_any_index_ends_with_its_length():
    """Data sets of torch have no iterator of their own; some compute a row for any number."""

    class Endless:
        def __len__(self):
            return 3

        def __getitem__(self, index):
            return {"input_ids": [5, 6, index + 7]}

    batches = TokenBudgetBatches(Endless(), SampleCount(1), tail="drop")
    assert [pack.input_ids.tolist() for (pack,) in batches] == [[5, 6, 7], [5, 6, 8], [5, 6, 9]]


def test_a_source_is_no_path():
    for source in ("samples.jsonl", 3):
        with pytest.raises(SettingsError, match="source must be samples by index or as a stream"):
            TokenBudgetBatches(source, SampleCount(1))


def test_workers_of_ranks_that_agree_are_refused():
    with pytest.raises(SettingsError, match="agree asks the other ranks in each step, and workers cannot"):
        from_stream([3], agree=bool).fork()


def test_a_state_within_a_step_that_the_source_does_not_have():
    """A file that lost rows since: the samples of the step cannot be made again."""
    loader = from_stream(LENGTHS, micro_batches=2, tail="drop")
    next(batches := iter(loader))
    state = loader.state_dict()
    del batches
    other = from_stream(LENGTHS[:1], micro_batches=2, tail="drop")
    other.load_state_dict(state)
    with pytest.raises(StateError, match="is 1 micro-batches into step 0, which the source does not have"):
        next(iter(other))


class Agreement(RankAgreement):
    """Rank 1 of 2, without the other."""

    rank_and_size = (1, 2)

    def __init__(self, tail="pad", *, answers=()):
        self.answers, self.asked, self.failures = iter(answers), [], 0

    def __call__(self, has_step, *, can_run=True):
        self.asked.append((has_step, can_run))
        return next(self.answers)

    def fail(self):
        self.failures += 1


def test_a_rank_with_more_than_the_others_drops_what_waits():
    """Under drop, another rank ended first: the samples of the step go, and so do the samples that wait after it."""
    agree = Agreement(answers=[False])
    loader = from_stream([8, 3, 3, 3], TokenBudget(8, min_buffered=3), tail="drop", agree=agree)
    assert list(loader) == []
    assert agree.asked == [(True, True)]
    account = loader.ledger
    assert (account.samples_in, account.samples_dropped, account.samples_packed) == (3, 3, 0)


def test_a_rank_whose_stream_has_ended_runs_its_last_micro_batch():
    """All of it, after a state too: a text comes first, which alone would leave the tower out, and other ranks wait."""

    def loader():
        rows = Rows([with_pictures(0), with_pictures(1)])
        return TokenBudgetBatches(rows, SampleCount(2), agree=Agreement(answers=[True] * 3))

    first, other = loader(), loader()
    batches = iter(first)
    whole = next(batches)
    text = json.dumps(first.state_dict())
    # Names in states stay when names in the source change.
    assert '"class": "Media"' in text
    assert '"media": [{' in text
    assert "attached" not in text
    other.load_state_dict(json.loads(text))
    for filler in (next(batches), next(iter(other))):
        assert [item.sample_id for item in filler] == [-1, -1]
        assert [item.input_ids.tolist() for item in filler] == [item.input_ids.tolist() for item in whole]
        assert [len(item.attached) for item in filler] == [0, 1]


def test_a_rank_whose_stream_gave_nothing_has_no_filler():
    agree = Agreement(answers=[True])
    with pytest.raises(CollateError, match="this rank's stream gave no sample at all"):
        next(iter(from_stream([], agree=agree)))
    assert agree.asked == [(False, False)]


def test_a_rank_that_fails_tells_the_others_once():
    agree = Agreement()
    loader = from_stream([3, 0], agree=agree)
    with pytest.raises(EncodeError):
        next(iter(loader))
    assert (agree.failures, agree.asked) == (1, [])


@pytest.mark.parametrize(
    ("saved", "agree", "here"),
    [
        ([0, 2], Agreement(), "rank 0 of 2 read, and this is rank 1 of 2"),
        ([1, 3], Agreement(), "rank 1 of 3 read, and this is rank 1 of 2"),
        ([1, 2], None, r"rank 1 of 2 read, and this loader reads no stream of its own \(agree\)"),
        ([1, 2], Agreement(), None),
        ([0, 2], bool, None),
        (None, Agreement(), None),
    ],
)
def test_the_state_of_another_stream(saved, agree, here):
    """Each rank has a state of its own; a plain function does not say whose, and states of before did not either."""
    state = from_stream(LENGTHS, agree=Agreement()).state_dict()
    assert state["own_stream"] == [1, 2]
    assert "own_stream" not in from_stream(LENGTHS, agree=bool).state_dict()
    state = signed({**state, "own_stream": saved})
    if here is None:
        from_stream(LENGTHS, agree=agree).load_state_dict(state)
    else:
        with pytest.raises(StateError, match=here):
            from_stream(LENGTHS, agree=agree).load_state_dict(state)


def test_a_stream_without_a_way_back():
    state = from_stream(LENGTHS).state_dict()
    with pytest.raises(StateError, match=r"the stream list has no load_state_dict\(\) to restore its position"):
        TokenBudgetBatches(list(toy_packs(5)), TokenBudget(8, min_buffered=3)).load_state_dict(state)


def test_steps_of_a_second_epoch_are_counted_on_from_the_first():
    """A budget that grows by a token each step, over thirteen samples of one token: five steps, and then two."""
    loader = by_index([1] * 13, TokenBudget(100, warmup=Warmup(steps=99, start=1)), seed=None)
    for first_step, sizes in ((0, [1, 2, 3, 4, 3]), (5, [6, 7])):
        assert (loader.step, loader.count_steps()) == (first_step, len(sizes))
        assert [len(batch[0]) for batch in loader] == sizes


def test_steps_of_another_size_are_told(logged):
    """The same micro-batches in a step are the same steps, however the ranks share them."""
    state = by_index(LENGTHS, dp_world_size=2, micro_batches=3).state_dict()
    by_index(LENGTHS, dp_world_size=3, micro_batches=2).load_state_dict(state)
    assert logged == []
    by_index(LENGTHS, dp_world_size=2, micro_batches=2).load_state_dict(state)
    assert [message.split(":")[0] for message in logged] == [
        "continues with steps of 2 × 2 micro-batches, previously 2 × 3"
    ]


@pytest.mark.parametrize(
    ("kind", "batching"), [(TokenBudgetBatches, TokenBudget(8, min_buffered=3)), (WindowBatches, Window(8, size=3))]
)
def test_a_length_table_is_lengths_unless_its_rows_are_two_samples(kind, batching):
    """Rows of preferences would be taken apart, and their loss compares both."""
    table = LengthTable.from_lengths(LENGTHS)
    served = [content(batch) for batch in kind(Samples(LENGTHS), batching, lengths=table, seed=1)]
    assert served == [content(batch) for batch in kind(Samples(LENGTHS), batching, lengths=LENGTHS, seed=1)]
    pairs = LengthTable({"tokens": LENGTHS[:10]}, provenance={"group_size": 2})
    with pytest.raises(SettingsError, match="both samples of a row of preferences or KTO must stay together"):
        kind(Samples(LENGTHS[:10]), batching, lengths=pairs)
