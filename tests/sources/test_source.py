"""A source: samples by index, what decides them, and what it begins with."""

from __future__ import annotations

import json
import os
import pickle

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from brimful.base.fingerprint import fingerprint_bytes
from brimful.errors import BadSampleError, SettingsError, SourceError, UnknownFormatError
from brimful.sources import Sample, Source, open_source, rows, source
from brimful.sources.memory import MemoryRows
from brimful.sources.rows import Block, ChainedRows
from brimful.sources.stamp import Stamp

ROWS = [{"text": text} for text in "abcdef"]


@pytest.mark.parametrize("index", [-1, 6, 100])
def test_there_is_no_sample_outside(index):
    """Without it sample -1 would be the last one, and a loop over a source would never end."""
    with pytest.raises(IndexError) as caught:
        _ = open_source(ROWS)[index]
    assert str(caught.value) == f"sample {index} is not in 0 … 5"


def test_a_bad_sample_is_raised_by_index_and_returned_by_read():
    """Without it one bad row would end a whole read, or a single one would pass as a sample."""
    source = open_source([{"text": "a"}, {"text": 3}])
    with pytest.raises(BadSampleError) as caught:
        _ = source[1]
    assert str(caught.value) == "memory[1] (sample 1): text must be text and is int 3"
    good, bad = source.read(0, 2)
    assert good == Sample(0, text="a")
    assert (type(bad), str(bad)) == (BadSampleError, str(caught.value))


def test_detection_passes_over_rows_that_cannot_be_read(put):
    """Without it a broken first line would hide what the file is."""
    source = open_source(put("a.jsonl", b'nope\n{"text":"a"}\n'))
    assert (source.format_name, source.detected, source[1].text) == ("text", True, "a")


def test_a_file_without_a_readable_row_says_what_is_wrong_with_the_first(put):
    """Without it a file that is not JSON lines would be said to have unknown keys."""
    path = put("a.jsonl", b"nope\nnope\n")
    with pytest.raises(BadSampleError) as caught:
        open_source(path)
    assert str(caught.value) == f"{path}:1 (sample 0): not JSON: Expecting value at column 1"


def test_unknown_rows_are_shown_with_the_way_out():
    """Without it the user would not learn how to map the fields."""
    with pytest.raises(UnknownFormatError) as caught:
        open_source([{"dialogue": [], "id": 3}])
    assert str(caught.value) == (
        "memory: the rows have no format that brimful knows; the first has keys ['dialogue', 'id']. Name the format and "
        'its fields, for example format="messages" fields={"messages": "dialogue"} (formats: tokens, sharegpt_preference, alpaca_preference, preference, messages, sharegpt, '
        "alpaca, prompt_completion, question_answer, caption, detection, transcript, text, "
        "kto, messages_kto, sharegpt_kto, alpaca_kto)"
    )


def test_fields_are_found_under_other_names():
    """Without it data with a key of its own would have to be rewritten."""
    rows = [{"dialogue": [{"role": "user", "content": "hi"}]}]
    detected = open_source(rows, fields={"messages": "dialogue"})
    assert (detected.format_name, detected[0].messages) == ("messages", [{"role": "user", "content": "hi"}])
    named = open_source(rows, format="messages", fields={"messages": "dialogue"})
    assert (named.fingerprint, named.detected) == (detected.fingerprint, False)


def test_an_unknown_format_or_field_names_the_known_ones():
    """Without it a typing error would be read as 'use the default'."""
    with pytest.raises(SettingsError) as caught:
        open_source(ROWS, format="chatml")
    assert str(caught.value) == (
        'format="chatml" is unknown: use one of tokens, sharegpt_preference, alpaca_preference, preference, messages, sharegpt, alpaca, prompt_completion, question_answer, '
        "caption, detection, transcript, text, kto, messages_kto, sharegpt_kto, alpaca_kto"
    )
    with pytest.raises(SettingsError) as caught:
        open_source(ROWS, format="text", fields={"body": "text"})
    assert str(caught.value) == "fields 'body' is not a field of format text: it has text"


def test_how_rows_are_read_is_part_of_the_fingerprint():
    """Without it lengths of one reading would be served for another."""
    rows = [{"text": "a", "body": "b"}]
    plain, mapped = open_source(rows, format="text"), open_source(rows, format="text", fields={"text": "body"})
    assert plain.fingerprint != mapped.fingerprint
    assert plain.blocks[0].fingerprint != mapped.blocks[0].fingerprint
    assert plain.fingerprint == open_source(rows).fingerprint


