"""Layouts of tokens: whole files of six integers, and what each project's own reader gives."""

import gzip
import json
import re
import struct
from dataclasses import replace
from glob import glob
from itertools import accumulate, pairwise

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from brimful.base.progress import Progress
from brimful.collate.layout import lay_out
from brimful.errors import CorruptFileError, SettingsError
from brimful.integrations.export import LAYOUTS, check_export, export_packs
from brimful.integrations.export.row_layouts import mask_of_labels
from brimful.integrations.export.webdataset import read_tars
from brimful.store.shards import assemble_pack
from brimful.testing.toys import ToyPacks, toy_tree
from brimful.trees.pack_tree import PackTree, ends_of
from tests.integrations.export.stores import as_rows, picture, run_with, some_packs, tree
from tests.integrations.trainers import tiny

pytestmark = pytest.mark.filterwarnings("ignore")  # of the libraries


def six_tokens():
    """Two packs: segments of three tokens and one, and one of two."""
    first = assemble_pack(
        [np.array([5, 6, 7], np.int32), np.array([8], np.int32)],
        [np.array([False, True, True]), np.array([True])],
        [4, 2],
    )
    return ToyPacks([first, assemble_pack([np.array([9, 10], np.int32)], [np.array([False, True])], [0])])


def test_json_lines(tmp_path):
    """The rows of the first seed, and what they are of."""
    export_packs(six_tokens(), to="jsonl", directory=tmp_path, packs_per_shard=1)
    assert json.loads((tmp_path / "chunk_00000.jsonl").read_text()) == {
        "input_ids": [5, 6, 7, 8],
        "labels": [-100, 6, 7, -100],
        "position_ids": [0, 1, 2, 0],
        "lengths": [3, 1],
        "pack_length": 4,
        "num_samples": 2,
        "sample_ids": [4, 2],
        "starts": [0, 0],
    }
    assert json.loads((tmp_path / "chunk_00001.jsonl").read_text())["lengths"] == [2]


def test_indexed_dataset(tmp_path):
    """Every byte: header, lengths, pointers, documents."""
    export_packs(six_tokens(), to="megatron", directory=tmp_path, packs_per_shard=1)
    header = b"MMIDIDX\x00\x00" + struct.pack("<QB", 1, 4) + struct.pack("<QQ", 3, 3)
    expected = header + struct.pack("<3i", 3, 1, 2) + struct.pack("<3q", 0, 12, 16) + struct.pack("<3q", 0, 2, 3)
    assert (tmp_path / "packs.idx").read_bytes() == expected
    assert (tmp_path / "packs.bin").read_bytes() == struct.pack("<6i", 5, 6, 7, 8, 9, 10)
    assert (tmp_path / "packs_loss_mask.bin").read_bytes() == bytes([0, 1, 1, 0, 0, 1])
    assert (tmp_path / "packs_loss_mask.idx").read_bytes()[17] == 1
    assert not (tmp_path / ".brimful" / "parts").exists() or not list((tmp_path / ".brimful" / "parts").iterdir())


def test_megatron_core_reads_it(tmp_path):
    """Sequences are segments and documents packs, by Megatron's own class."""
    packs = some_packs(9)
    export_packs(packs, to="megatron", directory=tmp_path, packs_per_shard=4)
    found = json.loads(run_with("BRIMFUL_MEGATRON", "megatron_reader.py", tmp_path))
    segments = [pack.segment(number).tolist() for pack in packs for number in range(3)]
    assert found["tokens"] == segments
    assert found["documents"] == list(range(0, 28, 3))
    assert found["lengths"] == list(map(len, segments))
    assert found["dtypes"] == ["int32", "uint8"]
    assert [flag for mask in found["masks"] for flag in mask] == [
        int(flag) for pack in packs for flag in pack.loss_mask
    ]
    assert found["last_two"] == segments[-1][1:3]


