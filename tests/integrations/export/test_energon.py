"""Data sets for Megatron-Energon: bytes that need no peer, and what versions 5, 7 and 8 read of them."""

import io
import json
import sqlite3
import sys
import tarfile
import types
from contextlib import closing

import numpy as np
import pytest

from brimful.collate.padding import shift_labels
from brimful.errors import SettingsError, StoreError
from brimful.integrations.export import check_export, energon_mix, export_packs, select_samples_to_pack
from brimful.media import MediaKind, Medium, PlacedMedium
from brimful.store.shards import assemble_pack
from brimful.testing.toys import ToyPacks
from tests.integrations.export.readers import ENERGON, cooked_samples
from tests.integrations.export.stores import as_rows, content, run_with, some_packs, tree

VERSIONS = ["BRIMFUL_ENERGON5", "BRIMFUL_ENERGON7", "BRIMFUL_ENERGON8"]
NUM_PACKS = 11


@pytest.fixture(scope="module")
def packs():
    return some_packs(NUM_PACKS, with_media=True)


@pytest.fixture(scope="module")
def directory(packs, tmp_path_factory):
    path = tmp_path_factory.mktemp("energon") / "export"
    export_packs(packs, to="energon", directory=path, packs_per_shard=4)
    return path


def test_members_of_a_pack(packs, directory):
    """Without it the bytes could be anything that our own reader takes."""
    key = packs.fingerprint[:8] + "-000000001"
    with tarfile.open(directory / "packs-000000.tar") as tar:
        names = [name for name in tar.getnames() if name.startswith(key)]
        assert names == [
            f"{key}.{part}" for part in ("json", "input_ids.npy", "loss_mask.npy", "000.image", "001.audio")
        ]
        facts = json.loads(content(tar, f"{key}.json"))
        assert np.load(io.BytesIO(content(tar, f"{key}.input_ids.npy"))).tolist() == packs[1].input_ids.tolist()
        assert content(tar, f"{key}.000.image") == packs[1].attachments[0].read()
        member = tar.getmember(names[0])
        assert (member.mtime, member.uid, member.gid, member.uname, member.mode) == (0, 0, 0, "", 0o644)
    assert facts["cu_lengths"] == [0, 4, 5, 9]
    # Two equal pictures are one member.
    assert [item["part"] for item in facts["media"]] == ["000.image", "000.image", "001.audio"]
    assert facts["media"][0]["grid"] == [1, 2, 2]


def test_keys_are_unique_over_all_shards_and_have_no_dot(directory):
    """Energon 7 refuses a data set with a key twice, and a key ends at its first dot."""
    keys = []
    for path in sorted(directory.glob("*.tar")):
        with tarfile.open(path) as tar:
            keys += list(dict.fromkeys(name.partition(".")[0] for name in tar.getnames()))
    assert len(keys) == len(set(keys)) == NUM_PACKS


