"""Configurations as users have them: whatever the form, the same flat settings come out, each with its place."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from brimful.doctor.config.reading import read_command, read_settings
from brimful.doctor.config.settings import GivenSettings
from brimful.errors import BrimfulError


def plain(settings: GivenSettings) -> dict[str, Any]:
    return {key: given.value for key, given in settings.values.items()}


def places(settings: GivenSettings) -> dict[str, str]:
    return {key: given.where for key, given in settings.values.items()}


@pytest.fixture(autouse=True)
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names of files in commands and messages are short."""
    monkeypatch.chdir(tmp_path)


def read(text: str, name: str = "run.yaml") -> GivenSettings:
    Path(name).write_text(text, encoding="utf-8")
    return read_settings(name)


def command(line: str) -> GivenSettings:
    return read_command(shlex.split(line))


def refusal(text: str | bytes, name: str = "run.yaml") -> str:
    Path(name).write_bytes(text.encode() if isinstance(text, str) else text)
    with pytest.raises(BrimfulError) as caught:
        read_settings(name)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# One mapping in each form.

NAMES = st.from_regex(r"[a-z][a-z0-9_]{0,8}", fullmatch=True).filter(lambda name: not name.startswith("no_"))
WORDS = st.from_regex(r"[a-z/][a-zA-Z/_.]{2,12}", fullmatch=True).filter(
    lambda word: (
        word.lower() not in ("true", "false", "null", "none", "yes", "off")
        and not word.endswith((".yaml", ".yml", ".json", ".toml"))
    )
)
SCALARS = st.one_of(
    st.booleans(),
    st.integers(-(10**9), 10**9),
    st.floats(allow_nan=False, allow_infinity=False),
    WORDS,
)
VALUES = st.one_of(SCALARS, st.lists(SCALARS, min_size=2, max_size=4))
BLOCKS = st.dictionaries(
    NAMES,
    st.one_of(
        VALUES, st.dictionaries(NAMES, st.one_of(VALUES, st.dictionaries(NAMES, VALUES, min_size=1)), min_size=1)
    ),
    min_size=1,
    max_size=6,
)


def flattened(values: dict[str, Any], block: str = "") -> dict[str, Any]:
    result = {}
    for name, value in values.items():
        result |= flattened(value, f"{block}{name}.") if isinstance(value, dict) else {f"{block}{name}": value}
    return result


def as_toml(values: dict[str, Any], table: str = "") -> str:
    inner = {name: value for name, value in values.items() if isinstance(value, dict)}
    lines = [f"{name} = {json.dumps(value)}" for name, value in values.items() if name not in inner]
    tables = [f"[{table}{name}]\n{as_toml(value, f'{table}{name}.')}" for name, value in inner.items()]
    return "\n".join(lines + tables) + "\n"


def as_words(values: dict[str, Any], form: str) -> list[str]:
    """Arguments in the form of argparse, with ``=``, or of Hydra."""
    words = ["python", "train.py"]
    for key, value in flattened(values).items():
        texts = [
            text if isinstance(text, str) else json.dumps(text)
            for text in (value if isinstance(value, list) else [value])
        ]
        if form == "hydra":
            words.append(f"{key}={'[' + ','.join(texts) + ']' if isinstance(value, list) else texts[0]}")
        elif form == "equals" and len(texts) == 1:
            words.append(f"--{key.replace('_', '-')}={texts[0]}")
        else:
            words += [f"--{key}", *texts]
    return words


@given(values=BLOCKS)
def test_one_mapping_reads_the_same_in_each_form(values: dict[str, Any]) -> None:
    """Without it a finding depends on the form of the file that a user happens to have."""
    expected = flattened(values)
    assert plain(read(yaml.safe_dump(values))) == expected
    assert plain(read(yaml.safe_dump(values, default_flow_style=True))) == expected
    assert plain(read(json.dumps(values, indent=1), "run.json")) == expected
    assert plain(read(as_toml(values), "run.toml")) == expected
    for form in ("argparse", "equals", "hydra"):
        assert {
            key.replace("-", "_"): value for key, value in plain(read_command(as_words(values, form))).items()
        } == expected


@given(values=BLOCKS)
def test_each_line_is_the_line_of_its_key(values: dict[str, Any]) -> None:
    """Without it the line to change is another one."""
    for name, text in (
        ("a.yaml", yaml.safe_dump(values)),
        ("a.json", json.dumps(values, indent=1)),
        ("a.toml", as_toml(values)),
    ):
        lines = text.split("\n")
        for key, where in places(read(text, name)).items():
            file, _, number = where.partition(":")
            assert file == name
            assert key.rpartition(".")[2] in lines[int(number) - 1]
