"""A conversation of which the template leaves something out is refused by name."""

from __future__ import annotations

import datetime
import pickle

import pytest

pytest.importorskip("transformers", reason="templates need the extra brimful[text]")

from brimful.encode import ChatEncoder
from brimful.errors import BadSampleError, SettingsError
from brimful.sources import Sample
from tests.encode.templates import STYLES, chat, tiny_tokenizer, tokenizer_of

CHATML = STYLES["chatml"]
KNOWN_ROLES = (
    "{% for m in messages %}{% if m.role in ('user', 'assistant', 'system') %}<|im_start|>{{ m.role }}\n"
    "{{ m.content }}<|im_end|>\n{% endif %}{% endfor %}"
)


def encoder(template: str = KNOWN_ROLES, **options: object) -> ChatEncoder:
    return ChatEncoder(tokenizer_of(CHATML), chat_template=template, **options)  # type: ignore[arg-type]


def turns(*pairs: tuple[str, str], **more: object) -> Sample:
    return Sample(4, messages=[{"role": role, "content": content} for role, content in pairs], **more)  # type: ignore[arg-type]


def why(sample: Sample, template: str = KNOWN_ROLES, **options: object) -> str:
    """Why it is refused: by its length and by its tokens alike."""
    made = encoder(template, **options)
    (result,) = made.encode_batch([sample])
    (error,) = made.lengths([sample])[1]
    assert isinstance(result, BadSampleError)
    assert str(result) == str(error)
    return str(error)


def test_a_role_that_the_template_does_not_know_is_refused() -> None:
    """Without it the answers of ``bot`` are neither seen nor trained, and nothing says so."""
    assert why(turns(("user", "q"), ("bot", "an answer"))) == (
        "sample 4: the chat template leaves out messages[1] of role 'bot': its text ('an answer') is missing from the "
        "text (rename the role, or use a template that knows it)"
    )


def test_a_text_that_stands_elsewhere_too_is_missed_all_the_same() -> None:
    """Without it a message passes because another says the same, or a letter of it stands in a header."""
    assert "messages[1] of role 'bot'" in why(turns(("user", "same"), ("bot", "same"), ("assistant", "same")))
    assert "messages[1] of role 'bot'" in why(turns(("user", "q"), ("bot", "a")))


def test_an_answer_that_is_left_out_for_its_question_is_not_found_in_it() -> None:
    """Without it a short answer passes wherever its letters stand before it."""
    template = KNOWN_ROLES.replace(
        "{% if m.role", "{% if (m.role == 'user' or 'hush' not in messages[0].content) and m.role"
    )
    assert encoder(template).lengths([turns(("user", "say yes"), ("assistant", "yes"))])[1] == []
    assert "leaves out messages[1] of role 'assistant'" in why(
        turns(("user", "hush, say yes"), ("assistant", "yes")), template
    )


def test_a_message_that_is_left_out_for_what_it_says_is_refused() -> None:
    """Without it a template that passes over some texts takes them out in silence."""
    template = KNOWN_ROLES.replace("{{ m.content }}", "{% if 'secret' not in m.content %}{{ m.content }}{% endif %}")
    good = turns(("user", "q"), ("assistant", "a"))
    assert encoder(template).lengths([good])[1] == []
    # Asked with a mark in its place the template writes it: a text that is changed on purpose is not refused.
    assert encoder(template).lengths([turns(("user", "my secret"), ("assistant", "a"))])[1] == []
    never = KNOWN_ROLES.replace("{{ m.content }}", "{% if loop.index0 != 1 %}{{ m.content }}{% endif %}")
    assert "messages[1] of role 'assistant'" in why(good, never)


def test_messages_behind_one_that_ends_the_conversation_are_refused() -> None:
    """Without it what follows such a message is gone, though the template writes conversations of that shape."""
    template = (
        "{% set ns = namespace(over=false) %}{% for m in messages %}{% if not ns.over %}<|im_start|>{{ m.role }}\n"
        "{{ m.content }}<|im_end|>\n{% endif %}{% if m.content == 'stop' %}{% set ns.over = true %}{% endif %}{% endfor %}"
    )
    assert encoder(template).lengths([turns(("user", "go"), ("assistant", "on"))])[1] == []
    assert "messages[1] of role 'assistant': its text ('on')" in why(
        turns(("user", "stop"), ("assistant", "on")), template
    )


