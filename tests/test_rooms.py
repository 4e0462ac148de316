"""The core stays small enough for one head, and imports no wing."""

from __future__ import annotations

import pytest

from tests.library import modules
from tests.rooms import (
    CORE,
    TABLES,
    WINGS,
    WORDS,
    arrows,
    classes_twice,
    files,
    lines_with,
    names_of_wings,
    room_of,
    tokens,
    vague_names,
    weight_of_tests,
)

CEILINGS = {
    "base": 18_150,
    "sources": 29_935,
    "encode": 22_230,
    "lengths": 2_920,
    "measure": 9_220,
    "plan": 31_855,
    "store": 13_280,
    "serve": 9_990,
    "collate": 15_360,
    "trees": 29_600,
    "planners": 14_460,
    "mixtures": 8_410,
    "dynamic": 9_350,
    "fast": 6_790,
    "clusters": 12_910,
    "media": 42_565,
    "stream": 23_800,
    "rl": 24_200,
    "preferences": 8_300,
    "integrations": 33_125,
    "report": 24_490,
    "cli": 18_350,
    "testing": 6_720,
    "check": 100_040,
    "names": 650,
}
"""Tokens of each room at most. They fall with the code, and what a feature adds it takes from its own room."""

MAX_CORE = 152_910
MAX_ALL = 516_000

MAX_TESTS_PER_SOURCE = 1.51
"""Tokens of tests for each token of the library. The number only falls."""

NUM_ARROWS = 0
"""Imports from the core into a wing, types included. The number only falls."""

NUM_LINES = {"trees": 63, "media": 82, "mixtures": 0}
"""Lines of the core that say a word of a wing. The numbers only fall.

Of trees, ten lines name the kind, its dialects and its choices; the others say a prefix, a parent, a tree or a fork of
something else: names of files, special tokens, folders, templates, processes.
"""


def test_each_module_has_one_room():
    """A module that no room owns is read by everybody."""
    assert set(files()) == {*CORE, *WINGS} == set(CEILINGS)
    for wing, beginnings in WINGS.items():
        for one in beginnings:
            assert any(room_of(module.file) == wing and module.file.startswith(one) for module in modules()), one


@pytest.mark.parametrize("room", CEILINGS)
def test_a_room_keeps_its_budget(room):
    assert tokens()[room] <= CEILINGS[room]


def test_the_core_keeps_its_budget():
    assert sum(tokens()[room] for room in CORE) <= MAX_CORE
    assert tokens().total() <= MAX_ALL


def test_tests_grow_no_faster_than_the_source():
    """A test says what it asks once: helpers and tables of its room, or a law in place of its examples."""
    assert weight_of_tests() <= MAX_TESTS_PER_SOURCE


def test_arrows_from_the_core_only_fall():
    """Prints the arrows; if fewer, the number here is lowered."""
    assert len(arrows()) == NUM_ARROWS, "\n".join(" -> ".join(pair) for pair in arrows())


def test_wings_are_named_in_tables():
    """A name in a text is followed by no editor: these are the files in which a reader finds it."""
    assert names_of_wings() == TABLES


@pytest.mark.parametrize("wing", WORDS)
def test_lines_of_the_core_that_say_a_wing_only_fall(wing):
    """If fewer, the number here is lowered."""
    assert len(lines_with(wing)) == NUM_LINES[wing]


MAX_VAGUE_NAMES = 155
"""Identifiers of ten thousand that say place, part, number, kind, word or begin. The number only falls, to 40."""

NUM_CLASSES_TWICE = 0
"""Names that several classes have. The number only falls."""


def test_names_are_those_of_the_field():
    """``python -m tests.rooms --names`` prints them: index, position, offset, count, type, start say more."""
    assert vague_names()[0] <= MAX_VAGUE_NAMES


def test_a_class_has_a_name_of_its_own():
    assert len(classes_twice()) == NUM_CLASSES_TWICE, classes_twice()
