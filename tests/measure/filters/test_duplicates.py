"""The first of equal samples stays, whoever measures what, and when."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brimful import measure_lengths, open_source
from brimful.measure.filters.duplicates import content_of, first_of_each
from brimful.media import MediaKind, Medium
from brimful.sources import Sample
from tests.measure.encoders import Letters, Silent

contents = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 1), st.booleans()), max_size=12)


@given(contents)
def test_the_first_of_equal_samples_is_found(rows: list[tuple[int, int, bool]]) -> None:
    """Against the plain definition: the smallest kept sample with the same content."""
    high, low, is_kept = (np.array([row[column] for row in rows], dtype=np.int64) for column in range(3))
    expected = [
        next(other for other, row in enumerate(rows) if row[2] and row[:2] == rows[index][:2]) if rows[index][2] else -1
        for index in range(len(rows))
    ]
    assert first_of_each(high, low, is_kept.astype(bool)).tolist() == expected


def test_content_is_messages_and_media_and_nothing_else() -> None:
    """A number of the row does not make it another sample, a byte of its picture does."""
    chat = [{"role": "user", "content": [{"type": "image"}]}]
    one, two, three = (
        Sample(index, messages=chat, media=(Medium(MediaKind.IMAGE, f"{index}.png", data=data),), unread=("id",))
        for index, data in enumerate((b"a", b"a", b"b"))
    )
    assert content_of(one) == content_of(two) != content_of(three)
    assert content_of(Sample(0, messages=chat)) != content_of(one)
    assert content_of(Sample(0, text="a")) != content_of(Sample(0, text="b"))
    assert content_of(Sample(0, input_ids=[1])) != content_of(Sample(0, input_ids=[1], labels=[-100]))
    missing = Sample(0, messages=chat, media=(Medium(MediaKind.IMAGE, "a", path="/nowhere/a"),))
    assert content_of(missing) == (0, 0)


def write(path: Path, texts: list[str]) -> str:
    path.write_text("".join(json.dumps({"text": text, "id": index}) + "\n" for index, text in enumerate(texts)))
    return str(path)


def test_duplicates_are_rejected_with_their_original(tmp_path: Path) -> None:
    """Six samples in, three out; a rejected sample is nobody's original, and takes its targets with it."""
    data = write(tmp_path / "a.jsonl", ["ab", "!x", "ab", "cd", "!x", "ab"])
    table = measure_lengths(
        open_source(data), Letters(), filters=["duplicates"], on_bad_sample="skip", rejects_path=tmp_path / "r"
    )
    assert table.tokens.tolist() == [2, -1, -1, 2, -1, -1]
    assert [reject[2] for reject in table.rejects] == [
        "is shouted", "has the content of sample 0", "is shouted", "has the content of sample 0",
    ]  # fmt: skip
    assert table.account.filtered == {"duplicates": 2}
    assert table.targets is not None
    assert table.targets.counts.tolist() == [1, 0, 0, 1, 0, 0]
    assert [json.loads(line)["sample_id"] for line in (tmp_path / "r").read_text().splitlines()] == [1, 2, 4, 5]


@pytest.mark.parametrize("num_proc", [1, 2])
def test_no_order_of_work_decides_which_one_stays(num_proc: int, tmp_path: Path) -> None:
    """Blocks of several files, measured from the last to the first, in one process and in two, stopped and resumed."""
    texts = ["a", "b", "a", "c", "b", "a", "d", "c"]
    for number in range(4):
        write(tmp_path / f"{number}.jsonl", texts[2 * number : 2 * number + 2])
    source = open_source(tmp_path)
    expected = [1, 1, -1, 1, -1, -1, 1, -1]
    # The last file is measured first, by another job.
    measure_lengths(open_source(tmp_path / "3.jsonl"), Letters(), filters=["duplicates"], cache_dir=tmp_path / "cache")
    table = measure_lengths(source, Letters(), filters=["duplicates"], cache_dir=tmp_path / "cache", num_proc=num_proc)
    assert table.tokens.tolist() == expected
    # Once more from the files of the blocks alone.
    for path in (tmp_path / "cache" / "lengths").glob("*/*.arrow"):
        path.unlink()
    again = measure_lengths(source, Silent(), filters=["duplicates"], cache_dir=tmp_path / "cache")
    assert (again.tokens.tolist(), again.rejects) == (expected, table.rejects)


def test_appended_rows_may_be_duplicates_of_earlier_ones(tmp_path: Path) -> None:
    """The table of an earlier job knows no contents: the files of its blocks do, and nothing is encoded again."""
    data = write(tmp_path / "a.jsonl", ["a", "b"])
    path = tmp_path / "lengths.arrow"
    measure_lengths(open_source(data), Letters(), filters=["duplicates"], path=path)
    write(tmp_path / "b.jsonl", ["b", "c"])
    encoder = Letters()
    table = measure_lengths(open_source([data, tmp_path / "b.jsonl"]), encoder, filters=["duplicates"], path=path)
    assert table.tokens.tolist() == [1, 1, -1, 1]
    assert encoder.seen == ["b", "c"]


def test_other_filters_are_another_measurement(tmp_path: Path) -> None:
    """Lengths without duplicates must not be served to a job that wants them."""
    data = write(tmp_path / "a.jsonl", ["a", "a"])
    plain = measure_lengths(open_source(data), Letters())
    filtered = measure_lengths(open_source(data), Letters(), filters=["duplicates"])
    assert (plain.tokens.tolist(), filtered.tokens.tolist()) == ([1, 1], [1, -1])
    assert measure_lengths(open_source(data), Silent()).tokens.tolist() == [1, 1]
    assert "filters" in filtered.provenance["settings"]
    assert "filters" not in plain.provenance["settings"]