def bridge_batch(row):
    """Inputs, labels and mask as Megatron-Bridge makes them of a row: each segment without its last, or first, token."""
    edges = [*row["seq_start_id"], len(row["input_ids"])]
    spans = list(pairwise(edges))
    parts = [
        [token for begin, end in spans for token in values[begin + first : end - 1 + first]]
        for values, first in ((row["input_ids"], 0), (row["input_ids"], 1), (row["loss_mask"], 0))
    ]
    return [label if mask else -100 for label, mask in zip(*parts[1:], strict=True)], parts[0]


@pytest.mark.parametrize("capacity", [None, 20])
def test_bridge(tmp_path, capacity):
    """The targets that Bridge computes of a row are the pack's: the same tokens from the same prefixes."""
    packs = some_packs(7)
    packs[1] = packs[1].take([0])
    packs.capacity = capacity
    export_packs(packs, to="bridge", directory=tmp_path, packs_per_shard=3)
    rows = [row for path in sorted(tmp_path.glob("*.idx.parquet")) for row in pq.read_table(path).to_pylist()]
    assert len(rows) == 7
    for row, pack in zip(rows, packs, strict=True):
        labels, inputs = bridge_batch(row)
        assert [label for label in labels if label != -100] == pack.input_ids[pack.loss_mask].tolist()
        ends = set((pack.cu_seqlens[1:] - 1).tolist())
        assert inputs == [token for place, token in enumerate(pack.input_ids.tolist()) if place not in ends]
    schema = pq.read_schema(tmp_path / "packs-000000.idx.parquet")
    types = {name: str(schema.field(name).type.value_type) for name in ("input_ids", "seq_start_id", "loss_mask")}
    assert types == {"input_ids": "int32", "seq_start_id": "int32", "loss_mask": "int8"}
    (facts,) = json.loads((tmp_path / "packing_metadata.json").read_text())
    inputs = [len(pack) - pack.num_segments for pack in packs]
    assert facts == {
        "dataset_max_seqlen": max(int(np.diff(pack.cu_seqlens).max()) for pack in packs) - 1,
        "max_samples_per_bin": 3,
        "packing_factor": 2.71,  # 19 segments in 7 packs
        "packing_efficiency": round(100 * sum(inputs) / (7 * (capacity or 14)), 2),
        "pack_size": capacity or 14,
        "min_packed_seqlen": min(inputs),
    }


def test_megatron_bridge_reads_it(tmp_path):
    """Its own data set and collation, padded for CUDA graphs by our extremes: every target from its own prefix."""
    packs = some_packs(7)
    export_packs(packs, to="bridge", directory=tmp_path, packs_per_shard=3)
    capacity = max(map(len, packs))
    pattern, metadata = f"{tmp_path}/*.idx.parquet", tmp_path / "packing_metadata.json"
    batches = json.loads(run_with("BRIMFUL_BRIDGE", "bridge_reader.py", pattern, metadata, capacity))
    assert len(batches) == 7
    for batch, pack in zip(batches, packs, strict=True):
        segments = [pack.segment(number).tolist() for number in range(3)]
        inputs = [token for segment in segments for token in segment[:-1]]
        pad = capacity - len(inputs)
        assert batch["count"] == [len(inputs)]
        assert batch["tokens"] == [inputs + [0] * pad]
        targets = zip(batch["labels"][0], batch["loss_mask"][0], strict=True)
        assert [label for label, flag in targets if flag] == pack.input_ids[pack.loss_mask].tolist()
        assert batch["position_ids"] == [
            [place for segment in segments for place in range(len(segment) - 1)] + [0] * pad
        ]
        edges = [0, *accumulate(len(segment) - 1 for segment in segments)]
        assert batch["cu_seqlens"] == [*edges, capacity]


def test_the_mask_of_labels_stays_in_its_segment():
    """A shift over the whole pack would let the end of one sample predict the begin of the next."""
    pack = six_tokens()[0]
    assert mask_of_labels(pack.loss_mask).tolist() == [True, True, False, False]


def test_batches_of_rows_are_small(tmp_path):
    """A reader that shuffles a stream holds whole batches."""
    export_packs(some_packs(150), to="huggingface", directory=tmp_path)
    with pa.ipc.open_stream(tmp_path / "train" / "data-00000-of-00001.arrow") as reader:
        assert [batch.num_rows for batch in reader] == [64, 64, 22]


