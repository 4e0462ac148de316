"""OpenPipe ART: the group of each token, and the group before it; what belongs to a target is shifted by its loss."""

from itertools import groupby, product

import pytest
from hypothesis import given

torch = pytest.importorskip("torch")

from brimful.errors import CollateError  # noqa: E402
from brimful.testing.contracts import DialectContract  # noqa: E402
from tests.collate.dialects.forks import SAMPLES, batch_of, trained_by, untrained  # noqa: E402
from tests.collate.dialects.reading import pairs  # noqa: E402
from tests.rl.compat.sources import definitions_of  # noqa: E402
from tests.trees.collate.reading import trained  # noqa: E402


class TestArt(DialectContract):
    dialect = "art"

    def segments(self, batch):
        found = []
        for ids, groups in zip(batch["tokens"].tolist(), batch["group_ids"].tolist(), strict=True):
            numbered = zip(groups, ids, strict=True)
            found += [[token for _, token in run] for _, run in groupby(numbered, key=lambda pair: pair[0])]
        return found

    def targets(self, batch):
        labels = torch.where(batch["assistant_mask"], batch["tokens"], -100)
        return pairs(batch["tokens"], labels, labels_shifted=False)

    def loss_tokens(self, batch):
        return int(batch["assistant_mask"].sum())


def is_refused(samples):
    """Whether one trains a token that another reads after the same tokens."""
    return any(
        mask[depth] and tokens[: depth + 1] == other[: depth + 1]
        for number, (tokens, mask) in enumerate(samples)
        for depth in range(1, len(tokens))
        for place, (other, _) in enumerate(samples)
        if place != number
    )


@given(SAMPLES)
def test_each_target_reads_its_sample_or_is_refused(samples):
    """A token reads its group and the groups before it, and the token before a target predicts it: ``flex_attention.py``
    and ``loss.py`` of ART 0.5.18, ``prefix_tree.py`` of September 2026."""
    if is_refused(samples):
        with pytest.raises(CollateError, match="is a target and other samples read it, but ART"):
            batch_of("art", samples)
        return
    batch, _ = batch_of("art", samples, pad_to=90)
    given = {name: tensor[0].tolist() for name, tensor in batch.items()}
    groups, parent_of = given["group_ids"], dict(zip(given["group_ids"], given["parent_ids"], strict=True))

    def is_visible(query, key):
        group = groups[query]
        while group != groups[key]:
            if parent_of[group] == group:
                return False
            group = parent_of[group]
        return key <= query

    assert [weight > 0 for weight in given["weights"]] == given["assistant_mask"]
    predictions = [
        (place - 1, given["tokens"][place], weight) for place, weight in enumerate(given["weights"]) if weight
    ]
    assert trained_by(given["tokens"], given["input_pos"], is_visible, predictions) == trained(samples)


@pytest.mark.parametrize("num_branches", [2, 3])
def test_a_target_that_others_read_is_refused_wherever_it_lies(num_branches):
    """Also at the end of a trunk, which each branch repeats: ART would train it for the first branch alone."""
    for one, others in product(product((False, True), repeat=4), repeat=2):
        samples = [([1, 2, 3, 4 + number], list(others if number else one)) for number in range(num_branches)]
        try:
            batch_of("art", samples)
        except CollateError:
            assert is_refused(samples), samples
        else:
            assert not is_refused(samples), samples


@given(SAMPLES)
def test_art_reads_the_segments(samples):
    """Its own parser finds the tokens of each sample along a path."""
    names = ["PrefixTreeSegment", "PrefixTreeRow", "parse_prefix_tree_row", "_valid_length"]
    names += ["_infer_terminal_padding_length", "_scan_runs"]
    theirs = definitions_of("art", "megatron/prefix_tree.py", names, torch=torch)
    given, _ = batch_of("art", untrained(samples), pad_to=90)
    row = theirs.parse_prefix_tree_row(group_ids=given["group_ids"][0], parent_ids=given["parent_ids"][0])
    tokens = given["tokens"][0].tolist()
    of_group = {segment.group_id: tokens[segment.start : segment.end] for segment in row.segments}
    parents = {parent for segment in row.segments for parent in segment.ancestors}
    paths = [
        [token for group in (*segment.ancestors, segment.group_id) for token in of_group[group]]
        for segment in row.segments
        if segment.group_id not in parents
    ]
    leaves = {
        tuple(tokens)
        for tokens, _ in samples
        if not any(other[: len(tokens)] == tokens and other != tokens for other, _ in samples)
    }
    assert sorted(paths) == sorted(map(list, leaves))


def test_a_row_is_the_one_of_art():
    """Equal in every element if answers part at a target: ART repeats no token before a part without targets."""
    theirs = definitions_of(
        "art", "megatron/prefix_tree_packing.py",
        ["PrefixTreePackSegment", "PrefixTreePack", "_PrefixSegment", "prefix_tree_pack", "prefix_tree_pack_segments",
         "_prefix_segments", "_empty_pack", "_sequence_tensor", "_shareable_lengths", "_shareable_row_lengths"],
        torch=torch,
    )  # fmt: skip
    samples = []
    for prompt in ([1, 2, 3, 4], [2, 7, 8], [5, 6]):
        for answer in ([11, 12], [13], [14, 15, 16]):
            samples.append((prompt + answer, [False] * len(prompt) + [True] * len(answer)))
    given, ordered = batch_of("art", samples)
    shareable = [mask.index(True) - 1 for _, mask in ordered]
    expected = theirs.prefix_tree_pack(
        [torch.tensor(tokens) for tokens, _ in ordered], max_depth=9, shareable_lengths=shareable
    )
    for name, key in (("tokens",) * 2, ("group_ids",) * 2, ("parent_ids",) * 2, ("position_ids", "input_pos")):
        assert torch.equal(getattr(expected, name), given[key]), name
