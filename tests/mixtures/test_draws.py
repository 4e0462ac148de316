"""One epoch of draws: ends, limits, and who gives out."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brimful.base.ragged import offsets_of
from brimful.errors import InvalidLengthsError
from brimful.mixtures import Mixture
from brimful.mixtures.draws import Elements, Queue, draw
from brimful.plan import plan_packs
from tests.library import work_of


def pools(**sizes):
    """Sources of given numbers of samples; a list gives their tokens, which count."""
    parts = [np.ones(size, np.int64) if isinstance(size, int) else np.array(size) for size in sizes.values()]
    tokens = np.concatenate(parts)
    return Elements(
        list(sizes),
        offsets_of([len(part) for part in parts]),
        tokens,
        np.zeros_like(tokens),
        np.arange(len(tokens) + 1),
    )


def counts(sources, **options):
    result = draw(sources, Mixture(unit="tokens", **options), seed=0, epoch=0)
    return np.bincount(result.sources, minlength=len(sources.names)).tolist(), result


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [4, 4]),
        ({"stop": "all_exhausted"}, [8, 8]),
        ({"weights": {"a": 3, "b": 1}}, [4, 1]),
        ({"weights": {"a": 1, "b": 3}, "stop": "all_exhausted"}, [4, 10]),
        ({"num_samples": 5}, [3, 2]),
        ({"num_samples": 6, "max_samples": {"a": 2}}, [2, 4]),
        ({"num_samples": 12, "max_passes": {"a": 1.5}}, [6, 6]),
        ({"stop": "all_exhausted", "max_passes": {"a": 1}}, [4, 8]),
        ({"num_tokens": 3}, [2, 1]),
        ({"weights": {"a": 1, "b": 0}}, [4, 0]),
    ],
)
def test_draws_of_four_and_eight_samples(options, expected):
    """Each stopping rule, limit and target on one small example."""
    assert counts(pools(a=4, b=8), **{"weights": {"a": 1, "b": 1}, **options})[0] == expected


def test_who_gives_out_is_named_and_the_others_go_on():
    """Without it a mix is another one from the middle of the run, silently."""
    found, result = counts(pools(a=3, b=9, c=9), weights={"a": 2, "b": 1, "c": 1}, num_samples=13, max_passes={"a": 1})
    assert found == [3, 5, 5]
    assert result.exhausted == ("a",)
    assert not result.is_short
    _, result = counts(pools(a=3), weights={"a": 1}, num_samples=5, max_passes={"a": 1})
    assert result.is_short


def test_a_source_has_a_number_of_more_than_sixteen_bits():
    """Where each file is a source there are many; only the last of these is drawn."""
    sources = pools(**{f"file {number}": 1 for number in range(33_000)})
    weights = dict.fromkeys(sources.names, 0) | {"file 32999": 1}
    assert draw(sources, Mixture(weights=weights, num_samples=3), seed=0, epoch=0).sources.tolist() == [32_999] * 3


def test_tokens_count_where_lengths_differ():
    """Ten samples of 40 tokens and many of 1: half of the tokens each."""
    found, _ = counts(pools(long=[40] * 10, short=[1] * 400), weights={"long": 1, "short": 1}, stop="all_exhausted")
    assert found == [10, 400]


def test_each_sample_is_drawn_once_before_any_comes_again():
    """Without replacement, pass by pass."""
    _, result = counts(pools(a=5, b=1), weights={"a": 5, "b": 1}, num_samples=30)
    elements = result.elements[result.sources == 0]
    for start in range(0, 25, 5):
        assert sorted(elements[start : start + 5].tolist()) == [0, 1, 2, 3, 4]


def test_a_source_without_samples_is_refused():
    """Without it the share that was asked for is not given."""
    with pytest.raises(InvalidLengthsError, match="source b of the mixture has no sample that can be packed"):
        draw(pools(a=3, b=0), Mixture(weights={"a": 1, "b": 1}), seed=0, epoch=0)


@pytest.mark.parametrize(
    "options",
    [{}, {"unit": "tokens"}, {"weighting": "loss"}, {"num_samples": 10**6, "max_passes": 2}],
    ids=["samples", "tokens", "loss", "each gives out"],
)
def test_four_times_the_sources_take_four_times_the_work(options):
    """Shares that are computed again for each source, or queues made again where one gives out, take sixteen times as
    much: of the wing, every bytecode is counted, since a time also depends on the machine.
    """

    def work(num_sources):
        sources = {f"source {number}": 5 for number in range(num_sources)}
        limits = {"max_passes": dict.fromkeys(sources, 2.0)} if "max_passes" in options else {}
        mixture = Mixture(weights=dict.fromkeys(sources, 1.0), **{**options, **limits})
        lengths = np.full(5 * num_sources, 30)
        return work_of(
            lambda: plan_packs(lengths, capacity=1024, draw=mixture, sources=sources, algorithm="best_fit_decreasing"),
            "brimful.mixtures",
            "brimful.mixtures.take_turns",
        )

    fewest, most = work(100), work(400)
    assert 3 * fewest < most < 5 * fewest


def queue_of(uses, *, count, replacement=False, allowance=None, epoch=0, name="a"):
    elements = Elements(
        [name], np.array([0, len(uses)]), np.ones(len(uses), np.int64), np.array(uses), np.arange(len(uses) + 1)
    )
    mixture = Mixture(weights={name: 1}, replacement=replacement)
    queue = Queue(elements, 0, mixture, seed=0, epoch=epoch, allowance=allowance)
    queue.grow(count)
    return queue.elements


@given(st.lists(st.integers(0, 3), min_size=1, max_size=12), st.integers(1, 40))
@settings(deadline=None, max_examples=30)
def test_the_least_used_come_first(uses, count):
    """No consumed sample comes again before its turn: at no time are two uses more than a pass apart."""
    counts = np.array(uses)
    for element in queue_of(uses, count=count)[:count]:
        assert counts[element] - counts.min() < max(1, max(uses) - min(uses)) or counts[element] == counts.min()
        assert counts[element] == counts.min() or counts[element] <= max(uses)
        counts[element] += 1
    assert counts.max() - counts.min() <= max(1, max(uses) - min(uses))


def test_a_pass_that_was_begun_goes_on_in_its_order():
    """Three of eight were consumed: the others follow as they would have."""
    whole = queue_of([0] * 8, count=8)[:8]
    uses = np.zeros(8, dtype=int)
    uses[whole[:3]] = 1
    assert queue_of(uses, count=5)[:5].tolist() == whole[3:].tolist()
    assert queue_of(uses, count=13)[5:13].tolist() == queue_of([0] * 8, count=16)[8:16].tolist()


def test_another_source_has_another_order_and_replacement_another_epoch():
    """Without it two copies of a source would be drawn in step."""
    assert queue_of([0] * 50, count=50, name="b").tolist() != queue_of([0] * 50, count=50).tolist()
    drawn = [queue_of([0] * 50, count=50, replacement=True, epoch=epoch).tolist() for epoch in (0, 0, 1)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert len(set(drawn[0][:50])) < 50


def test_an_allowance_ends_a_queue():
    """Without it a small source is repeated without end."""
    assert len(queue_of([0] * 5, count=100, allowance=7)) == 7
