"""The samples that verify, the collator and the token budget take are the same, and are read the same."""

from itertools import pairwise

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from brimful import PackCollator  # noqa: E402
from brimful.dynamic import SampleCount, TokenBudgetBatches  # noqa: E402
from brimful.encode.encoded import EncodedSample  # noqa: E402
from brimful.errors import CollateError, SettingsError  # noqa: E402
from brimful.testing.toys import toy_tree  # noqa: E402
from brimful.verify.bench import verify_packing  # noqa: E402
from brimful.verify.drawn_samples import few_of  # noqa: E402
from brimful.verify.models import tiny_model  # noqa: E402
from brimful.verify.reference_samples import ReferenceSamples  # noqa: E402

PLAIN = [
    {"input_ids": [5, 6, 7]},
    {"input_ids": [5, 6, 7], "labels": [-100, -100, 7]},
    {"input_ids": [5, 6, 7, 8, 9], "labels": [5, 6, 7, 8, 9], "seq_lengths": [3, 2]},
    {"input_ids": [5, 6, 7, 8, 9], "position_ids": [0, 1, 2, 0, 1], "attention_mask": [1] * 5},
    {"input_ids": np.array([0, 5, 6, 7, 8, 0]), "attention_mask": np.array([0, 1, 1, 2, 2, 0]), "text": "a"},
    {"input_ids": torch.tensor([5, 6, 7, 0]), "loss_mask": torch.tensor([0, 0, 1, 0]), "attention_mask": [1, 1, 1, 0]},
    EncodedSample(np.array([5, 6, 7], np.int32), np.array([False, True, False])),
]
REFUSED = [
    {"input_ids": [5, 6], "pixel_values": np.ones((4, 6))},
    {"input_ids": [5, 6], "attention_mask": [0, 0]},
    {"input_ids": [5, 2**32 + 6]},
    {"input_ids": [5, 6], "labels": [6, -100]},
    {"labels": [5, 6]},
]


def in_batch(sample):
    """Tokens and labels of each sample in the batch."""
    (batch,) = PackCollator().rows([sample])
    edges = batch.cu_seqlens.tolist()
    return [(batch.input_ids[a:b].tolist(), batch.labels[a:b].tolist()) for a, b in pairwise(edges)]


def in_case(sample):
    return [(segment.ids.tolist(), segment.labels.tolist()) for segment in ReferenceSamples([sample]).segments]


def by_token_budget(sample, *, lengths=None):
    ((pack,),) = TokenBudgetBatches([sample], SampleCount(1), lengths=lengths)
    return in_batch(pack)


@pytest.mark.parametrize("sample", PLAIN)
def test_all_three_take_the_same_samples(sample):
    """A sample that verify passes and the collator reads otherwise is a check of another sample."""
    found = in_batch(sample)
    assert in_case(sample) == found
    assert by_token_budget(sample) == found
    assert by_token_budget(sample, lengths=[sum(len(ids) for ids, _ in found)]) == found


@pytest.mark.parametrize("sample", REFUSED)
def test_all_three_refuse_the_same_samples(sample):
    """And say which sample it is."""
    for take in (in_batch, in_case, by_token_budget, lambda sample: by_token_budget(sample, lengths=[2])):
        with pytest.raises(CollateError, match=r"^sample 0 "):
            take(sample)


@pytest.mark.parametrize(
    "beside", [{"loss_weights": [1, 2]}, {"source_id": 1}, {"position_ids": [[0, 1]] * 3}, {"position_ids": [2, 3]}]
)
def test_a_token_budget_carries_what_the_collator_takes(beside):
    """Weights, sources and positions: dropped on the way, they would be missing in the batch."""
    samples = [{"input_ids": [5, 6], **beside}] * 2
    collate = PackCollator(dialect="transformers", position_start=2 if beside.get("position_ids") == [2, 3] else 0)
    (ours,) = TokenBudgetBatches(samples, SampleCount(2), collate.rows)
    for composed, direct in zip(ours, collate.rows(samples), strict=True):
        for name in ("loss_weights", "source_ids", "rope_positions", "position_ids"):
            assert np.array_equal(getattr(composed, name), getattr(direct, name)), name


def test_verify_refuses_media_that_it_cannot_exchange():
    """It asks whether another picture changes other samples, and has none."""
    row = {"input_ids": [5, 6], "pixel_values": np.ones((1, 3, 4, 4))}
    with pytest.raises(SettingsError, match=r"sample 0 has features of media, .*: verify packs of its media"):
        ReferenceSamples([row])


@pytest.mark.parametrize("sample", PLAIN[:6])
def test_copies_differ_in_the_tokens_that_were_replaced(sample):
    """Padding stays in place, and labels follow their tokens."""
    case = ReferenceSamples([sample])
    new = [segment.ids + 10 for segment in case.segments]
    again = ReferenceSamples(case.copies(dict(enumerate(new)))).segments
    assert [segment.ids.tolist() for segment in again] == [ids.tolist() for ids in new]
    assert [np.flatnonzero(segment.labels >= 0).tolist() for segment in again] == [
        np.flatnonzero(segment.labels >= 0).tolist() for segment in case.segments
    ]
    (copy,) = case.copies()
    assert copy.keys() == sample.keys()
    assert all(np.array_equal(copy[key], value) for key, value in sample.items())


