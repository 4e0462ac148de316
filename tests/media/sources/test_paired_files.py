"""Folders of pairs: each row is a JSON file next to its media, found by what exists."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from brimful.errors import SettingsError, SourceError, SourceNotFoundError
from brimful.media.sources import paired_files
from brimful.media.sources.paired_files import PairRows
from brimful.sources import json_rows, open_source
from tests.sources.tools import chat, picture, results


def write(folder: Path, **files: Any) -> Path:
    """Write files by name: objects as JSON over several lines, as users write them, and bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        data = content if isinstance(content, bytes) else json.dumps(content, indent=2).encode()
        (folder / name).write_bytes(data)
    return folder


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return write(
        tmp_path / "photos",
        **{
            "b.json": chat("<image>b?"),
            "b.JPG": picture(2),
            "a_1.json": chat("<image>a again?", images=["a.png"]),
            "a.json": chat("<image>a?", images=["a.png"]),
            "a.png": picture(1),
            "output_00000000.json": chat("Hi?", images=[]),
        },
    )


def test_rows_come_by_name_with_their_media(photos: Path) -> None:
    """Without it the layout of LLaVA-OneVision has to be rewritten before it can be packed."""
    source = open_source(photos, media=True)
    assert results(source) == [[picture(1)], [picture(1)], [picture(2)], []]
    assert [source.where(index) for index in range(4)] == [
        f"{photos}/{name}.json" for name in ("a", "a_1", "b", "output_00000000")
    ]
    assert source.format_name == "messages"


def test_a_name_is_never_taken_apart(tmp_path: Path) -> None:
    """``a_1`` without a picture of its own does not belong to ``a``: another picture would be trained under its text."""
    folder = write(
        tmp_path / "photos", **{"a.json": chat("<image>"), "a.png": picture(), "a_1.json": chat("<image>and this?")}
    )
    first, second = results(open_source(folder, media=True))
    assert first == [picture()]
    assert second.startswith("its text has a mark <image> and the row has 0 images")


def test_a_row_that_names_no_media_and_has_two_of_its_name_is_refused(tmp_path: Path) -> None:
    """Which of them is meant is not said; one would be taken by chance."""
    files = {"a.json": chat("<image>"), "a.png": picture(1), "a.jpg": picture(2), "output_00000000.json": chat("Hi?")}
    reason, _ = results(open_source(write(tmp_path / "photos", **files), media=True))
    assert reason == ('several media have its name (a.jpg, a.png): name its own in the row, as in "images": ["a.jpg"]')
    media, _ = results(
        open_source(write(tmp_path / "photos", **{"a.json": chat("<image>", images=["a.png"])}), media=True)
    )
    assert media == [picture(1)]


def test_a_folder_without_rows_is_no_split(tmp_path: Path) -> None:
    """Pictures alone, and hidden files, are of no row: a split would be asked for where there is one."""
    write(tmp_path / "photos" / "train", **{"a.json": chat("<image>?"), "a.png": picture(1)})
    write(tmp_path / "photos" / "test", **{"b.png": picture(2), ".c.json": chat("Hi?")})
    assert results(open_source(tmp_path / "photos", media=True)) == [[picture(1)]]


def test_sounds_and_videos_lie_beside_rows_too(tmp_path: Path) -> None:
    """Without it speech has to be described in another way than pictures."""
    files = {"a.json": chat("<audio>?"), "a.flac": b"sound", "b.json": chat("<video>?"), "b.mp4": b"video"}
    assert results(open_source(write(tmp_path / "clips", **files), media=True)) == [[b"sound"], [b"video"]]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"{no", "not JSON: Expecting property name enclosed in double quotes at column 2"),
        (b"", "not JSON: Expecting value at column 1"),
        (b'{"a": "\xff"}', "invalid UTF-8 at byte 7 (invalid start byte)"),
        (b"[1]", "a row must be an object and is list"),
        (
            b"[" * 100_000,
            "not readable as JSON: nested too deeply",
        ),
    ],
)
def test_a_file_that_is_no_row_is_one_bad_row(content: bytes, reason: str, photos: Path) -> None:
    """Without it one broken file of a million ends the job."""
    (photos / "a_0.json").write_bytes(content)
    found = results(open_source(photos, media=True))
    assert found[1][: len(reason)] == reason
    assert [found[0], *found[2:]] == [[picture(1)], [picture(1)], [picture(2)], []]


