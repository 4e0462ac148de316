"""Each answer of a conversation is a sample, whatever holds the rows."""

import json
from itertools import chain

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brimful.errors import BadSampleError, SettingsError
from brimful.sources import answers, open_source
from brimful.sources.rows import BLOCK_BYTES, BLOCK_ROWS, Block
from brimful.sources.sample import PartlyPlainMessages, PlainMessages
from brimful.testing.contracts import RowsContract
from tests.sources.tools import picture


def turns(*roles, **extra):
    return [{"role": role, "content": f"{role} {number}", **extra} for number, role in enumerate(roles)]


def chat(*roles, **columns):
    return {"messages": turns(*roles), **columns}


CALL = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": {"x": 1}}}]}
ANSWERS = [
    {"role": "assistant", "content": "a"},
    {"role": "assistant", "content": "a", "weight": 1},
    {"role": "assistant", "content": "", "reasoning_content": "hm"},
    CALL,
]
OTHERS = [
    {"role": "user", "content": "q"},
    {"role": "system", "content": "s"},
    {"role": "tool", "content": "t"},
    {"role": "assistant", "content": ""},
    {"role": "assistant", "content": "a", "weight": 0},
]
_turn = st.sampled_from(ANSWERS + OTHERS)
_row = st.lists(_turn, min_size=1, max_size=8).map(lambda messages: {"messages": messages})
_rows = st.lists(_row | st.just({"messages": []}) | st.just({"messages": 3}), min_size=1, max_size=6)


def cut_by_hand(rows):
    """The rows that a user would write: one for each answer, with the turns up to it."""
    result = []
    for row in rows:
        messages = row["messages"] if isinstance(row["messages"], list) else []
        cuts = [{**row, "messages": messages[: end + 1]} for end, turn in enumerate(messages) if turn in ANSWERS]
        result += cuts or [row]
    return result


def content(sample):
    if isinstance(sample, BadSampleError):
        return sample.reason
    return type(sample.messages), sample.messages, sample.tools


def contents(samples):
    return [(sample.sample_id, content(sample)) for sample in samples]


class TestAnswerRows(RowsContract):
    """A row of one answer is a row like any other."""

    def make_rows(self, folder, texts):
        rows = [chat("user", "assistant", id=text) for text in texts]
        (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        return open_source(folder / "rows.jsonl", per_turn=True, cache_dir=folder / "cache").rows

    def text_of(self, row):
        return row.row["id"]


@given(rows=_rows, data=st.data())
def test_samples_are_rows_cut_by_hand(rows, data):
    source = open_source(rows, format="messages", per_turn=True)
    expected = [*open_source(cut_by_hand(rows), format="messages").read(0, len(cut_by_hand(rows)))]
    found = contents(source.read(0, len(source)))
    assert found == contents(expected)
    assert source.rows.num_rows == len(rows)
    start, stop = sorted(data.draw(st.tuples(*[st.integers(0, len(source))] * 2)))
    assert contents(source.read(start, stop)) == found[start:stop]
    ids = data.draw(st.lists(st.integers(0, len(source) - 1), max_size=9))
    assert contents(source.read_many(ids)) == [found[index] for index in ids]


def test_the_number_of_a_row_does_not_depend_on_its_neighbors():
    """Rows are counted 64 at once and read 64 answers at once: neither edge may show."""
    row = chat("user", *["assistant"] * 100)
    rows = [chat("user", "assistant"), row, {"messages": 3}, *[chat("user")] * 130, row]
    source = open_source(rows, format="messages", per_turn=True)
    assert len(source) == 1 + 100 + 1 + 130 + 100
    whole = contents(source.read(0, len(source)))
    assert [*chain.from_iterable(contents(source.read(at, at + 1)) for at in range(len(source)))] == whole
    assert contents(source.read_many(range(len(source)))) == whole
    assert [len(content(sample)[1]) for sample in source.read(1, 101)] == [*range(2, 102)]
    assert source[331].messages == row["messages"]


def test_a_place_names_the_answer_only_where_there_are_several():
    source = open_source([chat("user", *["assistant"] * 2), chat("user", "assistant"), {"messages": 3}, chat("user")],
                         format="messages", per_turn=True)  # fmt: skip
    assert [*map(source.where, range(len(source)))] == [
        "memory[0], answer 1", "memory[0], answer 2", "memory[1]", "memory[2]", "memory[3]"
    ]  # fmt: skip
    with pytest.raises(BadSampleError, match=r"memory\[2\]"):
        source[3]


def test_a_refused_row_is_refused_answer_by_answer():
    """Its column is refused when it is read; how many samples it is, is known before."""
    source = open_source([chat("user", "assistant", "user", "assistant", label=False)], per_turn=True)
    errors = list(source.read(0, 2))
    assert [error.where for error in errors] == ["memory[0], answer 1", "memory[0], answer 2"]
    assert all("says which answers are wanted" in error.reason for error in errors)


def rows_of_files(folder):
    rows = [chat("user", "assistant", "user", "assistant"), chat("user", "assistant")]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "rows.json").write_text(json.dumps(rows))
    pq.write_table(pa.Table.from_pylist(rows), folder / "rows.parquet")
    return rows


