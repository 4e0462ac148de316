"""Traces of agents under the templates that models are published with: no shape of them is refused."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers", reason="templates need the extra brimful[text]")

from brimful.encode import ChatEncoder, EncodedSample
from brimful.sources import Sample, Source
from brimful.sources.memory import MemoryRows
from tests.encode.templates import tiny_tokenizer, trained

START, END = "<|im_start|>assistant\n", "<|im_end|>"
TOOLS = [{"type": "function", "function": {"name": "find", "description": "Finds.", "parameters": {"type": "object"}}}]


def _call(number: int) -> dict[str, Any]:
    function = {"name": "find", "arguments": {"city": "Łódź", "n": number}}
    return {"id": f"call_{number}", "type": "function", "function": function}


TRACE: list[dict[str, Any]] = [
    {"role": "system", "content": "Be an agent."},
    {"role": "user", "content": "Where?"},
    {"role": "assistant", "content": "", "tool_calls": [_call(1)]},
    {"role": "tool", "tool_call_id": "call_1", "content": '{"place": "here"}'},
    {"role": "assistant", "content": "Here."},
    {"role": "user", "content": "And there?"},
    {"role": "assistant", "content": "", "tool_calls": [_call(2), _call(3)]},
    {"role": "tool", "tool_call_id": "call_2", "content": "no"},
    {"role": "tool", "tool_call_id": "call_3", "content": "yes"},
    {"role": "assistant", "content": "There."},
    {"role": "user", "content": "Thanks."},
    {"role": "assistant", "content": "Bye."},
]


def _with_calls(change: Any) -> Any:
    def apply(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        for message in messages:
            if message.get("tool_calls"):
                change(message)
        return messages

    return apply


def _arguments(write: Any) -> Any:
    def change(message: dict[str, Any]) -> None:
        for call in message["tool_calls"]:
            call["function"]["arguments"] = write(call["function"]["arguments"])

    return _with_calls(change)


def _contents(role: str, content: str) -> Any:
    return lambda messages: [
        {**message, "content": content} if message["role"] == role and not message.get("tool_calls") else message
        for message in messages
    ]


CHANGES: dict[str, Any] = {
    "strings": _arguments(json.dumps),
    "empty arguments": _arguments(lambda _: {}),
    "blank arguments": _arguments(lambda _: ""),
    "null": _with_calls(lambda message: message.update(content=None)),
    "no content": _with_calls(lambda message: message.pop("content")),
    "content and calls": _with_calls(lambda message: message.update(content="Let me see. \n")),
    "empty answers of tools": _contents("tool", ""),
    "empty answers": _contents("assistant", ""),
    "equal texts": lambda messages: _contents("user", "Yes")(_contents("assistant", "Yes")(messages)),
    "thoughts": _contents("assistant", "<think>\nHm.\n</think>\n\nWell."),
    "no system": lambda messages: messages[1:],
    "results from users": lambda messages: [
        {"role": "user", "content": f"<tool_response>{m['content']}</tool_response>"} if m["role"] == "tool" else m
        for m in messages
    ],
    "one user": lambda messages: [m for m in messages if m["content"] not in ("And there?", "Thanks.")],
    "ends with a call": lambda messages: messages[:7],
    "ends with a tool": lambda messages: messages[:9],
    "answers in a row": lambda messages: [*messages, messages[-1]],
}
SHAPES = [
    (),
    *[(name,) for name in CHANGES],
    *[("strings", "null", name) for name in CHANGES if name not in ("strings", "null")],
    ("strings", "null", "empty answers of tools", "thoughts", "one user"),
    ("strings", "null", "thoughts", "results from users"),
    ("strings", "null", "empty answers", "results from users"),
    ("strings", "content and calls", "empty answers", "equal texts", "no system"),
]


def _trace(shape: tuple[str, ...]) -> Sample:
    messages = copy.deepcopy(TRACE)
    for name in shape:
        messages = CHANGES[name](messages)
    [sample] = Source(MemoryRows([{"messages": messages, "tools": TOOLS}])).read(0, 1)
    assert isinstance(sample, Sample)
    return sample


def _templates() -> Path:
    """Directory of the templates of TRL."""
    return Path(pytest.importorskip("trl", minversion="1.16").__file__).parent / "chat_templates"


def _turns_of(text: str) -> list[str]:
    """Cut a text whose messages hold no special tokens at its headers: the turns, by nothing of the finder."""
    return [part.partition(END)[0] + END for part in text.split(START)[1:]]


def test_arguments_that_are_a_text():
    """Without it arguments that are no JSON, which stay as they are when a row is read, would be searched call by call."""
    template = (_templates() / "qwen3.jinja").read_text()
    tokenizer = tiny_tokenizer("<|im_start|>", END)
    encoder = ChatEncoder(tokenizer, chat_template=template)
    messages = CHANGES["strings"](copy.deepcopy(TRACE))
    text = tokenizer.apply_chat_template(messages, tools=TOOLS, chat_template=template, tokenize=False)
    assert encoder.render(Sample(0, messages=messages, tools=TOOLS)) == text
    assert trained(encoder, Sample(0, messages=messages, tools=TOOLS)) == _turns_of(text)
    _, _, filled_text = encoder._filling.render(messages, TOOLS)
    assert filled_text is not None
    quoting = template.replace("tool_call.arguments is string", "false")
    text = tokenizer.apply_chat_template(messages, tools=TOOLS, chat_template=quoting, tokenize=False)
    encoder = ChatEncoder(tokenizer, chat_template=quoting)
    assert trained(encoder, Sample(0, messages=messages, tools=TOOLS)) == _turns_of(text)


@pytest.mark.parametrize("name", ["qwen3", "qwen3_instruct_2507", "qwen2_5"])
def test_turns_of_an_agent_are_found_where_the_text_has_them(name):
    """Without it a third of an agent's traces would be refused, and it could not be said for which message."""
    template = (_templates() / f"{name}.jinja").read_text()
    tokenizer = tiny_tokenizer("<|im_start|>", END)
    encoder = ChatEncoder(tokenizer, chat_template=template)
    for shape in SHAPES:
        sample = _trace(shape)
        text = tokenizer.apply_chat_template(
            list(sample.messages or ()), tools=TOOLS, chat_template=template, tokenize=False
        )
        assert encoder.render(sample) == text
        assert trained(encoder, sample) == _turns_of(text), shape