def test_rows_of_every_kind_are_packed_right():
    """The model on each sample alone, and all of them in one batch: boundaries from lengths, positions and masks."""
    report = verify_packing(tiny_model("qwen2"), PackCollator(pad_to=32), PLAIN, attention="sdpa")  # type: ignore[arg-type]
    assert report.verdict == "PASS: packing is right with sdpa"


def test_samples_of_trees_are_paths():
    """A shared part is there once for all samples, and changes in all of them."""
    samples = ReferenceSamples([toy_tree([[5, 6, 7], [5, 6, 8], [9]]), toy_tree([[5, 6]])])
    assert [segment.parts for segment in samples.segments] == [(0, 1), (0, 2), (3,), (4,)]
    assert [samples.samples_of(part) for part in range(4)] == [[0, 1], [0], [1], [2]]
    assert [samples.depth_of(part, 1) for part in range(4)] == [0, None, 2, None]
    assert samples.name_of(0) == "the trunk of samples 0, 1 (2 tokens)"
    changed = samples.changed({0: np.array([3, 4])})
    assert [segment.ids.tolist() for segment in changed] == [[3, 4, 7], [3, 4, 8], [9], [5, 6]]
    assert samples.copies({2: np.array([1])})[0].input_ids.tolist() == [5, 6, 7, 1, 9]


def test_a_collator_of_trees_shares_what_plain_samples_share():
    """By their tokens alone: media and labels are for the checks."""
    rows = [{"input_ids": ids} for ids in ([5, 6, 7, 8], [5, 6, 9], [5, 6, 7, 8], [4])]
    samples = ReferenceSamples(rows, trees=True)
    assert [segment.parts for segment in samples.segments] == [(0, 1), (0, 2), (0, 1), (3,)]
    assert [part.tolist() for part in samples.parts] == [[5, 6], [7, 8], [9], [4]]
    copies = samples.copies({1: np.array([3, 2])})
    assert [copy["input_ids"] for copy in copies] == [[5, 6, 3, 2], [5, 6, 9], [5, 6, 3, 2], [4]]


def test_few_of_a_tree_is_a_tree():
    """Segments are cut, and their depths and targets follow."""
    masks = [[True] * 9, [False] * 5 + [True] * 3, [True] * 7]
    (pack,) = few_of([toy_tree([[5] * 9, [5] * 5 + [6] * 3, [5] * 5 + [7] * 2], masks)], vocab=6, max_tokens=40)
    assert pack.input_ids.tolist() == [5, 5, 5, 5, 0, 0, 1, 1]
    assert pack.starts.tolist() == [0, 2, 2, 2]
    assert [segment.labels.tolist() for segment in ReferenceSamples([pack]).segments] == [
        [-100, 5, 5, 5],
        [-100, -100, 0, 0],
        [-100, 5, 1, 1],
    ]


def test_parts_of_several_trees_are_numbered_on():
    """A part of the second tree under a number of the first would change samples that do not have it."""
    trees = [toy_tree([[5, 6, 7], [5, 6, 8]]), toy_tree([[5, 6], [5, 7]]), toy_tree([[9]])]
    samples = ReferenceSamples(trees)
    assert [segment.parts for segment in samples.segments] == [(0, 1), (0, 2), (3, 4), (3, 5), (6,)]
    assert [samples.samples_of(part) for part in range(7)] == [[0, 1], [0], [1], [2, 3], [2], [3], [4]]
    assert [samples.part_at(1, place) for place in range(3)] == [0, 0, 2]
    changed = samples.copies({3: np.array([4]), 6: np.array([2])})
    assert [pack.input_ids.tolist() for pack in changed] == [[5, 6, 7, 8], [4, 6, 7], [2]]
    assert [samples.begins_like_sibling(4, token) for token in (5, 6, 7)] == [False, False, True]
    assert samples.name_of(6) == "the branch of sample 0 (1 token)"
    assert [len(samples.part(0, 1)), len(samples.part(1)), samples.num_tokens] == [1, 2, 11]


def test_tokens_of_samples_follow_each_other():
    samples = ReferenceSamples([{"input_ids": [5, 9, 7]}, {"input_ids": [9, 4]}])
    assert samples.token_ids.tolist() == [4, 5, 7, 9]
    assert samples.next_tokens(np.array([4, 5, 7, 9])).tolist() == [5, 7, 9, 4]
    assert samples.next_tokens(np.array([4, 9]), 2).tolist() == [7, 5]
    assert samples.next_tokens(np.array([4, 7]), exclude=[5]).tolist() == [7, 9]
    assert [segment.num_targets for segment in samples.segments] == [2, 1]
    assert (samples.num_tokens, samples.num_targets, samples.has_labels, len(samples)) == (5, 3, False, 2)
    assert ReferenceSamples([{"input_ids": [5, 6], "loss_mask": [0, 1]}]).has_labels