@pytest.mark.parametrize("style", sorted(STYLES))
def test_whole_conversations_pass_in_every_style(style: str) -> None:
    """Without it right data would be refused: white space that is cut off, contents that repeat, empty answers."""
    made = ChatEncoder(tokenizer_of(STYLES[style]), chat_template=STYLES[style].template)
    for sample in (chat(" q ", "a\n"), chat("same", "same", "same", "same"), chat("q", "")):
        assert made.lengths([sample])[1] == []


def test_thoughts_that_a_template_takes_out_of_earlier_answers_pass() -> None:
    """Without it the templates of reasoning models would refuse every conversation of several turns."""
    template = KNOWN_ROLES.replace(
        "{{ m.content }}", "{{ m.content if loop.last else m.content.split('</think>')[-1] }}"
    )
    sample = turns(
        ("user", "q"), ("assistant", "<think>hm</think>a"), ("user", "r"), ("assistant", "<think>so</think>b")
    )
    assert encoder(template).lengths([sample])[1] == []


def test_calls_of_tools_and_tools_themselves_are_looked_for() -> None:
    """Without it a template without tools teaches empty answers."""
    call = {"type": "function", "function": {"name": "add", "arguments": {"x": 1}}}
    messages = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "", "tool_calls": [call]}]
    assert "messages[1] of role 'assistant': its tool calls are missing" in why(Sample(4, messages=messages))  # type: ignore[arg-type]
    tool = {"type": "function", "function": {"name": "add", "parameters": {}}}
    assert "the tool 'add' is missing from what the chat template writes" in why(turns(("user", "q"), tools=[tool]))


THOUGHTS = Sample(
    4, messages=[{"role": "user", "content": "q"}, {"role": "assistant", "content": "a", "reasoning_content": "hm"}]
)


def test_thoughts_that_the_template_does_not_know() -> None:
    """Without it reasoning data is trained without its reasoning, and nothing says so."""
    assert "an answer has reasoning (reasoning_content), which the chat template does not write" in why(THOUGHTS)
    assert encoder(reasoning="inline").render(THOUGHTS).endswith("assistant\n<think>\nhm\n</think>\n\na<|im_end|>\n")
    assert encoder(reasoning="drop").render(THOUGHTS).endswith("assistant\na<|im_end|>\n")
    knows = KNOWN_ROLES.replace("{{ m.content }}", "{{ m.reasoning_content }}{{ m.content }}")
    assert encoder(knows).render(THOUGHTS).endswith("hma<|im_end|>\n")
    fingerprints = {encoder(reasoning=choice).length_fingerprint for choice in ("error", "inline", "drop")}
    assert len(fingerprints) == 3


def test_a_system_prompt_for_chats_that_have_none() -> None:
    """Without it the prompt that the model is served with would have to be written into every row."""
    made = encoder(system="Be brief.")
    assert made.render(turns(("user", "q"))).startswith("<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user")
    own = turns(("system", "Be long."), ("user", "q"))
    assert "Be brief." not in made.render(own)
    assert made.length_fingerprint != encoder().length_fingerprint
    encoded = made.encode(turns(("user", "q"), ("assistant", "a")))
    assert encoded.loss_mask.sum() == encoder().encode(turns(("user", "q"), ("assistant", "a"))).loss_mask.sum()


DATED = "{{ strftime_now('%d %b %Y') }}\n" + KNOWN_ROLES