def test_the_index_names_the_first_header_of_each_sample(directory):
    """A wrong offset makes Energon read the end of one sample as the begin of the next."""
    for path in sorted(directory.glob("*.tar")):
        offsets = np.frombuffer((path.parent / f"{path.name}.idx").read_bytes(), dtype="<u8").tolist()
        with tarfile.open(path) as tar:
            members = tar.getmembers()
        first = {}
        for member in members:
            first.setdefault(member.name.partition(".")[0], member.offset)
        end = members[-1].offset_data + -(-members[-1].size // 512) * 512
        assert offsets == [*first.values(), end]
        assert path.read_bytes()[end:] == bytes(1024), "two empty blocks end a tar"


def test_metadata(directory):
    """What `energon prepare` would write, for both versions."""
    meta = directory / ".nv-meta"
    counts = {"packs-000000.tar": 4, "packs-000001.tar": 4, "packs-000002.tar": 3}
    assert json.loads((meta / ".info.json").read_text()) == {"shard_counts": counts}
    lines = "".join(f"  {name}: {count}\n" for name, count in counts.items())
    assert (meta / ".info.yaml").read_text() == f"shard_counts:\n{lines}"
    assert '- "packs-{000000..000002}.tar"' in (meta / "split.yaml").read_text()
    with closing(sqlite3.connect(meta / "index.sqlite")) as database:
        samples = database.execute("SELECT * FROM samples ORDER BY sample_key").fetchall()
        parts = database.execute("SELECT * FROM sample_parts").fetchall()
    tars = [(directory / name).read_bytes() for name in counts]
    assert [row[0::2][:2] for row in samples] == [(number // 4, number % 4) for number in range(NUM_PACKS)]
    found = {}
    for tar, key, index, offset, size in samples:
        with tarfile.open(fileobj=io.BytesIO(tars[tar][offset : offset + size] + bytes(1024))) as one:
            found |= {(tar, index, name.removeprefix(f"{key}.")): content(one, name) for name in one.getnames()}
    assert {row[:3]: tars[row[0]][row[3] : row[3] + row[4]] for row in parts} == found
    assert (
        len(parts)
        == len(found)
        == sum(3 + 2 * bool(pack.attachments) for pack in some_packs(NUM_PACKS, with_media=True))
    )


def test_one_tar_is_named_as_it_is(tmp_path):
    """Energon expands braces, and takes no range of one."""
    export_packs(some_packs(3), to="energon", directory=tmp_path)
    assert '- "packs-000000.tar"' in (tmp_path / ".nv-meta" / "split.yaml").read_text()


def test_the_task_encoder_beside_it_needs_nothing_of_brimful(packs, directory, monkeypatch):
    """It is copied to clusters where brimful is not installed; there it makes rows of packs, and of batches of them."""
    pytest.importorskip("torch")
    for name in [name for name in sys.modules if name.split(".")[0] == "brimful"]:
        monkeypatch.setitem(sys.modules, name, None)  # importing it raises
    energon = types.ModuleType("megatron.energon")
    vars(energon).update(ENERGON)
    monkeypatch.setitem(sys.modules, "megatron.energon", energon)
    task = types.ModuleType("task")
    monkeypatch.setitem(sys.modules, "task", task)  # dataclasses look up the module that they are made in
    exec((directory / "task_encoder.py").read_text(), task.__dict__)
    samples = [task.cook_pack(sample) for sample in cooked_samples(directory / "packs-000000.tar")]
    batch = task.PackTaskEncoder().batch(samples)
    assert batch.__key__ == [sample.__key__ for sample in samples]
    for row, some in [*((sample, [pack]) for sample, pack in zip(samples, packs, strict=False)), (batch, packs[:4])]:
        places = np.cumsum([0, *map(len, some)])
        segments = np.cumsum([0, *(pack.num_segments for pack in some)])
        lengths = [length for pack in some for length in np.diff(pack.cu_seqlens).tolist()]
        labels = [label for pack in some for label in shift_labels(pack.labels, pack.cu_seqlens).tolist()]
        assert row.tokens.tolist() == [[token for pack in some for token in pack.input_ids.tolist()]]
        assert row.labels.tolist() == [labels]
        assert row.loss_mask.tolist() == [[float(label != -100) for label in labels]]
        assert row.is_target.tolist() == [[mask for pack in some for mask in pack.loss_mask.tolist()]]
        assert row.position_ids.tolist() == [[place for length in lengths for place in range(length)]]
        assert row.cu_lengths.tolist() == [np.cumsum([0, *lengths]).tolist()]
        assert row.max_lengths.tolist() == [max(lengths)]
        assert row.sample_ids.tolist() == [sample for pack in some for sample in pack.sample_ids.tolist()]
        assert row.starts.tolist() == [start for pack in some for start in pack.starts.tolist()]
        assert [(item["data"], item["segment"], item["start"]) for item in row.media] == [
            (item.medium.read(), item.segment + segments[number], item.start + places[number])
            for number, pack in enumerate(some)
            for item in pack.attachments
        ]


@pytest.mark.parametrize("version", VERSIONS)
def test_energon_reads_every_pack(version, packs, directory):
    """Sample for sample, media byte for byte, without preparation."""
    found = json.loads(run_with(version, "energon_reader.py", "in_order", directory))
    assert found["rows"] == as_rows(packs)
    for pack, extra in zip(packs, found["extra"], strict=True):
        labels = shift_labels(pack.labels, pack.cu_seqlens)
        assert extra["labels"] == labels.tolist()
        assert extra["loss"] == (labels != -100).astype(float).tolist()
        assert extra["positions"] == [number for length in np.diff(pack.cu_seqlens) for number in range(length)]
        assert extra["longest"] == [int(np.diff(pack.cu_seqlens).max())]
        places = [
            [i.medium.kind.value, i.medium.name, i.segment, i.start, i.grid and list(i.grid)] for i in pack.attachments
        ]
        assert extra["places"] == places


@pytest.mark.parametrize("version", VERSIONS)
def test_a_batch_of_packs_is_one_row(version, packs, directory):
    """Boundaries, segments and places of media move by what stands before them."""
    found = json.loads(run_with(version, "energon_reader.py", "in_order", directory, 2))
    first, second = packs[0], packs[1]
    row, extra = found["rows"][0], found["extra"][0]
    assert row["input_ids"] == [*first.input_ids.tolist(), *second.input_ids.tolist()]
    assert row["cu_seqlens"] == [*first.cu_seqlens.tolist(), *(second.cu_seqlens[1:] + len(first)).tolist()]
    moved = [[item.segment + 3, item.start + len(first)] for item in second.attachments]
    assert [place[2:4] for place in extra["places"]] == [[i.segment, i.start] for i in first.attachments] + moved


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("version", VERSIONS)
def test_energon_resumes_there(version, num_workers, packs, directory):
    """A state of Energon's own loader goes on with the next pack, and none is another than ours."""
    found = json.loads(run_with(version, "energon_reader.py", "resumed", directory, num_workers))
    assert found["again"] == found["after"]
    known = as_rows(packs)
    for row in found["before"] + found["after"]:
        assert row in known
    # A shuffled epoch has each pack once.
    in_first_epoch = [row["sample_ids"][0] for row in found["before"]]
    assert len(set(in_first_epoch)) == len(in_first_epoch)


@pytest.mark.parametrize("version", VERSIONS[1:])
def test_batches_keep_the_contract_of_version_8(version, packs, directory):
    """Its loader restores a batch that was prefetched by the key that the batch has, also after ``encode_batch``."""
    found = json.loads(run_with(version, "energon_reader.py", "contract", directory))
    assert found["is_batch"] == found["restore_keys"] == [True, True]
    assert found["keys"] == [f"{packs.fingerprint[:8]}-{number:09d}" for number in range(2)]
    assert found["sources"] == ["packs-000000.tar"] * 2


@pytest.mark.parametrize("version", VERSIONS)
def test_a_mix_draws_by_weight(version, tmp_path):
    """The third seed's mix of captions and chats: 1 to 3."""
    for name, length in (("short", 3), ("long", 8)):
        pack = assemble_pack([np.arange(1, 1 + length, dtype=np.int32)], [np.ones(length, bool)], [0])
        export_packs(ToyPacks([pack] * 4), to="energon", directory=tmp_path / name)
    energon_mix({"short": 1, "long": 3}, tmp_path / "mix.yaml")
    lengths = json.loads(run_with(version, "energon_reader.py", "mixed", tmp_path / "mix.yaml", tmp_path / "short"))
    assert 0.65 < lengths.count(8) / len(lengths) < 0.85


def test_energon_prepares_the_same(directory, tmp_path):
    """Our index is the one that version 7 makes of the same tars."""
    tars = json.loads(run_with("BRIMFUL_ENERGON7", "energon_reader.py", "prepared", directory, tmp_path / "copy"))
    for name in tars:
        assert (tmp_path / "copy" / f"{name}.idx").read_bytes() == (directory / f"{name}.idx").read_bytes()
    tables = []
    for folder in (directory, tmp_path / "copy"):
        database = sqlite3.connect(folder / ".nv-meta" / "index.sqlite")
        try:
            queries = ["SELECT * FROM samples ORDER BY 1, 3", "SELECT * FROM sample_parts ORDER BY 1, 2, 4"]
            queries.append("SELECT name, tbl_name FROM sqlite_master WHERE sql IS NOT NULL ORDER BY name")
            tables.append([database.execute(query).fetchall() for query in queries])
        finally:
            database.close()
    assert tables[0] == tables[1]


def test_our_planner_packs_energons_buffer():
    """The real task encoder of version 7 packs under tokens and patches, and loses no sample."""
    result = json.loads(run_with("BRIMFUL_ENERGON7", "energon_packing.py"))
    lengths = [length for pack in result for length, _ in pack]
    assert len(lengths) >= 60
    assert all(sum(length for length, _ in pack) <= 100 for pack in result)
    assert all(sum(patches for _, patches in pack) <= 40 for pack in result)
    assert max(map(len, result)) > 1


def test_groups_of_a_buffer():
    """Every sample once, within both budgets."""
    samples = [(length, length % 5) for length in range(1, 40)]
    groups = select_samples_to_pack(
        samples, capacity=64, length_of=lambda sample: sample[0], budgets={"patches": (6, lambda sample: sample[1])}
    )
    assert sorted(sample for group in groups for sample in group) == samples
    assert all(sum(length for length, _ in group) <= 64 and sum(n for _, n in group) <= 6 for group in groups)
    assert select_samples_to_pack([], capacity=4) == []
    encoded = [types.SimpleNamespace(tokens=[0] * length) for length in (3, 4, 5)]
    assert sorted(
        sorted(len(one.tokens) for one in group) for group in select_samples_to_pack(encoded, capacity=7)
    ) == [*([3, 4], [5])]


def test_a_mix_needs_weights(tmp_path):
    with pytest.raises(SettingsError, match="has none"):
        energon_mix({}, tmp_path / "mix.yaml")
    for weight in (0, -1, float("inf"), float("nan")):
        with pytest.raises(SettingsError, match=f"has {{'a': {weight}}}"):
            energon_mix({"a": weight, "b": 1}, tmp_path / "mix.yaml")


def test_a_picture_that_is_gone_is_named(tmp_path):
    """And no shard appears without it."""
    medium = Medium(MediaKind.IMAGE, "a.png", path=str(tmp_path / "a.png"))
    item = PlacedMedium(medium, start=0, length=1, num_tokens=1)
    pack = assemble_pack([np.array([1, 2], np.int32)], [np.ones(2, bool)], [7], attachments=[[item]])
    with pytest.raises(StoreError, match=r"pack 0, sample 7: image 'a.png' does not exist"):
        export_packs(ToyPacks([pack]), to="energon", directory=tmp_path / "export")
    assert not [name for name in tree(tmp_path / "export") if name.endswith((".tar", ".idx"))]


def test_the_check_says_which_package_is_missing(directory, packs):
    from brimful.errors import MissingExtraError

    if "megatron.energon" in sys.modules:
        pytest.skip("Energon is installed")
    with pytest.raises(MissingExtraError, match="pip install megatron-energon"):
        check_export(directory, packs)
