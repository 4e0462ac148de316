"""Real chats through the whole line: every sample once or accounted for, token for token."""

import gzip
import json

import numpy as np
import pytest

pytest.importorskip("transformers")

from brimful import ChatEncoder, PlanSettings, TextEncoder, open_packs, open_source, pack_dataset
from brimful.report.store_check import check_store


def rows_of(path):
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def chat(row):
    """The conversation of a row in OpenAI's words, written independently of the library."""
    if "messages" in row:
        return row["messages"]
    if "question" in row:
        return [{"role": "user", "content": row["question"]}, {"role": "assistant", "content": row["answer"]}]
    question = row["instruction"] + ("\n" + row["input"] if row["input"] else "")
    return [{"role": "user", "content": question}, {"role": "assistant", "content": row["output"]}]


def _answers(row):
    return [turn for turn in chat(row) if turn["role"] == "assistant"]


DATA = [
    ("gsm8k_train.jsonl.gz", 2048, 2_000),
    ("sgd_train_dialogues.jsonl.gz", 4096, 800),
    ("gpteacher.jsonl.gz", 2048, 2_000),
    ("smile_zh_multiturn_3k.jsonl.gz", 1024, 600),
]
"""File, capacity, and samples that `make test-all` looks at; `make test` looks at a few, `make chaos` at all."""


@pytest.mark.parametrize(
    ("name", "capacity", "num_samples"),
    [
        ("smile_zh_multiturn_3k.jsonl.gz", 1024, 100),
        *(pytest.param(name, capacity, many, marks=pytest.mark.long) for name, capacity, many in DATA),
        *(pytest.param(name, capacity, None, marks=pytest.mark.chaos) for name, capacity, _ in DATA),
    ],
)
def test_chats(name, capacity, num_samples, data_dir, small_tokenizer, tmp_path):
    """The tokens of every sample in the packs are what ``tokenizer.apply_chat_template`` gives, each sample once."""
    source = open_source(data_dir / "text" / name, max_samples=num_samples)
    encoder = ChatEncoder(small_tokenizer)
    summary = pack_dataset(
        source, encoder, tmp_path, PlanSettings(capacity=capacity, overflow="drop", no_target="drop")
    )
    rows = rows_of(data_dir / "text" / name)[:num_samples]
    hf = encoder.tokenizer.hf
    seen = np.zeros(len(rows), dtype=np.int64)
    dropped = set(summary.plan.dropped_ids.tolist())
    without = {sample_id for sample_id, row in enumerate(rows) if not _answers(row)}
    assert without <= dropped
    assert summary.plan.outcome.dropped_by.get("no_target", 0) == len(without)
    for pack in open_packs(tmp_path):
        assert len(pack) <= capacity
        for number, sample_id in enumerate(pack.sample_ids.tolist()):
            seen[sample_id] += 1
            expected = hf.apply_chat_template(chat(rows[sample_id]))["input_ids"]
            assert pack.segment(number).tolist() == expected, sample_id
    assert set(np.flatnonzero(seen == 0).tolist()) == dropped
    assert seen.max() == 1
    assert check_store(tmp_path, plan=summary.plan).samples == len(rows) - len(dropped)


@pytest.mark.parametrize(
    "num_samples", [pytest.param(100, marks=pytest.mark.long), pytest.param(None, marks=pytest.mark.chaos)]
)
def test_documents_split_into_segments(num_samples, data_dir, small_tokenizer, tmp_path):
    """Long documents under ``split``: every token once, in order."""
    path = data_dir / "text" / "peps_even.jsonl.gz"
    encoder = TextEncoder(small_tokenizer)
    summary = pack_dataset(
        open_source(path, max_samples=num_samples), encoder, tmp_path, PlanSettings(capacity=4096, overflow="split")
    )
    pieces = {}
    for pack in open_packs(tmp_path):
        for number, sample_id in enumerate(pack.sample_ids.tolist()):
            pieces.setdefault(sample_id, []).append((int(pack.starts[number]), pack.segment(number).tolist()))
    hf = encoder.tokenizer.hf
    rows = rows_of(path)[:num_samples]
    for sample_id, row in enumerate(rows):
        joined = [token for _, piece in sorted(pieces[sample_id]) for token in piece]
        assert joined == [*hf(row["text"], add_special_tokens=False)["input_ids"], hf.eos_token_id]
    assert summary.plan.ledger.samples_split > len(rows) // 4
    assert summary.plan.ledger.tokens_packed == summary.plan.ledger.tokens_in
