"""Real dialogues with one sample for each answer: what they share, counted in a way that knows nothing of the library."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")

from brimful import ChatEncoder, measure_lengths, open_source
from brimful.trees.prefixes import prefixes_of, sharing_of
from tests.flow.test_real_data import rows_of


def samples_by_turn(path: Path, num_dialogues: int | None) -> list[dict[str, Any]]:
    """A row for each answer, with the turns before it."""
    return [
        {"messages": messages[: end + 1]}
        for row in rows_of(path)[:num_dialogues]
        for messages in [row["messages"]]
        for end, turn in enumerate(messages)
        if turn["role"] == "assistant"
    ]


def distinct_tokens(sequences: list[list[int]], least: int) -> int:
    """Nodes of a trie of dictionaries for each set of samples with the same first ``least`` tokens.

    A shorter sample has no trunk, and costs nothing if another one begins with all of it.
    """
    tries: dict[Any, Any] = {}
    count = 0
    beginnings = {tuple(ids[:end]) for ids in sequences for end in range(min(len(ids), least + 1))}
    for short in {tuple(ids) for ids in sequences if len(ids) < least}:
        count += 0 if short in beginnings else len(short)
    for ids in sequences:
        node = tries.setdefault(tuple(ids[:least]), {})
        for token in ids if len(ids) >= least else ():
            if token not in node:
                node[token] = {}
                count += 1
            node = node[token]
    return count


@pytest.mark.parametrize(
    ("name", "num_dialogues", "least_ratio"),
    [
        ("sgd_train_dialogues.jsonl.gz", 20, 7.0),
        ("smile_zh_multiturn_3k.jsonl.gz", 20, 3.0),
        pytest.param("sgd_train_dialogues.jsonl.gz", 300, 7.0, marks=pytest.mark.long),
        pytest.param("smile_zh_multiturn_3k.jsonl.gz", 300, 3.0, marks=pytest.mark.long),
    ],
)
def test_dialogues_by_turn(name, num_dialogues, least_ratio, data_dir, small_tokenizer, tmp_path):
    """Without it the forest could be smaller than the tokens that a model has to read."""
    rows = samples_by_turn(data_dir / "text" / name, num_dialogues)
    source = open_source(rows, cache_dir=tmp_path)
    encoder = ChatEncoder(small_tokenizer)
    table = measure_lengths(source, encoder, share="prefixes", cache_dir=tmp_path, num_proc=1)
    sharing = sharing_of(prefixes_of(table), table.tokens)
    ids = [encoder.encode(source[index]).input_ids.tolist() for index in range(len(source))]
    assert sharing.flat_tokens == sum(map(len, ids))
    assert sharing.tree_tokens == distinct_tokens(ids, 64)
    # The samples of a dialogue are neighbors, unless another dialogue begins with the same 64 tokens.
    assert sharing.ratio > least_ratio