def test_the_day_that_a_template_writes_is_a_setting() -> None:
    """Without it the same command gives other tokens tomorrow, under the same fingerprint, and then a dead end."""
    sample = turns(("user", "q"))
    with pytest.raises(
        SettingsError, match="writes today's date, so that tomorrow's tokens would differ: name the day"
    ):
        encoder(DATED).lengths([sample])
    for date in ("2026-01-31", datetime.date(2026, 1, 31), datetime.datetime(2026, 1, 31, 12, 5)):
        made = encoder(DATED, date=date)
        assert made.render(sample).startswith("31 Jan 2026\n")
        assert pickle.loads(pickle.dumps(made)).render(sample) == made.render(sample)
        assert made.length_fingerprint == encoder(DATED, date="2026-01-31").length_fingerprint
    assert made.length_fingerprint != encoder(DATED, date="2026-02-01").length_fingerprint
    assert encoder(date="2026-01-31").length_fingerprint == encoder().length_fingerprint  # no template that asks
    with pytest.raises(SettingsError, match=r'date="31\.1\.2026" is not a day: write it as 2026-01-31'):
        encoder(DATED, date="31.1.2026")
    with pytest.raises(SettingsError, match="writes today's date in a form that is not a literal"):
        encoder("{{ strftime_now(form) }}", date="2026-01-31").lengths([sample])


def test_a_template_that_writes_a_date_only_if_none_is_given_needs_none() -> None:
    """Without it Llama's templates would ask for a day although ``date_string`` says it."""
    template = (
        "{% if not date_string is defined %}{{ strftime_now('%d') }}{% else %}{{ date_string }}{% endif %}"
        + KNOWN_ROLES
    )
    assert encoder(template, template_kwargs={"date_string": "a day"}).render(turns(("user", "q"))).startswith("a day")


@pytest.mark.parametrize(
    ("messages", "train_on", "reason"),
    [
        ([("user", "q", 1)], "assistant", "it has no turn of the assistant"),
        ([("user", "q", 1), ("assistant", "a", 0)], "assistant", "its answers have weight 0"),
        ([("assistant", "b", 1), ("user", "q", 1), ("assistant", "a", 0)], "last", "its answers have weight 0"),
        ([("assistant", "b", 0), ("assistant", "b", 1), ("assistant", "a", 0)], "last", "its answers have weight 0"),
    ],
)
def test_why_a_chat_has_no_target(messages: list[tuple[str, str, int]], train_on: str, reason: str) -> None:
    """Without it the summary counts samples that teach nothing and cannot say why."""
    sample = Sample(0, messages=[{"role": r, "content": c, "weight": w} for r, c, w in messages])
    made = encoder(train_on=train_on)
    assert not made.encode(sample).loss_mask.any()
    assert made.no_target_reason(sample) == reason


def test_unknown_roles_of_a_chat_without_an_answer_are_named() -> None:
    """Without it a chat of ``human`` and ``bot`` would be told that it has no answer, and not why."""
    sample = turns(("human", "q"), ("bot", "a"))
    assert encoder().no_target_reason(sample) == "it has no turn of the assistant (its roles: human, bot)"


def test_weights_that_cannot_be_placed_are_an_error() -> None:
    """Without it answers of weight 0 are trained where a template marks another number of turns."""
    marked = (
        "{% for m in messages %}{% if loop.last %}{% generation %}{{ m.content }}{% endgeneration %}"
        "{% else %}{{ m.content }}|{% endif %}{% endfor %}"
    )
    sample = Sample(0, messages=[{"role": "assistant", "content": c, "weight": w} for c, w in (("a", 0), ("b", 1))])
    (result,) = encoder(marked).encode_batch([sample])
    assert isinstance(result, BadSampleError)
    assert "marks 1 turns for 2 answers" in result.reason


@pytest.mark.long
def test_real_conversations_pass(data_dir, qwen) -> None:
    """Without it the check could refuse what it was made for: tool calls, results, answers of several turns."""
    from brimful.sources import open_source

    made = ChatEncoder(qwen)
    for name in ("sgd_train_dialogues.jsonl.gz", "llama_factory_demo/glaive_toolcall_en_demo.json"):
        samples = [item for item in open_source(data_dir / "text" / name).read(0, 150) if isinstance(item, Sample)]
        assert (len(samples), made.lengths(samples)[1]) == (150, [])


def test_a_tokenizer_without_end_still_takes_texts() -> None:
    """Without it a text among chats ends the job where the tokenizer knows no end of a document."""
    assert len(ChatEncoder(tiny_tokenizer("<s>"), chat_template=KNOWN_ROLES).encode(Sample(0, text="ab"))) == 2
