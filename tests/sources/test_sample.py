"""Messages that are a role and a text are known as such, one conversation or many at once."""

from __future__ import annotations

from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brimful.sources.sample import PlainMessages

_ROLE, _TEXT = st.sampled_from(["user", "assistant"]), st.text(min_size=1, max_size=3)
_PLAIN = st.fixed_dictionaries({"role": _ROLE, "content": _TEXT})
_CONVERSATIONS = st.lists(st.lists(_PLAIN, min_size=1, max_size=3), min_size=1, max_size=4)

_OTHERS = (
    {"role": "user", "content": "x", "weight": 0},
    {"role": "user", "content": ""},
    {"role": "user", "content": None},
    {"role": "user", "content": ["x"]},
    {"role": "", "content": "x"},
    {"role": 1, "content": "x"},
    {"role": "user", "text": "x"},
    {"from": "user", "content": "x"},
    MappingProxyType({"role": "user", "content": "x"}),
    ["role", "content"],
    "user",
    None,
)
"""Messages that lack one thing to be plain."""


@given(_CONVERSATIONS)
def test_plain_conversations_stay_plain(conversations):
    """Each would be rendered alone otherwise, seen only in the time."""
    together = PlainMessages.of_many(conversations)
    assert None not in together
    assert together == conversations
    assert [messages.roles for messages in together] == [
        tuple(turn["role"] for turn in turns) for turns in conversations
    ]
    assert [messages.texts for messages in together] == [[turn["content"] for turn in turns] for turns in conversations]


@pytest.mark.parametrize("other", _OTHERS, ids=repr)
@given(conversations=_CONVERSATIONS, place=st.randoms(use_true_random=False))
def test_many_at_once_are_as_each_by_itself(other, conversations, place):
    """A message that is more than a role and a text, passed over here, would lose its calls or its weight."""
    conversation = place.choice(conversations)
    conversation.insert(place.randint(0, len(conversation)), other)
    together = PlainMessages.of_many(conversations)
    assert together == [PlainMessages.of(one) for one in conversations]
    assert together.count(None) == 1
