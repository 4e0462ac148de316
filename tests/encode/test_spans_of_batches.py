"""Spans of a batch are the spans of its texts, whichever way each was found."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("transformers", reason="templates need the extra brimful[text]")

from brimful.encode import ChatEncoder
from brimful.encode.token_places import TextSpans
from tests.encode.templates import STYLES, chat, tokenizer_of


def test_lists_of_spans_lie_one_behind_the_other():
    spans = TextSpans.joined([TextSpans.of_lists({4: [(0, 3), (5, 9)], 1: []}), TextSpans.of_lists({2: [(1, 1)]})])
    assert [column.tolist() for column in spans] == [[4, 4, 2], [0, 5, 1], [3, 9, 1]]


def test_no_text_has_no_spans():
    spans = TextSpans.of_lists({})
    assert [column.tolist() for column in spans] == [[], [], []]
    assert {column.dtype for column in spans} == {np.dtype(np.int64)}


@pytest.mark.parametrize("train_on", ["assistant", "last"])
def test_a_batch_has_the_targets_of_its_samples(train_on):
    """Filled texts are found together; weights, changed texts and refusals one by one: each gets its own."""
    style = STYLES["llama 3"]
    encoder = ChatEncoder(tokenizer_of(style), chat_template=style.template, train_on=train_on)
    weighted = chat("q", "no", "q", "yes")
    weighted.messages[1]["weight"] = 0
    samples = [chat("q", "a"), weighted, chat(" q ", " a "), chat("é", "b", "q2", "漢"), chat("\ud800", "a"), chat("q")]
    batch = encoder.begin_encoding(samples)().samples()
    single = [encoder.begin_encoding([sample])().samples()[0] for sample in samples]
    assert [str(one) for one in batch if isinstance(one, Exception)] == [
        str(one) for one in single if isinstance(one, Exception)
    ]
    pairs = [pair for pair in zip(batch, single, strict=True) if not isinstance(pair[0], Exception)]
    assert len(pairs) == 5
    for one, other in pairs:
        assert one.loss_mask.tolist() == other.loss_mask.tolist()
        assert one.input_ids.tolist() == other.input_ids.tolist()
