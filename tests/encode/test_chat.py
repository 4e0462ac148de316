"""A chat is encoded as the tokenizer's own template says, token for token, with labels on the answers."""

from __future__ import annotations

import itertools
import pickle
import unicodedata

import numpy as np
import pytest

pytest.importorskip("transformers", reason="templates need the extra brimful[text]")

from brimful.encode import ChatEncoder, TrainOn
from brimful.errors import BadSampleError, SettingsError, TokenizerNotFoundError
from brimful.sources import Sample, open_source
from tests.encode.templates import STYLES, chat, runs, tiny_tokenizer, tokenizer_of, trained

CHATML = STYLES["chatml"]
MARKED = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}{% generation %}{{ m.content }}"
    "<|im_end|>{% endgeneration %}{% else %}{{ m.content }}<|im_end|>{% endif %}\n{% endfor %}"
)


def _chatml(**options):
    return ChatEncoder(tokenizer_of(CHATML), **{"chat_template": CHATML.template, **options})


def _real(data_dir, name, count=200):
    source = open_source(data_dir / "text" / name)
    samples = list(source.read(0, count))
    assert len(samples) == count
    return samples


def _arguments(call):
    import json

    return json.dumps(call["function"]["arguments"], ensure_ascii=False)


def _qwen_answers(sample):
    """What Qwen2.5's template makes of the assistant's turns, written down a second time."""
    for turn in sample.messages:
        if turn["role"] == "assistant":
            parts = [turn["content"]] if turn["content"] or not turn.get("tool_calls") else []
            for call in turn.get("tool_calls", ()):
                name, arguments = call["function"]["name"], _arguments(call)
                parts.append(f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>')
            yield unicodedata.normalize("NFC", "\n".join(parts) + "<|im_end|>")


@pytest.mark.parametrize(
    ("name", "count"),
    [
        pytest.param("gsm8k_test.jsonl", 200, marks=pytest.mark.long),
        pytest.param("sgd_train_dialogues.jsonl.gz", 200, marks=pytest.mark.long),
        ("gpteacher.jsonl.gz", 200),
        ("smile_zh_multiturn_3k.jsonl.gz", 200),
    ],
)
def test_real_chats_are_what_transformers_makes_of_them(name, count, data_dir, small_tokenizer):
    """Without it packed tokens could differ from those the model is asked with, or labels from the answers."""
    encoder = ChatEncoder(small_tokenizer)
    samples = _real(data_dir, name, count)
    results = encoder.encode_batch(samples)
    lengths, errors = encoder.lengths(samples)
    assert errors == []
    answers = 0
    for sample, result, length in zip(samples, results, lengths, strict=True):
        expected = small_tokenizer.hf.apply_chat_template(sample.messages, tools=sample.tools, return_dict=True)[
            "input_ids"
        ]
        assert result.input_ids.tolist() == expected
        assert length == len(expected)
        said = [encoder.decode(run) for run in runs(result)]  # type: ignore[arg-type]
        assert said == list(_qwen_answers(sample))
        answers += len(said)
    assert answers >= count


def test_real_chats_with_tools_described(small_tokenizer):
    """Without it a tool list in the system prompt could shift every label."""
    encoder = ChatEncoder(small_tokenizer)
    tools = [{"type": "function", "function": {"name": "add", "parameters": {"properties": {"é": {}}}}}]
    call = {"type": "function", "function": {"name": "add", "arguments": {"x": "é", "y": [1]}}}
    turns = [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": "thinking", "tool_calls": [call, call]},
        {"role": "tool", "content": "2"},
        {"role": "tool", "content": "3"},
        {"role": "assistant", "content": "a"},
    ]
    sample = Sample(0, messages=turns, tools=tools)  # type: ignore[arg-type]
    expected = small_tokenizer.hf.apply_chat_template(turns, tools=tools, return_dict=True)["input_ids"]
    assert encoder.encode(sample).input_ids.tolist() == expected
    one = '<tool_call>\n{"name": "add", "arguments": {"x": "é", "y": [1]}}\n</tool_call>'
    assert trained(encoder, sample) == [f"thinking\n{one}\n{one}<|im_end|>", "a<|im_end|>"]


def test_text_that_the_normaliser_changes(small_tokenizer):
    """Without it labels after a decomposed letter would lie one character off."""
    encoder = ChatEncoder(small_tokenizer)
    assert trained(encoder, chat("cafe\u0301 e\u0301", "e\u0301te\u0301")) == ["été<|im_end|>"]


@pytest.mark.parametrize(
    ("train_on", "expected"),
    [
        ("assistant", ["a1<|im_end|>", "a2<|im_end|>"]),
        (TrainOn.LAST, ["a2<|im_end|>"]),
        ("all", None),
    ],
)
def test_what_is_trained_on(train_on, expected):
    """Without it a choice of targets would silently be another one."""
    encoder, sample = _chatml(train_on=train_on), chat("q1", "a1", "q2", "a2")
    if train_on == "all":
        expected = [encoder.render(sample)]
    assert trained(encoder, sample) == expected


def test_labels_are_the_ids_where_they_are_targets():
    """Without it labels would be shifted, or hold ids where nothing is to be learned."""
    encoded = _chatml().encode(chat("q", "a"))
    ids = encoded.input_ids.tolist()
    assert encoded.labels.dtype == np.int64
    assert encoded.input_ids.dtype == np.int32
    assert encoded.labels.tolist() == [-100] * (len(ids) - 3) + [*ids[-3:-1], -100]


@pytest.mark.parametrize(
    ("weights", "train_on", "expected"),
    [
        ((0, 1), "assistant", ["a2<|im_end|>"]),
        ((1, 0), "assistant", ["a1<|im_end|>"]),
        ((0.0, None), "assistant", ["a2<|im_end|>"]),
        ((1, 0), "last", []),
        ((0, 0), "assistant", []),
    ],
)
@pytest.mark.parametrize("template", [CHATML.template, MARKED])
@pytest.mark.parametrize("key", ["weight", "loss_weight"])
def test_a_message_of_weight_zero_is_not_trained_on(weights, train_on, expected, template, key):
    """Without it answers that the data marks as bad would be learned."""
    turns = [dict(turn) for turn in chat("q1", "a1", "q2", "a2").messages]
    turns[1][key], turns[3][key] = weights
    assert trained(_chatml(train_on=train_on, chat_template=template), Sample(0, messages=turns)) == expected


def test_a_chat_without_an_answer_has_no_targets():
    """Without it a chat of questions would fail, or be learned whole."""
    encoded = _chatml().encode(chat("q"))
    assert (len(encoded) > 0, encoded.loss_mask.any()) == (True, np.False_)


def _masks_of_transformers(tokenizer, template, sample):
    return tokenizer.apply_chat_template(
        sample.messages, chat_template=template, return_dict=True, return_assistant_tokens_mask=True
    )["assistant_masks"]


def test_marks_of_the_template_give_the_masks_of_transformers(data_dir, small_tokenizer):
    """Without it a template that says itself what to learn would be read otherwise than transformers reads it."""
    encoder = ChatEncoder(small_tokenizer, chat_template=MARKED)
    samples = [*_real(data_dir, "gsm8k_test.jsonl", 50), *_real(data_dir, "smile_zh_multiturn_3k.jsonl.gz", 50)]
    for sample in samples:
        expected = _masks_of_transformers(small_tokenizer.hf, MARKED, sample)
        assert sum(expected) > 0
        assert encoder.encode(sample).loss_mask.astype(int).tolist() == expected


def test_a_token_across_the_end_of_a_marked_answer_is_trained_on(small_tokenizer):
    """Without it the last word of an answer is not learned where its token also holds what follows (".\\n")."""
    template = "{% for m in messages %}{{ m.role }}: {% if m.role == 'assistant' %}{% generation %}{{ m.content }}{% endgeneration %}{% else %}{{ m.content }}{% endif %}{{ '\n' }}{% endfor %}"
    sample = chat("2 + 2?", "It is 4.")
    encoded = ChatEncoder(small_tokenizer, chat_template=template).encode(sample)
    assert encoded.loss_mask.astype(int).tolist() == _masks_of_transformers(small_tokenizer.hf, template, sample)


def test_a_token_across_the_end_of_a_found_answer_is_trained_on(small_tokenizer):
    """Without it the full stop of every answer is never learned in templates without an end token."""
    encoder = ChatEncoder(small_tokenizer, chat_template=STYLES["no special tokens"].template)
    (answer,) = trained(encoder, chat("2 + 2?", "It is 4."))
    assert answer.rstrip("\n").endswith("It is 4.")


def test_a_template_from_a_file(tmp_path):
    """Without it chat_template=FILE would take the path for the template."""
    path = tmp_path / "t.jinja"
    path.write_text(CHATML.template, encoding="utf-8")
    assert _chatml(chat_template=str(path)).fingerprint == _chatml().fingerprint
    with pytest.raises(SettingsError) as caught:
        _ = _chatml(chat_template="no.jinja").chat_template
    assert str(caught.value) == 'chat_template="no.jinja": no such file, and it is not a template'


@pytest.mark.parametrize(("tokenizer", "template"), [(tokenizer_of(CHATML), "no.jinja"), (tiny_tokenizer(), None)])
def test_a_wrong_setting_is_no_fault_of_a_sample(tokenizer, template):
    """Without it on_bad_sample=skip would skip every row because the template file is missing."""
    with pytest.raises(SettingsError):
        ChatEncoder(tokenizer, chat_template=template).encode_batch([chat("q", "a")])


def test_no_template_at_all_says_what_to_do():
    """Without it a base model's tokenizer would fail inside transformers."""
    with pytest.raises(SettingsError, match=r"has no chat template: .* or train .* CompletionEncoder"):
        _ = ChatEncoder(tiny_tokenizer()).chat_template


def test_template_kwargs_reach_the_template():
    """Without it enable_thinking and the like would be silently ignored."""
    template = "{{ flag }}" + CHATML.template
    assert (
        _chatml(chat_template=template, template_kwargs={"flag": "yes "})
        .render(chat("q"))
        .startswith("yes <|im_start|>")
    )


def test_a_chat_that_the_template_refuses_is_that_samples_fault():
    """Without it one conversation would end the job with a Jinja traceback."""
    template = "{% if messages[0].role != 'user' %}{{ raise_exception('must begin with the user') }}{% endif %}{{ messages[0].content }}"
    good, bad = chat("q"), Sample(7, messages=[{"role": "system", "content": "s"}])
    lengths, errors = _chatml(chat_template=template).lengths([good, bad, good])
    assert lengths.tolist() == [1, -1, 1]
    assert [str(error) for error in errors] == ["sample 7: the chat template refuses it: must begin with the user"]
    results = _chatml(chat_template=template, train_on="all").encode_batch([good, bad, good])
    assert [isinstance(result, BadSampleError) for result in results] == [False, True, False]


def test_a_text_is_no_chat():
    """Without it a document among chats would be an empty conversation, or the two could not be trained together."""
    encoder = _chatml()
    encoded, (chat_alone,) = (
        encoder.encode_batch([chat("q", "a"), Sample(3, text="ab")]),
        encoder.encode_batch([chat("q", "a")]),
    )
    assert encoder.decode(encoded[1].input_ids) == "ab"
    assert encoded[1].loss_mask.all()
    assert encoded[0].input_ids.tolist() == chat_alone.input_ids.tolist()
    lengths, errors = encoder.lengths([Sample(0, text="ab"), chat("q", "a"), Sample(2, input_ids=[7])])
    assert (lengths.tolist(), errors) == ([2, len(chat_alone), 1], [])


def test_half_a_surrogate_pair_is_that_samples_fault():
    """Without it one cut emoji (as web data holds them) ends the whole job with a TypeError of the tokenizer."""
    good, bad = chat("q", "a"), Sample(5, messages=[{"role": "user", "content": "cut \ud83d"}])
    encoder = _chatml()
    lengths, errors = encoder.lengths([good, bad])
    assert lengths.tolist() == [len(encoder.encode(good)), -1]
    assert [error.sample_id for error in errors] == [5]
    assert isinstance(encoder.encode_batch([bad])[0], BadSampleError)


def test_lengths_are_those_of_the_encoded_samples():
    """Without it packs would overflow or be left with gaps."""
    samples = [chat(*["é 三 <|im_end|>" * n] * m) for n, m in itertools.product(range(3), range(1, 4))]
    encoder = _chatml()
    lengths, errors = encoder.lengths(samples)
    assert (lengths.dtype, errors) == (np.int32, [])
    assert lengths.tolist() == [len(encoder.encode(sample)) for sample in samples]
    assert encoder.encode_batch([]) == []
    assert encoder.lengths([])[0].tolist() == []


def test_what_changes_a_length_changes_the_length_fingerprint():
    """Without it lengths measured with other settings would be served from the cache."""
    with_a_token = tokenizer_of(CHATML)
    with_a_token.add_tokens(["hello"])
    other_marks = tokenizer_of(CHATML)
    other_marks.eos_token = "<|im_end|>"
    encoders = [
        _chatml(),
        _chatml(chat_template=CHATML.template + "{# changed #}"),
        _chatml(template_kwargs={"enable_thinking": False}),
        ChatEncoder(with_a_token, chat_template=CHATML.template),
        ChatEncoder(other_marks, chat_template=CHATML.template),
    ]
    assert len({encoder.length_fingerprint for encoder in encoders}) == 5
    assert len({encoder.fingerprint for encoder in encoders}) == 5
    assert _chatml().length_fingerprint == encoders[0].length_fingerprint


def test_what_changes_labels_changes_only_the_whole_fingerprint():
    """Without it another train_on would measure all lengths again, or serve tokens with old labels."""
    assistant, last = _chatml(), _chatml(train_on="last")
    assert assistant.length_fingerprint == last.length_fingerprint
    assert assistant.fingerprint != last.fingerprint


def test_a_copied_tokenizer_is_the_same(tmp_path):
    """Without it moving a model directory would throw all lengths away."""
    tokenizer = tokenizer_of(CHATML)
    tokenizer.chat_template = CHATML.template
    for name in "ab":
        tokenizer.save_pretrained(tmp_path / name / "deep" / name)
    a, b = (ChatEncoder(tmp_path / name / "deep" / name) for name in "ab")
    assert a.fingerprint == b.fingerprint == ChatEncoder(tokenizer).fingerprint
    assert (
        a.encode(chat("q", "a")).input_ids.tolist() == ChatEncoder(tokenizer).encode(chat("q", "a")).input_ids.tolist()
    )


def test_what_a_tokenizer_was_used_for_before_does_not_matter():
    """Without it a tokenizer that once cut a prompt would have another fingerprint, and lengths be measured again."""
    used = tokenizer_of(CHATML)
    used(["a", "abc def"], truncation=True, max_length=3)
    fresh, after = _chatml(), ChatEncoder(used, chat_template=CHATML.template)
    sample = chat("a long question", "a long answer")
    assert after.fingerprint == fresh.fingerprint
    assert after.encode(sample).input_ids.tolist() == fresh.encode(sample).input_ids.tolist()
    assert after.lengths([sample])[0].tolist() == fresh.lengths([sample])[0].tolist()


def test_an_encoder_pickles(tmp_path):
    """Without it worker processes could not encode, or would encode otherwise."""
    tokenizer = tokenizer_of(CHATML)
    tokenizer.save_pretrained(tmp_path)
    for given in (tokenizer, tmp_path):
        encoder = ChatEncoder(given, chat_template=CHATML.template, train_on="last", template_kwargs={"x": 1})
        again = pickle.loads(pickle.dumps(encoder))
        assert again.fingerprint == encoder.fingerprint
        assert trained(again, chat("q", "a1", "q", "a2")) == ["a2<|im_end|>"]


def test_an_unknown_choice_names_the_known_ones():
    """Without it a typing error would train on other text."""
    with pytest.raises(SettingsError) as caught:
        _chatml(train_on="answers")
    assert str(caught.value) == "train_on 'answers' is unknown: use one of assistant, last, all"


def test_no_tokenizer_there(tmp_path):
    """Without it a wrong path would be looked up on the hub, or end in a traceback of transformers."""
    with pytest.raises(TokenizerNotFoundError) as caught:
        _ = ChatEncoder(tmp_path / "no").chat_template
    assert str(caught.value) == f'tokenizer="{tmp_path / "no"}": no such directory'
    with pytest.raises(TokenizerNotFoundError, match="no tokenizer can be loaded from it"):
        _ = ChatEncoder(tmp_path).chat_template
    with pytest.raises(SettingsError, match="no tokenizer: name a directory or a hub id with tokenizer"):
        ChatEncoder("")