@pytest.mark.parametrize("kind", ["memory", "lines", "lines without end", "two files"])
def test_a_source_knows_what_it_began_as(kind, put, tmp_path):
    """Without it appended rows would look like another data set, or another data set like appended rows."""

    def at(count):
        lines = [json.dumps(row) for row in ROWS[:count]]
        if kind == "memory":
            return open_source(ROWS[:count])
        if kind == "two files":
            put("1.jsonl", "\n".join(lines[:2]) + "\n")
            put("2.jsonl", "\n".join(lines[2:]) + "\n")
            return open_source([tmp_path / "1.jsonl", tmp_path / "2.jsonl"])
        return open_source(put("a.jsonl", "\n".join(lines) + ("\n" if kind == "lines" else "")))

    fingerprint = at(4).fingerprint
    longer = at(6)
    assert longer.begins_with(4, fingerprint)
    assert longer.begins_with(6, longer.fingerprint)
    assert not longer.begins_with(3, fingerprint)
    assert not longer.begins_with(5, fingerprint)
    assert not longer.begins_with(6, fingerprint)
    assert not longer.begins_with(7, fingerprint)


def test_a_further_file_is_appended_rows(put, tmp_path):
    """Without it a data set that grows by files would be measured again every time."""
    paths = [tmp_path / "1.jsonl", tmp_path / "2.jsonl"]
    put("1.jsonl", '{"text":"a"}\n')
    put("2.jsonl", '{"text":"b"}\n')
    first = open_source(paths[:1])
    assert open_source(paths).begins_with(1, first.fingerprint)
    assert not open_source(paths[::-1]).begins_with(1, first.fingerprint)


def test_a_source_introduces_itself():
    """Without it a log would not say which data was packed."""
    source = open_source(ROWS)
    assert repr(source) == f"Source('memory', 6 samples, format text, {source.fingerprint[:7]})"


@pytest.mark.parametrize(
    ("block_rows", "blocks"),
    [(1, [(0, 2), (2, 4), (4, 6)]), (4, [(0, 4), (4, 6)]), (5, [(0, 4), (4, 6)]), (6, [(0, 6)])],
)
def test_parquet_row_groups_join_to_blocks_and_come_back_in_any_order(tmp_path, monkeypatch, block_rows, blocks):
    """Without it a row could be looked for in a neighbouring group."""
    monkeypatch.setattr(rows, "BLOCK_ROWS", block_rows)
    path = tmp_path / "a.parquet"
    pq.write_table(pa.Table.from_pylist(ROWS), path, row_group_size=2)
    source = open_source(path)
    assert [(block.start, block.stop) for block in source.blocks] == blocks
    assert len({block.fingerprint for block in source.blocks}) == len(blocks)
    assert [source[index].text for index in (5, 0, 3, 1, 4, 2)] == list("fadbec")
    assert [sample.text for sample in source.read(1, 5)] == list("bcde")
    again = pickle.loads(pickle.dumps(source))
    assert (again.fingerprint, again.blocks, again[5]) == (source.fingerprint, source.blocks, source[5])


def test_small_row_groups_of_much_text_are_blocks(tmp_path, monkeypatch):
    """Without it one task would have all pictures of a file, and its memory."""
    monkeypatch.setattr(rows, "BLOCK_BYTES", 1)
    path = tmp_path / "a.parquet"
    pq.write_table(pa.Table.from_pylist(ROWS), path, row_group_size=2)
    assert [len(block) for block in open_source(path).blocks] == [2, 2, 2]


def test_a_parquet_fingerprint_is_of_the_content(tmp_path, monkeypatch):
    """Without it a copy would be another data set, or an edit the same one."""
    monkeypatch.setattr(rows, "BLOCK_ROWS", 2)
    for name, content in (("a", ROWS), ("b", ROWS), ("c", [*ROWS[:5], {"text": "g"}])):
        pq.write_table(pa.Table.from_pylist(content), tmp_path / f"{name}.parquet", row_group_size=2)
    a, b, c = (open_source(tmp_path / f"{name}.parquet") for name in "abc")
    assert (a.fingerprint, a.blocks) == (b.fingerprint, b.blocks)
    assert a.fingerprint != c.fingerprint
    assert [x.fingerprint == y.fingerprint for x, y in zip(a.blocks, c.blocks, strict=True)] == [True, True, False]


def _small_files(put, contents):
    """Files of the directory ``data``, each of one or more texts."""
    for number, texts in enumerate(contents):
        put(f"data/{number:03}.jsonl", "".join(json.dumps({"text": text}) + "\n" for text in texts))


@pytest.fixture
def few(monkeypatch):
    """``few(3)``: files of a source that share nothing."""

    def change(number):
        monkeypatch.setattr(source, "FEW_FILES", number)

    return change


