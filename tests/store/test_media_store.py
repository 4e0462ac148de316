"""Packs with media, from rows to a store and back."""

import os
import pickle
import shutil
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brimful import PackedDataset, measure_lengths, open_packs, pack_dataset, plan_packs, write_packs
from brimful.base.progress import Progress
from brimful.errors import (
    BadSampleError,
    CorruptFileError,
    SettingsError,
    StoreFullError,
    StoreMismatchError,
)
from brimful.media import BadMediumError
from brimful.media.store import KindCount
from brimful.mixtures import Mixture
from brimful.plan import PlanSettings
from brimful.report.store_check import check_store
from brimful.sources import open_source
from brimful.stream import StreamLoader, remove_acknowledged
from tests.store.pictures import PictureEncoder, chat, picture, write_pictures
from tests.store.stores import tree
from tests.trees.plans import plan_of_trees

CAPACITY = 64


def rows(count=30):
    """Chats of which every third has a file and every fourth bytes; several share a picture."""
    return [
        chat("abcdefg"[: 1 + n % 7], *[f"photos/p{n % 5}.png"] * (n % 3 == 0), *[picture(n % 3)] * (n % 4 == 1))
        for n in range(count)
    ]


@pytest.fixture
def home(tmp_path):
    write_pictures(tmp_path / "data" / "photos", range(5))
    return tmp_path


def source_in(home, **options):
    return open_source(rows(), media=True, media_dir=home / "data", **options)


def pack(home, storage="references", directory="packs", **options):
    options = {"shard_bytes": 4 * CAPACITY * 2, "num_proc": 1, "cache_dir": home / "cache", **options}
    settings = PlanSettings(capacity=CAPACITY)
    pack_dataset(source_in(home), PictureEncoder(), home / directory, settings, media_storage=storage, **options)
    return open_packs(home / directory)


def bytes_by_sample(packs):
    return {
        sample_id: [item.read() for item in pack.attachments if item.segment == segment]
        for pack in packs
        for segment, sample_id in enumerate(pack.sample_ids.tolist())
    }


def expected_bytes(home):
    return {
        sample.sample_id: [medium.read() for medium in sample.attachments]
        for sample in map(source_in(home).__getitem__, range(30))
    }


def captions():
    """Chats that begin with a picture, and some go on with another: the pictures and letters of each."""
    return [
        *([0, "cat"], [0, "car"], [0, "dog"], [0, "x", 1, "y"], [0, "x", 1, "z"], [0, "x", 2, "y"]),
        *([1, "q"], [3, 4, "a"], [3, 2, "b"], [4, "q"]),
    ]


def row_of_parts(parts):
    """A chat of these pictures and texts."""
    text = "".join(part if isinstance(part, str) else "<image>" for part in parts)
    turns = [{"role": "user", "content": text}, {"role": "assistant", "content": "ok"}]
    return {"messages": turns, "images": [f"photos/p{part}.png" for part in parts if isinstance(part, int)]}


