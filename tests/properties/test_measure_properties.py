"""Laws of measuring, for any data: exact, independent of how it came about, and each row accounted for."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brimful.errors import BadSampleError
from brimful.measure import measure_lengths
from brimful.sources import line_index, open_source
from brimful.testing.toys import toy_chat_encoder
from tests.measure.encoders import Letters

_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=10)
_GOOD = _TEXT.map(lambda text: json.dumps({"text": text}))
_LINES = st.lists(st.one_of(_GOOD, _TEXT.map(lambda text: text.replace("\n", " "))), min_size=1, max_size=9)
_ENDS = st.sampled_from(["\n", "\r\n", "\n\n", "\n\r\n"])


@pytest.fixture(autouse=True, scope="module")
def _three_rows_a_block():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(line_index, "BLOCK_ROWS", 3)
        yield


@given(lines=_LINES, end=_ENDS)
def test_every_line_is_a_length_or_a_reject(lines, end):
    """Without it a row could be lost, counted twice, or have the length of another."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "a.jsonl")
        path.write_text(end.join(['{"text": "first"}', *lines]), encoding="utf-8", newline="")
        source = open_source(path, format="text", cache_dir=folder)
        encoder = Letters()
        table = measure_lengths(source, encoder, on_bad_sample="skip", cache_dir=folder, num_proc=1)
        expected = []
        for index in range(len(source)):
            try:
                expected.append(len(encoder.encode(source[index])) or -1)
            except BadSampleError:
                expected.append(-1)
        assert table.tokens.tolist() == expected
        assert [sample_id for sample_id, *_ in table.rejects] == [index for index, n in enumerate(expected) if n < 0]
        blank = [line for line in lines if line in ("", "\r")]
        assert len(table) == 1 + len(lines) - len(blank)
        assert table.total_tokens == sum(n for n in expected if n > 0)


@settings(max_examples=25)
@given(
    texts=st.lists(st.text("abc", min_size=1, max_size=9), min_size=2, max_size=12),
    cuts=st.lists(st.integers(1, 12), max_size=3),
    ended=st.booleans(),
    named=st.booleans(),
)
def test_a_growing_file_measures_as_if_it_had_been_whole(texts, cuts, ended, named):
    """Without it lengths would depend on the hour of measuring, or rows would be encoded again."""
    with tempfile.TemporaryDirectory() as folder:
        path, table = Path(folder, "a.jsonl"), None
        encoder = Letters()
        for count in sorted({min(cut, len(texts)) for cut in cuts} | {len(texts)}):
            data = "\n".join(json.dumps({"text": text}) for text in texts[:count])
            path.write_text(data + "\n" * (ended or count == len(texts)))
            target = Path(folder, "lengths.arrow") if named else None
            source = open_source(path, cache_dir=folder)
            table = measure_lengths(source, encoder, path=target, cache_dir=folder, num_proc=1)
            assert table.tokens.tolist() == [len(text) for text in texts[:count]]
        if named:
            assert len(encoder.seen) <= len(texts)
            assert sorted(set(encoder.seen)) == sorted(set(texts))


@settings(max_examples=30)
@given(turns=st.lists(st.lists(_TEXT, min_size=1, max_size=4), min_size=1, max_size=6))
def test_loss_tokens_are_never_more_than_tokens(turns):
    """Without it a plan over two budgets could hold more targets than tokens."""
    roles = ("user", "assistant")
    rows = [
        {"messages": [{"role": roles[number % 2], "content": text} for number, text in enumerate(texts)]}
        for texts in turns
    ]
    encoder, source = toy_chat_encoder(), open_source(rows)
    with tempfile.TemporaryDirectory() as folder:
        table = measure_lengths(source, encoder, budgets=("loss_tokens",), cache_dir=folder)
    encoded = [encoder.encode(source[index]) for index in range(len(rows))]
    assert table.tokens.tolist() == [len(sample.input_ids) for sample in encoded]
    assert table.budgets["loss_tokens"].tolist() == [int((sample.labels >= 0).sum()) for sample in encoded]
    assert np.all(table.budgets["loss_tokens"] <= table.tokens)


@settings(max_examples=30)
@given(texts=st.lists(_TEXT.filter(bool), min_size=1, max_size=6), bos=st.booleans(), eos=st.booleans())
def test_lengths_of_a_tokenizer_are_those_of_its_encoded_texts(texts, bos, eos):
    """Without it counting tokens and making them could take two different ways."""
    pytest.importorskip("transformers", reason="tokenizers need the extra brimful[text]")
    from brimful.encode import TextEncoder
    from tests.encode.templates import tiny_tokenizer

    tokenizer = tiny_tokenizer("<s>", "</s>", bos_token="<s>", eos_token="</s>")
    encoder, source = TextEncoder(tokenizer, bos=bos, eos=eos), open_source(texts)
    with tempfile.TemporaryDirectory() as folder:
        table = measure_lengths(source, encoder, cache_dir=folder)
    assert table.tokens.tolist() == [len(encoder.encode(source[index])) for index in range(len(texts))]
    assert table.tokens.tolist() == [len(text.encode()) + bos + eos for text in texts]
