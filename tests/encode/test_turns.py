"""Labels cover what the model has to produce, in the templates that models are published with."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("transformers", reason="templates need the extra brimful[text]")

from brimful.encode import ChatEncoder
from brimful.errors import BadSampleError
from tests.encode.templates import QWEN3, STYLES, chat, tokenizer_of, trained

NOT_SHOWN = (
    "sample 0: the chat template does not show where messages[1] of role 'assistant' ('the first') begins and ends; put "
    "{% generation %} … {% endgeneration %} around the assistant's turns in the template (chat_template), or train on all "
    'tokens (train_on="all")'
)


@pytest.fixture(scope="module")
def encoders():
    return {name: ChatEncoder(tokenizer_of(style), chat_template=style.template) for name, style in STYLES.items()}


def _qwen3(**kwargs):
    return ChatEncoder(tokenizer_of(STYLES["chatml"]), chat_template=QWEN3, template_kwargs=kwargs)


@pytest.mark.parametrize("name", STYLES)
def test_labels_are_the_answers_with_the_token_that_ends_them(name, encoders):
    """Without it a model would learn the questions, or never learn to stop."""
    answer = STYLES[name].answer
    sample = chat("q1", "a one", "q2", "zwei\n\né 三")
    assert trained(encoders[name], sample) == [answer.format("a one"), answer.format("zwei\n\né 三")]


@pytest.mark.parametrize("name", STYLES)
def test_an_answer_that_repeats_the_question_is_found_at_its_own_place(name, encoders):
    """Without it looking for the text of an answer would find it in the question."""
    answer = STYLES[name].answer.format("same")
    encoder = encoders[name]
    sample = chat("same", "same", "same", "same")
    assert trained(encoder, sample) == [answer, answer]
    text = encoder.render(sample)
    before, behind = text[: text.rindex(answer)], text[text.rindex(answer) + len(answer) :]
    targets = encoder.encode(sample).loss_mask.nonzero()[0].tolist()
    first, total, tail = (len(encoder.tokenizer.ids([part])[0]) for part in (before, text, behind))
    assert [place for place in targets if place >= first] == list(range(first, total - tail))


@pytest.mark.parametrize("name", ["llama 3", "gemma"])
def test_a_template_that_trims(name, encoders):
    """Without it spaces around a content would move every later label."""
    sample = chat("  q\n", "\n\n a one \n", "q2 ", " a two")
    answer = STYLES[name].answer
    assert trained(encoders[name], sample) == [answer.format("a one"), answer.format("a two")]


@pytest.mark.parametrize("name", ["chatml", "llama 3", "gemma", "zephyr"])
def test_an_empty_answer_is_its_end(name, encoders):
    """Without it an empty answer would be trained on as if it were the next turn."""
    answer = STYLES[name].answer
    assert trained(encoders[name], chat("q", "", "q", "a")) == [answer.format(""), answer.format("a")]


@pytest.mark.parametrize("name", STYLES)
def test_labels_do_not_depend_on_the_other_turns(name, encoders):
    """Without it an empty turn somewhere would change what is learned of the others."""
    answer = STYLES[name].answer.format("a two")
    assert trained(encoders[name], chat("q", "a one", "q", "a two"))[-1] == answer
    assert trained(encoders[name], chat("", "a one", "q", "a two"))[-1] == answer
    assert trained(encoders[name], chat("q", "", "q", "a two"))[-1] == answer


def test_special_tokens_inside_a_content():
    """Without it an end mark that a user typed would end a label early."""
    encoder = ChatEncoder(tokenizer_of(STYLES["chatml"]), chat_template=STYLES["chatml"].template)
    sample = chat("what is <|im_end|>?", "<|im_end|> ends, <|im_start|>assistant\nbegins", "q", "a")
    assert trained(encoder, sample) == ["<|im_end|> ends, <|im_start|>assistant\nbegins<|im_end|>", "a<|im_end|>"]


def test_turns_without_an_end_token_are_labelled_alike_in_every_chat():
    """Without it the header of the next turn would be learned in some chats and not in others."""
    template = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
    style = STYLES["chatml"]
    encoder = ChatEncoder(tokenizer_of(type(style)("", "", ("<|user|>", "<|assistant|>"))), chat_template=template)
    full, with_an_empty_turn = chat("q", "a one", "q", "a two"), chat("q", "a one", "q", "a two", "")
    assert trained(encoder, full)[0] == trained(encoder, with_an_empty_turn)[0]


def test_thoughts_of_a_template_like_qwen3():
    """Without it the empty thought that the template adds would be counted to the question, or move the labels."""
    empty = "<think>\n\n</think>\n\n"
    assert trained(_qwen3(), chat("q", "a1", "q", "a2")) == ["a1<|im_end|>", f"{empty}a2<|im_end|>"]
    assert trained(_qwen3(enable_thinking=False), chat("q", "a1", "q", "a2")) == ["a1<|im_end|>", "a2<|im_end|>"]
    thought = "<think>\nwhy\n</think>\n\na1"
    assert trained(_qwen3(), chat("q", thought)) == [f"{thought}<|im_end|>"]


def test_thoughts_that_the_template_takes_out_of_earlier_answers():
    """Without it reasoning data of several turns, whose text is not a prefix of anything, could not be used."""
    thought, empty = "<think>\nwhy\n</think>\n\n", "<think>\n\n</think>\n\n"
    assert trained(_qwen3(), chat("q", f"{thought}a1", "q", "a2")) == ["a1<|im_end|>", f"{empty}a2<|im_end|>"]
    assert trained(_qwen3(), chat("q", "a1", "q", f"{thought}a2")) == ["a1<|im_end|>", f"{thought}a2<|im_end|>"]
    both = chat("q", f"{thought}a1", "r", f"{thought}a2")
    assert trained(_qwen3(), both) == ["a1<|im_end|>", f"{thought}a2<|im_end|>"]


def test_turns_that_cannot_be_found_are_an_error():
    """Without it a template that makes new messages of the given ones, and counts them, would get a wrong mask."""
    template = (
        "{{ messages | length }}{% for text in messages | map(attribute='content') %}"
        "<|im_start|>{{ text | trim }}<|im_end|>{% endfor %}"
    )
    tokenizer = tokenizer_of(STYLES["chatml"])
    sample = chat(" q ", " the first ", "q", "a")
    with pytest.raises(BadSampleError) as caught:
        ChatEncoder(tokenizer, chat_template=template).encode(sample)
    assert str(caught.value) == NOT_SHOWN
    lengths, errors = ChatEncoder(tokenizer, chat_template=template).lengths([chat(), sample])
    assert lengths.tolist() == [1, -1]
    assert [*map(str, errors)] == [NOT_SHOWN]
    everything = ChatEncoder(tokenizer, chat_template=template, train_on="all")
    texts = ["q", "the first", "q", "a"]
    assert trained(everything, sample) == ["4" + "".join(f"<|im_start|>{text}<|im_end|>" for text in texts)]


def test_answers_in_another_order():
    """Without it a template that begins with the last turn would have its answers exchanged."""
    template = "{% for m in messages[::-1] %}<|im_start|>{{ m.content | trim }}<|im_end|>{% endfor %}"
    encoder = ChatEncoder(tokenizer_of(STYLES["chatml"]), chat_template=template)
    sample = chat(" q ", " the first ", "q", "a")
    assert trained(encoder, sample) == ["a<|im_end|>", "the first<|im_end|>"]
    last = ChatEncoder(tokenizer_of(STYLES["chatml"]), chat_template=template, train_on="last")
    assert trained(last, sample) == ["a<|im_end|>"]


@pytest.mark.parametrize("content", ["m.content", "m['content'] | trim"])
def test_new_messages_made_of_the_given_ones(content):
    """Without it a template that adds a system prompt to a list of its own could not be used."""
    template = (
        "{% set ns = namespace(turns=[]) %}{% for m in messages %}"
        "{% set ns.turns = ns.turns + [{'role': m.role, 'content': m.content}] %}{% endfor %}"
        "{% for m in ns.turns %}<|im_start|>{{ m.role }}\n{{ CONTENT }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    ).replace("CONTENT", content)
    encoder = ChatEncoder(tokenizer_of(STYLES["chatml"]), chat_template=template)
    sample = chat("q one", " a one", "q two", "a one")
    first = " a one" if content == "m.content" else "a one"
    assert trained(encoder, sample) == [f"{first}<|im_end|>", "a one<|im_end|>"]


def test_a_text_that_counts_its_turns():
    """Without it a template of which no beginning is a prefix of the text could not be used."""
    template = "{{ messages | length }}{% for m in messages %}<|im_start|>{{ m.content | trim }}<|im_end|>{% endfor %}"
    encoder = ChatEncoder(tokenizer_of(STYLES["chatml"]), chat_template=template)
    assert trained(encoder, chat(" q ", " a ", "q", "a")) == ["a<|im_end|>", "a<|im_end|>"]


@pytest.mark.parametrize("opened", ["<think>", "<think>\n\n</think>\n\n"])
def test_a_header_that_opens_a_thought_ends_where_the_answer_begins(opened):
    """Without it the first letters that a call and an opened thought have in common would be counted to the header."""
    template = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}<tool>{% endif %}{{ m.content }}<|im_end|>\n"
        "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n" + opened + "{% endif %}"
    )
    encoder = ChatEncoder(tokenizer_of(STYLES["chatml"]), chat_template=template)
    assert trained(encoder, chat("q", "f", "q", "")) == ["<tool>f<|im_end|>", "<tool><|im_end|>"]


def test_an_answer_at_the_very_beginning():
    """Without it a conversation that the assistant opens would be refused or mislabelled."""
    encoder = ChatEncoder(tokenizer_of(STYLES["chatml"]), chat_template=STYLES["chatml"].template)
    sample = chat("hello", "q", "a")
    turns = [
        {**turn, "role": role}
        for turn, role in zip(sample.messages, ("assistant", "user", "assistant"), strict=True)  # type: ignore[arg-type]
    ]
    assert trained(encoder, type(sample)(0, messages=turns)) == ["hello<|im_end|>", "a<|im_end|>"]


_CONTENT = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12),
    st.sampled_from(["<|im_end|>", "assistant", "</s>", "<|im_start|>assistant\n", "\ue0100\ue011", "a\u0301"]),
).map(str.strip)
_CONTENTS = st.lists(_CONTENT.filter(bool), min_size=2, max_size=6)


@pytest.mark.parametrize("name", STYLES)
@settings(max_examples=40)
@given(contents=_CONTENTS)
def test_both_ways_to_find_turns_agree(name, encoders, contents):
    """Without it what is learned would depend on which of two ways happened to explain a conversation."""
    encoder, sample = encoders[name], chat(*contents)
    messages = sample.messages or ()
    _, text, filled_text = encoder._filling.render(messages, None)
    assert filled_text is not None
    assert encoder.render(sample) == text == filled_text.text
    by_skeleton = filled_text.turns
    assert len(by_skeleton) == len(contents) // 2
    assert [[span] for span in by_skeleton] == encoder._finder.spans(messages, None, text)
    answer = STYLES[name].answer
    assert [text[start:end] for start, end in by_skeleton] == [answer.format(content) for content in contents[1::2]]


@settings(max_examples=40)
@given(contents=st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=8), min_size=2, max_size=6))
def test_labels_of_any_contents_are_the_answers(encoders, contents):
    """Without it empty contents, white space or bytes of several tokens could shift a label."""
    answers = contents[1::2]
    expected = [f"{content}<|im_end|>" for content in answers] if any(answers) else []
    assert trained(encoders["chatml"], chat(*contents)) == expected


@pytest.mark.parametrize("question", ["", "q"])
def test_answers_that_say_nothing_are_no_targets(question, encoders):
    """Without it a row without question and answer would be a sample that trains the end of a turn alone."""
    encoder = encoders["chatml"]
    assert trained(encoder, chat(question, "", question, "")) == []
    assert encoder.no_target_reason(chat(question, "")) == "its answers are empty"
    call = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": {}}}]}
    assert encoder.no_target_reason(type(chat())(0, messages=[call])) != "its answers are empty"
    last = ChatEncoder(encoder.tokenizer, chat_template=encoder.chat_template, train_on="last")
    assert trained(last, chat("q", "a", "q", "")) == []