def test_the_small_files_of_many_share_blocks_and_have_no_index(put, tmp_path, few):
    """Without it each of a million files costs two files in the cache, five flushes and a comparison."""
    _small_files(put, [["a", "b"], ["c"], ["d", "e"], ["f"], ["g", "h"]])
    few(5)
    apart = open_source(tmp_path / "data", cache_dir=tmp_path / "cache")
    assert not (tmp_path / "cache").exists()
    few(2)
    shared = open_source(tmp_path / "data", cache_dir=tmp_path / "other")
    assert not (tmp_path / "other").exists()
    assert [(block.start, block.stop) for block in shared.blocks] == [(0, 2), (2, 3), (3, 8)]
    assert shared.blocks[:2] == apart.blocks[:2], "what was measured of the first files is found again"
    assert sum(block.num_bytes for block in shared.blocks) == 8 * len('{"text": "a"}\n')
    assert shared.fingerprint == apart.fingerprint
    again = pickle.loads(pickle.dumps(shared))
    assert (again.blocks, [sample.text for sample in again.read(0, 8)]) == (shared.blocks, list("abcdefgh"))
    assert again.where(4) == str(tmp_path / "data" / "002.jsonl:2")
    put("data/002.jsonl", "changed")
    with pytest.raises(SourceError, match=r"002\.jsonl changed while it was being read"):
        list(again.read(0, 8))


def test_files_that_are_read_otherwise_share_no_block(put, tmp_path, few):
    """Without it a row of one format would be kept as one of another."""
    few(0)
    _small_files(put, [["a"], ["b"], [], ["d"], ["e"]])
    put("data/002.jsonl", '{"prompt": "p", "completion": "c"}\n')
    shared = open_source(tmp_path / "data")
    assert [(block.start, block.stop) for block in shared.blocks] == [(0, 2), (2, 3), (3, 5)]
    assert [sample.kind for sample in shared.read(0, 5)] == ["text", "text", "chat", "text", "text"]


def test_blocks_of_small_files_are_bounded(put, tmp_path, few, monkeypatch):
    """Without it one task would be the whole data set."""
    few(0)
    _small_files(put, [["a", "b"], ["c"], ["d", "e"], ["f"], ["g", "h"]])
    monkeypatch.setattr(rows, "BLOCK_ROWS", 3)
    assert [len(block) for block in open_source(tmp_path / "data").blocks] == [3, 3, 2]


def test_an_edited_file_moves_no_block_after_the_next_cut(put, tmp_path, few):
    """Without it one more row in the first of a million files would have all of them measured again."""
    few(0)
    # One of 256 contents ends a block.
    cut = next(text for text in map(str, range(9999)) if _of_line(text).endswith("00"))
    _small_files(put, [["a"], ["b"], [cut], ["d"], ["e"]])
    before = open_source(tmp_path / "data").blocks
    _small_files(put, [["a", "more"]])
    after = open_source(tmp_path / "data").blocks
    assert [len(block) for block in (*before, *after)] == [3, 2, 4, 2]
    assert before[0].fingerprint != after[0].fingerprint
    assert before[1].fingerprint == after[1].fingerprint


def _of_line(text):
    return fingerprint_bytes(json.dumps({"text": text}).encode() + b"\n")


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="open files are counted as Linux shows them")
@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
def test_files_are_not_held_open(put, tmp_path, ending):
    """Without it a data set of more files than a process may hold open (1,024 by default) cannot be read."""
    _small_files(put, [["a"], ["b"], ["c"]])
    if ending == "parquet":
        for path in sorted((tmp_path / "data").iterdir()):
            pq.write_table(pa.Table.from_pylist([{"text": "a"}]), path.with_suffix(".parquet"))
            path.unlink()
    data = open_source(tmp_path / "data")
    assert len(list(data.read(0, 3))) == 3
    links = [os.path.join("/proc/self/fd", name) for name in os.listdir("/proc/self/fd")]
    open_files = [os.readlink(link) for link in links if os.path.islink(link)]
    assert not [path for path in open_files if path.startswith(str(tmp_path))]


def test_reading_touches_the_files_of_its_rows_alone():
    """Without it the time of a job grows with the square of its files."""

    class Counted(MemoryRows):
        times = 0

        def __len__(self):
            self.times += 1
            return super().__len__()

    parts = [Counted([{"text": text}]) for text in "abcdef"]
    chain = ChainedRows(parts, "many")
    before = [part.times for part in parts]
    assert [row["text"] for row in chain.read(2, 4)] == ["c", "d"]
    assert [part.times > count for part, count in zip(parts, before, strict=True)] == [
        False,
        False,
        True,
        True,
        False,
        False,
    ]


