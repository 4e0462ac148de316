"""The law of the entrance, from random rows to the packs: nothing that a row says is lost without a word."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("transformers", reason="templates need the extra brimful[text]")

from brimful import ChatEncoder, PlanSettings, measure_lengths, open_packs, open_source, pack_dataset
from brimful.errors import BadSampleError, NoTargetError, OversizedSampleError, SourceError
from tests.encode.templates import STYLES, tokenizer_of

CHATML = STYLES["chatml"]
KNOWN = ("user", "assistant", "system")
TEMPLATE = (
    "{% for m in messages %}{% if m.role in ('user', 'assistant', 'system') %}<|im_start|>{{ m.role }}\n"
    "{{ m.content }}<|im_end|>\n{% endif %}{% endfor %}"
)
ENCODER = ChatEncoder(tokenizer_of(CHATML), chat_template=TEMPLATE)

words = st.text("abc ", min_size=1, max_size=8).filter(str.strip)
turn = st.fixed_dictionaries(
    {"role": st.sampled_from([*KNOWN, *KNOWN, "assistant", "bot"]), "content": words},
    optional={"weight": st.sampled_from([0, 1]), "time": st.just(3)},
)
extra = st.dictionaries(
    st.sampled_from(["id", "label", "images", "chosen"]), st.sampled_from([1, "x", None, []]), max_size=1
)
rows = st.one_of(
    st.builds(lambda turns, more: {"messages": turns, **more}, st.lists(turn, min_size=1, max_size=4), extra),
    st.builds(lambda q, a, more: {"question": q, "answer": a, **more}, words, words, extra),
    st.builds(lambda text, more: {"text": text, **more}, words, extra),
    st.builds(lambda ids: {"input_ids": ids}, st.lists(st.integers(0, 255), min_size=1, max_size=9)),
)


def _says(row: dict[str, Any]) -> set[str]:
    """Columns, and keys of messages, that hold something and that no format reads."""
    read = {"messages", "question", "answer", "text", "input_ids"}
    found = {name for name, value in row.items() if name not in read and value not in (None, [])}
    return found | {"messages[].time" for message in row.get("messages", ()) if "time" in message}


def _contents(row: dict[str, Any]) -> list[str]:
    if "messages" in row:
        return [message["content"] for message in row["messages"]]
    return [row[name] for name in ("question", "answer", "text") if name in row]


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    data=st.lists(rows, min_size=1, max_size=8),
    capacity=st.integers(24, 120),
    overflow=st.sampled_from(["drop", "truncate", "truncate_left", "split"]),
    no_target=st.sampled_from(["drop", "keep"]),
)
def test_every_column_message_token_and_target_is_used_named_or_refused(
    data: list[dict[str, Any]], capacity: int, overflow: str, no_target: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Rows of four formats, with columns that mean something and roles that the template drops, packed as they come."""
    home = tmp_path_factory.mktemp("law")
    files = []
    for number, row in enumerate(data):  # a file each: formats are found for each file
        files.append(home / f"{number}.jsonl")
        files[-1].write_text(json.dumps(row) + "\n")
    source = open_source(files)
    try:
        summary = pack_dataset(
            source,
            ENCODER,
            home / "packs",
            PlanSettings(capacity=capacity, overflow=overflow, no_target=no_target),
            on_bad_sample="skip",
            num_proc=1,
        )
    except (NoTargetError, OversizedSampleError, SourceError):
        return  # nothing is left to pack: named, and nothing written
    table, plan, ledger = summary.table, summary.plan, summary.plan.ledger
    rejected = {sample_id: reason for sample_id, _, reason in table.rejects}

    # Every row is a sample or refused by name, and every column and message of a sample is read or named.
    for sample_id, row in enumerate(data):
        if sample_id in rejected:
            reason = rejected[sample_id]
            named = [name for name in _says(row) if repr(name) in reason]
            assert named or "bot" in reason, (row, reason)
            continue
        sample = source[sample_id]
        assert set(sample.unread) == _says(row)
        assert all(message["role"] in KNOWN for message in row.get("messages", ()))
        if "input_ids" in row:
            assert ENCODER.encode(sample).input_ids.tolist() == row["input_ids"]
        else:
            text = ENCODER.decode(ENCODER.encode(sample).input_ids.tolist())
            assert all(content in text for content in _contents(row))
    counted: dict[str, int] = {}
    for sample_id, row in enumerate(data):
        if sample_id not in rejected:
            for name in _says(row):
                counted[name] = counted.get(name, 0) + 1
    assert dict(table.account.unread) == counted

    # Tokens and targets in the packs are those of the account, and what is not there is dropped or cut.
    packs = open_packs(home / "packs")
    assert sum(len(pack.input_ids) for pack in packs) == ledger.tokens_packed
    assert sum(int(np.count_nonzero(pack.loss_mask)) for pack in packs) == ledger.targets_packed
    whole = {i: ENCODER.encode(source[i]) for i in range(len(data)) if i not in rejected}
    assert ledger.targets_in == sum(int(encoded.loss_mask[1:].sum()) for encoded in whole.values())
    assert ledger.tokens_in == sum(len(encoded) for encoded in whole.values())
    dropped = plan.dropped_ids.tolist()
    assert ledger.targets_dropped == sum(int(whole[i].loss_mask[1:].sum()) for i in dropped)
    assert (ledger.targets_in or 0) == (ledger.targets_packed or 0) + (ledger.targets_dropped or 0) + (
        ledger.targets_cut or 0
    )
    listed = home / "packs" / "dropped.jsonl"
    lines = listed.read_text().splitlines() if listed.exists() else []
    assert [json.loads(line)["sample_id"] for line in lines] == sorted(dropped)


def test_targets_are_those_of_what_is_trained() -> None:
    """The count of the table equals the labels that a collator makes of each sample alone."""
    pytest.importorskip("torch")
    from brimful import PackCollator

    rows = [{"question": "ab", "answer": "cde"}], [{"messages": [{"role": "user", "content": "a"}]}]
    source = open_source([open_source(row) for row in rows])
    targets = measure_lengths(source, ENCODER).targets
    assert targets is not None
    for index, sample in enumerate(source.read(0, 2)):
        assert not isinstance(sample, BadSampleError)
        labels = PackCollator()([ENCODER.encode(sample)])["labels"]  # type: ignore[list-item]
        assert int((labels != -100).sum()) == targets.counts[index]
