"""An encoder has one object for its libraries; encoders without faster ones need not know of it."""

from __future__ import annotations

import copy
import pickle

import pytest

from brimful.encode import ChatEncoder, CompletionEncoder, TextEncoder
from brimful.encode.tokenizer import Tokenizer
from brimful.testing.toys import toy_chat_encoder


def test_an_encoder_without_faster_libraries_says_so():
    """Without it the author of an encoder would have to write six members that say nothing."""
    encoder = toy_chat_encoder()
    engine = encoder.engine
    assert engine.reference is encoder
    assert (engine.name, engine.id, dict(engine.preload)) == ("", "", {})
    assert engine.trusts("")
    assert engine.trusts("a library 1.0")
    engine.load()


@pytest.mark.parametrize("kind", [ChatEncoder, CompletionEncoder, TextEncoder])
def test_the_reference_is_the_same_encoder_by_the_slow_libraries(kind, small_qwen):
    """A reference with a fast tokenizer anywhere in it would compare the fast library with itself."""
    encoder = kind(Tokenizer(small_qwen))
    reference = encoder.engine.reference
    assert reference is encoder.engine.reference
    assert reference.engine.reference is reference
    assert type(reference) is kind
    assert not reference.tokenizer.fast
    assert reference._documents is None or not reference._documents.tokenizer.fast
    assert reference.fingerprint == encoder.fingerprint
    assert reference.engine.id == ""


@pytest.mark.parametrize("move", [copy.deepcopy, lambda encoder: pickle.loads(pickle.dumps(encoder))])
def test_libraries_stay_in_their_process(move, small_qwen):
    """Without it a worker process would get the tokenizer's megabytes over a pipe, or the job would not start."""
    encoder = ChatEncoder(small_qwen)
    name = encoder.engine.name
    moved = move(encoder)
    assert "engine" not in vars(moved)
    assert moved.engine.name == name