def test_rows_after_the_last_of_several_files_are_none():
    """Without it the row after the last is looked for without end."""
    chain = ChainedRows([MemoryRows([{"text": "a"}]), MemoryRows([{"text": "b"}])], "two")
    assert [row["text"] for row in chain.read(1, 9)] == ["b"]


def test_a_dataset_fingerprint_is_of_the_content(tmp_path):
    """Without it saving, slicing or mapping a dataset would throw its lengths away."""
    datasets = pytest.importorskip("datasets", reason="needs the extra brimful[huggingface]")
    rows = [{"text": text, "n": number or None} for number, text in enumerate("abcdef")]
    memory = datasets.Dataset.from_list(rows)
    memory.save_to_disk(tmp_path / "saved")
    same = [
        memory,
        datasets.load_from_disk(tmp_path / "saved"),
        datasets.Dataset.from_list([{"text": "z", "n": 9}, *rows]).select(range(1, 7)),
        datasets.concatenate_datasets([memory.select(range(3)), memory.select(range(3, 6))]),
    ]
    assert {open_source(dataset).fingerprint for dataset in same} == {open_source(memory).fingerprint}
    other = [memory.select(range(5)), memory.select([1, 0, 2, 3, 4, 5]), memory.rename_column("n", "m")]
    assert len({open_source(dataset).fingerprint for dataset in (memory, *other)}) == 4


def test_a_shuffled_dataset_is_read_in_its_order():
    """Without it the rows of an index mapping would be read as they lie."""
    datasets = pytest.importorskip("datasets", reason="needs the extra brimful[huggingface]")
    source = open_source(datasets.Dataset.from_list(ROWS).select([4, 0, 2]))
    assert [sample.text for sample in source.read(0, 3)] == ["e", "a", "c"]
    assert [source[index].text for index in range(3)] == ["e", "a", "c"]
    again = pickle.loads(pickle.dumps(source))
    assert [sample.text for sample in again.read(0, 3)] == ["e", "a", "c"]


def test_chats_in_parquet_and_datasets_are_the_chats_of_json(tmp_path):
    """Without it the nulls that tables put for absent keys would reach the template as turns without content."""
    datasets = pytest.importorskip("datasets", reason="needs the extra brimful[huggingface]")
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
    turns = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": None, "tool_calls": [call]}]
    pq.write_table(pa.Table.from_pylist([{"messages": turns}]), tmp_path / "a.parquet")
    expected = [
        {"role": "user", "content": "hi"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": {"x": 1}}}],
        },
    ]
    for data in (tmp_path / "a.parquet", datasets.Dataset.from_list([{"messages": turns}]), [{"messages": turns}]):
        assert open_source(data)[0].messages == expected


@pytest.mark.parametrize("edges", [[], [(0, 2)], [(1, 3)], [(0, 2), (1, 3)], [(0, 1), (2, 3)], [(0, 1), (1, 4)]])
def test_blocks_that_do_not_cover_the_rows_are_refused(edges):
    """Without it rows in no block would have the lengths that lay in memory before."""

    class Holes(MemoryRows):
        @property
        def blocks(self):
            return [Block(start, stop, "0" * 32) for start, stop in edges]

    source = Source(Holes([{"text": "a"}] * 3))
    with pytest.raises(SourceError, match=r"its blocks do not cover its 3 rows, each once and in order"):
        _ = source.blocks


def test_samples_of_a_pack_are_read_in_one_trip(put, monkeypatch):
    """In any order, from several files, each opened and checked once; otherwise a pack costs as many trips as samples."""
    rows = [{"text": "a"}, {"text": "b"}, {"question": "q", "answer": "r"}, {"text": 5}, {"text": "e"}]
    paths = [
        put(f"{number}.jsonl", "\n".join(map(json.dumps, part))) for number, part in enumerate((rows[:3], rows[3:]))
    ]
    source = open_source(paths, format="text")
    stamps = []
    monkeypatch.setattr(Stamp, "check", lambda self, path, title=None: stamps.append(path))
    found = [str(sample) for sample in source.read_many([1, 0, 2, 4, 3])]
    assert stamps == [os.path.realpath(path) for path in paths]
    everything = [str(sample) for sample in source.read(0, 5)]
    assert found == [everything[sample_id] for sample_id in (1, 0, 2, 4, 3)]
    assert "field 'text' is missing" in found[2]
    assert f"{paths[1]}:1 (sample 3): text must be text" in found[4]
    with pytest.raises(IndexError, match="sample 5 is not in 0 … 4"):
        source.read_many([0, 5])
