"""Weights by normaliser: what divides what."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brimful.collate import lay_out
from brimful.collate.loss import Normaliser, count_targets, segment_weights, token_weights
from brimful.collate.padding import Padding
from brimful.errors import CollateError, SettingsError
from brimful.testing.toys import toy_pack


@pytest.mark.parametrize(
    ("normaliser", "weights"),
    [
        ("token", [1, 1, 0, 1]),
        ("sample", [1 / 4, 1, 0, 1 / 2]),
        ("sqrt", [1 / 2, 1, 0, 1 / np.sqrt(2)]),
        ("pair", [1 / 5, 1 / 5, 0, 1 / 2]),
        (lambda targets: 4 / np.sqrt(np.maximum(targets, 1)), [2, 4, 0, 4 / np.sqrt(2)]),
        ([0.1, 1, 5, 3], [0.1, 1, 0, 3]),
    ],
)
def test_weights_of_segments(normaliser, weights):
    """Targets 4, 1, none and 2; the first two are one pair. A segment without targets weighs nothing."""
    got = segment_weights([4, 1, 0, 2], normaliser, groups=[7, 7, 3, 3])  # type: ignore[arg-type]
    assert got == pytest.approx(weights)


def test_weights_stand_beside_the_labels():
    """The first token of a segment and the padding weigh nothing; shifted labels have them one place to the left."""
    batch = lay_out([toy_pack([3, 2, 1])], padding=Padding(to=8), pad_token_id=0)
    of = (batch.cu_seqlens, batch.num_segments, "sample")
    assert token_weights(batch.labels, *of).tolist() == [0, 0.5, 0.5, 0, 1, 0, 0, 0]
    shifted = np.append(batch.labels[1:], -100)
    assert token_weights(shifted, *of, labels_shifted=True).tolist() == [0.5, 0.5, 0, 1, 0, 0, 0, 0]
    assert token_weights(batch.labels, *of).dtype == np.float32


def test_a_target_that_nothing_may_predict_is_none():
    """Labels of other collators may still have it: counted, every sample would have one target too many."""
    labels, boundaries = np.array([5, 6, 7, 8, 9]), np.array([0, 3, 5], np.int32)
    assert count_targets(labels, boundaries, 2).tolist() == [2, 1]
    assert count_targets(labels, boundaries, 2, labels_shifted=True).tolist() == [2, 1]
    assert token_weights(labels, boundaries, 2, "token").tolist() == [0, 1, 1, 0, 1]
    assert token_weights(labels, boundaries, 2, "token", labels_shifted=True).tolist() == [1, 1, 0, 1, 0]
    assert labels.tolist() == [5, 6, 7, 8, 9]


@given(
    samples=st.lists(st.tuples(st.integers(0, 9), st.floats(0, 4)), min_size=1, max_size=20),
    cuts=st.lists(st.integers(0, 20), max_size=6),
    normaliser=st.sampled_from(["token", "sample", "sqrt"]),
)
def test_any_packing_gives_the_same_loss(samples, cuts, normaliser):
    """A weight that looks at the rest of its batch, as a mean over it does, breaks this."""

    def sums(part):
        targets = np.array([count for count, _ in part])
        weights = segment_weights(targets, normaliser)
        return sum(weights * [nll * count for count, nll in part]), sum(weights * targets)

    whole = sums(samples)
    edges = sorted({0, len(samples), *(cut for cut in cuts if cut < len(samples))})
    parts = [sums(samples[start:stop]) for start, stop in pairwise(edges)]
    assert np.sum(parts, axis=0) == pytest.approx(whole)


@given(
    packs=st.lists(
        st.lists(st.tuples(st.integers(1, 9), st.floats(0, 4)), min_size=1, max_size=5), min_size=1, max_size=5
    )
)
def test_sample_is_the_loss_weighting_of_longalign(packs):
    """LongAlign divides the loss of sample i by its N targets and multiplies by K packs over M samples, then means packs."""
    count, samples = len(packs), sum(map(len, packs))
    theirs = sum(sum(count / (n * samples) * (n * nll) for n, nll in pack) for pack in packs) / count
    weights = [segment_weights([n for n, _ in pack], "sample") for pack in packs]  # type: ignore[arg-type]
    total = sum(
        w * n * nll for each, pack in zip(weights, packs, strict=True) for w, (n, nll) in zip(each, pack, strict=True)
    )
    ours = total / sum(
        w * n for each, pack in zip(weights, packs, strict=True) for w, (n, _) in zip(each, pack, strict=True)
    )
    assert ours == pytest.approx(theirs)


def test_the_scale_makes_weights_one_on_average():
    """For a trainer that divides by targets: the mean targets of a sample, 2.5 here, makes Σ w the number of targets."""
    targets = np.array([4, 1])
    weights = segment_weights(targets, "sample", scale=2.5)
    assert (weights * targets).sum() == targets.sum()


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    [
        (([1], "tokens"), {}, SettingsError, "normaliser 'tokens' is unknown: use one of token, sample, sqrt, pair"),
        (([1], "pair"), {}, SettingsError, "'pair' needs groups: the pair of each of 1 segments"),
        (([1, 2], "pair"), {"groups": [1]}, SettingsError, "needs groups: the pair of each of 2 segments"),
        (([1, 2], [1.0]), {}, CollateError, r"\(1,\) weights were given for 2 segments"),
        (([1, 2, 3], [1.0, -0.5, np.inf]), {}, CollateError, "segment 1 has weight -0.5"),
        (([1, 2], [1.0, np.nan]), {}, CollateError, "segment 1 has weight nan"),
    ],
)
def test_impossible_weights(arguments, options, error, message):
    """Named by segment before they reach a gradient."""
    with pytest.raises(error, match=message):
        segment_weights(*arguments, **options)


def test_normalisers_explain_themselves():
    """Names and lookup."""
    assert [member.value for member in Normaliser] == ["token", "sample", "sqrt", "pair"]
    assert Normaliser.named("sqrt") is Normaliser.SQRT
