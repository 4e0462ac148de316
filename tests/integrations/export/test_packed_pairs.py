"""The layouts after packing of LLaVA-OneVision-1.5, there and back: nothing is lost."""

import io
import json
import tarfile
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from brimful import measure_lengths, open_source, plan_packs, write_packs
from brimful.base.blobs import LocalBlobStore
from brimful.errors import BadSampleError, CorruptFileError, SettingsError, SourceError, StoreMismatchError
from brimful.integrations.export import check_export, export_packs
from brimful.integrations.export.export_layout import ExportPlan, Shard
from brimful.integrations.export.packed_pairs import (
    SAMPLE_LOADER,
    PackedChatsLayout,
    comparable,
    open_as_packed,
    turns_of,
)
from brimful.integrations.packed_layouts import PackedChunk, PackedPairs, open_rows, rows_of_pairs
from brimful.media import MediaKind, Medium
from brimful.sources.sample import Sample
from brimful.testing.contracts import RowsContract
from brimful.testing.toys import toy_chat_encoder, toy_pack
from tests.integrations.export.stores import content, picture, run_with

pytestmark = pytest.mark.filterwarnings("ignore")  # of webdataset


def image(number):
    return {"bytes": bytes([number]) * 90, "path": f"pic {number}.PNG"}


def chat(*texts, images=()):
    roles = ["user", "assistant"] * (len(texts) // 2)
    messages = [{"role": role, "content": text} for role, text in zip(roles, texts, strict=True)]
    return {"messages": messages, **({"images": list(images)} if images else {})}


CHATS = [
    chat("<image>\nwhat", "cat", images=[image(1)]),
    chat("hi", "hello", "and?", "no"),
    chat("<image>", "a dog", images=[image(2)]),
    chat("<image>\n<image>\nboth", "yes", "look <image> again", "so", images=[image(1), image(3), image(4)]),
    chat("who is <image>", "Ann \ud7ff\u2028", images=[image(5)]),
    chat("<image>\n", "line", images=[image(6)]),
    chat("<image><image>\nleft", "right", images=[image(7), image(8)]),
]
CAPTIONS = [chat("<image>\nwhat", "cat", images=[image(1)]), chat("<image>", "a dog", images=[image(2)])]


def packed(rows, directory, capacity=80, **options):
    """A source with pictures, and packs of the same samples as texts."""
    source = open_source(rows, media=True)
    texts = [
        {"messages": [{"role": m["role"], "content": m["content"].replace("<image>", "#")} for m in row["messages"]]}
        for row in rows
    ]
    plain, encoder = open_source(texts), toy_chat_encoder()
    plan = plan_packs(measure_lengths(plain, encoder, targets=False), capacity=capacity, **options)
    write_packs(plan, plain, encoder, directory, shard_bytes=1)
    return source, plan


class PacksOf(list):
    """Packs without the identity of a store, as packs on the fly have none."""

    fingerprint = "0123456789abcdef" * 2
    capacity = 80


@pytest.fixture
def packs(tmp_path):
    from brimful import open_packs

    packed(CHATS, tmp_path / "packs")
    return PacksOf(open_packs(tmp_path / "packs"))


@pytest.fixture
def source():
    return open_source(CHATS, media=True)


def unpacked(directory, target):
    for path in sorted(directory.glob("*.tar")):
        with tarfile.open(path) as tar:
            tar.extractall(target, filter="data")
    return target


def test_members_of_a_pack(packs, source, tmp_path):
    """Pictures by the position of their sample: a text leaves a gap, several have a number of their own."""
    packs[0] = replace(packs[0], attachments=(picture(1, 0),))  # packs may name media too
    summary = export_packs(packs, to="packed-chats", directory=tmp_path / "export", source=source)
    assert (summary.packs, summary.segments, summary.media) == (len(packs), len(CHATS), 9)
    assert summary.advice == "export OFFLINE_PACKED_DATA=1 OFFLINE_PACKING_BMR=1"
    with tarfile.open(tmp_path / "export" / "packs-000000.tar") as tar:
        found = {}
        for number, pack in enumerate(packs):
            text = json.loads(content(tar, f"ps_{number:08d}.json"))
            for sample_id, names, prompts, captions in zip(
                pack.sample_ids.tolist(), text["images"], text["prompts"], text["captions"], strict=True
            ):
                found[sample_id] = names, prompts, captions
                for name in names:
                    assert tar.getmember(f"ps_{number:08d}.{name}").size == 90
            for place, sample_id in enumerate(pack.sample_ids.tolist()):
                count = len(CHATS[sample_id].get("images", ()))
                ends = [""] if count == 1 else [f"_sub{one:03d}" for one in range(count)]
                assert found[sample_id][0] == [f"img{place:03d}{end}.png" for end in ends]
    assert found[0][1:] == (["what"], ["cat"])
    assert found[1] == ([], ["hi", "and?"], ["hello", "no"])
    assert found[2][1:] == ([""], ["a dog"])
    assert found[4][1] == ["who is <image>"]
    assert found[5][1] == ["<image>\n"]


@pytest.mark.parametrize("is_unpacked", [False, True])
def test_samples_come_back(packs, source, is_unpacked, tmp_path):
    """Each sample once, with its turns, marks and bytes, from tars and from files."""
    export_packs(packs, to="packed-chats", directory=tmp_path / "export", source=source, packs_per_shard=2)
    folder = unpacked(tmp_path / "export", tmp_path / "files") if is_unpacked else tmp_path / "export"
    samples = open_source(folder, media=True)
    order = [sample_id for pack in packs for sample_id in pack.sample_ids.tolist()]
    assert sorted(order) == list(range(len(CHATS)))
    assert [comparable(samples[row]) for row in range(len(samples))] == [comparable(source[number]) for number in order]


def test_captions_are_flat(tmp_path):
    """One picture, one prompt and one caption a sample, as the seed draws it."""
    from brimful import open_packs

    source, _ = packed(CAPTIONS, tmp_path / "packs")
    packs = PacksOf(open_packs(tmp_path / "packs"))
    summary = export_packs(packs, to="packed-captions", directory=tmp_path / "export", source=source)
    assert summary.advice.endswith(" OFFLINE_PACKING_VQA=1")
    with tarfile.open(tmp_path / "export" / "packs-000000.tar") as tar:
        text = json.loads(content(tar, "ps_00000000.json"))
    assert sorted(zip(text["captions"], text["prompts"], strict=True)) == [("a dog", ""), ("cat", "what")]
    assert text["images"] == ["img000.png", "img001.png"]
    samples = open_source(tmp_path / "export", media=True)
    order = text["sample_ids"]
    assert [comparable(samples[row]) for row in range(2)] == [comparable(source[number]) for number in order]


@pytest.mark.parametrize(
    ("number", "counts"), [(1, "2 questions and 0 images"), (3, "2 questions and 3"), (6, "1 questions and 2")]
)
def test_flat_packs_refuse_what_they_would_lose(number, counts, tmp_path):
    pack = toy_pack([3], first_sample=number)
    with pytest.raises(BadSampleError, match=f'has {counts}.*holds one of each: choose to="packed-chats"'):
        export_packs(PacksOf([pack]), to="packed-captions", directory=tmp_path, source=open_source(CHATS, media=True))


def sample_of(*texts, images=0, **others):
    """A sample of turns in parts, with this many images."""

    def parts(text):
        texts = [{"type": "text", "text": one} for one in text.split("<image>")]
        return [part for text in texts for part in ({"type": "image"}, text)][1:]

    roles = ["user", "assistant"] * len(texts)
    messages = [{"role": role, "content": parts(text)} for role, text in zip(roles, texts, strict=False)]
    return Sample(5, messages=messages, attachments=(None,) * images, **others)


@pytest.mark.parametrize(
    ("question", "images", "expected"),
    [
        *[("<image>", 1, ""), ("<image>\nwhat", 1, "what"), ("<image>\n", 1, "<image>\n"), ("<image>\n\n", 1, "\n")],
        *[("<image>a", 1, "<image>a"), ("a <image>", 1, "a <image>"), ("<image><image>\na", 2, "a")],
        *[("<image>\na <image>", 2, "<image>\na <image>"), ("\na", 0, "\na"), ("", 0, "")],
    ],
)
def test_marks_before_the_first_question_are_left_to_the_reader(question, images, expected):
    """It puts them back for each image, if no text has a mark."""
    assert turns_of(sample_of(question, "b", "c", "d", images=images)) == ([expected, "c"], ["b", "d"])
    row = {"images": [["i"] * images], "prompts": [[expected]], "captions": [["b"]]}
    (read,) = rows_of_pairs(row, lambda *_: {})
    due = question.replace("<image><image>", "<image>" * 2)
    assert read["messages"][0]["content"] == due


@pytest.mark.parametrize(
    ("sample", "reason"),
    [
        (
            Sample(5, messages=[{"role": "system", "content": "s"}, *chat("a", "b")["messages"]]),
            "turns of system, user",
        ),
        (sample_of("a"), "turns of user, and"),
        (sample_of("a", "b", "c"), "turns of user, assistant, user"),
        (Sample(5, text="a"), "no turns"),
        (sample_of("a", "b", tools=[{"type": "function", "function": {"name": "f"}}]), "tools"),
        (
            Sample(5, messages=[{**one, "name": "Ann", "thinking": ""} for one in chat("a", "b")["messages"]]),
            "name, and",
        ),
        (
            Sample(5, messages=[{"role": "user", "content": [{"type": "audio"}]}, chat("a", "b")["messages"][1]]),
            "audio",
        ),
        (
            Sample(5, messages=[{"role": "user", "content": [{"type": "video"}]}, chat("a", "b")["messages"][1]]),
            "video",
        ),
        (Sample(5, messages=chat("a", "<image>")["messages"]), "<image> as plain text"),
    ],
)
def test_samples_without_a_place_are_named(sample, reason):
    """The layout holds questions and answers: a system prompt would be gone on the way back."""
    with pytest.raises(BadSampleError, match=f"sample 5: has {reason}"):
        turns_of(sample)


def test_a_turn_without_a_text_is_an_empty_one():
    assert turns_of(Sample(5, messages=[{"role": "user"}, {"role": "assistant", "content": "b"}])) == ([""], ["b"])


@pytest.mark.parametrize(
    ("medium", "words"),
    [
        (Medium(MediaKind.VIDEO, "a.mp4", data=b"1"), "sample 0: has video, and the layout holds images"),
        (Medium(MediaKind.IMAGE, "a" * 250, path="/none"), f"sample 0: image '{'a' * 200}' "),
    ],
)
def test_media_without_a_place_or_bytes_are_named(medium, words, tmp_path):
    """Without a page of text for a picture whose name is one."""
    sample = replace(sample_of("<image>", "b"), sample_id=0, attachments=(medium,))
    shard = Shard(0, ExportPlan("f" * 32, 8, 1, 1, [sample]), LocalBlobStore(tmp_path), [(0, toy_pack([3]))])
    with pytest.raises(BadSampleError, match=words):
        PackedChatsLayout().write_shard(shard)


def test_a_part_of_a_sample_is_refused_by_pack_and_sample(source, tmp_path):
    """Packs on the fly do not say how they were planned."""
    parts = replace(toy_pack([3, 2, 2]), starts=np.array([0, 4, 2], dtype=np.int32))
    with pytest.raises(SettingsError, match="pack 1 holds a part of sample 1, and a text cannot be cut"):
        export_packs(PacksOf([toy_pack([3]), parts]), to="packed-chats", directory=tmp_path, source=source)


def test_cut_samples_and_other_data_are_refused(tmp_path):
    """A text cannot be cut at a token, and texts of other data would train without a sign."""
    rows = [chat("a" * 60, "b" * 60), chat("c", "d")]
    packed(rows, tmp_path / "packs", overflow="split")
    with pytest.raises(SettingsError, match='planned with overflow="split"'):
        export_packs(tmp_path / "packs", to="packed-chats", directory=tmp_path / "export", source=open_source(rows))
    for other in (rows[:1], rows[1:], [*rows, *rows]):  # fingerprints before and after it
        with pytest.raises(StoreMismatchError, match="is not the data that was packed"):
            export_packs(tmp_path / "packs", to="packed-chats", directory=tmp_path / "export", source=other)


@pytest.mark.parametrize("media", [False, True])
@pytest.mark.parametrize("first", range(4))
def test_data_are_opened_as_they_were_packed(media, first):
    """Packs of texts name the rows without their pictures; data that are in no packs are opened with them."""
    packs: Any = PacksOf()
    rows, others = CHATS[first:], CHATS[first : first + 1]
    packs.identity = {"source": open_source(rows, media=media).fingerprint}
    assert open_as_packed(rows, packs).fingerprint == packs.identity["source"]
    assert open_as_packed(others, packs).fingerprint == open_source(others, media=True).fingerprint
    del packs.identity
    assert open_as_packed(rows, packs).fingerprint == open_source(rows, media=True).fingerprint


def test_the_check_compares_texts(packs, source, readers, tmp_path):
    export_packs(packs, to="packed-chats", directory=tmp_path / "export", source=source)
    assert check_export(tmp_path / "export", packs, source=source).fields == ("media", "messages")
    path = tmp_path / "export" / "packs-000000.tar"
    for old, new, part in (("cat", "dog", "messages"), ('"hi"', "9999", "messages"), ("\1" * 90, "\2" * 90, "media")):
        whole = path.read_bytes()
        path.write_bytes(whole.replace(old.encode(), new.encode()))
        assert path.read_bytes() != whole
        with pytest.raises(CorruptFileError, match=rf"pack \d has other {part} than the source"):
            check_export(tmp_path / "export", packs, source=source)
        path.write_bytes(whole)


def test_the_sample_loader_of_the_trainer():
    """It runs in the trainer: a picture, none, or several, by the names in the pack."""
    namespace = {}
    exec(SAMPLE_LOADER, namespace)
    pack = {"images": ["a", [], ["a"], ["a", "b"]], "prompts": [1], "captions": [2]}
    sample = {"__key__": "k", "__restore_key__": (), "json": pack, "a": "A", "b": "B"}
    assert namespace["sample_loader"](sample)["images"] == ["A", None, "A", ["A", "B"]]


def write_tar(path, packs):
    with tarfile.open(path, "w") as tar:
        for key, members in packs.items():
            for name, content in members.items():
                member = tarfile.TarInfo(f"{key}.{name}")
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))


