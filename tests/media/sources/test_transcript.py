"""Sounds with their words, under the names that data sets give them."""

from __future__ import annotations

from typing import Any

import pytest

from brimful.errors import BadSampleError
from brimful.sources import open_source


@pytest.mark.parametrize("name", ["transcript", "transcription", "sentence", "text"])
def test_the_words_are_the_answer(name: str) -> None:
    """Without it speech could not be packed with less than a script."""
    source = open_source([{"audio": "a.flac", name: "Hello."}], media=True)
    assert source.format_name == "transcript"
    content, answer = (message["content"] for message in source[0].messages)
    assert content == [{"type": "audio"}, {"type": "text", "text": "\nWrite down what is said."}]
    assert (answer, source[0].unread) == ("Hello.", ())
    other = open_source([{"audio": "a.flac", name: "Hello."}], media=True, prompt="Well?")
    assert other[0].messages[0]["content"][1]["text"] == "\nWell?"


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"audio": "a.flac", "text": "a", "sentence": "b"}, "it has several transcripts ('sentence', 'text'): keep one of them"),
        ({"audio": "a.flac", "transcript": ""}, "'transcript' is empty"),
        ({"audio": "a.flac"}, "field 'transcript' is missing"),
        ({"audio": "a.flac", "transcript": 3}, "transcript must be text and is int 3"),
        ({"audio": ["a.flac", 3], "transcript": "a"}, "audio holds no audio: it must be a path or bytes"),
    ],
)  # fmt: skip
def test_what_is_no_transcript_is_refused(row: Any, reason: str) -> None:
    """One of two transcripts would be taken by chance."""
    (error,) = open_source([row], media=True, format="transcript").read(0, 1)
    assert isinstance(error, BadSampleError)
    assert error.reason == reason


def test_a_text_whose_sound_is_not_wanted_is_a_text() -> None:
    """``--ignore audio`` packs the words as documents, as before."""
    source = open_source([{"audio": "a.flac", "text": "Hello."}], ignore=["audio"])
    assert (source.format_name, source[0].text) == ("text", "Hello.")


def test_real_speech(data_dir: Any) -> None:
    """The clips of the data set, with no setting but the place of the media."""
    source = open_source(data_dir / "audio" / "audio.jsonl", media=True)
    samples = list(source.read(0, len(source)))
    errors = [sample.reason for sample in samples if isinstance(sample, BadSampleError)]
    assert (len(samples), errors) == (29, ["'text' is empty"] * 2)
    assert all(sample.attachments[0].num_bytes > 0 for sample in samples if not isinstance(sample, BadSampleError))
