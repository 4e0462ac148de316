"""What a producer carries over: packs that are ready and segments that wait, in a file that its record names."""

import numpy as np
import pytest

from brimful.base.blobs import BlobGroup, LocalBlobStore
from brimful.base.fingerprint import fingerprint_bytes
from brimful.errors import CorruptFileError
from brimful.media import MediaKind, Medium, PlacedMedium
from brimful.media.job.producer import CarriedMedia
from brimful.store.shards import Pack
from brimful.stream.producer.carry_over import WaitingSamples, load_carry_over, save_carry_over
from brimful.stream.stream_packs import StreamPacks


def tokens(*ids):
    return np.array(ids, dtype=np.int32), np.array([True] * len(ids))


def packs_of(*segments):
    """One pack of segments: sample id, start, length."""
    ids, starts, lengths = (np.array(column) for column in zip(*segments, strict=True))
    return StreamPacks(np.array([0, len(segments)]), ids, starts.astype(np.int32), lengths.astype(np.int32))


def picture(start, length, content=None, path=""):
    medium = Medium(kind=MediaKind.IMAGE, name="p", path=path, data=content, size=len(content or b"file"))
    return PlacedMedium(medium, start, length, num_tokens=length, fingerprint=fingerprint_bytes(content or b"file"))


def test_a_split_sample_leaves_by_parts_and_goes_with_its_last():
    """Segments are cut from the tokens that are there, from any token on."""
    waiting = WaitingSamples(splits=True)
    waiting.add(3, *tokens(10, 11, 12, 13))
    waiting.add(5, *tokens(20, 21), start=4)
    (pack,) = waiting.take(packs_of((3, 0, 1), (5, 4, 2), (3, 1, 2)))
    assert pack.input_ids.tolist() == [10, 20, 21, 11, 12]
    assert (pack.sample_ids.tolist(), pack.starts.tolist(), np.diff(pack.cu_seqlens).tolist()) == (
        [3, 5, 3],
        [0, 4, 1],
        [1, 2, 2],
    )
    assert list(waiting) == [3]
    assert waiting.pack([3], [3], [1]).input_ids.tolist() == [13]
    waiting.take(packs_of((3, 3, 1)))
    assert len(waiting) == 0


def test_a_sample_that_is_cut_goes_with_its_one_segment():
    waiting = WaitingSamples(splits=False)
    waiting.add(3, *tokens(10, 11, 12, 13))
    (pack,) = waiting.take(packs_of((3, 0, 2)))
    assert (pack.input_ids.tolist(), len(waiting)) == ([10, 11], 0)


def test_media_are_placed_in_their_pack():
    """By segment and token."""
    waiting = WaitingSamples(splits=True)
    waiting.add(1, *tokens(1, 2, 3))
    waiting.add(2, *tokens(4, 9, 9, 5), media=(picture(1, 2, b"abc"),))
    (pack,) = waiting.take(packs_of((1, 0, 3), (2, 0, 4)))
    assert [(item.segment, item.start, item.length) for item in pack.attachments] == [(1, 4, 2)]


def ready_pack(*ids, sample_id=0, start=0, media=()):
    input_ids, loss_mask = tokens(*ids)
    edges, sample, first = np.array([0, len(ids)], np.int32), np.array([sample_id]), np.array([start], np.int32)
    return Pack(input_ids, loss_mask, edges, sample, first, media)


def test_nothing_is_no_file(tmp_path):
    with BlobGroup(LocalBlobStore(tmp_path)) as files:
        assert save_carry_over(files, "carry/000000", 3, [], []) is None


def carried(store, ready, segments, media=None, seq=3):
    with BlobGroup(store) as files:
        facts = save_carry_over(files, "carry/000000", seq, ready, segments, media)
        assert files.commit(f"log/{seq}", b"")
    return facts