@pytest.mark.parametrize("key", ["prompt", "prompts"])
@pytest.mark.parametrize(
    ("names", "members"),
    [
        (["img000.jpg", "img001.jpg"], ["img000.jpg", "img001.jpg"]),
        (["img000.jpg", "img001.jpg"], ["img0.jpg", "img1.jpg"]),
        (["/home/a/x y.jpg", "/home/a/z.jpg"], ["img0.jpg", "img1.jpg"]),
        ([["img000_sub000.jpg"], ["img001_sub000.jpg"]], ["img0_0.jpg", "img1_0.jpg"]),
    ],
)
def test_the_spellings_of_other_writers_are_read(key, names, members, tmp_path):
    """Zeros, absolute paths and numbers within a sample: every writer of the layout has its own."""
    pack = {"images": names, key: ["p", "q"], "captions": ["c", "d"]}
    contents = {name: name.encode() for name in members}
    write_tar(tmp_path / "a.tar", {"ps_00000000": {"json": json.dumps(pack).encode(), **contents}})
    samples = open_source(tmp_path / "a.tar", media=True)
    assert [samples[row].attachments[0].read() for row in range(2)] == list(contents.values())
    assert [part["text"] for part in samples[1].messages[0]["content"] if part["type"] == "text"] == ["\nq"]


