"""Prompt and completion without a template, rows of tokens, and the encoder that a source needs."""

# mypy: disable-error-code="arg-type"

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

pytest.importorskip("transformers", reason="tokenizers need the extra brimful[text]")

from brimful.encode import ChatEncoder, CompletionEncoder, Encoder, TextEncoder, TokenEncoder, encoder_for
from brimful.errors import BadSampleError, SettingsError
from brimful.sources import Sample, open_source
from tests.encode.templates import STYLES, chat, tiny_tokenizer

MARKS = {"bos_token": "<s>", "eos_token": "</s>"}


def completion(**options: Any) -> CompletionEncoder:
    return CompletionEncoder(tiny_tokenizer("<s>", "</s>", **MARKS), **options)


@pytest.mark.parametrize(
    ("options", "text", "targets"),
    [
        ({}, "Q: xyes</s>", "yes</s>"),
        ({"separator": "\n"}, "Q: x\nyes</s>", "yes</s>"),
        ({"bos": True}, "<s>Q: xyes</s>", "yes</s>"),
        ({"eos": False}, "Q: xyes", "yes"),
        ({"train_on": "all"}, "Q: xyes</s>", "Q: xyes</s>"),
    ],
)
def test_a_completion_behind_its_prompt(options: dict[str, Any], text: str, targets: str) -> None:
    """Without it base models cannot be trained on prompts and completions, or learn to write the prompts."""
    made = completion(**options)
    encoded = made.encode(chat("Q: x", "yes"))
    assert made.decode(encoded.input_ids) == text
    assert made.decode(encoded.input_ids[encoded.loss_mask]) == targets
    assert made.lengths([chat("Q: x", "yes")])[0].tolist() == [len(encoded)]
    again = pickle.loads(pickle.dumps(made))
    assert (again.fingerprint, again.encode(chat("q", "a")).labels.tolist()) == (
        made.fingerprint,
        made.encode(chat("q", "a")).labels.tolist(),
    )


@pytest.mark.parametrize("eos", [True, False])
def test_an_answer_that_ends_with_eos_has_one(eos: bool) -> None:
    """Without it a model would learn to end twice, or data that brings its own ends would lose them."""
    made = completion(eos=eos)
    for sample in open_source(ROWS["preferences"]).read(0, 2):
        assert isinstance(sample, Sample)
        assert made.decode(made.encode(sample).input_ids) == ("qa</s>", "qb</s>" if eos else "qb")[sample.sample_id]


def test_a_token_that_holds_both_is_a_target(small_tokenizer: Any) -> None:
    """Without it the first letters of an answer are never learnt where they share a token with the prompt."""
    made = CompletionEncoder(small_tokenizer)
    encoded = made.encode(chat("The cap", "ital of France"))
    assert made.decode(encoded.input_ids) == "The capital of France<|im_end|>"
    targets = made.decode(encoded.input_ids[encoded.loss_mask])
    assert targets == " capital of France<|im_end|>"
    apart = made.encode(chat("Capital:", " Paris"))
    assert made.decode(apart.input_ids[apart.loss_mask]) == " Paris<|im_end|>"


def test_conversations_need_a_template() -> None:
    """Without it turns would be glued together without a word about who speaks."""
    results = completion().encode_batch([chat("q", "a"), chat("q", "a", "r", "b"), Sample(2, text="ab")])
    assert [type(result).__name__ for result in results] == ["EncodedSample", "BadSampleError", "EncodedSample"]
    assert "has turns of user, assistant, user, assistant, and without a chat template" in str(results[1])
    lengths, errors = completion().lengths([chat("q", "a"), chat("q"), Sample(2, input_ids=[5])])
    assert (lengths.tolist(), len(errors)) == ([3, -1, 1], 1)


