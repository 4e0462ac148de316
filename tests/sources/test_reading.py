"""Every column of a row is read, named as unread, or refused by name."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brimful.errors import BadSampleError
from brimful.sources import Sample, open_source
from brimful.sources.formats import FORMATS, format_class, format_named
from brimful.sources.reading import Reading

CHAT = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
PICTURE = (
    "column 'images' holds images, which takes the processor of a model: name it with open_source(…, media_dir=…) and "
    'encoder_for(…, media=open_family(…)), or leave it out with ignore=["images"]'
)


def refused(row: Any, **options: Any) -> str:
    """Why a row is refused."""
    (error,) = open_source([row], **options).read(0, 1)
    assert isinstance(error, BadSampleError)
    return str(error).removeprefix("memory[0] (sample 0): ")


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"messages": CHAT, "images": ["a.jpg"]}, PICTURE),
        ({"question": "q", "answer": "a", "image": "a.jpg"}, "column 'image' holds images"),
        ({"messages": CHAT, "videos": ["a.mp4"]}, "column 'videos' holds videos"),
        ({"text": "a", "audio": "a.flac"}, "column 'audio' holds audio"),
        ({"messages": CHAT, "label": False}, "column 'label' says which answers are wanted"),
        ({"messages": CHAT, "label": True}, "column 'label' says which answers are wanted"),
        ({"conversations": CHAT[:1], "chosen": {"from": "gpt"}}, "column 'chosen' is half of a preference"),
        ({"messages": CHAT, "rejected": CHAT}, "column 'rejected' is half of a preference"),
        ({"input_ids": [1, 2], "seq_lengths": [1, 1]}, "the row is already a pack of 2 samples"),
    ],
)
def test_a_column_that_changes_what_a_sample_means_is_refused(row: Any, reason: str) -> None:
    """Without it wrong answers are trained as right ones, and questions about pictures without the pictures."""
    assert refused(row).startswith(reason)


@pytest.mark.parametrize("nothing", [None, [], "", {}])
def test_a_column_that_holds_nothing_is_nothing(nothing: Any) -> None:
    """Without it tables that give every row every column could not be packed."""
    source = open_source([{"messages": CHAT, "images": nothing, "chosen": nothing, "id": nothing}])
    assert source[0] == Sample(0, messages=CHAT, tools=None)


def test_a_refused_column_may_be_ignored_by_name() -> None:
    """Without it there would be no way on for who knows what the column says."""
    row = {"messages": CHAT, "label": True, "id": 7}
    source = open_source([row], ignore=["label"])
    assert source[0] == Sample(0, messages=CHAT, unread=("id",))
    assert source.fingerprint != open_source([{**row, "label": None}]).fingerprint


def test_what_one_source_may_leave_out_is_refused_in_the_other() -> None:
    """Without it a label that was ignored in one file is ignored in silence in all of them."""
    row = {"messages": CHAT, "label": True}
    allowed, plain = open_source([row], ignore=["label"]), open_source([{"messages": CHAT}, row])
    first, second, third = open_source([allowed, plain]).read(0, 3)
    assert [isinstance(sample, Sample) for sample in (first, second, third)] == [True, True, False]


def test_what_may_be_left_out_is_part_of_the_fingerprint_of_several_files(put: Any) -> None:
    """Without it lengths of files of several formats, measured with refused rows, are served where those are wanted."""
    paths = [put("a.jsonl", '{"text": "a", "label": 1}'), put("b.jsonl", '{"question": "q", "answer": "a"}')]
    plain, ignoring = open_source(paths), open_source(paths, ignore=["label"])
    assert plain.fingerprint != ignoring.fingerprint
    assert [block.fingerprint for block in plain.blocks] != [block.fingerprint for block in ignoring.blocks]


@pytest.mark.parametrize("mark", ["<image>", "<image1>", "<video>", "<audio>", "<|image_pad|>"])
def test_a_mark_without_its_medium_is_refused(mark: str) -> None:
    """Without it a model is taught to answer questions about pictures that it never saw."""
    reason = f"its text holds {mark} where a medium belongs"
    for row in ({"question": f"Who is it? {mark}", "answer": "a"}, {"text": f"{mark} a caption"}):
        assert refused(row).startswith(reason)
        assert open_source([row], ignore=[mark])[0].kind in ("chat", "text")


@pytest.mark.parametrize(
    "text", ["<video controls>a</video>", "<video></video>", "a <img> b", "x < image > y", "<images>"]
)
def test_markup_is_no_mark_of_a_medium(text: str) -> None:
    """Without it lessons in HTML would be refused."""
    assert open_source([{"text": text}])[0].text == text


def test_keys_of_messages_that_nobody_knows_are_named() -> None:
    """Without it what a turn says next to its text is gone without a word."""
    turns = [{**CHAT[0], "time": 3}, CHAT[1]]
    assert open_source([{"messages": turns}])[0].unread == ("messages[].time",)
    turns = [{"from": "human", "value": "q", "time": 3}, {"from": "gpt", "value": "a", "weight": 0}]
    sample = open_source([{"conversations": turns}])[0]
    assert (sample.unread, (sample.messages or [])[1]["weight"]) == (("messages[].time",), 0)


def test_whatever_a_format_stumbles_over_is_the_rows_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it a row that no check foresaw ends the job with a traceback."""

    def stumble(self: Any, row: Any) -> Any:
        raise TypeError("unhashable type: 'dict'")

    monkeypatch.setattr(FORMATS["text"], "convert", stumble)
    assert refused({"text": "a"}) == "cannot be read as format text (TypeError: unhashable type: 'dict')"


