"""A document is its tokens between the marks of beginning and end."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("transformers", reason="tokenizers need the extra brimful[text]")

from brimful.encode import TextEncoder
from brimful.errors import BadSampleError, SettingsError
from brimful.sources import Sample, open_source
from tests.encode.templates import chat, tiny_tokenizer

MARKS = {"bos_token": "<s>", "eos_token": "</s>"}


def _tokenizer(adds_bos=False, **marks):
    made = tiny_tokenizer("<s>", "</s>", **(marks or MARKS))
    if adds_bos:
        from tokenizers.processors import TemplateProcessing

        made.backend_tokenizer.post_processor = TemplateProcessing("<s> $A", special_tokens=[("<s>", 256)])
    return made


@pytest.mark.parametrize(
    ("adds_bos", "bos", "eos", "expected"),
    [
        (False, None, True, "ab</s>"),
        (False, True, True, "<s>ab</s>"),
        (False, None, False, "ab"),
        (True, None, True, "<s>ab</s>"),
        (True, False, True, "ab</s>"),
        (True, None, False, "<s>ab"),
    ],
)
def test_a_document_between_its_marks(adds_bos, bos, eos, expected):
    """Without it documents would run into each other, or a model would see a beginning it never saw before."""
    encoder = TextEncoder(_tokenizer(adds_bos), bos=bos, eos=eos)
    encoded = encoder.encode(Sample(0, text="ab"))
    assert encoder.decode(encoded.input_ids) == expected  # type: ignore[arg-type]
    assert (encoded.input_ids.dtype, encoded.loss_mask.tolist()) == (np.int32, [True] * len(encoded))
    assert encoder.lengths([Sample(0, text="ab")])[0].tolist() == [len(encoded)]


def test_a_mark_that_the_tokenizer_lacks():
    """Without it documents would be written without the end that was asked for."""
    with pytest.raises(SettingsError, match="has no end-of-sequence token; use eos=False"):
        TextEncoder(_tokenizer(bos_token="<s>")).encode(Sample(0, text="a"))
    with pytest.raises(SettingsError, match="has no beginning-of-sequence token; use bos=False"):
        TextEncoder(_tokenizer(eos_token="</s>"), bos=True).encode(Sample(0, text="a"))


def test_the_marks_are_part_of_the_length_fingerprint():
    """Without it lengths without marks would be served for documents with them."""
    options = [{}, {"bos": True}, {"eos": False}, {"bos": True, "eos": False}]
    assert len({TextEncoder(_tokenizer(), **option).length_fingerprint for option in options}) == 4
    assert TextEncoder(_tokenizer(), bos=False).fingerprint == TextEncoder(_tokenizer()).fingerprint


def test_a_chat_is_no_document():
    """Without it a chat would be encoded as an empty document."""
    good, bad = Sample(0, text="a"), chat("q")
    lengths, errors = TextEncoder(_tokenizer()).lengths([good, bad])
    assert lengths.tolist() == [2, -1]
    assert [str(error) for error in errors] == [
        "sample 0: is a chat, and the encoder is for texts: use ChatEncoder, which takes both"
    ]
    results = TextEncoder(_tokenizer()).encode_batch([good, bad])
    assert [isinstance(result, BadSampleError) for result in results] == [False, True]


def test_half_a_surrogate_pair_is_that_documents_fault():
    """Without it one cut emoji would end the whole job with a TypeError of the tokenizer."""
    lengths, errors = TextEncoder(_tokenizer()).lengths([Sample(0, text="a"), Sample(1, text="cut \ud83d")])
    assert lengths.tolist() == [2, -1]
    assert [error.sample_id for error in errors] == [1]


def test_marks_written_in_a_document_are_read_as_transformers_reads_them():
    """Without it a text about tokenizers would be split otherwise than the model's own tokenizer splits it."""
    tokenizer = _tokenizer()
    text = "write </s> to end"
    encoder = TextEncoder(tokenizer, eos=False)
    assert encoder.encode(Sample(0, text=text)).input_ids.tolist() == tokenizer(text)["input_ids"]
    split = _tokenizer()
    split.split_special_tokens = True
    other = TextEncoder(split, eos=False)
    assert other.encode(Sample(0, text=text)).input_ids.tolist() == list(
        split(text, split_special_tokens=True)["input_ids"]
    )
    assert other.length_fingerprint != encoder.length_fingerprint


@pytest.mark.long
def test_real_documents_have_their_published_lengths(data_dir, qwen):
    """Without it the lengths of real documents could drift from those measured by others."""
    source = open_source(data_dir / "text" / "peps_even.jsonl.gz")
    samples = list(source.read(0, 40))
    encoder = TextEncoder(qwen, eos=False)
    lengths = encoder.lengths(samples)[0].tolist()  # type: ignore[arg-type]
    assert lengths == [len(qwen.hf(sample.text)["input_ids"]) for sample in samples]
    published = np.load(data_dir / "lengths" / "peps_documents__qwen25_raw.npy").tolist()
    numbers = iter(published)
    assert all(length in numbers for length in lengths)  # the file covers odd numbered ones too, in the same order
