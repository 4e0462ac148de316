"""One message, two languages: arguments in Python, flags on the command line."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from brimful.base.wording import first_few, in_python, percent, setting, size_of
from brimful.cli.program import in_flags
from brimful.errors import BadSampleError, SettingsError, SourceNotFoundError


@pytest.mark.parametrize(
    ("name", "value", "python", "flags"),
    [
        ("overflow", "drop", 'overflow="drop"', "--overflow drop"),
        ("capacity", 8192, "capacity=8192", "--max-length 8192"),
        ("min_fill", 0.5, "min_fill=0.5", "--min-fill 0.5"),
        ("media_outside", True, "media_outside=True", "--media-outside"),
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
    assert pickle.loads(pickle.dumps(error)).message == error.message


def test_a_reason_that_goes_into_a_file_has_no_marks() -> None:
    """Without it rejects.jsonl and tables of lengths hold unreadable characters."""
    error = BadSampleError(f"set {setting('train_on', 'all')}", sample_id=3)
    assert error.reason == 'set train_on="all"'


def test_marks_in_a_value_are_the_value() -> None:
    """Without it a path with such a character would end the mention too early."""
    name = "a\ue023b\ue020c\ue021d\ue022e"
    message = f"{setting('tokenizer', name)}: no such directory"
    assert in_flags(message) == f"--tokenizer '{name}': no such directory"


@pytest.mark.parametrize(
    ("ratio", "shown"),
    [
        *((0.00047, "< 0.1 %"), (0.00052, "0.1 %"), (0.99947, "99.9 %"), (0.99952, "> 99.9 %")),
        *((0.0, "0.0 %"), (1.0, "100.0 %"), (1.0006, "100.1 %"), (12.3456, "1,234.6 %")),
    ],
)
def test_a_share_is_a_bound_only_where_it_would_be_none_or_all(ratio: float, shown: str) -> None:
    """One sample in a million that was lost is not 0 %."""
    assert percent(ratio) == shown


@pytest.mark.parametrize(
    ("num_bytes", "shown"),
    [
        (1, "1 byte"),
        (999, "999 bytes"),
        (1_000, "1.00 kB"),
        (999_499, "999 kB"),
        (999_500, "1.00 MB"),
        (5 * 10**15, "5000 TB"),
    ],
)
def test_bytes_have_three_digits_up_to_the_largest_unit(num_bytes: int, shown: str) -> None:
    assert size_of(num_bytes) == shown


def test_as_many_examples_as_are_shown_have_no_more() -> None:
    """``and 0 more`` would send readers to look for them."""
    assert [first_few("abcdefghijk", total=total).endswith("more") for total in (9, 10, 11)] == [False, False, True]


def test_what_python_says_instead() -> None:
    """Without it Python would be told of an argument that it does not have."""
    message = f"use {setting('mode', 'text', python='TextEncoder')}"
    assert (in_python(message), in_flags(message)) == ("use TextEncoder", "use --mode text")


def test_numbers_of_numpy_are_numbers() -> None:
    """Without it the way out would be capacity="np.int64(24)"."""
    assert in_python(setting("capacity", np.int64(24))) == "capacity=24"