VALID = {
    "messages": {"messages": CHAT},
    "sharegpt": {"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]},
    "alpaca": {"instruction": "q", "output": "a"},
    "prompt_completion": {"prompt": "q", "completion": "a"},
    "preference": {"prompt": "q", "chosen": "a", "rejected": "b"},
    "sharegpt_preference": {"conversations": [{"from": "human", "value": "q"}], "chosen": "a", "rejected": "b"},
    "alpaca_preference": {"instruction": "q", "chosen": "a", "rejected": "b"},
    "question_answer": {"question": "q", "answer": "a"},
    "text": {"text": "a"},
    "tokens": {"input_ids": [1, 2, 3]},
    "caption": {"image": "a.jpg", "caption": "a"},
    "detection": {"image": "a.jpg", "objects": [{"label": "cat", "bbox": [0, 0, 1, 1]}], "width": 2, "height": 2},
    "kto": {"prompt": "q", "completion": "a", "label": True},
    "messages_kto": {"messages": CHAT, "label": True},
    "sharegpt_kto": {
        "conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}],
        "kto_tag": False,
    },
    "alpaca_kto": {"instruction": "q", "output": "a", "kto_tag": False},
    "transcript": {"audio": "a.flac", "transcript": "a"},
}
WITH_MEDIA = {name for name in FORMATS if format_class(name).puts_attachments_first}
columns = st.sampled_from(
    ["id", "source", "image", "images", "videos", "audio", "label", "chosen", "rejected", "score"]
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
    max_leaves=4,
)


def test_every_format_has_a_valid_row_above() -> None:
    """Without it a new format would not be held to the law."""
    assert set(VALID) == set(FORMATS)


@given(st.sampled_from(sorted(FORMATS.keys() - WITH_MEDIA)), st.dictionaries(columns, json_values, max_size=4))
def test_each_column_is_read_or_named_or_refused(name: str, more: dict[str, Any]) -> None:
    """The law of the entrance: nothing that a row says is passed over without a word."""
    more = {column: value for column, value in more.items() if column not in format_class(name).default_fields.values()}
    row = {**VALID[name], **more}  # type: ignore[dict-item]
    (sample,) = open_source([row], format=name).read(0, 1)
    says = {column for column, value in more.items() if value is not None and value not in ("", [], {})}
    if isinstance(sample, BadSampleError):
        assert any(f"column {column!r}" in sample.reason for column in says)
    else:
        assert set(sample.unread) == says


@given(st.sampled_from(sorted(WITH_MEDIA)), st.dictionaries(st.sampled_from(["id", "label", "chosen"]), json_values))
def test_each_column_beside_a_medium_is_read_or_named_or_refused(name: str, more: dict[str, Any]) -> None:
    """The same law for rows of a medium, which formats of their own put before a prompt."""
    row = {**VALID[name], **more}  # type: ignore[dict-item]
    (sample,) = open_source([row], media=True).read(0, 1)
    says = {column for column, value in more.items() if value is not None and value not in ("", [], {})}
    if isinstance(sample, BadSampleError):
        assert any(f"column {column!r}" in sample.reason for column in says)
    else:
        assert set(sample.unread) == says
        assert len(sample.attachments) == 1


@pytest.mark.parametrize("name", sorted(WITH_MEDIA))
def test_rows_of_a_medium_need_one(name: str) -> None:
    """Without it a caption whose picture was lost trains a model to describe nothing."""
    row = {**VALID[name], "image": None, "audio": None}  # type: ignore[dict-item]
    (error,) = open_source([row], format=name, media=True).read(0, 1)
    assert isinstance(error, BadSampleError)
    assert error.reason == f"it has no medium, and a row of format {name} needs one"


@given(st.sampled_from(sorted(FORMATS)), json_values, json_values)
def test_a_row_of_anything_is_a_sample_or_an_error_of_its_own(name: str, value: Any, other: Any) -> None:
    """Without it one odd row ends a job of a hundred million with a traceback."""
    keys = list(format_class(name).default_fields)
    row = {**VALID[name], **dict(zip(keys, [value, other], strict=False))}  # type: ignore[dict-item]
    (result,) = open_source([row], format=name).read(0, 1)
    assert isinstance(result, (Sample, BadSampleError))


_TEXTS = st.one_of(
    st.sampled_from(["hi", "", "see <image>", "<video> … </video>", "a <| b", "<image1>"]), st.none(), st.integers()
)
_TURNS = st.one_of(
    st.lists(
        st.one_of(
            st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant", ""]), "content": _TEXTS}),
            st.just({"role": "user", "content": "hi", "name": "x"}),
            st.just("no turn"),
        ),
        max_size=3,
    ),
    st.none(),
)
_MORE = {
    "id": st.sampled_from([7, "", None]),
    "image": st.sampled_from(["a.png", None]),
    "label": st.booleans(),
    "tools": st.sampled_from([None, [], "", [{"name": "f"}]]),
}


@pytest.mark.parametrize(
    ("name", "fields"),
    [("messages", {"messages": _TURNS}), ("question_answer", {"question": _TEXTS, "answer": _TEXTS})],
)
@given(data=st.data())
def test_rows_that_are_converted_together_are_those_that_are_converted_alone(name, fields, data):
    """Every row gives the same sample, or the same reason, however many come with it."""
    rows = data.draw(st.lists(st.one_of(st.fixed_dictionaries(fields, optional=_MORE), st.just("no row")), max_size=6))
    ignore = data.draw(st.sampled_from([(), ("<image>",), ("id",), ("image", "label")]))
    reading = Reading(format_named(name), frozenset(ignore))
    for index, sample in enumerate(reading.samples(range(10, 10 + len(rows)), rows)):
        if sample is not None:
            assert sample == reading.sample(10 + index, rows[index])
            assert type(sample.messages) is type(reading.sample(10 + index, rows[index]).messages)


def test_plain_rows_are_converted_together():
    """Without it the fast way could be gone, and every row slow in silence."""
    rows = [{"messages": [{"role": "user", "content": "hi"}], "id": index} for index in range(3)]
    samples = Reading(format_named("messages")).samples([5, 6, 7], rows)
    assert [(sample.sample_id, sample.unread) for sample in samples] == [(5, ("id",)), (6, ("id",)), (7, ("id",))]
    pairs = Reading(format_named("question_answer", {"question": "q"})).samples(
        [0, 1], [{"q": "1+1?", "answer": "2"}] * 2
    )
    assert [sample.messages.texts for sample in pairs] == [["1+1?", "2"]] * 2