@pytest.mark.parametrize("storage", ["references", "bytes"])
def test_pictures_of_a_trunk_are_there_once(home, storage):
    """Each sample has its pictures, and a picture that samples share is stored, placed and counted once."""
    source = open_source(list(map(row_of_parts, captions())), media=True, media_dir=home / "data")
    encoder = PictureEncoder()
    samples = [encoder.encode(sample) for sample in map(source.__getitem__, range(len(source)))]
    keys = []
    for sample, parts in zip(samples, captions(), strict=True):
        ids, numbers = sample.input_ids.tolist(), [part for part in parts if isinstance(part, int)]
        for item, number in zip(sample.attachments, numbers, strict=True):
            ids[item.start : item.start + item.length] = [1000 + number] * item.length
        keys.append(ids)
    plan = plan_of_trees(keys, [[0, 1, 2, 3, 4, 5], [6, 7, 8], [9]], capacity=CAPACITY)
    progress, said = Progress(), []
    progress.say = said.append  # type: ignore[method-assign, assignment]
    options = {"num_proc": 1, "shard_bytes": 4 * CAPACITY, "cache_dir": home / "cache", "progress": progress}
    write_packs(plan, source, encoder, home / "packs", media_storage=storage, **options)
    packs = open_packs(home / "packs")
    assert [len(pack.attachments) for pack in packs] == [3, 4, 1]  # pictures 0, 1, 2; 1, 3, 4, 2; 4
    for pack, made in zip(packs, PackedDataset.from_plan(source, encoder, plan), strict=True):
        for flat in (pack.flat(), made.flat()):
            for segment, sample_id in enumerate(flat.sample_ids.tolist()):
                first, stop = flat.cu_seqlens[segment : segment + 2].tolist()
                assert flat.input_ids[first:stop].tolist() == samples[sample_id].input_ids.tolist()
                placed = [(item.start - first, item.read()) for item in flat.attachments if item.segment == segment]
                assert placed == [(item.start, item.medium.read()) for item in samples[sample_id].attachments]
    (count,) = packs.census.kinds.values()
    assert (count.count, count.distinct, packs.census.num_stored) == (8, 5, 5 if storage == "bytes" else 0)
    assert count.tokens == sum(item.num_tokens for pack in packs for item in pack.attachments)
    assert check_store(home / "packs", plan=plan).media == 8
    assert said[0].startswith("media: 15 of the samples in the packs (")


@pytest.mark.parametrize("storage", ["references", "bytes"])
def test_media_come_back_byte_for_byte(home, storage):
    """Of every sample, in its segment, whatever the store holds of them."""
    packs = pack(home, storage)
    assert bytes_by_sample(packs) == expected_bytes(home)
    assert check_store(home / "packs").media == sum(map(len, expected_bytes(home).values()))
    assert all(item.medium.size is not None for pack in packs for item in pack.attachments)


def test_a_row_without_its_picture_is_rejected_once(home):
    """What cannot be read when it is measured is not looked for again, and the others are packed."""
    data = [chat("a", "photos/p0.png"), chat("b", "photos/none.png"), chat("c", "photos/p1.png")]
    source = open_source(data, media=True, media_dir=home / "data")
    settings = PlanSettings(capacity=CAPACITY)
    summary = pack_dataset(source, PictureEncoder(), home / "packs", settings, on_bad_sample="skip", num_proc=1)
    assert summary.first_rejected.startswith("memory[1]")
    assert bytes_by_sample(open_packs(home / "packs")) == {0: [picture(0)], 2: [picture(1)]}


def test_a_picture_that_is_drawn_again_is_no_other(home):
    """A mixture takes the short source several times, in packs of one shard."""
    source = open_source([chat("ab", "photos/p0.png")] + [chat("cd")] * 6, media=True, media_dir=home / "data")
    settings = PlanSettings(capacity=12, draw=Mixture(weights={"a": 1, "b": 1}, stop="all_exhausted"))
    pack_dataset(source, PictureEncoder(), home / "packs", settings, sources={"a": 1, "b": 6}, num_proc=1)
    (count,) = open_packs(home / "packs").census.kinds.values()
    assert count.count > 1
    assert count.distinct == 1


def test_a_store_with_bytes_is_complete_by_itself(home):
    """It moves without the pictures, and holds each distinct one once."""
    expected = expected_bytes(home)
    packs = pack(home, "bytes")
    assert packs.census.num_stored == len({content for contents in expected.values() for content in contents}) == 5
    assert packs.notes == {}
    shutil.rmtree(home / "data")
    (home / "packs").rename(home / "elsewhere")
    assert bytes_by_sample(open_packs(home / "elsewhere")) == expected


