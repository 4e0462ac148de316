"""OpenPipe ART: the group of each token, and the group before it; what belongs to a target is shifted by its loss."""

from collections import Counter
from itertools import groupby

import pytest
from hypothesis import given

torch = pytest.importorskip("torch")

from brimful.collate.dialects import dialect_of  # noqa: E402
from brimful.errors import CollateError  # noqa: E402
from brimful.testing.contracts import DialectContract  # noqa: E402
from tests.collate.dialects.forks import SAMPLES, forked, terms_of, terms_read  # noqa: E402
from tests.collate.dialects.reading import BOOL, F32, I64, pairs  # noqa: E402
from tests.rl.compat.sources import definitions_of  # noqa: E402


class TestArt(DialectContract):
    dialect = "art"
    shapes = {
        "tokens": (I64, (1, 12)), "group_ids": (I64, (1, 12)), "parent_ids": (I64, (1, 12)),
        "input_pos": (I64, (1, 12)), "assistant_mask": (BOOL, (1, 12)), "weights": (F32, (1, 12)),
    }  # fmt: skip

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
    batch, ordered = forked(samples, to=90)
    if is_refused(samples):
        with pytest.raises(CollateError, match="is a target and other samples read it, but ART"):
            dialect_of("art").load()([batch])
        return
    given = {name: tensor[0].tolist() for name, tensor in dialect_of("art").load()([batch]).items()}
    groups, parent_of = given["group_ids"], dict(zip(given["group_ids"], given["parent_ids"], strict=True))

    def is_visible(query, key):
        group = groups[query]
        while group != groups[key]:
            if parent_of[group] == group:
                return False
            group = parent_of[group]
        return key <= query

    targets = Counter()
    for place, weight in enumerate(given["weights"]):
        assert (weight > 0) == given["assistant_mask"][place]
        if weight:
            targets[place - 1, given["tokens"][place]] = int(weight)
    assert terms_read(given["tokens"], given["input_pos"], is_visible, targets) == terms_of(ordered)


@given(SAMPLES)
def test_art_reads_the_segments(samples):
    """Its own parser finds the tokens of each sample along a path."""
    names = ["PrefixTreeSegment", "PrefixTreeRow", "parse_prefix_tree_row", "_valid_length"]
    names += ["_infer_terminal_padding_length", "_scan_runs"]
    theirs = definitions_of("art", "megatron/prefix_tree.py", names, torch=torch)
    samples = [(tokens, [False] * len(tokens)) for tokens, _ in samples]
    batch, ordered = forked(samples, to=90)
    given = dialect_of("art").load()([batch])
    row = theirs.parse_prefix_tree_row(group_ids=given["group_ids"][0], parent_ids=given["parent_ids"][0])
    tokens = given["tokens"][0].tolist()
    of_group = {segment.group_id: tokens[segment.start : segment.end] for segment in row.segments}
    parents = {parent for segment in row.segments for parent in segment.ancestors}
    paths = [
        [token for group in (*segment.ancestors, segment.group_id) for token in of_group[group]]
        for segment in row.segments
        if segment.group_id not in parents
    ]
    assert sorted(paths) == sorted(map(list, {tuple(sample) for sample, _ in ordered}))


def test_a_row_is_the_one_of_art():
    """Equal in every element if answers part at a target: ART repeats no token before a part that nobody trains."""
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
    batch, ordered = forked(samples)
    given = dialect_of("art").load()([batch])
    shareable = [mask.index(True) - 1 for _, mask in ordered]
    expected = theirs.prefix_tree_pack(
        [torch.tensor(tokens) for tokens, _ in ordered], max_depth=9, shareable_lengths=shareable
    )
    for name, key in (("tokens",) * 2, ("group_ids",) * 2, ("parent_ids",) * 2, ("position_ids", "input_pos")):
        assert torch.equal(getattr(expected, name), given[key]), name
