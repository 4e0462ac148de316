"""Media that arrive: their bytes are in the stream, and a stop changes nothing; a file that changed is refused by name."""

from __future__ import annotations

import shutil
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from brimful import open_packs
from brimful.base.blobs import open_blob_store
from brimful.errors import BadSampleError, OversizedSampleError, SettingsError
from brimful.report.store_check import check_store
from brimful.stream import PackingProducer, remove_acknowledged
from brimful.stream.acks import Acks
from brimful.testing.toys import toy_chat_encoder
from tests.store.pictures import PICTURE_TOKEN, PictureEncoder, chat, picture, write_pictures
from tests.stream.producer.streams import append, records_of

SETTINGS: dict[str, Any] = {"capacity": 64, "lookahead": 6, "packs_per_shard": 2}
ROWS = [
    chat("ab" * (number % 4), *[f"p{number % 5}.png"] * (number % 3 > 0), *([picture(20)] * (number % 4 == 0)))
    for number in range(24)
]


@pytest.fixture
def pictures(tmp_path):
    write_pictures(tmp_path / "in", range(5))
    return tmp_path / "in"


def producer(rows, stream, pictures, **settings):
    return PackingProducer(rows, PictureEncoder(), stream, media_dir=pictures, **{**SETTINGS, **settings})


def hashes(stream):
    """Hashes of shards and of the containers next to them."""
    return [(record.xxh3_128, (record.media or {}).get("xxh3_128")) for record in records_of(stream)[0]]


def test_the_bytes_are_in_the_stream(tmp_path, pictures):
    """Read without the files; each at the place of its tokens, and each distinct one once in a shard."""
    statistics = producer(ROWS, tmp_path / "out", pictures).close()
    assert statistics.samples_packed == len(ROWS)
    shutil.rmtree(pictures)
    contents = {picture(number) for number in (*range(5), 20)}
    packs, num_media = open_packs(tmp_path / "out"), 0
    samples = []
    for pack in packs:
        samples += pack.sample_ids.tolist()
        for item in pack.attachments:
            num_media += 1
            assert item.read() in contents
            assert (pack.input_ids[item.start : item.start + item.length] == PICTURE_TOKEN).all()
            assert pack.cu_seqlens[item.segment] <= item.start < pack.cu_seqlens[item.segment + 1]
        assert np.count_nonzero(pack.input_ids == PICTURE_TOKEN) == sum(item.length for item in pack.attachments)
    assert sorted(samples) == list(range(len(ROWS)))
    assert num_media == sum(len(row["images"]) for row in ROWS)
    for record in packs._records:
        assert record.media is None or record.media["stored"] <= 6
    assert check_store(tmp_path / "out").media == num_media


@pytest.mark.parametrize("stop_after", range(0, 16, 3))
@pytest.mark.parametrize("overflow", ["error", "split"])
def test_stopped_anywhere_and_started_again_is_never_stopped(tmp_path, pictures, stop_after, overflow):
    """P8 with media: references, and bytes of rows that cannot be asked for again."""
    producer(ROWS, tmp_path / "whole", pictures, overflow=overflow).close()
    one = producer(iter(ROWS), tmp_path / "out", pictures, overflow=overflow)
    for _ in range(stop_after):
        one.step(close=True)
    # The rows that were taken have lost their bytes: only what was carried over has them.
    num_taken = sum(record.state["cursor"]["rows"] for record in records_of(tmp_path / "out")[0][-1:])
    rest = [*[chat("other")] * (num_taken - 1), *ROWS[max(0, num_taken - 1) :]]
    producer(rest, tmp_path / "out", pictures, overflow=overflow).close()
    assert hashes(tmp_path / "out") == hashes(tmp_path / "whole")
    folder = tmp_path / "out" / "carry"
    assert not folder.exists() or len(list(folder.rglob("*.tar"))) <= 6