def test_an_answer_that_the_text_leaves_out_has_no_target():
    """Without it an empty answer that a template passes over would be given the targets of its neighbor."""
    template = (
        "{% for m in messages if m.content or m.tool_calls %}<|im_start|>{{ m.role }}\n{{ m.content | trim }}"
        "{% for c in m.tool_calls or [] %}{{ c.function.name }}({{ c.function.arguments }}){% endfor %}<|im_end|>\n"
        "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    encoder = ChatEncoder(tiny_tokenizer("<|im_start|>", END), chat_template=template)
    turns = [("user", " q "), ("assistant", ""), ("user", "r"), ("assistant", "a"), ("user", "s"), ("assistant", "b")]
    messages = [{"role": role, "content": content} for role, content in turns]
    assert trained(encoder, Sample(0, messages=messages)) == ["a<|im_end|>", "b<|im_end|>"]
    messages[3]["weight"] = 0  # type: ignore[assignment]
    assert trained(encoder, Sample(0, messages=messages)) == ["b<|im_end|>"]


def test_results_of_tools_in_the_turn_of_their_call_are_no_targets():
    """Without it a template that writes a call's content after the results would have them learned as an answer."""
    template = (
        "{{ messages | length }}{% for m in messages if m.role != 'tool' %}<|im_start|>{{ m.role }}\n"
        "{% for c in m.tool_calls or [] %}{{ c.function.name }}{{ c.function.arguments | tojson }};{% endfor %}"
        "{% if m.tool_calls %}{% for t in messages if t.role == 'tool' %}<<{{ t.content }}>>{% endfor %}{% endif %}"
        "{{ m.content or '' }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    encoder = ChatEncoder(tiny_tokenizer("<|im_start|>", END), chat_template=template)
    trace = [*copy.deepcopy(TRACE[:4]), {"role": "user", "content": "And?"}, {"role": "assistant", "content": "So."}]
    call = 'find{"city": "Łódź", "n": 1};'
    assert trained(encoder, Sample(0, messages=trace)) == [call, END, "So.<|im_end|>"]
    trace[2]["content"] = "Look."
    assert trained(encoder, Sample(0, messages=trace)) == [call, "Look.<|im_end|>", "So.<|im_end|>"]
    trace[2]["weight"] = 0
    assert trained(encoder, Sample(0, messages=trace)) == ["So.<|im_end|>"]


def test_answers_that_share_a_header():
    """Without it the end of a turn would be taken for the end of its first answer, and the second one would be refused."""
    template = (
        "{% for m in messages %}{% if loop.first or messages[loop.index0 - 1].role != m.role %}<|im_start|>{{ m.role }}\n"
        "{% endif %}{{ m.content | trim }}{% if loop.last or messages[loop.index0 + 1].role != m.role %}<|im_end|>\n"
        "{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    encoder = ChatEncoder(tiny_tokenizer("<|im_start|>", END), chat_template=template)
    turns = [("user", "q "), ("assistant", "one"), ("assistant", "two"), ("user", "r"), ("assistant", " a")]
    messages = [{"role": role, "content": content} for role, content in turns]
    assert trained(encoder, Sample(0, messages=messages)) == ["onetwo<|im_end|>", "a<|im_end|>"]


@pytest.mark.long
def test_no_template_of_trl_hides_where_its_turns_are():
    """Without it a shape of trace would be refused under one model's template alone."""
    num_rendered = 0
    for path in sorted(_templates().glob("*.jinja")):
        template = path.read_text()
        marks = sorted(
            {*re.findall(r"<\|[^<>|\n'\"{}]{1,30}\|>|<(?:start|end)_of_\w+>|<turn\|>|<｜[^<>]*?｜>", template)}
        )
        tokenizer = tiny_tokenizer(*marks, "<s>", "</s>", bos_token="<s>", eos_token="</s>")
        encoder = ChatEncoder(tokenizer, chat_template=template, date="2026-01-31")
        for shape in SHAPES:
            [result] = encoder.encode_batch([_trace(shape)])
            num_rendered += isinstance(result, EncodedSample)
            assert "does not show" not in str(result), (path.name, shape)
    assert num_rendered > 1_000