COLUMNS = [
    *("input_ids", "labels", "position_ids", "seq_lengths", "sample_ids", "starts", "media", "media_bytes"),
]


def test_a_data_set_of_six_tokens(tmp_path):
    """Whole rows, and what ``save_to_disk`` would write with them."""
    datasets = pytest.importorskip("datasets")
    export_packs(six_tokens(), to="huggingface", directory=tmp_path / "out", packs_per_shard=1)
    data = datasets.load_from_disk(str(tmp_path / "out" / "train"))
    assert data[0] == {
        "input_ids": [5, 6, 7, 8],
        "labels": [-100, 6, 7, -100],
        "position_ids": [0, 1, 2, 0],
        "seq_lengths": [3, 1],
        "sample_ids": [4, 2],
        "starts": [0, 0],
        "media": "[]",
        "media_bytes": [],
    }
    assert data[1]["labels"] == [-100, 10]
    data.save_to_disk(tmp_path / "again")
    ours, theirs = (json.loads((tmp_path / path / "state.json").read_text()) for path in ("out/train", "again"))
    assert ours.keys() == theirs.keys()
    assert ours["_split"] == theirs["_split"] == "train"
    # What `map` makes of it is kept by its fingerprint.
    assert datasets.load_from_disk(str(tmp_path / "out" / "train"))._fingerprint == data._fingerprint
    assert [path.name for path in sorted((tmp_path / "out" / "train").glob("*.arrow"))] == [
        *("data-00000-of-00002.arrow", "data-00001-of-00002.arrow")
    ]


def test_datasets_and_trl_read_it(tmp_path):
    """One row of TRL's own collator is our batch, and media come back, from the disk and through its cache."""
    datasets = pytest.importorskip("datasets")
    packs = some_packs(6, with_media=True)
    export_packs(packs, to="huggingface", directory=tmp_path / "out", packs_per_shard=4)
    data = datasets.load_from_disk(str(tmp_path / "out"))["train"]
    assert (len(data), data.column_names) == (6, COLUMNS)
    loaded = datasets.load_dataset(str(tmp_path / "out"), split="train", cache_dir=tmp_path / "cache")
    streamed = datasets.load_dataset(str(tmp_path / "out"), split="train", streaming=True)
    assert list(loaded) == list(streamed) == list(data)
    trl = pytest.importorskip("trl.trainer.sft_trainer")
    collator = trl.DataCollatorForLanguageModeling(pad_token_id=0, padding_free=True)
    for number in range(6):
        batch = collator([data[number]])
        ours = lay_out([packs[number]])
        assert batch["input_ids"][0].tolist() == ours.input_ids.tolist()
        assert batch["labels"][0].tolist() == ours.labels.tolist()
        assert batch["position_ids"][0].tolist() == ours.position_ids.tolist()


def test_trainer_keeps_samples_apart_by_the_positions_of_its_rows(tmp_path):
    """``Trainer`` with the collator of Transformers, which knows nothing of packs: the loss of each sample alone."""
    datasets, torch = pytest.importorskip("datasets"), pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    packs, model = tiny.packs(3), tiny.model().eval()
    export_packs(packs, to="huggingface", directory=tmp_path / "out")
    trainer = transformers.Trainer(
        model=model,
        args=transformers.TrainingArguments(
            str(tmp_path / "run"), per_device_eval_batch_size=1, use_cpu=True, report_to="none", disable_tqdm=True
        ),
        eval_dataset=datasets.load_from_disk(str(tmp_path / "out" / "train")),
        data_collator=transformers.default_data_collator,
    )
    for pack, batch in zip(packs, trainer.get_eval_dataloader(), strict=True):
        assert set(batch) == {"input_ids", "labels", "position_ids"}
        parts = [slice(begin, end) for begin, end in pairwise(pack.cu_seqlens.tolist())]
        with torch.no_grad():
            row = model(**batch).logits[0]
            alone = torch.cat([model(input_ids=batch["input_ids"][:, part]).logits[0] for part in parts])
        torch.testing.assert_close(row, alone, rtol=0, atol=1e-5)


