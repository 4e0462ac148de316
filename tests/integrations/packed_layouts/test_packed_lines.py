"""Packed rows of ms-swift's sharded loader come apart again, and what contradicts itself is refused."""

import json

import numpy as np
import pytest

from brimful import open_packs, open_source, pack_dataset
from brimful.errors import BadSampleError
from brimful.integrations.export import export_packs
from brimful.integrations.packed_layouts import rows_of_line, rows_of_pack
from brimful.plan import PlanSettings
from brimful.testing.toys import toy_chat_encoder

PACK = {"input_ids": [5, 6, 7], "labels": [-100, 6, 7], "position_ids": [0, 1, 0], "lengths": [2, 1], "pack_length": 3}


def test_written_and_read_again(tmp_path):
    """What the converter writes is read as the samples that it was made of, and packs to the same packs again."""
    rows = [{"text": "abcdefg"[: 1 + number % 7]} for number in range(1, 40)]
    settings = PlanSettings(capacity=16, no_target="drop")
    options = {"num_proc": 1, "cache_dir": tmp_path / "cache"}
    pack_dataset(rows, toy_chat_encoder(), tmp_path / "packs", settings, shard_bytes=400, **options)
    export_packs(tmp_path / "packs", to="jsonl", directory=tmp_path / "chunks", packs_per_shard=3, num_proc=1)
    assert len(list((tmp_path / "chunks").glob("chunk_*.jsonl"))) > 1
    packs = open_packs(tmp_path / "packs")
    source = open_source(tmp_path / "chunks", cache_dir=tmp_path / "cache")
    segments = [
        (pack.input_ids[a:b].tolist(), np.where(pack.loss_mask, pack.input_ids, -100)[a:b].tolist())
        for pack in packs
        for a, b in zip(pack.cu_seqlens, pack.cu_seqlens[1:], strict=False)
    ]
    assert [(sample.input_ids, sample.labels) for sample in source.read(0, len(source))] == segments
    assert len(source) == sum(pack.num_segments for pack in packs)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"lengths": [2, 2]}, "lengths are 4 tokens, but input_ids gives 3"),
        ({"labels": [1]}, "labels gives 1"),
        ({"pack_length": 4}, "pack_length gives 4"),
        ({"position_ids": [0, 1, 2]}, "do not restart"),
        ({"position_ids": [0, 0, 0]}, "do not restart"),
        ({"lengths": []}, "at least 1"),
        ({"lengths": [3, 0]}, "at least 1"),
        ({"lengths": None}, "lengths"),
        ({"lengths": "ab"}, "not a packed row"),
    ],
)
def test_a_row_that_contradicts_itself_is_malformed(tmp_path, change, reason):
    """One wrong length would cut every later sample elsewhere."""
    (tmp_path / "chunk_00000.jsonl").write_text(f"{json.dumps(PACK)}\n{json.dumps({**PACK, **change})}\n")
    source = open_source(tmp_path / "chunk_00000.jsonl", cache_dir=tmp_path / "cache")
    assert source[1].input_ids == [7]
    with pytest.raises(BadSampleError, match=rf"jsonl:2: sample 0 of the pack .*{reason}"):
        source[2]


def test_other_lines_of_such_a_name_stay_lines(tmp_path):
    (tmp_path / "chunk_00000.jsonl").write_text('{"text": "a"}\n')
    assert open_source(tmp_path / "chunk_00000.jsonl", cache_dir=tmp_path / "cache").format_name == "text"
    assert str(rows_of_pack({"text": "a"})[0]).startswith("is not a packed row")
    name = str(tmp_path / "chunk_00000.jsonl")
    assert rows_of_line(name, PACK) == rows_of_pack(PACK)
    without = {key: value for key, value in PACK.items() if key != "pack_length"}
    assert rows_of_line(name, without) == [without]
    assert rows_of_line(name, ["pack_length"]) == [["pack_length"]]
    assert rows_of_line("rows.jsonl", PACK) == [PACK]


def test_positions_may_be_missing_and_a_line_may_be_damaged(tmp_path):
    """Some writers leave them out; what is not JSON is named with its line."""
    lines = [json.dumps({key: value for key, value in PACK.items() if key != "position_ids"}), "{"]
    (tmp_path / "chunk_00000.jsonl").write_text("\n".join(lines) + "\n")
    source = open_source(tmp_path / "chunk_00000.jsonl", cache_dir=tmp_path / "cache")
    assert [source[row].input_ids for row in range(2)] == [[5, 6], [7]]
    with pytest.raises(BadSampleError, match="jsonl:2"):
        source[2]
