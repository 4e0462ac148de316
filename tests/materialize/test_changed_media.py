"""Media that change behind their rows: the error says how to go on, and that way works."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.cli.tools import refused, run


@pytest.fixture
def home(media_home: Path, tmp_path: Path) -> Path:
    """A copy of the drawn chats whose pictures may be changed, measured already."""
    shutil.copytree(media_home, tmp_path / "home", ignore=shutil.ignore_patterns("packs", "cache"))
    run(*command(tmp_path / "home", "first", "cache"))
    return tmp_path / "home"


def command(home: Path, out: str, cache: str) -> list[object]:
    options = [
        "--processor",
        home / "processor",
        "--max-length",
        512,
        "--num-proc",
        1,
        "--quiet",
        "--on-bad-sample",
        "skip",
    ]
    return ["pack", home / "chats.jsonl", "-o", home / out, "--cache-dir", home / cache, *options]


@pytest.mark.parametrize("change", ["gone", "larger"])
def test_a_picture_that_changed_since_it_was_measured_has_a_way_out(home: Path, change: str) -> None:
    """Without it the same command fails for ever: lengths are found again by their rows, which are as they were."""
    picture = home / "pictures" / "0002_0.png"
    picture.unlink()
    if change == "larger":
        from PIL import Image

        Image.new("RGB", (224, 223)).save(picture)
    line = refused(*command(home, "second", "cache"))
    assert "chats.jsonl:3 (sample 2)" in line
    assert line.endswith("bring it back, or measure anew, with another -o and another --cache-dir")
    run(*command(home, "third", "other-cache"))