@pytest.mark.parametrize("storage", ["references", "bytes"])
@pytest.mark.parametrize("num_steps", [2, 3])
def test_media_of_a_planned_store_stay_when_trained_shards_go(home, storage, num_steps):
    """Its containers serve all shards: a picture that an earlier shard also has must not go with it."""
    packs = pack(home, storage, shard_bytes=4 * CAPACITY)
    num_shards = packs.num_shards
    expected = [bytes_by_sample([pack]) for pack in packs]
    loader = StreamLoader(home / "packs", packs_per_micro_batch=1)
    batches = iter(loader)
    served = [sample for _ in range(num_steps) for sample in next(batches)[0].sample_ids.tolist()]
    loader.ack("run")
    state = loader.state_dict()
    first = remove_acknowledged(home / "packs", ["run"], keep=1)
    assert 0 < first < num_shards
    assert len(list((home / "packs" / "shards").iterdir())) == num_shards - first
    later = StreamLoader(home / "packs", packs_per_micro_batch=1)
    later.load_state_dict(state)
    rest = [bytes_by_sample(batch) for batch in later]
    assert rest == expected[num_steps:]
    assert not set(served) & {sample for samples in rest for sample in samples}
    assert any(any(medium) for samples in rest for medium in samples.values())


def test_bytes_of_rows_are_stored_once_beside_references(home):
    """They are in no file, and only three of them exist."""
    packs = pack(home)
    assert packs.census.num_stored == 3
    assert packs.media_root == str(home / "data")
    kinds = Counter(item.medium.container is None for pack in packs for item in pack.attachments)
    assert kinds == {True: 10, False: 8}


def test_a_store_moves_with_its_pictures(home, tmp_path):
    """References are relative to a root, which is found from the store, or given."""
    expected = expected_bytes(home)
    pack(home)
    os.makedirs(tmp_path / "far" / "away")
    for name in ("data", "packs"):
        (home / name).rename(tmp_path / "far" / name)
    assert bytes_by_sample(open_packs(tmp_path / "far" / "packs")) == expected
    (tmp_path / "far" / "data").rename(tmp_path / "far" / "away" / "pictures")
    lost = open_packs(tmp_path / "far" / "packs")
    with pytest.raises(BadMediumError, match="does not exist"):
        bytes_by_sample(lost)
    root = tmp_path / "far" / "away" / "pictures"
    assert bytes_by_sample(open_packs(tmp_path / "far" / "packs", media_root=root)) == expected
    assert bytes_by_sample(PackedDataset(tmp_path / "far" / "packs", media_root=root)) == expected
    assert check_store(tmp_path / "far" / "packs", media_root=root).samples == 30
    with pytest.raises(SettingsError, match="give it to open_packs for an open store"):
        PackedDataset(lost, media_root=root)


def test_media_are_encoded_once(home, monkeypatch):
    """Measuring keeps their places: the headers of a hundred million pictures are not opened twice."""
    monkeypatch.setattr(PictureEncoder, "num_encoded", 0)
    pack(home, "bytes")
    assert PictureEncoder.num_encoded == 30
    kept = tree(home / "packs")
    source = source_in(home)
    plan = plan_packs(measure_lengths(source, PictureEncoder(), cache_dir=home / "cache"), capacity=CAPACITY)
    shard_bytes = 4 * CAPACITY * 2
    write_packs(plan, source, PictureEncoder(), home / "again", shard_bytes=shard_bytes, media_storage="bytes")
    shards = {name: digest for name, digest in kept.items() if name.startswith(("shards", "media", "stream"))}
    assert tree(home / "again") == shards
    again = write_packs(plan, source, PictureEncoder(), home / "again", shard_bytes=shard_bytes, media_storage="bytes")
    assert again == 0


def test_shards_are_written_in_any_order_anywhere(home, monkeypatch):
    """Containers are laid out before any process writes one: of copies of everything, the last shard first."""
    pack(home, "bytes", "one")

    def backwards(function, tasks, *, context, **_options):
        for task in reversed(tasks):
            yield task, function(*pickle.loads(pickle.dumps((context, task))))

    monkeypatch.setattr("brimful.store.writing.run_tasks", backwards)
    pack(home, "bytes", "two")
    assert tree(home / "one") == tree(home / "two")


def test_the_same_call_on_a_finished_store_reads_no_picture(home):
    """All of them are gone, and nothing is missed."""
    pack(home, "bytes")
    before = tree(home / "packs")
    shutil.rmtree(home / "data" / "photos")
    pack(home, "bytes")
    assert tree(home / "packs") == before


