"""Each filter on samples of a few words; and how filters are given."""

from __future__ import annotations

from typing import Any

import pytest

from brimful.errors import SettingsError
from brimful.measure.filters import (
    FILTERS,
    Characters,
    Duplicates,
    Filter,
    Refusals,
    Repetition,
    Words,
    as_filters,
    rejection,
)
from brimful.media import MediaKind, Medium
from brimful.media.filters import AspectRatio, Pictures
from brimful.sources import Sample
from tests.sources.tools import picture

NOISE = bytes(range(256)) * 20


def chat(*answers: str, media: tuple[Medium, ...] = ()) -> Sample:
    messages = [
        {"role": role, "content": text}
        for answer in answers
        for role, text in (("user", "I cannot see?"), ("assistant", answer))
    ]
    return Sample(0, messages=messages, media=media)


def image(data: bytes, name: str = "a.png") -> Medium:
    return Medium(MediaKind.IMAGE, name, data=data)


def noisy(size: tuple[int, int] = (40, 40)) -> bytes:
    import io

    from PIL import Image

    file = io.BytesIO()
    Image.linear_gradient("L").resize(size).save(file, "PNG")
    return file.getvalue()


@pytest.mark.parametrize(
    ("answer", "phrase"),
    [
        ("I'm sorry, but no.", "i'm sorry"),
        ("  I’M SORRY", "i'm sorry"),
        ("I cannot say", "i cannot"),
        ("A cat that says: I cannot", None),
        ("", None),
    ],
)
def test_refusals(answer: str, phrase: str | None) -> None:
    """A model that learns to be sorry describes nothing; a question may be sorry, and an answer may quote."""
    expected = None if phrase is None else f"an answer is a refusal: it begins with '{phrase}'"
    assert Refusals().reason(chat("Fine.", answer)) == expected


def test_refusals_of_a_list_of_ones_own() -> None:
    """Data sets of other languages refuse in other words."""
    (own,) = as_filters("refusals=Es tut mir leid;Nein")
    assert own.reason(chat("nein danke")) == "an answer is a refusal: it begins with 'nein'"
    assert own.reason(chat("I cannot")) is None


def test_repetition() -> None:
    """Eight times in a row, as the seed has it; in seven, and with other words between, it is a text."""
    assert Repetition().reason(chat("so " + "very " * 8)) == "a text has the word 'very' 8 times in a row"
    assert Repetition().reason(chat("so " + "very " * 7)) is None
    assert Repetition().reason(chat("very so " * 20)) is None
    assert Repetition(2).reason(Sample(0, text="No no.")) is None
    assert Repetition(2).reason(Sample(0, text="No no")) == "a text has the word 'no' 2 times in a row"


@pytest.mark.parametrize(
    ("given", "answers", "reason"),
    [
        ("characters=3:5", ["ab"], "its text has 2 characters, fewer than 3"),
        ("characters=3:5", ["ab", "c"], None),
        ("characters=3:5", ["abc", "abc"], "its text has 6 characters, more than 5"),
        ("characters=3:", [" ab "], "its text has 2 characters, fewer than 3"),
        ("characters=:5", [""], None),
        ("words=2:3", ["one"], "its text has 1 words, fewer than 2"),
        ("words=2:3", ["one two", "three"], None),
        ("words=2:3", ["one two", "three four"], "its text has 4 words, more than 3"),
    ],
)
def test_bounds_of_length_hold_for_all_answers_together(given: str, answers: list[str], reason: str | None) -> None:
    """Both bounds belong to the range."""
    (bounds,) = as_filters(given)
    assert bounds.reason(chat(*answers)) == reason


def test_rows_of_tokens_pass_filters_of_texts() -> None:
    """They have no text to judge."""
    sample = Sample(0, input_ids=[1, 2])
    assert rejection([Refusals(), Repetition(), Characters(5), Words(5), AspectRatio(1, 1), Pictures()], sample) is None