def test_bytes_of_rows_are_carried_over_once_and_as_long_as_needed(tmp_path):
    """Each medium in one container, which is there while the last records name it: otherwise a restart would have lost it."""
    members: dict[str, set[str]] = {}

    def look(_):
        for path in tmp_path.rglob("carry/**/*.tar"):
            with tarfile.open(path) as tar:
                members[path.name] = set(tar.getnames())
        own = records_of(tmp_path)[0][-2:]
        carried = [facts for record in own for facts in (record.state["carry_over"] or {}).get("containers", [])]
        assert all((tmp_path / facts["file"]).stat().st_size == facts["bytes"] for facts in carried)
        lengths.append(len(carried))

    lengths: list[int] = []
    rows = [chat("ab" * (number % 9), picture(30 + number)) for number in range(300)]
    settings: dict[str, Any] = {"capacity": 64, "lookahead": 24, "packs_per_shard": 1, "on_shard": look}
    PackingProducer(rows, PictureEncoder(), tmp_path, **settings).close()
    assert max(lengths) > 0
    assert len(members) > 1
    names = [name for content in members.values() for name in content]
    assert len(names) == len(set(names)) > 20


@pytest.mark.parametrize("stop_after", [1, 3, 9])
def test_parts_of_a_split_sample_keep_the_places_of_their_media(tmp_path, pictures, stop_after):
    """The second part of a long sample waits, is carried over, and has its picture where its tokens are."""
    rows = [
        {
            "messages": [
                {"role": "user", "content": "x" * (66 + 3 * number) + "<image>y"},
                {"role": "assistant", "content": "z" * (number % 3)},
            ],
            "images": [f"p{number % 5}.png"],
        }
        for number in range(11)
    ]
    settings = {"overflow": "split", "no_target": "keep", "packs_per_shard": 1, "lookahead": 6}
    producer(rows, tmp_path / "whole", pictures, **settings).close()
    one = producer(rows, tmp_path / "out", pictures, **settings)
    for _ in range(stop_after):
        one.step(close=True)
    producer(rows, tmp_path / "out", pictures, **settings).close()
    assert hashes(tmp_path / "out") == hashes(tmp_path / "whole")
    for pack in open_packs(tmp_path / "out"):
        for item in pack.attachments:
            assert (pack.input_ids[item.start : item.start + item.length] == PICTURE_TOKEN).all()


def test_a_picture_that_changed_is_refused_by_name(tmp_path, pictures):
    """In the window of a process, and after a restart; brought back, the stream equals one run's."""
    producer(ROWS, tmp_path / "whole", pictures).close()
    append(pictures / "a.jsonl", [row for row in ROWS if not any(isinstance(name, bytes) for name in row["images"])])
    one = producer(pictures, tmp_path / "out", pictures, packs_per_shard=1)
    while not records_of(tmp_path / "out")[0]:
        one.step()
    for number in range(5):
        (pictures / f"p{number}.png").write_bytes(b"other" * 40)
    for again in (one, producer(pictures, tmp_path / "out", pictures, packs_per_shard=1)):
        with pytest.raises(BadSampleError, match=r"image 'p\d.png' at '.*png' was changed since .* bring it back"):
            again.close()
    (pictures / "p1.png").unlink()
    write_pictures(pictures, range(5))
    assert again.close().samples_waiting == 0
    assert check_store(tmp_path / "out").media > 0


def test_a_picture_that_changes_while_it_is_taken_is_no_sample(tmp_path, pictures):
    """Its header and its bytes could be of two pictures."""

    class Slow(PictureEncoder):
        def encode_batch(self, samples):
            results = super().encode_batch(samples)
            (pictures / "p1.png").write_bytes(b"other")
            return results

    one = PackingProducer(ROWS[1:2], Slow(), tmp_path / "out", media_dir=pictures, **SETTINGS)
    with pytest.raises(BadSampleError, match=r"'p1.png': was changed while it was taken"):
        one.close()