def test_bad_packs_are_malformed_rows(tmp_path):
    """Named one by one; the good ones are read."""
    good = json.dumps({"images": [[]], "prompts": [["a"]], "captions": [["b"]]}).encode()
    write_tar(
        tmp_path / "a.tar",
        {
            "ps_00000000": {"json": b"{"},
            "ps_00000001": {"json": good},
            "ps_00000002": {
                "json": json.dumps({"images": [["img000.jpg"]], "prompts": ["a"], "captions": ["b"]}).encode()
            },
            "ps_00000003": {
                "json": json.dumps({"images": [[]], "prompts": [["a", "b"]], "captions": [["b"]]}).encode()
            },
            "ps_00000004": {"json": json.dumps({"images": [[], []], "prompts": [["a"]], "captions": [["b"]]}).encode()},
            "ps_00000005": {"json": json.dumps({"images": "ab", "prompts": "ab", "captions": "ab"}).encode()},
            "ps_00000006": {"json": b"[]"},
            "ps_00000007": {"txt": b"no json"},
            "ps_00000008": {"json": json.dumps({"images": [[]], "prompts": ["a"], "captions": [["b", "c"]]}).encode()},
            "ps_00000009": {"json": json.dumps({"images": [[]], "prompts": ["a"], "captions": [5]}).encode()},
            "notes": {"json": b"{}"},
        },
    )
    samples = open_source(tmp_path / "a.tar", media=True)
    results = list(samples.read(0, 20))
    assert [isinstance(result, BadSampleError) for result in results] == [True, False, *[True] * 8]
    assert all("of one length" in result.reason for result in results[4:7])
    assert [result.reason.split(":")[0] for result in results[7:]] == [
        *("the JSON of its pack cannot be read", "it has 1 prompts and 2 captions", "it has 1 prompts and 1 captions")
    ]
    reasons = [result.reason for result in results if isinstance(result, BadSampleError)]
    assert "cannot be read" in reasons[0]
    assert "'img000.jpg' is not a member of its pack" in reasons[1]
    assert "2 prompts and 1 captions" in reasons[2]
    assert "pack 2: sample 0 of the pack" in str(results[2])


