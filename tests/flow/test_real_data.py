"""Real chats through the whole line: every sample once or accounted for, token for token."""

import gzip
import json

import numpy as np
import pytest

pytest.importorskip("transformers")

from brimful import ChatEncoder, PlanSettings, TextEncoder, check_store, open_packs, open_source, pack_dataset


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


@pytest.mark.parametrize(
    ("name", "capacity", "every"),
    [
        ("gsm8k_train.jsonl.gz", 2048, 5),
        pytest.param("gsm8k_train.jsonl.gz", 2048, 1, marks=pytest.mark.chaos),
        ("sgd_train_dialogues.jsonl.gz", 4096, 20),
        pytest.param("sgd_train_dialogues.jsonl.gz", 4096, 1, marks=pytest.mark.chaos),
        ("gpteacher.jsonl.gz", 2048, 10),
        ("smile_zh_multiturn_3k.jsonl.gz", 1024, 10),
        pytest.param("gpteacher.jsonl.gz", 2048, 1, marks=pytest.mark.chaos),
        pytest.param("smile_zh_multiturn_3k.jsonl.gz", 1024, 1, marks=pytest.mark.chaos),
    ],
)
def test_chats(name, capacity, every, data_dir, qwen_tokenizer, tmp_path):
    """The tokens of every sample in the packs (or of some of them) are those of ``tokenizer.apply_chat_template``, each sample once."""
    source = open_source(data_dir / "text" / name)
    encoder = ChatEncoder(qwen_tokenizer)
    summary = pack_dataset(
        source, encoder, tmp_path, PlanSettings(capacity=capacity, overflow="drop", no_target="drop")
    )
    rows = rows_of(data_dir / "text" / name)
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
            if sample_id % every:
                continue  # some of 12,174 dialogues take long enough; `make chaos` compares them all
            expected = hf.apply_chat_template(chat(rows[sample_id]))["input_ids"]
            assert pack.segment(number).tolist() == expected, sample_id
    assert set(np.flatnonzero(seen == 0).tolist()) == dropped
    assert seen.max() == 1
    assert check_store(tmp_path, plan=summary.plan).samples == len(rows) - len(dropped)


@pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.chaos)])
def test_documents_split_into_segments(every, data_dir, qwen_tokenizer, tmp_path):
    """Long documents under ``split``: every token (or those of some documents) once, in order."""
    path = data_dir / "text" / "peps_even.jsonl.gz"
    encoder = TextEncoder(qwen_tokenizer)
    summary = pack_dataset(open_source(path), encoder, tmp_path, PlanSettings(capacity=4096, overflow="split"))
    pieces = {}
    for pack in open_packs(tmp_path):
        for number, sample_id in enumerate(pack.sample_ids.tolist()):
            pieces.setdefault(sample_id, []).append((int(pack.starts[number]), pack.segment(number).tolist()))
    hf = encoder.tokenizer.hf
    for sample_id, row in list(enumerate(rows_of(path)))[::every]:
        joined = [token for _, piece in sorted(pieces[sample_id]) for token in piece]
        assert joined == [*hf(row["text"], add_special_tokens=False)["input_ids"], hf.eos_token_id]
    assert summary.plan.ledger.samples_split > 100
    assert summary.plan.ledger.tokens_packed == summary.plan.ledger.tokens_in
