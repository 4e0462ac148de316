"""Micro-batches from lengths alone: which samples go together."""

# mypy: disable-error-code="arg-type"

from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brimful.dynamic import compose as module
from brimful.dynamic.compose import MicroBatchComposer
from brimful.dynamic.token_budget import SampleCount, TokenBudget, Warmup
from brimful.errors import OversizedSampleError


def compose(lengths, settings, *, loss_tokens=None, micro_batches_per_step=1):
    """Yield all micro-batches of samples in their order, with the loop of the loader."""
    lengths = list(lengths)
    samples = enumerate(zip(lengths, lengths if loss_tokens is None else loss_tokens, strict=True))

    def pull(composer):
        sample = next(samples, None)
        if sample is not None:
            composer.add(sample[0], *sample[1])
        return sample is not None

    composer = MicroBatchComposer(settings)
    for index in count():
        batch = composer.next_batch(index // micro_batches_per_step, pull)
        if batch is None:
            return
        yield batch


def lengths_of(batches):
    return [[piece.length for piece in batch] for batch in batches]


def keys_of(batches):
    return [[piece.key for piece in batch] for batch in batches]


@pytest.mark.parametrize("min_buffered", [1, 3, 200])
def test_first_fit_over_what_waits(min_buffered):
    """VeOmni's own example: budget 32, a sample of every length from 1 to 16. The number that waits changes nothing here."""
    batches = compose(range(1, 17), TokenBudget(32, min_buffered=min_buffered))
    assert lengths_of(batches) == [[1, 2, 3, 4, 5, 6, 7], [8, 9, 10], [11, 12], [13, 14], [15, 16]]


def test_loss_tokens_under_a_capacity():
    """VeOmni's own example: budget of 4 targets, 8 tokens at most. The second sample would be 12 tokens, the third fits."""
    composer = MicroBatchComposer(TokenBudget(4, count="loss_tokens", capacity=8, min_buffered=3))
    for key, (length, targets) in enumerate([(6, 2), (6, 2), (2, 2)], start=1):
        composer.add(key, length, targets)
    assert composer.is_ready(0)
    assert [piece.key for piece in composer.take(0)] == [1, 3]
    assert [(segment.counted, segment.length) for segment in composer.waiting] == [(2, 6)]


def test_samples_without_targets_do_not_break_the_capacity():
    """Five samples without a target, then one with four: VeOmni puts all 36 tokens into a batch that may hold 8."""
    settings = TokenBudget(4, count="loss_tokens", capacity=8, min_buffered=1)
    batches = list(compose([6] * 6, settings, loss_tokens=[0, 0, 0, 0, 0, 4]))
    assert lengths_of(batches) == [[6]] * 6


def test_a_reached_budget_is_closed():
    """As in VeOmni: a sample without targets does not join once the targets are enough, though it has room."""
    settings = TokenBudget(4, count="loss_tokens", capacity=8)
    assert lengths_of(compose([4, 2, 4], settings, loss_tokens=[4, 0, 3])) == [[4], [2, 4]]


def test_micro_batches_grow_while_the_budget_warms_up():
    """Budgets 2, 4, 6, 8: a sample longer than the budget goes alone, for it never grows shorter."""
    settings = TokenBudget(8, min_buffered=1, warmup=Warmup(steps=3, start=2))
    assert lengths_of(compose([2] * 10, settings)) == [[2], [2, 2], [2, 2, 2], [2, 2, 2, 2]]
    assert lengths_of(compose([5, 2, 2, 5], settings)) == [[5], [2, 2], [5]]
    assert lengths_of(compose([2] * 6, settings, micro_batches_per_step=2)) == [[2], [2], [2, 2], [2, 2]]


def test_between_budget_and_capacity():
    """The budget is an aim: a sample above it goes alone. The capacity is a law."""
    settings = TokenBudget(8, capacity=12, min_buffered=3)
    assert lengths_of(compose([3, 10, 3], settings)) == [[3, 3], [10]]
    with pytest.raises(
        OversizedSampleError, match=r"sample 1 has 13 tokens and a micro-batch holds at most 12\. Choose"
    ):
        list(compose([3, 13], settings))


def test_exact_fit_takes_the_oldest_that_fill_the_budget():
    """3 waits longest; of the next ones 3 and 4 fill it, and 6 and 1, which came later, would too."""
    settings = TokenBudget(10, min_buffered=6, fit="exact")
    assert keys_of(compose([3, 3, 5, 4, 6, 1], settings)) == [[0, 1, 3], [2, 5], [4]]


def test_exact_fit_without_an_exact_sum():
    """Then the fullest of all."""
    assert lengths_of(compose([3, 4, 4, 4], TokenBudget(10, fit="exact"))) == [[3, 4], [4, 4]]


def test_a_fixed_number_of_samples():
    """dyn_bsz off: two samples in each micro-batch, whatever their lengths, and what is left at the end."""
    assert lengths_of(compose([4, 2, 3, 1, 9], SampleCount(2))) == [[4, 2], [3, 1], [9]]


def slow_first_fit(waiting, budget, capacity):
    """One at a time, as one would do it by hand."""
    taken = [waiting[0]]
    for sample in waiting[1:]:
        if sum(c for _, _, c in taken) >= budget:
            break
        together = [*taken, sample]
        if sum(c for _, _, c in together) <= budget and sum(n for _, n, _ in together) <= capacity:
            taken = together
    return taken


def slow_compose(samples, budget, capacity, min_buffered):
    waiting, batches = [], []

    def take():
        taken = slow_first_fit(waiting, budget, capacity)
        for sample in taken:
            waiting.remove(sample)
        batches.append([key for key, _, _ in taken])

    for key, (length, counted) in enumerate(samples):
        waiting.append((key, length, counted))
        while len(waiting) >= min_buffered and (
            sum(c for _, _, c in waiting) >= budget or sum(n for _, n, _ in waiting) >= capacity
        ):
            take()
    while waiting:
        take()
    return batches


SAMPLES = st.lists(
    st.tuples(st.integers(1, 12), st.just(0) | st.integers(0, 12)).map(lambda p: (p[0], min(p))), max_size=40
)


@given(
    samples=SAMPLES,
    budget=st.integers(1, 12),
    min_buffered=st.integers(1, 9),
    count=st.sampled_from(["total", "loss_tokens"]),
)
def test_first_fit_is_what_the_slow_one_does(samples, budget, min_buffered, count):
    """And no sample comes twice, and no micro-batch is above the capacity."""
    if count == "total":
        samples = [(length, length) for length, _ in samples]
    settings = TokenBudget(budget, count=count, capacity=12, min_buffered=min_buffered)
    got = list(compose([n for n, _ in samples], settings, loss_tokens=[c for _, c in samples]))
    assert keys_of(got) == slow_compose(samples, budget, 12, min_buffered)
    assert sorted(key for batch in keys_of(got) for key in batch) == list(range(len(samples)))
    assert all(sum(piece.length for piece in batch) <= 12 for batch in got)


@given(lengths=st.lists(st.integers(1, 12), max_size=40), min_buffered=st.integers(1, 9))
def test_exact_fit_is_at_least_as_full_and_loses_nothing(lengths, min_buffered):
    """Of all subsets with the oldest, none fills the budget better."""
    from itertools import combinations

    composer = MicroBatchComposer(TokenBudget(12, min_buffered=min_buffered, fit="exact"))
    served = []
    for key, length in enumerate(lengths):
        composer.add(key, length, length)
    while len(composer):
        first, *others = composer.waiting[:9]
        seen = [first.length + sum(p.length for p in some) for n in range(9) for some in combinations(others, n)]
        batch = composer.take(0)
        assert batch[0] == first
        assert max(total for total in seen if total <= 12) <= sum(piece.length for piece in batch) <= 12
        served += [piece.key for piece in batch]
    assert sorted(served) == list(range(len(lengths)))


@pytest.mark.parametrize(
    ("overflow", "pieces", "dropped", "truncated"),
    [
        ("drop", [(0, 0, 3)], 10, 0),
        ("truncate", [(0, 0, 3), (1, 0, 4)], 0, 6),
        ("truncate_left", [(0, 0, 3), (1, 6, 4)], 0, 6),
        ("split", [(0, 0, 3), (1, 0, 4), (1, 4, 4), (1, 8, 2)], 0, 0),
    ],
)
def test_samples_above_the_capacity(overflow, pieces, dropped, truncated):
    """Never forced in, and never gone without a trace."""
    composer = MicroBatchComposer(TokenBudget(4, overflow=overflow))
    composer.add(0, 3, 3)
    composer.add(1, 10, 10)
    assert [(piece.key, piece.start, piece.length) for piece in composer.waiting] == pieces
    ledger = composer.ledger
    assert (ledger.samples_in, ledger.tokens_in) == (2, 13)
    assert (ledger.tokens_dropped, ledger.tokens_truncated) == (dropped, truncated)
    assert ledger.samples_carried == (1 if overflow == "drop" else 2)
    while len(composer):
        composer.take(0)
    assert composer.ledger.tokens_packed == 13 - dropped - truncated
    assert composer.ledger.samples_packed + composer.ledger.samples_dropped == 2


def test_the_ledger_cannot_lie():
    """A sample that vanished is found at the next look."""
    composer = MicroBatchComposer(TokenBudget(4))
    composer.add(0, 3, 3)
    composer._waiting.clear()
    with pytest.raises(AssertionError, match="0 samples accounted for, 1 came in"):
        composer.ledger  # noqa: B018


@given(lengths=st.lists(st.integers(1, 20), max_size=30), overflow=st.sampled_from(["drop", "truncate", "split"]))
def test_the_ledger_adds_up_at_every_moment(lengths, overflow):
    """A sample that vanished would be missing in no other number."""
    composer = MicroBatchComposer(TokenBudget(8, min_buffered=3, overflow=overflow))
    for key, length in enumerate(lengths):
        composer.add(key, length, length)
        if composer.is_ready(0):
            composer.take(0)
        ledger = composer.ledger
        samples = ledger.samples_packed + ledger.samples_dropped + ledger.samples_carried + ledger.samples_rejected
        tokens = ledger.tokens_packed + ledger.tokens_dropped + ledger.tokens_carried + ledger.tokens_truncated
        assert (samples, tokens) == (ledger.samples_in, ledger.tokens_in) == (key + 1, sum(lengths[: key + 1]))


def test_what_waits_is_what_is_looked_at(monkeypatch):
    """A known implementation is quadratic in the samples of a flush. Here the work of a micro-batch is in what waits."""
    looked = []
    original = module._first_fit
    monkeypatch.setattr(module, "_first_fit", lambda w, *rest: looked.append(len(w)) or original(w, *rest))
    list(compose([7, 1, 3] * 5000, TokenBudget(64, min_buffered=50)))
    assert max(looked) <= 51
    assert len(looked) > 800
