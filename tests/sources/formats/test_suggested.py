"""The way out of rows that no format knows is made of the keys that were seen."""

from __future__ import annotations

from typing import Any

import pytest

from brimful.base.wording import in_python
from brimful.errors import SourceError, UnknownFormatError
from brimful.sources import open_source
from brimful.sources.formats import suggested
from tests.sources.tools import Put

TURNS = [{"role": "user", "content": "1+1?"}, {"role": "assistant", "content": "2"}]


@pytest.mark.parametrize(
    ("row", "settings"),
    [
        (
            {"problem": "1", "solution": "2"},
            'format="question_answer" fields={"question": "problem", "answer": "solution"}',
        ),
        ({"question": "1", "response": "2", "id": 1}, 'format="question_answer" fields={"answer": "response"}'),
        ({"dialog": TURNS}, 'format="messages" fields={"messages": "dialog"}'),
        ({"dialog": [{"from": "human", "value": "1"}]}, 'format="sharegpt" fields={"conversations": "dialog"}'),
        ({"body": "text", "id": "x"}, 'format="text" fields={"text": "body"}'),
        ({"messages": TURNS, "label": False}, 'format="messages_kto"'),
        ({"messages": TURNS, "kto_tag": True}, 'format="messages_kto" fields={"label": "kto_tag"}'),
        ({"prompt": "1", "completion": "2", "label": True}, 'format="kto"'),
        ({"messages": TURNS, "label": "good"}, 'format="messages"'),
        (
            {"chosen_messages": TURNS, "rejected_messages": TURNS},
            'format="preference" fields={"chosen": "chosen_messages", "rejected": "rejected_messages"}',
        ),
        ({"question": [[]], "function": []}, ""),
        ("a", ""),
    ],
)
def test_settings_that_read_a_row(row: Any, settings: str) -> None:
    """Without it users are shown flags of keys that they do not have."""
    assert in_python(suggested(row)) == settings


def test_rows_of_kto_are_told_their_own_format() -> None:
    """Without it the error advises a format that fails on these rows, also to users who named another one."""
    rows = [{"messages": TURNS, "label": True}, {"messages": TURNS, "label": False}]
    for given in (None, "sharegpt_kto"):
        (bad, *_) = open_source(rows, format=given).read(0, 1)
        assert "name a format of KTO (kto, messages_kto, sharegpt_kto)" in str(bad)
    (bad, *_) = open_source(rows, format="kto").read(0, 1)
    assert str(bad).endswith("is missing (found ['label', 'messages']): its keys fit format=\"messages_kto\"")
    assert open_source(rows, format="messages_kto")[0].completion is not None


def test_files_of_other_json_are_told_by_their_look(put: Put) -> None:
    """Without it the reader is told of a column, and has to find out what kind of file it is."""
    row = '{"text": "a"}'
    path = put("a.jsonl", f'{{"data": [{row}, {row}]}}\n')
    with pytest.raises(UnknownFormatError, match="Rows seem to be under 'data': write that list to a"):
        open_source(path)
    for content in (f"[{row}]", f"[\n{row},\n{row}\n]"):
        (bad, *_) = open_source(put("a.jsonl", content), format="text").read(0, 1)
        assert str(bad).endswith("it looks like a JSON array: give the file a name that ends in .json")
    (bad, *_) = open_source(put("a.json", '{\n"text":\n"a"}\n'), format="text").read(0, 1)
    assert str(bad).endswith("it looks like one JSON object on several lines: each row must be one line")
    with pytest.raises(SourceError, match=r"looks like UTF-16: write it as UTF-8 first \(iconv"):
        open_source(put("b.jsonl", f"{row}\n{row}\n".encode("utf-16")))