def test_tokens_are_taken_as_they_are() -> None:
    """Without it rows that were tokenized before would need a tokenizer, or another path."""
    encoder = TokenEncoder()
    given, all_targets, text = (
        Sample(0, input_ids=[5, 6, 7], labels=[-100, 6, 7]),
        Sample(1, input_ids=[8, 9]),
        Sample(2, text="a"),
    )
    results = encoder.encode_batch([given, all_targets, text])
    assert [result.labels.tolist() for result in results[:2]] == [[-100, 6, 7], [8, 9]]
    assert isinstance(results[2], BadSampleError)
    lengths, errors = encoder.lengths([given, all_targets, text])
    assert (lengths.tolist(), lengths.dtype, len(errors)) == ([3, 2, -1], np.int32, 1)
    assert encoder.decode([5, 6]) == "5 6"
    for other in (
        ChatEncoder(tiny_tokenizer(), chat_template="x"),
        TextEncoder(tiny_tokenizer("</s>", eos_token="</s>")),
    ):
        assert other.encode(given).labels.tolist() == [-100, 6, 7]  # tokens among others


ROWS = {
    "chats": [{"messages": [{"role": "user", "content": "q"}]}],
    "pairs": [{"prompt": "q", "completion": "a"}],
    "texts": [{"text": "a"}],
    "tokens": [{"input_ids": [5, 6]}],
    "preferences": [{"prompt": "q", "chosen": "a</s>", "rejected": "b"}],
}


@pytest.mark.parametrize(
    ("rows", "mode", "expected"),
    [
        ("chats", "auto", ChatEncoder),
        ("pairs", "auto", ChatEncoder),
        ("pairs", "completion", CompletionEncoder),
        ("texts", "auto", TextEncoder),
        ("texts", "chat", ChatEncoder),
        ("tokens", "auto", TokenEncoder),
    ],
)
def test_a_source_gets_the_encoder_that_it_needs(rows: str, mode: str, expected: type[Encoder]) -> None:
    """Without it a user with other rows has to know which class reads them."""
    assert type(encoder_for(open_source(ROWS[rows]), tiny_tokenizer(), mode=mode)) is expected


def test_sources_side_by_side_get_one_encoder_for_all(put: Any) -> None:
    """Without it ``--mode text`` and ``--mode chat`` point at each other, and neither packs both."""
    import json

    source = open_source([put("a.jsonl", json.dumps(ROWS["chats"][0])), put("b.txt", "text")])
    style = STYLES["chatml"]
    encoder = encoder_for(source, tiny_tokenizer(*style.special), chat_template=style.template)
    assert [isinstance(result, BadSampleError) for result in encoder.encode_batch(list(source.read(0, 2)))] == [
        False
    ] * 2


@pytest.mark.parametrize(
    ("rows", "options", "message"),
    [
        ("texts", {"chat_template": "x"}, 'chat_template has no effect in mode="text": it is for mode="chat"'),
        (
            "texts",
            {"train_on": "last"},
            'train_on has no effect in mode="text": it is for mode="chat" or mode="completion"',
        ),
        (
            "preferences",
            {"train_on": "all"},
            "train_on has no effect on preferences, whose targets are their completions",
        ),
        ("chats", {"separator": "x"}, 'separator has no effect in mode="chat": it is for mode="completion"'),
        (
            "chats",
            {"train_on": "completion"},
            "train_on 'completion' is unknown: use one of assistant, last, all",
        ),
        ("chats", {"mode": "both"}, "mode 'both' is unknown: use one of auto, chat, completion, text, tokens"),
        ("chats", {"reasoning": "keep"}, "reasoning 'keep' is unknown: use one of error, inline, drop"),
    ],
)
def test_a_setting_that_would_be_ignored_is_refused(rows: str, options: dict[str, Any], message: str) -> None:
    """Without it a chat template given for documents is passed over in silence."""
    with pytest.raises(SettingsError) as caught:
        encoder_for(open_source(ROWS[rows]), tiny_tokenizer(), **options)
    assert str(caught.value).startswith(message)


def test_a_tokenizer_is_asked_for_where_one_is_needed() -> None:
    """Without it the job ends inside Transformers."""
    with pytest.raises(SettingsError, match="tokenizer is missing: name the directory or hub id"):
        encoder_for(open_source(ROWS["chats"]), None)
