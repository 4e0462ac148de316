"""Captions: one row is one sample, further captions are further turns."""

from __future__ import annotations

from typing import Any

import pytest

from brimful.errors import BadSampleError, SettingsError, UnknownFormatError
from brimful.sources import open_source

IMAGE = {"type": "image"}


def turns(row: Any, **options: Any) -> list[Any]:
    """Contents of the messages of a row; of parts, the texts and ``IMAGE``."""
    sample = open_source([row], media=True, **options)[0]
    return [
        [part if part["type"] != "text" else part["text"] for part in message["content"]]
        if isinstance(message["content"], list)
        else message["content"]
        for message in sample.messages
    ]


def refused(row: Any, **options: Any) -> str:
    (error,) = open_source([row], media=True, format="caption", **options).read(0, 1)
    assert isinstance(error, BadSampleError)
    return error.reason


@pytest.mark.parametrize(
    "row",
    [
        {"image": "a.jpg", "caption": "A cat."},
        {"images": ["a.jpg"], "captions": ["A cat."]},
        {"images": ["a.jpg"], "captions": [{"content": "A cat."}]},
        {"image": b"abc", "captions": "A cat."},
    ],
)
def test_the_picture_comes_first_and_the_caption_is_the_answer(row: Any) -> None:
    """Captions have no marks: without a prompt of ours each data set would need a script."""
    assert turns(row) == [[IMAGE, "\nDescribe this image."], "A cat."]


def test_several_captions_are_turns_of_one_chat() -> None:
    """Five captions of one picture pay for its tokens once."""
    row = {"image": "a.jpg", "captions": ["A cat.", "A pet."]}
    assert turns(row) == [[IMAGE, "\nDescribe this image."], "A cat.", "Describe it in other words.", "A pet."]


@pytest.mark.parametrize(("column", "kind"), [("video", "video"), ("audio", "audio")])
def test_the_prompt_names_the_medium(column: str, kind: str) -> None:
    """A sound is not an image."""
    assert turns({column: "a", "caption": "c"})[0] == [{"type": kind}, f"\nDescribe this {kind}."]


def test_the_prompt_is_the_users_or_the_rows() -> None:
    """What a model is asked decides what it learns: the library does not hide it."""
    row = {"image": "a.jpg", "captions": ["A cat.", "A pet."]}
    assert turns(row, prompt="Say!") == [[IMAGE, "\nSay!"], "A cat.", "Say!", "A pet."]
    assert turns(row, prompt="Say <image>!")[::2] == [["Say ", IMAGE, "!"], "Say !"]
    assert turns({**row, "prompt": "Well?"}, prompt="Say!")[0] == [IMAGE, "\nWell?"]
    fingerprints = {open_source([row], media=True, prompt=prompt).fingerprint for prompt in (None, "Say!", "Now!")}
    assert len(fingerprints) == 3
    with pytest.raises(SettingsError, match="prompt has no effect on rows of format question_answer"):
        open_source([{"question": "q", "answer": "a"}], prompt="Say!")


def test_what_is_no_caption_is_refused() -> None:
    """A caption that is missing is not an empty answer."""
    assert refused({"image": "a.jpg", "caption": ""}) == "'caption' must hold texts and holds str \"\""
    assert refused({"image": "a.jpg", "captions": ["a", 3]}) == "'captions' must hold texts and holds int 3"
    assert refused({"image": "a.jpg", "captions": []}).startswith("'caption' must hold texts")
    assert (
        refused({"image": "a.jpg", "caption": "a", "captions": ["b"]})
        == "it has 'caption' and 'captions': keep one of them"
    )
    assert refused({"image": "a.jpg", "caption": "an <image>"}).startswith(
        "its text has a mark <image> and the row has 1 image"
    )


def test_a_pack_of_captions_is_no_row() -> None:
    """Captions of many samples with their prompts would become one chat about one picture."""
    for name in ("prompt", "prompts"):
        with pytest.raises(UnknownFormatError):
            open_source([{"images": ["a.jpg", "b.jpg"], name: ["p", "p"], "captions": ["a", "b"]}], media=True)