class SamePacks(ToyPacks):
    """Packs that pass for the ones that were exported."""

    fingerprint = some_packs(9).fingerprint


def with_another(pack, part):
    """A pack that differs in one value of one part."""
    if part == "media":
        return replace(pack, attachments=(*pack.attachments[:-1], picture(1, 1)))
    values = getattr(pack, part).copy()
    values[1] = not values[1] if part == "loss_mask" else values[1] + 1
    return replace(pack, **{part: values})


@pytest.mark.parametrize("name", [name for name, layout in LAYOUTS.items() if not layout.takes_source])
def test_the_check_reads_every_pack_back(name, readers, tmp_path):
    """By the other project's reader: each part that the layout holds; one other value in one pack is found and named."""
    layout, progress = LAYOUTS[name], Progress()
    packs = some_packs(9, with_media=layout.takes_media)
    export_packs(packs, to=name, directory=tmp_path, packs_per_shard=4)
    outcome = check_export(tmp_path, packs, progress=progress)
    parts = ("input_ids", "loss_mask", "cu_seqlens", "sample_ids", "starts", "media")
    held = parts[: (6 if layout.takes_media else 5) if name != "megatron" else 3]
    assert (outcome.packs, outcome.fields, outcome.reader) == (9, held, layout.reader[1])
    assert str(outcome) == f"9 packs read by {layout.reader[1]} equal the store's: {', '.join(held)}"
    (stage,) = progress.stages
    assert (stage.total, stage.done, stage.tokens) == (9, 9, sum(map(len, packs)))
    for part in held:
        others = SamePacks(packs)
        others[4] = with_another(packs[4], part)
        with pytest.raises(CorruptFileError, match=f"pack 4 has other {part} than the store"):
            check_export(tmp_path, others)
    for others in (SamePacks(packs[:8]), SamePacks([*packs, packs[0]])):
        with pytest.raises(CorruptFileError, match=f"{len(others)} packs are due, but it has a different number"):
            check_export(tmp_path, others)


@pytest.mark.parametrize("name", [name for name, layout in LAYOUTS.items() if not layout.takes_source])
def test_what_to_train_from_is_there(name, tmp_path):
    """Each path of the advice, which is copied into a command."""
    summary = export_packs(some_packs(2), to=name, directory=tmp_path)
    paths = re.findall(rf"{re.escape(str(tmp_path))}[^\s'),]*", summary.advice)
    assert paths
    assert all(glob(f"{path}*") for path in paths), paths


@pytest.mark.parametrize(
    ("name", "part", "words"),
    [("jsonl", "position_ids", "sample 0: positions do not follow"), *[("bridge", part, "breaks the rules") for part in
     ("seq_start_id", "loss_mask")]],
)  # fmt: skip
def test_a_row_that_its_trainer_would_misread_is_found(name, part, words, tmp_path):
    """Positions that restart elsewhere, a row that begins after its first token, and a mask of other tokens."""
    export_packs(some_packs(2), to=name, directory=tmp_path)
    if name == "jsonl":
        path = tmp_path / "chunk_00000.jsonl"
        rows = list(map(json.loads, path.read_text().splitlines()))
    else:
        path = tmp_path / "packs-000000.idx.parquet"
        rows = pq.read_table(path).to_pylist()
    for other in (rows[0][part][1:], [1, *rows[0][part]]):
        changed = [{**rows[0], part: other}, rows[1]]
        if name == "jsonl":
            path.write_text("".join(json.dumps(row) + "\n" for row in changed))
        else:
            pq.write_table(pa.Table.from_pylist(changed), path)
        record = tmp_path / ".brimful" / "00000000.json"
        facts = json.loads(record.read_text())
        record.write_text(json.dumps({**facts, "files": {path.name: path.stat().st_size}}))
        with pytest.raises(CorruptFileError, match=words):
            check_export(tmp_path, some_packs(2))