def test_recordings_and_transcripts_arrive(tmp_path):
    """The words wait for their recording; rows of JSON lie next to their picture; at the end one alone is malformed."""
    home, stream = tmp_path / "in", tmp_path / "out"
    home.mkdir()
    (home / "b.wav").write_bytes(picture(1))
    (home / "a.txt").write_text("hello")
    (home / "b.txt").write_text("there")
    one = PackingProducer(home, PictureEncoder(), stream, on_bad_sample="skip", **SETTINGS)
    while one.step():
        pass
    assert one.statistics.samples_read == 1
    (home / "a.wav").write_bytes(picture(2))
    (home / "c.png").write_bytes(picture(3))
    (home / "c.json").write_text(
        '{"messages": [{"role": "user", "content": "<image>"}, {"role": "assistant", "content": "x"}]}'
    )
    while one.step():
        pass
    assert one.statistics.samples_read == 3
    (home / "d.txt").write_text("lost")
    assert dict(one.close().dropped)["malformed"] == 1
    packs = list(open_packs(stream))
    assert {item.medium.name: item.read() for pack in packs for item in pack.attachments} == {
        "a.wav": picture(2), "b.wav": picture(1), "c.png": picture(3)
    }  # fmt: skip
    assert "there" in "".join(chr(token) for pack in packs for token in pack.input_ids)


def test_words_without_their_sound_are_refused(tmp_path):
    """Who forgets the processor would train on transcripts alone."""
    home = tmp_path / "in"
    home.mkdir()
    (home / "a.wav").write_bytes(picture(1))
    (home / "a.txt").write_text("hello")
    with pytest.raises(BadSampleError, match=r"a.txt .*'audio' holds audio, .*processor.*ignore"):
        PackingProducer(home, toy_chat_encoder(), tmp_path / "out", **SETTINGS).close()
    ignoring = PackingProducer(home, toy_chat_encoder(), tmp_path / "out", ignore=["audio"], **SETTINGS)
    assert ignoring.close().samples_packed == 1


def test_a_stream_in_its_own_source_is_refused(tmp_path):
    """It would read its own records as rows."""
    with pytest.raises(SettingsError, match="lies in the source"):
        PackingProducer(tmp_path, toy_chat_encoder(), tmp_path / "a" / "out", **SETTINGS)


def test_a_shard_ends_before_its_container_is_too_large(tmp_path, pictures, monkeypatch):
    """By the bytes of the media, so that a shard of many packs with large media can be built."""
    monkeypatch.setattr("brimful.stream.producer.open_window.CONTAINER_BYTES", 1)
    producer(ROWS, tmp_path / "out", pictures, packs_per_shard=100).close()
    num_with_media = sum(bool(pack.attachments) for pack in open_packs(tmp_path / "out"))
    assert len(records_of(tmp_path / "out")[0]) >= num_with_media > 3


def test_a_sample_cut_within_a_picture_is_refused(tmp_path, pictures):
    rows = [chat("a" * 60, "p0.png"), chat("", *["p2.png"] * 20)]
    with pytest.raises(OversizedSampleError, match=r"sample 1: the sample was cut within image 'p2.png'"):
        producer(rows, tmp_path / "out", pictures, overflow="truncate", capacity=63, no_target="keep").close()


def test_trained_shards_go_with_their_media(tmp_path, pictures):
    """No later shard needs the container of an earlier one."""
    stream = tmp_path / "out"
    producer(ROWS, stream, pictures).close()
    count = len(records_of(stream)[0])
    Acks(open_blob_store(stream), "run").write({"packs_delivered": 4, "frontier": 2})
    remove_acknowledged(stream, ["run"], keep=1)
    assert len(list(Path(stream, "media").iterdir())) <= count - 2
    packs = open_packs(stream)
    for row in range(records_of(stream)[0][1].cum_packs, len(packs)):
        assert all(item.read() for item in packs[row].attachments)