def test_packs_and_segments_come_back(tmp_path):
    """In their order, copied: the file is gone with the next records."""
    store = LocalBlobStore(tmp_path)
    waiting = [
        ready_pack(3, sample_id=7, start=2),
        ready_pack(4, 5, sample_id=8),
        ready_pack(6, sample_id=9),
    ]
    facts = carried(store, [ready_pack(1, 2)], waiting)
    assert (facts["ready"], facts["waiting"], "containers" in facts) == (1, 3, False)
    assert facts["file"] == f"carry/000000/00000003-{facts['xxh3_128'][:16]}.arrow"
    assert facts["bytes"] == store.size(facts["file"])
    ready, segments = load_carry_over(store, facts)
    store.delete(facts["file"])
    assert [pack.input_ids.tolist() for pack in (*ready, *segments)] == [[1, 2], [3], [4, 5], [6]]
    assert [(pack.sample_ids.tolist(), pack.starts.tolist()) for pack in segments] == [
        ([7], [2]),
        ([8], [0]),
        ([9], [0]),
    ]
    assert ready[0].cu_seqlens.dtype == np.int32
    assert (ready[0].attachments, len(ready), len(segments)) == ((), 1, 3)
    with pytest.raises(FileNotFoundError):
        load_carry_over(store, facts)


def test_a_damaged_file_is_named(tmp_path):
    store = LocalBlobStore(tmp_path)
    facts = carried(store, [ready_pack(1, 2)], [])
    with pytest.raises(CorruptFileError, match="other bytes than were committed"):
        load_carry_over(store, {**facts, "xxh3_128": "0" * 32})


def test_bytes_of_rows_are_kept_while_they_are_carried(tmp_path):
    """Each content once, in the container of the record that first carried it; references are files of their own."""
    store = LocalBlobStore(tmp_path)
    (tmp_path / "p.png").write_bytes(b"file")
    own, file = picture(0, 1, b"own"), picture(1, 1, path=str(tmp_path / "p.png"))
    media = CarriedMedia(store)
    rows = [ready_pack(1, 2, media=(own, file)), ready_pack(3, sample_id=1, media=(own,))]
    first = carried(store, rows, [], media)
    (container,) = first["containers"]
    assert container["file"] == f"carry/000000/media-00000003-{container['xxh3_128'][:16]}.tar"
    assert container["bytes"] == store.size(container["file"])
    later = CarriedMedia(store)
    ready, _ = load_carry_over(store, first, later)
    assert [[(item.start, item.read()) for item in pack.attachments] for pack in ready] == [
        [(0, b"own"), (1, b"file")],
        [(0, b"own")],
    ]
    # Carried on, the bytes stay where they are; new ones get a container next to it.
    new = ready_pack(5, media=(picture(0, 1, b"new"),))
    second = carried(store, [ready[0], new], [], later, seq=4)
    assert [facts["file"] for facts in second["containers"]] == [container["file"], second["containers"][1]["file"]]
    assert second["containers"][1]["file"].startswith("carry/000000/media-00000004-")
    third = carried(store, [new], [], later, seq=5)
    assert third["containers"] == second["containers"][1:]
    assert carried(store, [ready_pack(1)], [], later, seq=6).get("containers") is None


def test_a_container_that_is_gone_is_a_later_record_and_a_damaged_one_is_named(tmp_path):
    store = LocalBlobStore(tmp_path)
    facts = carried(store, [ready_pack(1, media=(picture(0, 1, b"own"),))], [], CarriedMedia(store))
    (container,) = facts["containers"]
    path = tmp_path / container["file"]
    content = path.read_bytes()
    path.write_bytes(content.replace(b"own", b"oww"))
    with pytest.raises(CorruptFileError, match=r"\.tar: bytes"):
        load_carry_over(store, facts, CarriedMedia(store))
    path.unlink()
    with pytest.raises((FileNotFoundError, CorruptFileError), match=r"\.tar"):
        load_carry_over(store, facts, CarriedMedia(store))


def test_parts_of_a_split_sample_leave_from_the_part_that_has_them():
    """After a stop each waiting segment is a part of its own, also where one begins at the end of another."""
    waiting = WaitingSamples(splits=True)
    waiting.add(3, *tokens(10, 11))
    waiting.add(3, *tokens(12, 13, 14), start=2)
    assert [waiting.pack([3], [start], [1]).input_ids.tolist() for start in range(5)] == [[10], [11], [12], [13], [14]]
    waiting.take(packs_of((3, 2, 3)))
    assert waiting.pack([3], [0], [2]).input_ids.tolist() == [10, 11]
    waiting.take(packs_of((3, 0, 2)))
    assert len(waiting) == 0