@pytest.mark.parametrize(
    ("size", "is_kept"), [((40, 40), True), ((20, 40), True), ((40, 20), True), ((19, 40), False), ((41, 20), False)]
)
def test_aspect_ratio(size: tuple[int, int], is_kept: bool) -> None:
    """Width by height, bounds included; a picture without a header is the encoder's to refuse."""
    reason = AspectRatio(0.5, 2).reason(chat("a", media=(image(noisy()), image(noisy(size)))))
    assert (reason is None) == is_kept
    assert AspectRatio(0.5, 2).reason(chat("a", media=(image(b"no picture"),))) is None


def test_the_reason_names_picture_size_and_bounds() -> None:
    """Without it nobody could tell a banner from a damaged header."""
    reason = AspectRatio(0.2, 5).reason(chat("a", media=(image(noisy((600, 60))),)))
    assert reason == "image 'a.png' of 600 × 60 has an aspect ratio of 10, outside of 0.2 to 5"


def test_pictures_that_show_nothing_or_are_cut() -> None:
    """A header is read as whole from a picture whose pixels are missing: only decoding shows it."""
    whole = noisy((200, 200))
    assert Pictures().reason(chat("a", media=(image(whole),))) is None
    assert Pictures().reason(chat("a", media=(image(whole), image(picture(3), "b.png")))) == (
        "image 'b.png' is empty: all its pixels have one color"
    )
    reason = Pictures().reason(chat("a", media=(image(whole[: len(whole) // 2]),)))
    assert reason is not None
    assert reason.startswith("image 'a.png': Pillow cannot read it: ")
    assert Pictures().reason(chat("a", media=(Medium(MediaKind.AUDIO, "a.wav", data=b""),))) is None


def test_filters_come_in_one_order_however_they_are_given() -> None:
    """Another order would give another reason for the same sample, and another fingerprint for the same filters."""
    given: list[Filter | str] = ["duplicates", Characters(3), "refusals"]
    assert as_filters(given) == as_filters(given[::-1]) == (Refusals(), Characters(3), Duplicates())
    assert as_filters(None) == as_filters([]) == ()
    assert as_filters("aspect_ratio=1:2") == (AspectRatio(1, 2),)
    assert rejection(as_filters(["characters=9:", "refusals"]), chat("I cannot")) == (
        "refusals",
        "an answer is a refusal: it begins with 'i cannot'",
    )


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("nonsense", 'filters=["nonsense"] is unknown: use refusals'),
        ("duplicates=3", 'filters=["duplicates=3"] must be duplicates'),
        ("pictures=x", 'filters=["pictures=x"] must be pictures'),
        ("words", 'filters=["words"] must be words=LEAST:MOST'),
        ("words=:", 'filters=["words=:"] must be words=LEAST:MOST'),
        ("words=a:3", 'filters=["words=a:3"] must be words=LEAST:MOST'),
        ("words=5:3", "filter words: bounds must be a range of numbers and are 5 and 3"),
        ("aspect-ratio=0:3", "filter aspect-ratio: ratios must be a range above 0 and are 0.0 and 3.0"),
        ("aspect-ratio=nan:3", "filter aspect-ratio: ratios must be a range"),
        ("repetition=1", "filter repetition: words must be at least 2 and is 1"),
        ("refusals=;", "filter refusals: phrases must be texts"),
        (["words=1:", "words=2:"], 'filters=["words"] is given twice'),
        ([3], "filters must hold filters, or texts, and holds int"),
    ],
)
def test_what_is_no_filter_is_refused_with_its_form(given: Any, message: str) -> None:
    """A filter that means nothing would let everything pass, and nobody would know."""
    with pytest.raises(SettingsError) as caught:
        as_filters(given)
    assert str(caught.value).startswith(message)


def test_every_filter_is_in_the_docs() -> None:
    """A filter that no page names is one that nobody gives."""
    from pathlib import Path

    page = (Path(__file__).parents[3] / "docs" / "sources.md").read_text()
    assert [name for name in FILTERS if f"| `{name}" not in page] == []