def test_a_tar_that_is_none_or_changes_is_named(tmp_path):
    """In one line, whether it was damaged before it was opened, or is overwritten while it is read."""
    path, pack = tmp_path / "a.tar", json.dumps({"images": [[]], "prompts": [["a"]], "captions": [["b"]]}).encode()
    write_tar(path, {"ps_00000000": {"json": pack}})
    rows = PackedPairs(path)
    assert len(list(rows.read(0, 1))) == 1
    path.write_bytes(b"no tar" * 400)
    with pytest.raises(SourceError, match=r"a\.tar changed while it was being read"):
        list(rows.read(0, 1))
    with pytest.raises(SourceError, match=r"a\.tar is not a readable tar"):
        PackedPairs(path)


def test_a_tar_that_begins_with_an_extended_header(tmp_path):
    """webdataset writes fractions of seconds, so that its tars begin with one; the first member comes after it."""
    pack = json.dumps({"images": ["img000.jpg"], "prompts": ["?"], "captions": ["A cat."]}).encode()
    with tarfile.open(tmp_path / "pretrain-000000.tar", "w", format=tarfile.PAX_FORMAT) as tar:
        for name, data in (("ps_00000000.img0.jpg", b"jpg"), ("ps_00000000.json", pack)):
            info = tarfile.TarInfo(name)
            info.size, info.mtime = len(data), 1.5
            tar.addfile(info, io.BytesIO(data))
    assert (tmp_path / "pretrain-000000.tar").read_bytes().startswith(b"././@PaxHeader")
    for path in (tmp_path, tmp_path / "pretrain-000000.tar"):
        samples = open_source(path, media=True)
        assert (len(samples), samples[0].attachments[0].read()) == (1, b"jpg")


