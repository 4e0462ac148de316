"""The core stays small enough for one head, and imports no wing."""

from __future__ import annotations

import pytest

from tests.library import modules
from tests.rooms import CORE, TABLES, WINGS, WORDS, arrows, files, lines_with, names_of_wings, room_of, tokens

CEILINGS = {
    "base": 18_150,
    "sources": 29_935,
    "encode": 22_230,
    "lengths": 2_950,
    "measure": 10_750,
    "plan": 33_950,
    "store": 14_150,
    "serve": 10_350,
    "collate": 15_360,
    "trees": 29_600,
    "planners": 13_200,
    "mixtures": 9_500,
    "dynamic": 9_000,
    "fast": 6_800,
    "clusters": 11_500,
    "media": 42_565,
    "stream": 23_800,
    "rl": 24_200,
    "preferences": 8_300,
    "integrations": 33_200,
    "report": 23_650,
    "cli": 18_350,
    "testing": 6_720,
    "check": 102_370,
    "names": 650,
}
"""Tokens of each room at most. They fall with the code, and what a feature adds it takes from its own room."""

MAX_CORE = 157_630
MAX_ALL = 518_350

NUM_ARROWS = 0
"""Imports from the core into a wing, types included. The number only falls."""

NUM_LINES = {"trees": 63, "media": 90, "mixtures": 0}
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


def test_arrows_from_the_core_only_fall():
    """Prints the arrows; where there are fewer, the number here is lowered."""
    assert len(arrows()) == NUM_ARROWS, "\n".join(" -> ".join(pair) for pair in arrows())


def test_wings_are_named_in_tables():
    """A name in a text is followed by no editor: these are the files in which a reader finds it."""
    assert names_of_wings() == TABLES


@pytest.mark.parametrize("wing", WORDS)
def test_lines_of_the_core_that_say_a_wing_only_fall(wing):
    """Where there are fewer, the number here is lowered."""
    assert len(lines_with(wing)) == NUM_LINES[wing]
