"""Targets of the loss: counted for whole samples and for what is left of them when they are cut."""

from __future__ import annotations

import json

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from brimful.base.ragged import offsets_of
from brimful.base.tables import Ragged
from brimful.encode import TextEncoder
from brimful.lengths.targets import Targets, joined_rows, runs_of_masks
from brimful.measure import LengthTable, measure_lengths
from brimful.sources import line_index, open_source
from brimful.testing.toys import toy_chat_encoder
from tests.measure.encoders import Letters

masks = st.lists(st.none() | st.lists(st.booleans(), max_size=9), min_size=1, max_size=6)


def _arrays(lists):
    values = [value for mask in lists for value in mask or ()]
    return Ragged(np.array(values, dtype=bool), offsets_of([len(mask or ()) for mask in lists]))


@given(masks)
def test_counts_are_those_of_the_masks_without_their_first_token(lists):
    """Without it a sample that teaches nothing would pass, or one that teaches would be dropped."""
    targets = Targets.of_runs(runs_of_masks(_arrays(lists)))
    assert targets.counts.tolist() == [0 if mask is None else sum(mask[1:]) for mask in lists]
    assert targets.total == sum(targets.counts.tolist())


@given(masks, st.data())
def test_targets_within_segments_are_those_of_the_cut_masks(lists, data):
    """Without it truncation would take targets that are not counted."""
    targets = Targets.of_runs(joined_rows([runs_of_masks(_arrays(lists))] * 2))
    wanted, segments = [], []
    for sample_id, mask in enumerate(lists * 2):
        if mask:
            start = data.draw(st.integers(0, len(mask) - 1))
            end = data.draw(st.integers(start + 1, len(mask)))
            segments.append((sample_id, start, end - start))
            wanted.append(sum(mask[start + 1 : end]))
    columns = np.array(segments, dtype=np.int64).reshape(-1, 3).T
    assert targets.within(*columns).tolist() == wanted


def test_where_every_token_is_a_target_no_runs_are_kept():
    """Without it a corpus of documents would carry a column that says what its lengths say."""
    targets = Targets.of_all_tokens(np.array([3, -1, 1], dtype=np.int32))
    assert (targets.counts.tolist(), targets.runs) == ([2, 0, 0], None)
    assert targets.within(np.array([0, 0]), np.array([0, 1]), np.array([1, 2])).tolist() == [0, 1]


def test_targets_are_measured_in_blocks_and_kept_with_the_table(put, tmp_path, monkeypatch):
    """Without it one block would get the targets of another, or be gone once the table is opened again."""
    monkeypatch.setattr(line_index, "BLOCK_ROWS", 2)
    rows = ["aBc", "!", "ABC", "abc", "a"]
    source = open_source(put("data.jsonl", "".join(json.dumps({"text": text}) + "\n" for text in rows)))
    path = tmp_path / "lengths.arrow"
    table = measure_lengths(source, Letters(), path=path, on_bad_sample="skip")
    again = LengthTable.open(path)
    for found in (table, again):
        assert found.targets.counts.tolist() == [1, 0, 0, 2, 0]
        assert found.targets.within(np.array([3, 0]), np.array([1, 0]), np.array([2, 3])).tolist() == [1, 1]
    assert again.account.no_target == {"it has one token, and the first of a segment is not a target": 2}
    assert again.fingerprint == LengthTable(table.budgets).fingerprint


def test_appended_rows_keep_the_targets_of_those_before(put, tmp_path, monkeypatch):
    """Without it the targets of a grown data set would count its new rows alone."""
    monkeypatch.setattr(line_index, "BLOCK_ROWS", 2)

    def measured(texts):
        source = open_source(put("data.jsonl", "".join(json.dumps({"text": text}) + "\n" for text in texts)))
        return measure_lengths(source, Letters(), path=tmp_path / "lengths.arrow").targets.counts.tolist()

    assert measured(["ab", "cde", "f"]) == [1, 2, 0]
    assert measured(["ab", "cde", "f", "ghij", "k"]) == [1, 2, 0, 3, 0]


def test_documents_are_not_encoded_for_their_targets(small_tokenizer, monkeypatch):
    """Without it a corpus would be measured at a fraction of its speed for something that its lengths say."""
    encoder = TextEncoder(small_tokenizer)
    real, asked = TextEncoder.begin_encoding, []

    def recorded(self, samples, *, targets=True):
        asked.append(targets)
        return real(self, samples, targets=targets)

    monkeypatch.setattr(TextEncoder, "begin_encoding", recorded)
    table = measure_lengths(open_source([{"text": "a b c"}]), encoder)
    assert set(asked) == {False}
    assert table.targets.counts.tolist() == [len(table) and int(table.tokens[0]) - 1]


def test_why_samples_have_no_target_is_counted():
    """Without it users do not learn that a whole data set was read with the wrong roles."""
    rows = [
        {"messages": [{"role": "user", "content": "q"}]},
        {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}], "id": 1},
    ]
    account = measure_lengths(open_source(rows), toy_chat_encoder()).account
    assert (account.kinds, account.unread, sum(account.no_target.values())) == ({"chat": 2}, {"id": 1}, 1)