def test_another_storage_is_another_store(home):
    """Half of a store with bytes and half with references would be neither."""
    pack(home)
    with pytest.raises(StoreMismatchError, match=r"media storage \(references there, bytes now\)"):
        pack(home, "bytes")
    with pytest.raises(SettingsError, match="media_storage 'pixels' is unknown: use one of references, bytes"):
        pack(home, "pixels", "other")


class _ChangeAt(Progress):
    """Changes a picture as a stage begins."""

    def __init__(self, path, stage):
        super().__init__()
        self._path, self._stage = path, stage

    def _opened(self, record):
        if record.name == self._stage:
            self._path.write_bytes(bytes(len(self._path.read_bytes())))


@pytest.mark.parametrize(("stage", "storage"), [("media", "references"), ("write", "bytes")])
def test_a_picture_that_changes_while_it_is_packed(home, stage, storage):
    """Tokens of one picture and bytes of another would train on nonsense."""
    progress = _ChangeAt(home / "data" / "photos" / "p0.png", stage)
    message = r"image 'photos/p0.png': was changed while it was packed.* or run the job again"
    with pytest.raises(BadSampleError, match=message):
        pack(home, storage, progress=progress)


def test_a_picture_that_goes_after_it_was_measured(home):
    """The way out is the same call, which measures again."""

    class Removing(Progress):
        def _opened(self, record):
            if record.name == "media":
                (home / "data" / "photos" / "p0.png").unlink()

    with pytest.raises(
        BadSampleError, match=r"could be read when it was measured: bring it back, or run the job again"
    ):
        pack(home, progress=Removing())


def test_a_job_that_goes_on_with_other_pictures_is_refused(home, monkeypatch):
    """The first shards would hold the old ones."""
    monkeypatch.setattr("brimful.store.writing.StreamLog.end", lambda self, record: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        pack(home, "bytes")
    monkeypatch.undo()
    (home / "data" / "photos" / "p0.png").write_bytes(bytes(len(picture(0))))
    with pytest.raises(StoreMismatchError, match=r"media fingerprint \(.{7} there, .{7} now\)"):
        pack(home, "bytes")


def test_kept_places_of_pictures_that_changed_are_not_used(home, monkeypatch):
    """A killed job leaves them, and the picture may have another size by now."""
    monkeypatch.setattr("brimful.store.packing_job.write_plan", lambda *args, **options: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        pack(home, directory="killed")
    monkeypatch.undo()
    shutil.rmtree(home / "killed" / "log", ignore_errors=True)
    (home / "killed" / "stream.json").unlink()
    (home / "data" / "photos" / "p0.png").write_bytes(picture(0, size=43))
    packs = pack(home, directory="killed")
    assert bytes_by_sample(packs) == expected_bytes(home)
    assert {item.length for pack in packs for item in pack.attachments if item.medium.name.endswith("p0.png")} == {
        1 + 43 % 7
    }


def test_a_disk_without_room_is_refused_before_anything_is_written(home, monkeypatch):
    """Their size is known; hours later would be late."""
    usage = shutil.disk_usage(home)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1000))
    with pytest.raises(StoreFullError, match=r"needs .* kB for media, and 1.00 kB are free"):
        pack(home, "bytes")
    assert not (home / "packs" / "shards").exists()


def test_sizes_are_said_before_anything_is_written(home):
    """A user may want references after all."""
    said = []

    class Listening(Progress):
        def say(self, text):
            said.append((text, (home / "packs" / "shards").exists()))

    pack(home, "bytes", progress=Listening())
    assert said == [("media: 18 in the packs (1.10 kB); 5 distinct ones stored, 5.12 kB on disk", False)]


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (lambda path: path.unlink(), r"media/.*\.tar is missing"),
        (lambda path: path.write_bytes(path.read_bytes()[:-512]), "and was committed with"),
        (lambda path: path.write_bytes(path.read_bytes() + bytes(512)), "and was committed with"),
    ],
)
def test_damaged_containers_are_found_and_written_again(home, fault, message):
    """Before a pack is used, by name; the same command mends the store."""
    pack(home, "bytes")
    before = tree(home / "packs")
    container = sorted((home / "packs" / "media").iterdir())[0]
    fault(container)
    with pytest.raises(CorruptFileError, match=message):
        bytes_by_sample(open_packs(home / "packs"))
    pack(home, "bytes")
    assert tree(home / "packs") == before