def test_what_is_opened_as_packs(tmp_path):
    """A folder or tar of others stays what it is; what cannot be read is not taken for packs."""

    def opened(path):
        return isinstance(open_rows(str(path), None, None), (PackedPairs, PackedChunk))

    pack = json.dumps({"images": [[]], "prompts": [["a"]], "captions": [["b"]]}).encode()
    for name, files, is_packs in (
        ("json", {"ps_1.json": pack}, True),
        ("others", {"ps_1.txt": pack, "ps_x.json": pack, "1.json": pack}, False),
        ("empty", {}, False),
        ("damaged", {"a.tar": b"no tar" * 400}, False),
    ):
        (tmp_path / name).mkdir()
        for file, data in files.items():
            (tmp_path / name / file).write_bytes(data)
        assert opened(tmp_path / name) is is_packs, name
        assert not any(opened(tmp_path / name / file) for file in files)
    for name, key in (("packs", "ps_00000000"), ("plain", "a")):
        (tmp_path / name).mkdir()
        write_tar(tmp_path / name / "A.TAR", {key: {"json": pack}})
        assert opened(tmp_path / name / "A.TAR") is (name == "packs")
        (tmp_path / name / "A.TAR").rename(tmp_path / name / "a.tar")
        assert opened(tmp_path / name) is opened(tmp_path / name / "a.tar") is (name == "packs")
    (tmp_path / "tars" / "a.tar").mkdir(parents=True)
    assert not opened(tmp_path / "tars")
    assert len(PackedPairs(tmp_path / "packs" / "a.tar")) == 1
    for name, line, is_packs in (
        ("chunk_00000.jsonl", '{"pack_length": 1}', True),
        ("chunk_00001.jsonl", '{"text": "a"}\n{"pack_length": 1}', False),
        ("a.jsonl", '{"pack_length": 1}', False),
    ):
        (tmp_path / name).write_text(line)
        assert opened(tmp_path / name) is is_packs
    (tmp_path / "chunk_00002.jsonl").mkdir()
    assert not opened(tmp_path / "chunk_00002.jsonl")


