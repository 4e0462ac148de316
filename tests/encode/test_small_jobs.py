"""Which encoder a job takes follows from its size alone."""

from __future__ import annotations

import pytest

from brimful.encode.chat import ChatEncoder
from brimful.encode.small_jobs import encoder_of_job, is_for_one_process
from brimful.encode.tokenizer import Tokenizer
from brimful.preloading import is_small
from brimful.sources.rows import Block
from brimful.testing.toys import toy_chat_encoder


class Loading(type(toy_chat_encoder())):
    """An encoder whose ``light`` form is another object."""

    @property
    def engine(self):
        return _Engine()


class _Engine:
    light = "light"


@pytest.mark.parametrize(
    ("sizes", "is_light"),
    [
        ([(1_000, 3_200_000)], True),
        ([(500, 1_600_000), (500, 1_600_000)], True),
        ([(6_000, 3_200_000)], False),
        ([(10, 6_000_000)], False),
        ([(2_900, None)], True),
        ([(3_000, None)], False),
        ([(100, 100), (3_000, None)], False),
    ],
)
def test_bytes_and_rows_count(sizes, is_light):
    """A thousand long dialogues are done before the fast library is loaded; many short ones are not."""
    encoder = Loading.__new__(Loading)
    blocks = [Block(0, rows, "f", num_bytes) for rows, num_bytes in sizes]
    assert (encoder_of_job(encoder, blocks) == "light") is is_light


def test_rows_cost_what_their_text_does_not_tell():
    assert is_small(5_400_000, 0)
    assert not is_small(5_400_000, 1_000)


@pytest.mark.parametrize(
    ("template", "num_bytes", "expected"),
    [
        ("{% for m in messages %}{{ m.content }}{% endfor %}", 23 << 20, True),
        ("{% for m in messages %}{{ m.content }}{% endfor %}", 25 << 20, False),
        # These are rendered in Python, which keeps one core busy.
        ("{% for m in messages %}{{ m.content | trim }}{% endfor %}", 23 << 20, False),
        ("{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}", 23 << 20, False),
    ],
)
def test_one_process_has_threads_for_some_megabytes(small_qwen, template, num_bytes, expected):
    """Without it twenty thousand short rows wait for processes that are not needed, or slow templates for one core."""
    pytest.importorskip("fastokens", reason="the fast tokenizer comes with brimful[fast]")
    blocks = [Block(0, 10_000, "f", num_bytes // 2), Block(10_000, 20_000, "g", num_bytes // 2)]
    assert is_for_one_process(ChatEncoder(small_qwen, chat_template=template), blocks) is expected


def test_other_encoders_have_a_process_for_each_core():
    """Nobody knows how long they take."""
    assert not is_for_one_process(toy_chat_encoder(), [Block(0, 1, "f", 10)])


def test_few_rows_without_faster_libraries():
    """Encoders of others have one form."""
    encoder = toy_chat_encoder()
    assert encoder_of_job(encoder, [Block(0, 1, "f", 10)]) is encoder


def test_copies_of_a_tokenizer_load_it_once(small_qwen, fresh_cache, monkeypatch):
    """It takes half a second, and a small job compares some rows with the reference as well."""
    from tokenizers import Tokenizer as Backend

    Tokenizer(small_qwen).facts  # noqa: B018  # kept for the tokenizer below, which loads no Transformers for them
    tokenizer = Tokenizer(small_qwen)
    assert tokenizer.facts.state is not None
    backend = Backend.from_str(tokenizer.facts.state)
    loads = []

    class Recorder:
        @staticmethod
        def from_str(state):
            loads.append(len(state))
            return backend

    monkeypatch.setattr("tokenizers.Tokenizer", Recorder)
    for copy in (tokenizer.light, tokenizer.reference, tokenizer.light.reference):
        copy.tokenize(["a b"], aligned=True)
    assert len(loads) == 1