def some_trees(with_media=True):
    """Packs of samples that share a picture, and end and train tokens as they like."""
    packs = ToyPacks()
    for number in range(5):
        pack = toy_tree(
            [[1, 7, number, 3], [1, 7, number, 4, 4], [1, 7, number], [1, 7, number], [9]],
            [[False, True, True, True], [True] * 5, [False] * 3, [False, False, True], [True]],
        )
        packs.append(replace(pack, attachments=(picture(number % 4, 1),) if with_media else ()))
    return packs


@pytest.mark.parametrize("name", [name for name, layout in LAYOUTS.items() if layout.takes_trees])
def test_trees_are_read_back(name, readers, tmp_path):
    """By the other project's reader: parents and targets, from which each pack is made again."""
    layout = LAYOUTS[name]
    packs = some_trees()
    export_packs(packs, to=name, directory=tmp_path, packs_per_shard=2)
    assert {"parents", "spans", "span_sizes", "media"} <= set(check_export(tmp_path, packs).fields)
    for pack, read in zip(packs, layout().read(str(tmp_path), 3), strict=True):
        ends = ends_of(np.array(read.parents), np.array(read.sample_ids), np.diff(np.array(read.cu_seqlens)))
        columns = map(np.array, (read.parents, ends, read.spans, read.span_sizes))
        assert PackTree(*columns) == pack.sharing
    packs[3].sharing.spans[0] += 1
    with pytest.raises(CorruptFileError, match="pack 3 has other spans than the store"):
        check_export(tmp_path, packs)


@pytest.mark.parametrize("name", [name for name, layout in LAYOUTS.items() if not layout.takes_trees])
def test_trees_are_refused_before_anything_is_written(name, tmp_path):
    """Their readers take each segment for a sample."""
    expected = (
        rf"has packs of trees, and readers of {name} would take their segments for samples: choose "
        r'to="webdataset", or pack without share="prefixes"'
    )
    with pytest.raises(SettingsError, match=expected):
        export_packs(some_trees(with_media=False), to=name, directory=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_webdataset_gives_media_with_their_endings(readers, tmp_path):
    """``decode("pil")`` looks at the ending alone."""
    packs = some_packs(8, with_media=True)
    export_packs(packs, to="webdataset", directory=tmp_path, packs_per_shard=4)
    samples = list(read_tars(str(tmp_path), 2))
    rows = as_rows(packs)
    for sample, row in zip(samples, rows, strict=True):
        assert [sample[item["part"]].hex() for item in json.loads(sample["json"])["media"]] == row["media"]
    endings = {item["part"].partition(".")[2] for sample in samples for item in json.loads(sample["json"])["media"]}
    assert endings == {"png", "jpg", "webp", "image", "audio"}
    assert not [name for name in tree(tmp_path) if name.endswith(".idx")]


def test_documents_of_olmo_core(tmp_path):
    """Every byte: tokens and targets without a header, and a row for each segment; the first of a sample is not a target."""
    export_packs(six_tokens(), to="olmo-core", directory=tmp_path, packs_per_shard=1)
    assert (tmp_path / "token_ids_part_0000.npy").read_bytes() == struct.pack("<4I", 5, 6, 7, 8)
    assert (tmp_path / "labels_mask_part_0000.npy").read_bytes() == bytes([0, 1, 1, 0])
    assert gzip.decompress((tmp_path / "token_ids_part_0000.csv.gz").read_bytes()) == b"0,3,4,0,0\n3,4,2,0,0\n"
    assert gzip.decompress((tmp_path / "token_ids_part_0001.csv.gz").read_bytes()) == b"0,2,0,0,1\n"
    assert (tmp_path / "token_ids_part_0000.csv.gz").read_bytes()[4:8] == bytes(4), "no time"
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        *(".brimful", "labels_mask_part_0000.npy", "labels_mask_part_0001.npy"),
        *("token_ids_part_0000.csv.gz", "token_ids_part_0000.npy", "token_ids_part_0001.csv.gz"),
        "token_ids_part_0001.npy",
    ]
