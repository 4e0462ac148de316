"""Every row format: the rows it takes and the chats it makes of them, whole; and the rows it refuses."""

from __future__ import annotations

from itertools import combinations

import pytest

from brimful.base.wording import in_python
from brimful.errors import BadSampleError, UnknownFormatError
from brimful.sources import Sample, open_source
from brimful.sources.formats import FORMATS, detect, row_format


def _user(content):
    return {"role": "user", "content": content}


def _assistant(content, **more):
    return {"role": "assistant", "content": content, **more}


def _system(content):
    return {"role": "system", "content": content}


TOOL = {"type": "function", "function": {"name": "add", "parameters": {}}}
CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": {"x": 1}}}
TEXT_CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"x": 1}'}}

ROWS = {
    "messages": ("messages", {"messages": [_user("q"), _assistant("a")]}, [_user("q"), _assistant("a")], None),
    "messages with tools": (
        "messages",
        {
            "messages": [
                _user("q"),
                {"role": "assistant", "tool_calls": [CALL]},
                {"role": "tool", "tool_call_id": "c1", "content": "2"},
                _assistant("a", tool_calls=[]),
            ],
            "tools": [TOOL],
        },
        [
            _user("q"),
            {"role": "assistant", "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "c1", "content": "2"},
            _assistant("a"),
        ],
        [TOOL],
    ),
    "arguments and tools as JSON text": (
        "messages",
        {"messages": [_user("q"), _assistant("", tool_calls=[TEXT_CALL])], "tools": '[{"type": "function"}]'},
        [_user("q"), _assistant("", tool_calls=[CALL])],
        [{"type": "function"}],
    ),
    "a call without the function around it": (
        "messages",
        {"messages": [_user("q"), _assistant("", tool_calls=[{"name": "add", "arguments": '{"x": 1}'}])]},
        [_user("q"), _assistant("", tool_calls=[{"name": "add", "arguments": {"x": 1}}])],
        None,
    ),
    "arguments that are no JSON object stay": (
        "messages",
        {
            "messages": [
                _assistant("", tool_calls=[{"function": {"name": "add", "arguments": text}}]) for text in ("{x", "1")
            ]
        },
        [_assistant("", tool_calls=[{"function": {"name": "add", "arguments": text}}]) for text in ("{x", "1")],
        None,
    ),
    "content in parts": (
        "messages",
        {"messages": [_user([{"type": "text", "text": "a"}, "b", {"type": "text", "value": "c"}])]},
        [_user("abc")],
        None,
    ),
    "what a turn says beside its content stays": (
        "messages",
        {"messages": [_assistant("a", weight=0, name="bob")]},
        [_assistant("a", weight=0, name="bob")],
        None,
    ),
    "sharegpt": (
        "sharegpt",
        {
            "conversations": [
                {"from": "human", "value": "q"},
                {"from": "function_call", "value": '{"name": "add", "arguments": {"x": 1}}'},
                {"from": "observation", "value": "2"},
                {"from": "gpt", "value": "a"},
            ],
            "system": "s",
            "tools": '[{"name": "add"}]',
        },
        [
            _system("s"),
            _user("q"),
            _assistant("", tool_calls=[{"type": "function", "function": {"name": "add", "arguments": {"x": 1}}}]),
            {"role": "tool", "content": "2"},
            _assistant("a"),
        ],
        [{"name": "add"}],
    ),
    "sharegpt with several calls at once": (
        "sharegpt",
        {"conversations": [{"from": "function_call", "value": '[{"name": "f"}, {"name": "g"}]'}], "system": ""},
        [_assistant("", tool_calls=[{"type": "function", "function": {"name": name}} for name in "fg"])],
        None,
    ),
    "sharegpt by any name": (
        "sharegpt",
        {"conversations": [{"from": who, "value": who} for who in ("system", "user", "bot", "chatgpt", "tool")]},
        [
            _system("system"),
            _user("user"),
            _assistant("bot"),
            _assistant("chatgpt"),
            {"role": "tool", "content": "tool"},
        ],
        None,
    ),
    "alpaca": (
        "alpaca",
        {"instruction": "add", "input": "1 1", "output": "2"},
        [_user("add\n1 1"), _assistant("2")],
        None,
    ),
    "alpaca with everything": (
        "alpaca",
        {"instruction": "q3", "input": "", "output": "a3", "system": "s", "history": [["q1", "a1"], ["q2", "a2"]]},
        [_system("s"), _user("q1"), _assistant("a1"), _user("q2"), _assistant("a2"), _user("q3"), _assistant("a3")],
        None,
    ),
    "prompt and completion": (
        "prompt_completion",
        {"prompt": "q", "completion": "a"},
        [_user("q"), _assistant("a")],
        None,
    ),
    "prompt and completion as turns": (
        "prompt_completion",
        {"prompt": [_system("s"), _user("q")], "completion": [_assistant("a")], "tools": [TOOL]},
        [_system("s"), _user("q"), _assistant("a")],
        [TOOL],
    ),
    "question and answer": (
        "question_answer",
        {"question": "q", "answer": "a", "id": 3},
        [_user("q"), _assistant("a")],
        None,
    ),
}


@pytest.mark.parametrize("name", ROWS)
def test_a_row_becomes_this_chat(name):
    """Without it a model would be trained on other turns than the data holds."""
    format_name, row, messages, tools = ROWS[name]
    source = open_source([row])
    unread = ("id",) if "id" in row else ()
    assert (source.format_name, source[0]) == (format_name, Sample(0, messages=messages, tools=tools, unread=unread))


@pytest.mark.parametrize("row", [{"text": "a", "id": 1}, "a"])
def test_a_row_becomes_this_text(row):
    """Without it documents could be read as chats."""
    source = open_source([row])
    assert (source.format_name, source[0]) == ("text", Sample(0, text="a", unread=() if row == "a" else ("id",)))


def test_every_format_has_a_row_above():
    """Without it a new format could come without a test of what it makes."""
    elsewhere = {"text", "tokens", "caption", "detection", "transcript"}
    elsewhere |= {"preference", "sharegpt_preference", "alpaca_preference"}
    elsewhere |= {"kto", "messages_kto", "sharegpt_kto", "alpaca_kto"}
    assert {format_name for format_name, *_ in ROWS.values()} | elsewhere == set(FORMATS)


def _format(name, **attributes):
    """A format of rows with one key, its name."""
    fields = {
        "default_fields": {"x": name},
        "required_fields": ("x",),
        "convert": lambda format, row: {"text": row[name]},
    }
    return type(name, (row_format.RowFormat,), {"name": name, **fields, **attributes})


@pytest.mark.parametrize("num_own", range(6))
@pytest.mark.parametrize(
    "find", [lambda row: detect([row]).name, lambda row: in_python(row_format.suggested(row)).split('"')[1]]
)
def test_a_format_that_loads_late_hides_no_other(monkeypatch, find, num_own):
    """Its module registers it while all formats are tried, and a dictionary that changes loses some of an iteration."""
    names = ["late", *(f"own{n}" for n in range(num_own)), "last"]
    monkeypatch.setattr(row_format, "FORMATS", {})
    monkeypatch.setattr(row_format, "import_module", lambda module: row_format.register(_format("late")))
    row_format.register(*(_format(f"named{n}", is_detected=False) for n in range(4)))
    row_format.FORMATS["late"] = "its_module"
    row_format.register(*map(_format, names[1:]))
    assert [find({name: "a"}) for name in reversed(names)] == names[::-1]


def test_rows_are_not_changed_by_reading_them():
    """Without it reading a list twice would give other rows the second time."""
    row = {"messages": [_user(["a", "b"]), _assistant("", tool_calls=[TEXT_CALL])]}
    source = open_source([row])
    assert source[0] == source[0]
    assert row == {"messages": [_user(["a", "b"]), _assistant("", tool_calls=[TEXT_CALL])]}


def test_detection_takes_what_most_rows_are():
    """Without it one odd row at the top would decide for the whole file."""
    rows = [{"text": "odd"}, {"question": "q", "answer": "a"}, {"question": "q", "answer": "a"}]
    assert detect(rows).name == "question_answer"
    assert detect([{"messages": [], "text": "both"}]).name == "messages"
    assert detect([{"instruction": "i", "output": "o", "question": "q", "answer": "a"}]).name == "alpaca"


REFUSED = [
    ("messages", {"messages": []}, "'messages' is empty: a conversation needs at least one turn"),
    ("messages", {"messages": "hi"}, "'messages' must be a list of turns and is str"),
    ("messages", {"id": 1}, "field 'messages' is missing (found ['id'])"),
    ("messages", {"messages": ["hi"]}, 'messages[0] must be an object and is str "hi"'),
    ("messages", {"messages": [{"content": "hi"}]}, "messages[0] has no role (found ['content'])"),
    ("messages", {"messages": [{"role": "user"}]}, "messages[0] (role user) has no content"),
    ("messages", {"messages": [_user(3)]}, "the content of messages[0] must be text and is int 3"),
    (
        "messages",
        {"messages": [_user([{"type": "image_url"}])]},
        "its messages hold media, which takes the processor of a model: name it with open_source(…, media_dir=…) and "
        "encoder_for(…, media=open_family(…))",
    ),
    *[
        (
            "messages",
            {"messages": [_user("q"), _assistant("a", weight=weight)]},
            f"weight of messages[1] must be 0 or 1 and is {shown}",
        )
        for weight, shown in (("0", 'str "0"'), ([0], "list [0]"), (0.5, "float 0.5"), (-1, "int -1"), (2, "int 2"))
    ],
    ("messages", {"messages": [_user([7])]}, "a part of messages[0] must be text and is int 7"),
    (
        "messages",
        {"messages": [_assistant("", tool_calls="f")]},
        'tool_calls of messages[0] must be a list and is str "f"',
    ),
    (
        "messages",
        {"messages": [_assistant("", tool_calls=[1])]},
        "a tool call of messages[0] must be an object and is int 1",
    ),
    ("messages", {"messages": [_assistant("", tool_calls=[{}])]}, "a tool call of messages[0] names no function"),
    (
        "messages",
        {"messages": [_user("q")], "tools": "[{"},
        "tools is not JSON: Expecting property name enclosed in double quotes at column 3",
    ),
    ("messages", {"messages": [_user("q")], "tools": [3]}, "tools must be a list of objects and is list [3]"),
    ("sharegpt", {"conversations": []}, "'conversations' is empty: a conversation needs at least one turn"),
    ("sharegpt", {"conversations": None}, "'conversations' must be a list of turns and is NoneType"),
    ("sharegpt", {"conversations": [{"from": "human"}]}, "conversations[0] must be an object with 'from' and 'value'"),
    (
        "sharegpt",
        {"conversations": [{"from": "alien", "value": "q"}]},
        "conversations[0] is from 'alien': use one of human, user, gpt, assistant, bot, chatgpt, system, "
        "observation, tool, function_response, function_call",
    ),
    (
        "sharegpt",
        {"conversations": [{"from": "function_call", "value": "add(1)"}]},
        "the function_call in conversations[0] is not JSON: Expecting value at column 1",
    ),
    (
        "sharegpt",
        {"conversations": [{"from": "function_call", "value": '{"arguments": {}}'}]},
        "conversations[0] is a function_call that names no function",
    ),
    ("alpaca", {"instruction": "q"}, "field 'output' is missing (found ['instruction'])"),
    ("alpaca", {"instruction": "q", "output": 4}, "output must be text and is int 4"),
    ("alpaca", {"instruction": "q", "output": "a", "history": [["q"]]}, "'history' must hold [question, answer] pairs"),
    ("prompt_completion", {"prompt": "q"}, "field 'completion' is missing (found ['prompt'])"),
    (
        "prompt_completion",
        {"prompt": [], "completion": "a"},
        "'prompt' is empty: a conversation needs at least one turn",
    ),
    ("question_answer", {"question": "q", "answer": ["a"]}, 'answer must be text and is list ["a"]'),
    ("alpaca", {"instruction": "q", "output": "a", "history": 5}, "'history' must hold [question, answer] pairs"),
    (
        "sharegpt",
        {"conversations": [{"from": {}, "value": "q"}]},
        "conversations[0] is from dict {}: use one of human, user, gpt, assistant, bot, chatgpt, system, "
        "observation, tool, function_response, function_call",
    ),
    (
        "messages",
        {"messages": [_user("q")], "tools": "[" * 100_000},
        "tools is not readable as JSON: nested too deeply",
    ),
    (
        "messages",
        {"messages": [_assistant("", tool_calls=[{"name": "add", "arguments": "[" * 100_000}])]},
        "the arguments of 'add' in messages[0] is not readable as JSON: nested too deeply",
    ),
    ("text", {"text": ""}, "'text' is empty: a document needs at least one character"),
    ("text", {"id": 1}, "field 'text' is missing (found ['id'])"),
]


@pytest.mark.parametrize(("format_name", "row", "reason"), REFUSED)
def test_a_row_is_refused_with_the_reason(format_name, row, reason):
    """Without it a malformed row would end in a KeyError, or be trained on as another row."""
    (error,) = open_source([row], format=format_name).read(0, 1)
    assert isinstance(error, BadSampleError)
    assert str(error) == f"memory[0] (sample 0): {reason}"


@pytest.mark.parametrize("format_name", sorted(set(FORMATS) - {"text", "tokens"}))
def test_a_text_where_an_object_is_due(format_name):
    """Without it a file that mixes texts and chats would end the job with a TypeError, or list a text's letters."""
    for text in ("just text", "messages conversations instruction prompt question"):
        (error,) = open_source([text], format=format_name).read(0, 1)
        assert isinstance(error, BadSampleError)
        assert "found [" not in error.reason


KEYS = ["caption", "captions", "objects", "width", "height", "audio", "speech", "image", "text", "transcript"]
KEYS += ["prompt", "messages", "question", "answer", "words"]


@pytest.mark.parametrize("name", [None, "caption", "captions", "objects", "transcript", "text", "prompt"])
def test_a_format_that_is_not_loaded_is_the_format_of_no_row(name, monkeypatch):
    """Without it a caption is a document, until another row has loaded the format of captions."""

    def detected(keys):
        try:
            return detect([dict.fromkeys(keys, "a")], name and {name: "words"})
        except UnknownFormatError as error:
            return error.message

    rows = [keys for size in range(3 if name else 4) for keys in combinations(KEYS, size)]
    formats = [detected(keys) for keys in rows]
    assert len(set(formats)) > 3
    monkeypatch.setattr(row_format, "LATE_FORMATS", {})
    assert formats == [detected(keys) for keys in rows]


def test_a_mapped_name_stands_in_the_reason():
    """Without it the message would name a key that the file does not have."""
    (error,) = open_source([{"dialogue": []}], format="messages", fields={"messages": "dialogue"}).read(0, 1)
    assert error.reason == "'dialogue' is empty: a conversation needs at least one turn"


def test_a_long_value_is_shown_by_its_beginning():
    """Without it an error about a 3 MB field would print 3 MB."""
    (error,) = open_source([{"question": "q", "answer": ["x" * 1000]}], format="question_answer").read(0, 1)
    assert error.reason == 'answer must be text and is list ["' + "x" * 58 + "…"
