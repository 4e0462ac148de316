"""A state that does not fit says in what its packs are others."""

from __future__ import annotations

import pytest

from brimful import PackedDataset, PackLoader, open_source, plan_packs, write_packs
from brimful.errors import StateError
from brimful.measure import measure_lengths
from brimful.serve import open_packs
from brimful.stream import StreamLoader
from brimful.testing.toys import ToyPacks, toy_chat_encoder, toy_pack


def packs(count=20, letter="a", capacity=64, seed=0):
    """Packs of ``count`` texts, encoded on the fly; with their source, encoder and plan."""
    source = open_source([{"text": letter * (5 + number)} for number in range(count)])
    encoder = toy_chat_encoder()
    plan = plan_packs(measure_lengths(source, encoder), capacity=capacity, seed=seed)
    return PackedDataset.from_plan(source, encoder, plan), (plan, source, encoder)


def refusal(loader, state):
    with pytest.raises(StateError) as caught:
        loader.load_state_dict(state)
    return str(caught.value)


START = "the loader state does not fit: it is of other data or settings: "


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"count": 21}, "samples (20 in the state, 21 here), tokens (290 in the state, 315 here)"),
        ({"seed": 3}, "seed (0 in the state, 3 here)"),
        ({"capacity": 80}, "packs (5 in the state, 4 here), capacity (64 in the state, 80 here)"),
    ],
)
def test_packs_of_a_plan_say_what_differs(other, words):
    """Without it two hashes stand there without a word whether the data changed or a flag."""
    state = PackLoader(packs()[0]).state_dict()
    assert refusal(PackLoader(packs(**other)[0]), state) == START + words


def test_packs_of_a_store_say_what_differs(tmp_path):
    stores = []
    for name, letter in (("a", "a"), ("b", "b")):
        plan, source, encoder = packs(letter=letter, seed=ord(letter))[1]
        write_packs(plan, source, encoder, tmp_path / name)
        stores.append(open_packs(tmp_path / name))
    first, second = stores
    sources = [store.identity["source"][:7] for store in stores]
    words = f"directory (a in the state, b here), source ({sources[0]} in the state, {sources[1]} here), "
    words += "seed (97 in the state, 98 here)"
    assert refusal(PackLoader(second), PackLoader(first).state_dict()) == START + words
    streams = [StreamLoader(tmp_path / name) for name in "ab"]
    assert refusal(streams[1], streams[0].state_dict()) == START + words


def test_packs_that_nothing_is_known_of_are_told_by_their_fingerprints():
    loaders = [PackLoader(ToyPacks([toy_pack([3])] * count)) for count in (1, 2)]
    assert refusal(loaders[1], loaders[0].state_dict()).startswith(f"{START}fingerprint (")