def test_storage_does_not_matter(tmp_path):
    rows = rows_of_files(tmp_path)
    paths = [tmp_path / f"rows.{ending}" for ending in ("jsonl", "json", "parquet")]
    sources = [rows, pa.Table.from_pylist(rows), iter(rows), *paths]
    expected = [sample.messages for sample in open_source(rows, per_turn=True).read(0, 3)]
    for data in sources:
        source = open_source(data, per_turn=True, cache_dir=tmp_path / "cache")
        assert [sample.messages for sample in source.read(0, len(source))] == expected
    several = open_source(paths, per_turn=True)
    assert several.rows.members == [(str(path), 3) for path in paths]
    assert [several.where(index) for index in (1, 4)] == [f"{paths[0]}:1, answer 2", f"{paths[1]}: row 0, answer 2"]
    assert [sample.messages for sample in several.read(0, 9)] == expected * 3


def test_texts_among_chats_stay_one_sample_each(tmp_path):
    (tmp_path / "a.jsonl").write_text(json.dumps(chat("user", "assistant", "user", "assistant")))
    (tmp_path / "b.txt").write_text("a text")
    source = open_source([tmp_path / "a.jsonl", tmp_path / "b.txt"], per_turn=True)
    assert [sample.kind for sample in source.read(0, len(source))] == ["chat", "chat", "text"]


def test_other_formats(tmp_path):
    """An answer is a message of the assistant, however the row writes it."""
    call = {"from": "function_call", "value": '{"name": "f", "arguments": {}}'}
    dialog = [
        {"from": "human", "value": "q"},
        call,
        {"from": "observation", "value": "3"},
        {"from": "gpt", "value": "a"},
    ]
    source = open_source([{"conversations": dialog, "system": "s"}], per_turn=True)
    assert [[turn["role"] for turn in sample.messages] for sample in source.read(0, len(source))] == [
        ["system", "user", "assistant"], ["system", "user", "assistant", "tool", "assistant"]
    ]  # fmt: skip
    source = open_source([{"instruction": "q2", "output": "a2", "history": [["q1", "a1"]]}], per_turn=True)
    assert [sample.messages[-1]["content"] for sample in source.read(0, len(source))] == ["a1", "a2"]
    tools = [{"type": "function", "function": {"name": "f"}}]
    source = open_source([chat("user", "assistant", "user", "assistant", tools=tools)], per_turn=True)
    assert [sample.tools for sample in source.read(0, 2)] == [tools, tools]


def test_messages_keep_what_is_known_of_them():
    """Plain conversations are filled in without rendering: cut ones must stay plain."""
    rows = [chat("user", "assistant", "user", "assistant"), {"messages": [*turns("user", "assistant", "user"), CALL]}]
    source = open_source(rows, per_turn=True)
    assert [type(sample.messages) for sample in source.read(0, 4)] == [PlainMessages] * 3 + [PartlyPlainMessages]
    assert source[0].messages.texts == ["user 0", "assistant 1"]
    assert source[3].messages.others == [3]


def test_a_picture_goes_along_once_it_was_shown():
    pictures = [picture(1), picture(2)]
    messages = turns("user", "assistant", "user", "assistant")
    messages[0]["content"], messages[2]["content"] = "<image>one", "<image>two"
    source = open_source([{"messages": messages, "images": pictures}], media=True, per_turn=True)
    assert [[medium.read() for medium in sample.attachments] for sample in source.read(0, 2)] == [
        pictures[:1],
        pictures,
    ]
    question = [{"role": "user", "content": "<image>what?"}, *turns("user", "assistant", "user", "assistant")[1:]]
    source = open_source([{"messages": question, "image": "a.png"}], media=True, per_turn=True)
    assert source[0].attachments == source[1].attachments


def test_captions_of_a_picture_are_alternatives():
    """A caption that follows another one would learn to vary it, not to describe the picture."""
    source = open_source([{"image": "a.jpg", "captions": ["A cat.", "A pet."]}], media=True, per_turn=True)
    first, second = source.read(0, 2)
    assert first.messages[0] == second.messages[0]
    assert [first.messages[1]["content"], second.messages[1]["content"]] == ["A cat.", "A pet."]
    assert first.attachments == second.attachments
    assert len(first.attachments) == 1
    assert source.where(1) == "memory[0], answer 2"


