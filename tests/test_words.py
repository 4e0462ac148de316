"""One message, two languages: arguments in Python, flags on the command line."""

from __future__ import annotations

import pickle

import pytest

from brimful.cli.flags import in_flags
from brimful.errors import BadSampleError, SettingsError, SourceNotFoundError
from brimful.words import in_python, setting


@pytest.mark.parametrize(
    ("name", "value", "python", "flags"),
    [
        ("overflow", "drop", 'overflow="drop"', "--overflow drop"),
        ("capacity", 8192, "capacity=8192", "--max-length 8192"),
        ("min_fill", 0.5, "min_fill=0.5", "--min-fill 0.5"),
        ("mix", True, "mix=True", "--mix"),
        ("bos", False, "bos=False", "--no-bos"),
        ("budgets", {"patches": 64}, 'budgets={"patches": 64}', "--budget patches=64"),
        ("fields", {"messages": "my chat"}, 'fields={"messages": "my chat"}', "--field 'messages=my chat'"),
        ("chat_template", "é.jinja", 'chat_template="é.jinja"', "--chat-template 'é.jinja'"),
    ],
)
def test_a_setting_with_a_value_in_both_languages(name: str, value: object, python: str, flags: str) -> None:
    """Without it a Python user is told to set a flag, or the other way round."""
    message = f"choose {setting(name, value)}."
    assert in_python(message) == f"choose {python}."
    assert in_flags(message) == f"choose {flags}."


def test_a_setting_alone_in_both_languages() -> None:
    """Without it a name mentioned without a value is lost."""
    assert in_python(setting("capacity")) == "capacity"
    assert in_flags(setting("capacity")) == "--max-length"


@pytest.mark.parametrize("kind", [SettingsError, SourceNotFoundError])
def test_an_error_speaks_python_and_keeps_its_marks(kind: type[SettingsError]) -> None:
    """Without it errors that are also OSErrors show their marks, or the command line cannot put in its flags."""
    error = pickle.loads(pickle.dumps(kind(f"{setting('capacity')} is missing")))
    assert str(error) == "capacity is missing"
    assert in_flags(error.message) == "--max-length is missing"


def test_a_bad_sample_keeps_its_marks_when_it_is_located() -> None:
    """Without it the flag to change is gone once file and line are added."""
    error = BadSampleError(f"set {setting('train_on', 'all')}", sample_id=3).located("a.jsonl:4")
    assert str(error) == 'a.jsonl:4 (sample 3): set train_on="all"'
    assert in_flags(error.message) == "a.jsonl:4 (sample 3): set --train-on all"
