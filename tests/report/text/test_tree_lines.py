"""Trees as lines: each segment once below its parent, and few lines for many branches."""

from __future__ import annotations

import re
from collections import Counter

import numpy as np
from hypothesis import given

from brimful.report.text.artefact_lines import pack_as_dict, show_pack, show_planned_pack
from brimful.testing.toys import toy_tree
from brimful.trees.pack_tree import tree_of
from tests.trees.plans import plan_of_trees
from tests.trees.test_pack_tree import SAMPLES

TEXTS = ["be kind\nto me", "be kind\nto us", "be kind\n", "be kind\n", "hm"]


def decode(ids):
    return "".join(map(chr, ids))


def letters(texts):
    return [[ord(letter) for letter in text] for text in texts]


def test_a_tree_with_its_texts():
    """The second sample that ends in a trunk has no tokens of its own; both targets of 'kind' are one token."""
    pack = toy_tree(letters(TEXTS), [[index >= 3 for index in range(len(text))] for text in TEXTS])
    assert show_pack(pack, 2, 32, decode) == [
        "pack 2: 17 of 32 tokens (53.1 %), 5 samples of 44 tokens in 6 segments, 12 loss tokens",
        "── sample 2, trunk of 4 samples · tokens 0 … 7 · depth 0 · 8 tokens, 5 loss",
        "│  be ⟦kind↵⟧",
        "├─ sample 3 · ends where its trunk does",
        "└─ trunk of 2 samples · tokens 8 … 10 · depth 8 · 3 tokens, 3 loss",
        "   │  ⟦to ⟧",
        "   ├─ sample 0 · tokens 11 … 12 · depth 11 · 2 tokens, 2 loss",
        "   │     ⟦me⟧",
        "   └─ sample 1 · tokens 13 … 14 · depth 11 · 2 tokens, 2 loss",
        "         ⟦us⟧",
        "── sample 4 · tokens 15 … 16 · depth 0 · 2 tokens, 0 loss",
        "   hm",
    ]
    assert show_pack(pack, 2, 32, decode, full=True)[2:4] == ["│  be ⟦kind", "│  ⟧"]
    segments = pack_as_dict(pack, 2, 32, None)["segments"]
    assert [segment["parent"] for segment in segments] == [-1, 0, 0, 2, 2, -1]
    assert [segment["ends"] for segment in segments] == [True, True, False, True, True, True]
    assert [segment["samples"] for segment in segments] == [4, 1, 2, 1, 1, 1]


def test_a_planned_pack_is_the_same_tree():
    """Without it only written packs show what they share."""
    plan = plan_of_trees(letters(TEXTS), [[4], [0, 1, 2, 3]], capacity=32)
    assert show_planned_pack(plan, 1) == [
        "pack 1: 15 of 32 tokens (46.9 %), 4 samples of 42 tokens in 5 segments",
        "── sample 2, trunk of 4 samples · tokens 0 … 7 · depth 0 · 8 tokens",
        "├─ sample 3 · ends where its trunk does",
        "└─ trunk of 2 samples · tokens 8 … 10 · depth 8 · 3 tokens",
        "   ├─ sample 0 · tokens 11 … 12 · depth 11 · 2 tokens",
        "   └─ sample 1 · tokens 13 … 14 · depth 11 · 2 tokens",
    ]


def test_a_thousand_branches_are_few_lines():
    """Without it a prompt with its answers is a list, and not a picture."""
    pack = toy_tree([[7, 7, 1000 + number, 1, 2] for number in range(1000)])
    lines = show_pack(pack, 0, 4096, None)
    assert len(lines) == 19
    assert lines[-1] == "└─ … 984 more branches: 984 samples, 2,952 tokens"
    assert len(show_pack(pack, 0, 4096, None, full=True)) == 1002


def test_a_deep_tree_stays_on_the_screen():
    """A dialogue of 600 turns with a sample for each is deeper than a function may recurse."""
    pack = toy_tree([[1] * turn + [2] for turn in range(1, 600)])
    lines = show_pack(pack, 0, 4096, None)
    assert len(lines) == 1198
    assert max(map(len, lines)) < 120


def test_a_chain_is_one_path():
    """One level for each turn would push a dialogue off the screen, though nothing parts from it."""
    pack = toy_tree(letters(["ab", "abcd", "abcdef", "abcdefx", "abcdefy", "abz"]))
    assert [line.split(" ·")[0] for line in show_pack(pack, 0, 32, None)[1:]] == [
        "── sample 0, trunk of 6 samples",
        "├─ sample 1, trunk of 4 samples",
        "│  ↳─ sample 2, trunk of 3 samples",
        "│  ├─ sample 3",
        "│  └─ sample 4",
        "└─ sample 5",
    ]
    pack = toy_tree([[7] * turn for turn in range(1, 600)])
    lines = show_pack(pack, 0, 4096, None)
    assert {line[:3] for line in lines[2:]} == {"↳─ "}
    assert len(lines) == 600


@given(SAMPLES)
def test_each_segment_is_drawn_below_its_parent(samples):
    """Read back: branches of a segment stand three places to the right of it, of a root or an arrow below it."""
    pack = toy_tree([tokens for tokens, _ in samples])
    lines = show_pack(pack, 0, 64, None, full=True)[1:]
    parents, owners = [], {}
    for number, line in enumerate(lines):
        column = len(re.match("[ │]*", line)[0])
        mark = line[column]
        parents.append(-1 if mark == "─" else owners[column])
        owners[column + 3 * (mark in "├└")] = number
    assert parents == tree_of(pack).parents.tolist()
    num_branches = Counter(parents)
    assert [line.lstrip(" │")[0] == "↳" for line in lines] == [
        parent >= 0 and num_branches[parent] == 1 for parent in parents
    ]
    places = [int(found[1]) for line in lines if (found := re.search(r"tokens (\d+) …", line))]
    assert places == pack.cu_seqlens[:-1][np.diff(pack.cu_seqlens) > 0].tolist()
