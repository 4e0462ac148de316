"""The layouts after packing of LLaVA-OneVision-1.5, there and back: nothing is lost."""

import io
import json
import tarfile
from typing import Any

import pytest

from brimful import measure_lengths, open_source, plan_packs, write_packs
from brimful.errors import BadSampleError, SettingsError, SourceError, StoreMismatchError
from brimful.integrations.export import check_export, export_packs
from brimful.integrations.export.packed_pairs import SAMPLE_LOADER, comparable, open_as_packed
from brimful.integrations.packed_layouts import PackedPairs
from brimful.testing.contracts import RowsContract
from brimful.testing.toys import toy_chat_encoder
from tests.integrations.export.stores import content, run_with

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
    summary = export_packs(packs, to="packed-chats", directory=tmp_path / "export", source=source)
    assert (summary.packs, summary.segments, summary.media) == (len(packs), len(CHATS), 7)
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
            position = pack.sample_ids.tolist()
            if 3 in position:
                at = f"img{position.index(3):03d}"
                assert found[3][0] == [f"{at}_sub000.png", f"{at}_sub001.png", f"{at}_sub002.png"]
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
    export_packs(packs, to="packed-captions", directory=tmp_path / "export", source=source)
    with tarfile.open(tmp_path / "export" / "packs-000000.tar") as tar:
        text = json.loads(content(tar, "ps_00000000.json"))
    assert sorted(zip(text["captions"], text["prompts"], strict=True)) == [("a dog", ""), ("cat", "what")]
    assert text["images"] == ["img000.png", "img001.png"]
    samples = open_source(tmp_path / "export", media=True)
    order = text["sample_ids"]
    assert [comparable(samples[row]) for row in range(2)] == [comparable(source[number]) for number in order]


def test_flat_packs_refuse_what_they_would_lose(packs, source, tmp_path):
    with pytest.raises(BadSampleError, match='holds one of each: choose to="packed-chats"'):
        export_packs(packs, to="packed-captions", directory=tmp_path / "export", source=source)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"messages": [{"role": "system", "content": "s"}, *chat("a", "b")["messages"]]}, "turns of system, user"),
        ({"messages": [{"role": "user", "content": "a"}]}, "turns of user"),
        ({"messages": chat("a", "b")["messages"], "tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
    ],
)
def test_samples_without_a_place_are_named(row, reason, tmp_path):
    """The layout holds questions and answers: a system prompt would be gone on the way back."""
    from brimful import open_packs

    packed([chat("a", "b")], tmp_path / "packs")
    packs = PacksOf(open_packs(tmp_path / "packs"))
    with pytest.raises(BadSampleError, match=f"sample 0: has {reason}"):
        export_packs(packs, to="packed-chats", directory=tmp_path / "export", source=[row])


def test_cut_samples_and_other_data_are_refused(tmp_path):
    """A text cannot be cut at a token, and texts of other data would train without a sign."""
    rows = [chat("a" * 60, "b" * 60), chat("c", "d")]
    packed(rows, tmp_path / "packs", overflow="split")
    with pytest.raises(SettingsError, match='planned with overflow="split"'):
        export_packs(tmp_path / "packs", to="packed-chats", directory=tmp_path / "export", source=open_source(rows))
    with pytest.raises(StoreMismatchError, match="is not the data that was packed"):
        export_packs(tmp_path / "packs", to="packed-chats", directory=tmp_path / "export", source=rows[:1])


@pytest.mark.parametrize("media", [False, True])
def test_data_are_opened_as_they_were_packed(media):
    """Packs of texts name the rows without their pictures; data that are in no packs are opened with them."""
    packs: Any = PacksOf()
    packs.identity = {"source": open_source(CHATS, media=media).fingerprint}
    assert open_as_packed(CHATS, packs).fingerprint == packs.identity["source"]
    assert open_as_packed(CHATS[:1], packs).fingerprint == open_source(CHATS[:1], media=True).fingerprint


def test_the_check_compares_texts(packs, source, readers, tmp_path):
    export_packs(packs, to="packed-chats", directory=tmp_path / "export", source=source)
    assert check_export(tmp_path / "export", packs, source=source).fields == ("media", "messages")


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
        },
    )
    samples = open_source(tmp_path / "a.tar", media=True)
    results = list(samples.read(0, 5))
    assert [isinstance(result, BadSampleError) for result in results] == [True, False, True, True, True]
    reasons = [result.reason for result in results if isinstance(result, BadSampleError)]
    assert "cannot be read" in reasons[0]
    assert "'img000.jpg' is not a member of its pack" in reasons[1]
    assert "2 prompts and 1 captions" in reasons[2]
    assert "of one length" in reasons[3]
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


class TestPackedPairs(RowsContract):
    num_rows = 300  # blocks of 256 samples
    knows_prefixes = False

    def make_rows(self, folder, texts):
        for number, text in enumerate(texts):
            pack = {"images": [[]], "prompts": [[""]], "captions": [[text]]}
            (folder / f"ps_{number:08d}.json").write_text(json.dumps(pack))
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
