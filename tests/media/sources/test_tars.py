"""Tars are read in place, and say what is wrong with them by name."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path
from typing import Any

import pytest

from brimful.errors import SourceError
from brimful.media.sources import tars
from brimful.media.sources.tars import TarRows
from brimful.sources import open_source
from tests.sources.tools import chat, picture, results, tar_of


@pytest.fixture
def shard(tmp_path: Path) -> Path:
    return tar_of(
        tmp_path / "shard.tar",
        {
            "k/a.json": chat("<image>?"),
            "k/a.png": picture(1),
            "k/b.png": picture(2),
            "k/b.json": chat("<image>and<image>?", images=["b.png", "k/a.png"]),
            "ps_0.img0.jpg": picture(3),
            "ps_0.img1.jpg": picture(4),
            "ps_0.json": chat("<image><image>?", images=["img1.jpg", "img0.jpg"]),
            "text.json": chat("Hi?", images=[]),
        },
    )


def test_members_of_one_key_are_a_row(shard: Path) -> None:
    """Media stay in the tar: a path, an offset and a size."""
    source = open_source(shard, media=True)
    assert results(source) == [[picture(1)], [picture(2), picture(1)], [picture(4), picture(3)], []]
    (medium,) = source[0].attachments
    assert (medium.name, medium.path, medium.data, medium.size) == ("k/a.png", str(shard), None, len(picture(1)))
    assert source.where(1) == f"{shard}: k/b"


def test_shards_are_one_data_set(shard: Path, tmp_path: Path) -> None:
    """A folder of shards with indexes of other programs among them."""
    tar_of(tmp_path / "shard-2.tar", {"z.json": chat("<image>?"), "z.png": picture(5)})
    (tmp_path / "shard-2.tar.idx").write_bytes(b"")
    for source in (open_source(tmp_path, media=True), open_source(f"{tmp_path}/*.tar", media=True)):
        # By name: a hyphen comes before a dot.
        assert results(source) == [[picture(5)], [picture(1)], [picture(2), picture(1)], [picture(4), picture(3)], []]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # it leaves files open
def test_what_webdataset_reads_is_what_we_read(shard: Path) -> None:
    """Keys and members as the library of that name finds them."""
    wds = pytest.importorskip("webdataset")
    theirs = [sample["__key__"] for sample in wds.WebDataset(str(shard), shardshuffle=False)]
    source = open_source(shard, media=True)
    assert [source.where(index).rpartition(": ")[2] for index in range(len(source))] == theirs


def test_pictures_beside_texts_are_captions(tmp_path: Path) -> None:
    """As img2dataset writes them; sounds with texts are transcripts."""
    members = {
        "0.jpg": picture(1), "0.txt": "A cat.\n", "0.json": {"url": "http://a/b", "caption": "A cat."},
        "1.jpg": picture(2), "1.txt": "A dog.", "1.cls": "7",
    }  # fmt: skip
    source = open_source(tar_of(tmp_path / "a.tar", members), media=True)
    assert source.format_name == "caption"
    assert [sample.messages[1]["content"] for sample in source.read(0, 2)] == ["A cat.", "A dog."]
    assert [sample.unread for sample in source.read(0, 2)] == [("url",), ("cls",)]
    sounds = open_source(tar_of(tmp_path / "b.tar", {"0.flac": b"sound", "0.txt": "Hello."}), media=True)
    assert (sounds.format_name, sounds[0].messages[1]["content"], sounds[0].attachments[0].read()) == (
        "transcript", "Hello.", b"sound",
    )  # fmt: skip


def test_names_with_dots_are_rows_of_their_own(tmp_path: Path) -> None:
    """Up to the first dot two rows would have one key; two JSON members show that the dots belong to the names."""
    members = {
        name: content
        for stem, colour in (("v1.cat", 1), ("v1.dog", 2))
        for name, content in ((f"{stem}.json", chat("<image>?")), (f"{stem}.png", picture(colour)))
    }
    assert results(open_source(tar_of(tmp_path / "a.tar", members), media=True)) == [[picture(1)], [picture(2)]]


def link(name: str, target: str, kind: bytes = tarfile.SYMTYPE) -> tuple[str, tarfile.TarInfo]:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return name, info


@pytest.mark.parametrize(
    ("members", "reason"),
    [
        ([("../a.json", chat("<image>?")), ("../a.png", picture(1))], "member '../a.json' has a name that leads out of a directory"),
        ([("/a.json", chat("<image>?")), ("/a.png", picture(1))], "member '/a.json' has a name that leads out"),
        ([("a.png", picture(1)), ("b.json", chat("<image>?")), link("b.png", "a.png")], "member 'b.png' is a link: allow it with media_outside=True"),
        ([("a.png", picture(1)), ("b.json", chat("<image>?")), link("b.png", "a.png", tarfile.LNKTYPE)], "member 'b.png' is a link"),
    ],
)  # fmt: skip
def test_names_that_lead_out_and_links_are_refused_unless_allowed(
    members: list[tuple[str, Any]], reason: str, tmp_path: Path
) -> None:
    """A tar from elsewhere could hold what its names do not say; allowed, they are names like others."""
    tar = tar_of(tmp_path / "a.tar", [("ok.json", chat("Hi?")), *members])
    refused = results(open_source(tar, media=True, format="messages"))
    assert refused[0] == []
    assert refused[-1].startswith(reason)
    assert results(open_source(tar, media=True, format="messages", media_outside=True))[-1] == [picture(1)]


@pytest.mark.parametrize(
    ("members", "reason"),
    [
        ([("a.json", chat("<image>?")), link("a.png", "/etc/hostname")], "member 'a.png' is a link to nothing in the tar"),
        ([("a.json", chat("<image>?")), link("a.png", "", tarfile.FIFOTYPE)], "member 'a.png' is not a regular file"),
        ([("a.json", chat("<image>?", images=["b.png"]))], "it names 'b.png', and the tar has no such member"),
        ([("a.json", "{no")], "member 'a.json': not JSON: Expecting property name"),
        ([("a.json", "[1]")], "member 'a.json': a row must be an object and is list"),
        ([("a.json", b'{"a": "\xff"}')], "member 'a.json': invalid UTF-8 at byte 7"),
        ([("a.json", chat("Hi?")), ("a.json", chat("Hi?"))], "the tar has member 'a.json' twice"),
        ([("a.png", picture(1)), ("a.txt", "A cat."), ("a.png", picture(1))], "the tar has member 'a.png' twice"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("media_outside", [False, True])
def test_a_row_that_cannot_be_read_is_one_bad_row(
    members: list[tuple[str, Any]], reason: str, media_outside: bool, tmp_path: Path
) -> None:
    """Without it one bad member of a hundred million ends the job, or reads a file of this machine."""
    tar = tar_of(tmp_path / "a.tar", [("ok.json", chat("Hi?")), *members])
    found = results(open_source(tar, media=True, format="messages", media_outside=media_outside))
    assert found[0] == []
    assert all(result.startswith(reason) for result in found[1:])
    assert len(found) > 1


def test_a_tar_that_was_cut_anywhere_is_named(shard: Path, tmp_path: Path) -> None:
    """Without it the rows after the cut are missing without a word."""
    content = shard.read_bytes()
    with tarfile.open(shard) as archive:
        end = archive.getmembers()[-1].offset_data + 512
    assert content[end : end + 1024] == bytes(1024)
    for size in (1, 300, 511, 512, 600, 1024, 5000, end - 512, end - 1, end):
        cut = tmp_path / f"{size}.tar"
        cut.write_bytes(content[:size])
        reason = "is not a readable tar" if size < 512 else "is cut short or damaged: its last member is '"
        with pytest.raises(SourceError, match=reason) as caught:
            open_source(cut, media=True)
        assert str(caught.value).startswith(str(cut))
    damaged = bytearray(content)
    damaged[2048:2060] = b"\xff" * 12  # the header of the third member
    cut.write_bytes(bytes(damaged))
    with pytest.raises(SourceError, match="its last member is"):
        open_source(cut, media=True)


def test_a_tar_that_changes_is_refused_and_indexed_anew(shard: Path) -> None:
    """Offsets of the old tar in the new one are pieces of other pictures."""
    source = open_source(shard, media=True)
    tar_of(shard, {"z.json": chat("<image>?"), "z.png": picture(6)})
    with pytest.raises(SourceError, match="changed while it was being read"):
        list(source.read(0, 1))
    assert results(open_source(shard, media=True)) == [[picture(6)]]


def test_headers_are_read_once(shard: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it each of a hundred ranks walks through a terabyte of tars."""
    first = open_source(shard, media=True)
    monkeypatch.setattr(tars, "_members", lambda *arguments: pytest.fail("read again"))
    assert open_source(shard, media=True).fingerprint == first.fingerprint


def test_packed_and_remote_tars_are_refused_by_name(tmp_path: Path) -> None:
    """They cannot be read at an offset."""
    path = tmp_path / "a.tar.gz"
    with tarfile.open(path, "w:gz"):
        pass
    with pytest.raises(
        SourceError,
        match=r"a\.tar\.gz: a tar is read in place and must be a local file, not compressed: unpack it to .tar first",
    ):
        open_source(path)
    with pytest.raises(SourceError, match="a tar is read in place and must be a local file"):
        open_source("memory://a.tar")


def test_long_names_and_headers_of_all_kinds_are_read(tmp_path: Path) -> None:
    """GNU and PAX write names above 100 characters in headers of their own."""
    for format in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        path = tmp_path / f"{format}.tar"
        stem = f"a: b é {'x' * 240}/{'y' * 200}"
        with tarfile.open(path, "w", format=format) as archive:
            for name, data in ((f"{stem}.png", picture(1)), (f"{stem}.txt", b"A cat.")):
                info = tarfile.TarInfo(name)
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))
        source = open_source(path, media=True)
        assert isinstance(source.rows.files[0], TarRows)  # type: ignore[attr-defined]
        assert results(source) == [[picture(1)]]