@pytest.fixture
def counted(monkeypatch):
    """Blocks that are counted, not looked up."""
    blocks, count = [], answers._counted

    def count_and_note(rows, block, row_format):
        blocks.append((block.start, block.stop))
        return count(rows, block, row_format)

    monkeypatch.setattr(answers, "_counted", count_and_note)
    return blocks


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_answers_are_counted_once(tmp_path, counted):
    rows = [chat("user", *["assistant"] * (1 + number % 3)) for number in range(BLOCK_ROWS + 2000)]
    path = write(tmp_path / "a.jsonl", rows)
    options = {"per_turn": True, "cache_dir": tmp_path / "cache"}
    sizes = [len(open_source(path, **options)) for _ in range(2)]
    assert counted == [(0, BLOCK_ROWS), (BLOCK_ROWS, len(rows))]
    assert sizes == [sum(len(row["messages"]) - 1 for row in rows)] * 2
    write(path, [*rows, chat("user", "assistant")])
    longer = open_source(path, **options)
    assert counted[2:] == [(BLOCK_ROWS, len(rows) + 1)]
    assert len(longer) == sizes[0] + 1
    # Other turns of the same rows, by another field, are other numbers.
    with_others = write(tmp_path / "b.jsonl", [{**row, "other": row["messages"][:2]} for row in rows])
    assert len(open_source(with_others, **options)) == sizes[0]
    assert len(open_source(with_others, **options, format="messages", fields={"messages": "other"})) == len(rows)


def test_a_killed_count_continues(tmp_path, monkeypatch):
    rows = [chat("user", "assistant", "assistant", id=number) for number in range(2 * BLOCK_ROWS)]
    path = write(tmp_path / "a.jsonl", rows)
    count, done = answers._counted, []

    def count_one(rows, block, row_format):
        if done:
            raise KeyboardInterrupt
        done.append(block.start)
        return count(rows, block, row_format)

    monkeypatch.setattr(answers, "_counted", count_one)
    with pytest.raises(KeyboardInterrupt):
        open_source(path, per_turn=True, cache_dir=tmp_path)
    again = []
    monkeypatch.setattr(answers, "_counted", lambda *args: again.append(args[1].start) or count(*args))
    assert len(open_source(path, per_turn=True, cache_dir=tmp_path)) == 2 * len(rows)
    assert again == [BLOCK_ROWS]


def test_a_damaged_count_is_made_again(tmp_path, counted):
    path = write(tmp_path / "a.jsonl", [chat("user", "assistant", "assistant")] * 2000)
    size = len(open_source(path, per_turn=True, cache_dir=tmp_path / "cache"))
    (kept,) = (tmp_path / "cache" / "answers").glob("*/*.arrow")
    kept.write_bytes(kept.read_bytes()[:-100])
    assert len(open_source(path, per_turn=True, cache_dir=tmp_path / "cache")) == size == 4000
    assert len(counted) == 2


@given(counts=st.lists(st.integers(1, 9000), min_size=1, max_size=12), row_bytes=st.sampled_from([None, 10, 1 << 20]))
def test_blocks_are_cut_between_rows(counts, row_bytes):
    """A block of rows may be a hundred blocks of work: tasks of minutes, and a kill loses all of one."""
    from brimful.sources.memory import MemoryRows

    class Sized(MemoryRows):
        @property
        def blocks(self):
            size = None if row_bytes is None else row_bytes * len(self)
            return [Block(0, len(self), "f", size)]

    rows = answers.AnswerRows.__new__(answers.AnswerRows)
    rows._rows, rows._counts = Sized(counts), np.array(counts, dtype=np.int32)
    blocks, edges = rows.blocks, rows._edges.tolist()
    assert [block.start for block in blocks] == [0, *(block.stop for block in blocks[:-1])]
    assert blocks[-1].stop == sum(counts)
    assert len({block.fingerprint for block in blocks}) == len(blocks)
    for block in blocks:
        first, last = edges.index(block.start), edges.index(block.stop)
        text = sum(count + 1 for count in counts[first:last]) / 2 * (row_bytes or 0)
        assert block.num_bytes == (None if row_bytes is None else int(text))
        assert last - first == 1 or (len(block) <= BLOCK_ROWS and text <= BLOCK_BYTES)


def test_appended_rows_are_seen_as_appended(tmp_path):
    rows = [chat("user", *["assistant"] * (1 + number % 3)) for number in range(5)]
    shorter = open_source(write(tmp_path / "a.jsonl", rows[:3]), per_turn=True)
    longer = open_source(write(tmp_path / "b.jsonl", rows), per_turn=True)
    assert longer.begins_with(len(shorter), shorter.fingerprint)
    assert not longer.begins_with(len(shorter) - 1, shorter.fingerprint)
    whole = open_source(tmp_path / "a.jsonl")
    assert whole.fingerprint != shorter.fingerprint


def test_contradictions_are_named():
    pair = {"prompt": "q", "chosen": "a", "rejected": "b"}
    with pytest.raises(SettingsError, match="per_turn is for conversations, and rows of format preference are already"):
        open_source([pair], per_turn=True)
    with pytest.raises(SettingsError, match="per_turn has no effect on rows of format text"):
        open_source(["a text"], per_turn=True)
    per_turn, whole = (open_source([chat("user", "assistant")], per_turn=choice) for choice in (True, False))
    with pytest.raises(SettingsError, match="open sources take no further options"):
        open_source(whole, per_turn=True)
    with pytest.raises(SettingsError, match="open all with per_turn=True, or none"):
        open_source([per_turn, whole])
    assert open_source([per_turn, open_source(["a text"])]).per_turn