def test_flipped_bytes_of_a_container_are_found(home):
    """By the reader of the medium, and by a check of the store."""
    packs = pack(home, "bytes")
    medium = next(item.medium for pack in packs for item in pack.attachments)
    with open(medium.path, "r+b") as file:
        file.seek(medium.offset + 3)
        byte = file.read(1)
        file.seek(medium.offset + 3)
        file.write(bytes([byte[0] ^ 1]))
    with pytest.raises(BadMediumError, match=r"bytes 512 … .*\.tar differ from what was written"):
        bytes_by_sample(packs)
    with pytest.raises(CorruptFileError, match=r"\.tar has other bytes than were committed"):
        check_store(home / "packs")


def test_a_check_finds_a_reference_that_changed(home):
    """By sample and name."""
    pack(home)
    (home / "data" / "photos" / "p3.png").write_bytes(bytes(len(picture(3))))
    with pytest.raises(CorruptFileError, match=r"sample 18, image 'photos/p3.png': was changed since it was packed"):
        check_store(home / "packs")
    (home / "data" / "photos" / "p3.png").write_bytes(b"")
    with pytest.raises(CorruptFileError, match=r"has 0 bytes and 79 are due: the file was cut short"):
        check_store(home / "packs")


def test_texts_are_written_as_before(home):
    """No new column, no folder, no key."""
    texts = open_source([chat("abc") for _ in range(4)])
    pack_dataset(
        texts, type(PictureEncoder()).__mro__[1](), home / "texts", capacity=CAPACITY, cache_dir=home / "cache"
    )
    assert not (home / "texts" / "media").exists()
    assert b"media" not in (home / "texts" / "log" / "000000000000.json").read_bytes()
    assert b"media" not in (home / "texts" / "stream.json").read_bytes()


@settings(max_examples=15)
@given(
    st.lists(st.tuples(st.text("ab", max_size=5), st.lists(st.integers(0, 6), max_size=3)), min_size=1, max_size=12),
    st.sampled_from(["references", "bytes"]),
    st.booleans(),
)
def test_round_trip(tmp_path_factory, samples, storage, is_in_rows):
    """Law: any chats with any pictures come back with their bytes, equal ones are stored once, and the log counts them."""
    home = tmp_path_factory.mktemp("round")
    write_pictures(home, range(7))
    data = [
        chat("x" + text, *[picture(n) if is_in_rows else f"p{n}.png" for n in numbers]) for text, numbers in samples
    ]
    source = open_source(data, media=True, media_dir=home)
    pack_dataset(
        source,
        PictureEncoder(),
        home / "packs",
        PlanSettings(capacity=CAPACITY),
        media_storage=storage,
        shard_bytes=4 * CAPACITY,
        num_proc=1,
        cache_dir=home / "cache",
    )
    packs = open_packs(home / "packs")
    expected = {index: [picture(number) for number in numbers] for index, (_, numbers) in enumerate(samples)}
    assert bytes_by_sample(packs) == expected
    distinct = {number for _, numbers in samples for number in numbers}
    assert packs.census.num_stored == (len(distinct) if is_in_rows or storage == "bytes" else 0)
    items = [item for pack in packs for item in pack.attachments]
    census = packs.census.kinds.get("image", KindCount())
    assert (census.count, census.distinct) == (len(items), len({item.fingerprint for item in items}))
    sums = [(len(item.read()), item.num_tokens, item.num_patches, item.num_frames) for item in items]
    assert [census.bytes, census.tokens, census.patches, census.frames] == np.sum([[0] * 4, *sums], axis=0).tolist()
    assert (0 if census.largest is None else census.largest.tokens) == max(
        (tokens for _, tokens, *_ in sums), default=0
    )