def test_images_in_files_are_content_too(tmp_path):
    """Of their own pack or of all; a changed picture is other data, and one that is gone is named when it is read."""
    pack = {"images": ["img0.png", "all.png"], "prompts": ["a", "b"], "captions": ["c", "d"]}
    (tmp_path / "ps_1.json").write_text(json.dumps(pack))
    found = []
    for name in ("ps_1.img0.png", "all.png", "img0.png"):
        found.append(open_source(tmp_path, media=True).fingerprint)
        (tmp_path / name).write_bytes(name.encode())
    found.append(open_source(tmp_path, media=True).fingerprint)
    assert len(set(found)) == 3
    assert found[3] == found[2], "a pack takes the file of its own name"
    samples = open_source(tmp_path, media=True)
    assert [samples[row].attachments[0].read() for row in range(2)] == [b"ps_1.img0.png", b"all.png"]
    assert PackedPairs(tmp_path / "ps_1.json").directory == str(tmp_path)


@pytest.mark.parametrize(
    ("names", "prompts", "captions", "question"),
    [
        *[("a", "q", "c", "<image>\nq"), (["a", "b"], "q", "c", "<image><image>\nq"), ("a", "", "c", "<image>")],
        *[("a", "q <image>", "c", "q <image>"), ("a", "q", "c <image>", "q"), (["", "a"], "q", "c", "<image>\nq")],
        *[(None, "q", "c", "q"), ([], ["q"], ["c"], "q"), ("a", [], [], None)],
        ("a", ["q", "r"], ["c", "d"], "<image>\nq"),
    ],
)
def test_marks_are_put_where_a_pack_has_none(names, prompts, captions, question):
    """For each image, before the first question."""
    (row,) = rows_of_pairs({"images": [names], "prompts": [prompts], "captions": [captions]}, lambda *place: place)
    assert [turn["content"] for turn in row["messages"]][:1] == ([] if question is None else [question])
    files = [name for name in ([names] if isinstance(names, str) else names or []) if name]
    assert row.get("images", []) == [(0, number, name) for number, name in enumerate(files)]


class TestPackedPairs(RowsContract):
    num_rows = 300  # blocks of 256 samples
    knows_prefixes = False

    def make_rows(self, folder, texts):
        """Packs of one, two and three samples."""
        rest, number = list(texts), 0
        while rest:
            part, rest = rest[: 1 + number % 3], rest[1 + number % 3 :]
            pack = {"images": [[]] * len(part), "prompts": [[""]] * len(part), "captions": [[text] for text in part]}
            (folder / f"ps_{number:08d}.json").write_text(json.dumps(pack))
            number += 1
        return PackedPairs(folder)

    def text_of(self, row):
        return row["messages"][1]["content"]


def png(width, height):
    image = pytest.importorskip("PIL.Image")
    sink = io.BytesIO()
    image.new("RGB", (width, height), (9, 9, 9)).save(sink, "PNG")
    return sink.getvalue()


@pytest.mark.parametrize("version", ["BRIMFUL_ENERGON5", "BRIMFUL_ENERGON7"])
def test_energon_loads_it_as_the_trainer_does(version, tmp_path):
    """By ``.nv-meta``, the sample loader in it, and the trainer's own sample class: pictures decoded, none for a text."""
    from brimful import open_packs

    rows = [
        chat("<image>\nwhat", "cat", images=[{"bytes": png(8, 6), "path": "a.png"}]),
        chat("hi", "hello", "and?", "no"),
        chat("<image><image>\nboth", "yes", images=[{"bytes": png(4, 4), "path": "a.png"}] * 2),
    ]
    source, _ = packed(rows, tmp_path / "packs")
    packs = PacksOf(open_packs(tmp_path / "packs"))
    export_packs(packs, to="packed-chats", directory=tmp_path / "export", source=source)
    found = {}
    for pack, texts in zip(packs, json.loads(run_with(version, "aiak_reader.py", tmp_path / "export")), strict=True):
        found |= {number: list(text) for number, *text in zip(pack.sample_ids.tolist(), *texts, strict=True)}
    assert found[0] == [[3, 6, 8], ["what"], ["cat"]]
    assert found[1] == [None, ["hi", "and?"], ["hello", "no"]]
    assert found[2] == [[[3, 4, 4], [3, 4, 4]], ["both"], ["yes"]]
