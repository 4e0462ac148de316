"""Rows of conversations for Megatron-LM and NeMo RL: a system message begins each, and no more is lost in a row."""

import json

import pytest

from brimful import measure_lengths, open_source, plan_packs, write_packs
from brimful.errors import BadSampleError, SettingsError
from brimful.integrations.export import check_export, export_packs
from brimful.integrations.export.packed_messages import turns_of_conversation
from brimful.sources.sample import Sample
from brimful.testing.toys import toy_chat_encoder


def chat(system, *texts):
    roles = ["system", *["user", "assistant"] * (len(texts) // 2)]
    return [{"role": role, "content": text} for role, text in zip(roles, [system, *texts], strict=True)]


CHATS = [chat(f"system {number}", *(f"turn {turn}" for turn in range(2 + 2 * (number % 3)))) for number in range(12)]


def packed(rows, directory, **settings):
    source, encoder = open_source([{"messages": row} for row in rows]), toy_chat_encoder()
    plan = plan_packs(measure_lengths(source, encoder), capacity=120, **settings)
    write_packs(plan, source, encoder, directory)
    return source


def rows_of(directory):
    return [json.loads(line) for path in sorted(directory.glob("*.jsonl")) for line in path.read_text().splitlines()]


def conversations_of(messages):
    """As ``SFTDataset`` of Megatron-LM divides a row: by its source, which no package has."""
    starts = [place for place, message in enumerate(messages) if message["role"] == "system"]
    return [messages[start:stop] for start, stop in zip(starts, [*starts[1:], len(messages)], strict=True)]


def test_a_row_is_a_pack_and_a_conversation_a_sample(tmp_path):
    """Divided by the rule of the readers, every row gives back the samples of its pack, in their order."""
    source = packed(CHATS, tmp_path / "packs")
    summary = export_packs(
        tmp_path / "packs", to="megatron-sft", directory=tmp_path / "out", source=source, packs_per_shard=2
    )
    rows = rows_of(tmp_path / "out")
    assert summary.packs == len(rows) > 2
    assert all(row.keys() == {"messages", "sample_ids"} for row in rows)
    found = {
        sample: conversation
        for row in rows
        for sample, conversation in zip(row["sample_ids"], conversations_of(row["messages"]), strict=True)
    }
    assert [found[number] for number in range(12)] == CHATS
    assert all(row["messages"][-1]["role"] == "assistant" for row in rows)


def test_the_library_that_both_readers_use_reads_it(tmp_path, monkeypatch):
    """And the check leaves no copy of the export in the cache of the library."""
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    source = packed(CHATS, tmp_path / "packs")
    export_packs(tmp_path / "packs", to="megatron-sft", directory=tmp_path / "out", source=source, packs_per_shard=2)
    outcome = check_export(tmp_path / "out", tmp_path / "packs", source=source)
    assert (outcome.fields, outcome.reader) == (("messages",), "datasets")
    assert not list((tmp_path / "cache").rglob("*.arrow"))


@pytest.mark.parametrize(
    ("messages", "tools", "words"),
    [
        (chat("s", "q", "a")[1:], None, "begins with no system message"),
        (chat("s", "q", "a") * 2, None, "has turns of system, user, assistant, system, user, assistant"),
        (chat("s", "q", "a")[:2], None, "has turns of system, user"),
        (chat("s"), None, "has turns of system"),
        (chat("s", "q", ""), None, "has an empty answer"),
        (chat("s", "q", "a", "q", ""), None, "has an empty answer"),
        (chat("", "", ""), None, "has an empty answer"),
        (chat("s", "q", "a"), [{"name": "f"}], "has tools"),
        ([*chat("s", "q", "a")[:2], {"role": "assistant", "content": "a", "thinking": "t"}], None, "has thinking"),
        ([chat("s")[0], {"role": "user", "content": [{"type": "image"}]}, chat("s", "q", "a")[2]], None,
         "has contents that are not text"),
        ([chat("s")[0], {"role": "user", "content": [{"type": "video"}]}, chat("s", "q", "a")[2]], None,
         "has contents that are not text"),
    ],
)  # fmt: skip
def test_what_the_readers_would_read_otherwise_is_refused(messages, tools, words):
    """A second system message divides a sample, and a conversation without one goes on with the sample before it."""
    with pytest.raises(BadSampleError, match=words):
        turns_of_conversation(Sample(0, messages=messages, tools=tools))


def test_what_the_readers_read_as_it_is_stays():
    """A text in parts is one text, and a question may be empty."""
    messages = chat("s", "q?", "a", "", "b")
    messages[1] = {"role": "user", "content": [{"type": "text", "text": "q"}, {"type": "text", "text": "?"}]}
    turns = turns_of_conversation(Sample(0, messages=messages))
    assert turns == [("system", "s"), ("user", "q?"), ("assistant", "a"), ("user", ""), ("assistant", "b")]


def test_parts_of_samples_are_refused(tmp_path):
    long = [chat("system", "word " * 60, "answer " * 30), *CHATS]
    source = packed(long, tmp_path / "packs", overflow="split")
    with pytest.raises(SettingsError, match='overflow="split", and a text cannot be cut'):
        export_packs(tmp_path / "packs", to="megatron-sft", directory=tmp_path / "out", source=source)