def test_a_row_above_the_most_is_one_bad_row(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it a file of gigabytes takes the memory of the machine."""
    monkeypatch.setattr(paired_files, "MAX_ROW_BYTES", 500)
    monkeypatch.setattr(json_rows, "MAX_ROW_BYTES", 500)
    (photos / "a_0.json").write_text(json.dumps(chat("x" * 600)))
    assert results(open_source(photos, media=True))[1].startswith("a row above the maximum")


names = st.text(st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1, max_size=30).filter(
    lambda name: not name.startswith(".") and len(name.encode()) < 200
)


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sets(names, min_size=1, max_size=5))
@example({"data:"})
def test_names_are_data(tmp_path_factory: pytest.TempPathFactory, stems: set[str]) -> None:
    """Colons, blanks, dots, line ends: seed programs lost a hundred thousand samples over one colon."""
    folder = tmp_path_factory.mktemp("names")
    for number, stem in enumerate(sorted(stems)):
        write(folder, **{f"{stem}.json": chat("<image>?"), f"{stem}.png": picture(number)})
    source = open_source(folder, media=True)
    assert results(source) == [[picture(number)] for number in range(len(stems))]
    places = {source.where(index) for index in range(len(source))}
    assert len(places) == len(stems)
    assert not any("\n" in place for place in places)


def test_new_and_changed_rows_are_seen(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that has not changed is not read again; one that has is never served from its catalogue."""
    before = open_source(photos, media=True).fingerprint
    with monkeypatch.context() as patch:
        patch.setattr(paired_files, "_bytes_of", lambda *_: pytest.fail("read again"))
        assert open_source(photos, media=True).fingerprint == before
    write(photos, **{"c.json": chat("<image>c?"), "c.png": picture(3), "b.json": chat("<image>new?")})
    (photos / "a_1.json").unlink()
    assert results(open_source(photos, media=True)) == [[picture(1)], [picture(2)], [picture(3)], []]
    # A picture of another size is another row, for its length may differ.
    changed = open_source(photos, media=True).fingerprint
    (photos / "b.JPG").write_bytes(picture(2, size=(400, 40)))
    assert open_source(photos, media=True).fingerprint != changed


def test_a_file_that_changes_while_the_folder_is_read_is_refused(photos: Path) -> None:
    """Without it half of a file that another program writes is a row."""
    listing = paired_files._Listing.of(str(photos))
    (photos / "a.json").write_text("{}")
    with pytest.raises(SourceError, match=r"a\.json changed while it was being read"):
        [paired_files._entry(listing, row) for row in listing.rows]


def test_the_folders_of_a_directory_are_its_parts(photos: Path, tmp_path: Path) -> None:
    """Data sets of millions of pairs lie in thousands of folders; media lie next to their row in each."""
    write(tmp_path / "photos" / "more", **{"a.json": chat("<image>?"), "a.png": picture(7)})
    write(tmp_path / "photos" / ".hidden", **{"a.json": chat("<image>?"), "a.png": picture(7)})
    source = open_source(tmp_path / "photos", media=True)
    assert [[picture(1)], [picture(1)], [picture(2)], [], [picture(7)]] == results(source)
    assert [type(part) for part in source.rows.files] == [PairRows, PairRows]  # type: ignore[attr-defined]


def test_splits_are_folders_and_never_names_of_pictures(tmp_path: Path) -> None:
    """A picture of a train is called ``train``; a test set lies in a folder of its own."""
    write(tmp_path / "one", **{f"{name}.{end}": content for name in ("train", "test") for end, content in
                               (("json", chat("<image>?")), ("png", picture()))})  # fmt: skip
    assert len(open_source(tmp_path / "one", media=True)) == 2
    for number, split in enumerate(("train", "test")):
        write(tmp_path / "two" / split, **{"a.json": chat("<image>?"), "a.png": picture(number)})
    with pytest.raises(SettingsError, match=r'several splits \(test, train\): name one with split="train"'):
        open_source(tmp_path / "two", media=True)
    assert results(open_source(tmp_path / "two", media=True, split="test")) == [[picture(1)]]
    assert len(open_source(tmp_path / "two", media=True, split="all")) == 2
    with pytest.raises(SourceNotFoundError, match="has no such split"):
        open_source(tmp_path / "two", media=True, split="dev")


def test_other_directories_stay_what_they_were(tmp_path: Path) -> None:
    """A directory of JSON arrays or lines next to pictures is not a folder of pairs."""
    rows = [{"question": "<image>?", "answer": "a", "image": "a.png"}]
    write(tmp_path / "arrays", **{"rows.json": rows, "a.png": picture()})
    assert results(open_source(tmp_path / "arrays", media=True)) == [[picture()]]
    write(tmp_path / "cover", **{"rows.json": rows, "rows.png": picture(), "a.png": picture()})
    assert results(open_source(tmp_path / "cover", media=True)) == [[picture()]]
    write(tmp_path / "lines", **{"rows.jsonl": json.dumps(rows[0]).encode(), "a.png": picture()})
    assert results(open_source(tmp_path / "lines", media=True)) == [[picture()]]
    write(tmp_path / "lines", **{"a.json": chat("<image>?")})
    with pytest.raises(SettingsError, match="mixes files of several kinds"):
        open_source(tmp_path / "lines", media=True)


def test_a_name_that_leads_out_is_refused(photos: Path) -> None:
    """A data set from elsewhere could name any file of this machine."""
    (photos.parent / "secret.png").write_bytes(picture(9))
    write(photos, **{"z.json": chat("<image>?", images=["../secret.png"])})
    assert "is outside" in results(open_source(photos, media=True))[-1]
    assert results(open_source(photos, media=True, media_outside=True))[-1] == [picture(9)]
