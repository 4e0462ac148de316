"""The reference tokenizer in a process of its own: the same tokens, or it is loaded here."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("tokenizers", reason="it comes with brimful[text]")

from tokenizers import Tokenizer as Library

from brimful import tokenizer_process
from brimful.encode import ChatEncoder
from brimful.encode.hard_texts import hard_texts
from brimful.encode.tokenizer import Tokenizer
from brimful.preloading import state_note
from brimful.sources.sample import Sample
from brimful.tokenizer_process import RemoteEncoding, TokenizerProcess, begin_process, take_process


@pytest.fixture
def begun(small_qwen, fresh_cache, monkeypatch):
    """A directory whose tokenizer is loaded by a process, and its state."""
    state = Tokenizer(small_qwen).facts.state
    monkeypatch.setattr(tokenizer_process, "_processes", {})
    begin_process(str(small_qwen))
    (process,) = tokenizer_process._processes.values()
    yield str(small_qwen), state
    process._end()


def test_its_tokens_are_those_of_the_library(begun):
    """Ids, and the token of each character: a label at a wrong place would be trained on."""
    process = take_process(*begun)
    assert process is not None
    tokenizer = Library.from_str(begun[1])
    texts = [
        *(text[:500] for text in [*hard_texts()][::7]),
        "",
        "e\u0301 <|im_start|>user\n한국어 \U0001f468\u200d\U0001f469",
    ]
    wanted = tokenizer.encode_batch(texts, add_special_tokens=False)
    given = process.encode_batch(texts, add_special_tokens=False)
    for text, encoding, other in zip(texts, wanted, given, strict=True):
        assert encoding.ids == list(other.ids)
        characters = range(len(text) + 1)
        assert [*map(encoding.char_to_token, characters)] == [*map(other.char_to_token, characters)], text
    lengths = [len(encoding) for encoding in process.encode_batch_fast(texts, add_special_tokens=False)]
    assert lengths == [len(encoding) for encoding in wanted]


@pytest.mark.parametrize("name", ["qwen2.5", "bert-base-uncased"])
def test_characters_have_the_token_of_the_library(data_dir, name):
    """Of a byte-level tokenizer several tokens may share a character; one of words leaves some without any."""
    tokenizer = Library.from_file(str(data_dir / "tokenizers" / name / "tokenizer.json"))
    texts = [text[:200] for text in [*hard_texts()][::23]]
    for text, encoding in zip(texts, tokenizer.encode_batch(texts, add_special_tokens=False), strict=True):
        other = RemoteEncoding(encoding.ids, *([offset[side] for offset in encoding.offsets] for side in (0, 1)))
        characters = range(len(text) + 1)
        assert [*map(other.char_to_token, characters)] == [*map(encoding.char_to_token, characters)], text


def test_an_encoder_takes_it_once(begun):
    """Its samples are those of the tokenizer that is loaded here."""
    samples = [
        Sample(index, messages=[{"role": "user", "content": text}, {"role": "assistant", "content": text * 2}])
        for index, text in enumerate(["a", "déjà vu", "한국어"])
    ]
    encoder, other = (ChatEncoder(Tokenizer(begun[0], fast=False)) for _ in range(2))
    assert isinstance(encoder.tokenizer.backend, TokenizerProcess)
    assert isinstance(other.tokenizer.backend, Library)
    for one, two in zip(encoder.encode_batch(samples), other.encode_batch(samples), strict=True):
        assert (one.input_ids.tolist(), one.loss_mask.tolist()) == (two.input_ids.tolist(), two.loss_mask.tolist())


def test_another_state_is_refused(begun):
    """The directory may hold another tokenizer than in the last job."""
    (process,) = tokenizer_process._processes.values()
    assert take_process(begun[0], begun[1] + " ") is None
    assert process._process.wait(10) != 0
    assert take_process(*begun) is None


@pytest.mark.parametrize("is_loaded", [False, True])
def test_a_process_that_ends_is_replaced_by_the_library(begun, is_loaded):
    """Killed for want of memory: the job goes on."""
    (process,) = tokenizer_process._processes.values()
    if is_loaded:
        assert take_process(*begun) is process
    process._process.kill()
    process._process.wait()
    if not is_loaded:
        assert take_process(*begun) is None
    else:
        wanted = Library.from_str(begun[1]).encode_batch(["a b"], add_special_tokens=False)
        for encode in (process.encode_batch, process.encode_batch_fast):
            assert [encoding.ids for encoding in encode(["a b"], add_special_tokens=False)] == [wanted[0].ids]


@pytest.mark.parametrize("note", [None, b"\xff", b"a\0b"])
def test_without_an_earlier_job_none_is_started(small_qwen, fresh_cache, monkeypatch, note):
    """Nobody knows the tokenizer's state yet, or its note was damaged: the job reads the tokenizer's own files."""
    monkeypatch.setattr(tokenizer_process, "_processes", {})
    if note is not None:
        path = state_note(str(small_qwen))
        path.parent.mkdir(parents=True)
        path.write_bytes(note)
    begin_process(str(small_qwen))
    assert tokenizer_process._processes == {}


def test_a_note_of_a_file_that_is_gone_costs_nothing(small_qwen, fresh_cache, monkeypatch):
    """The cache was emptied by half."""
    monkeypatch.setattr(tokenizer_process, "_processes", {})
    path = state_note(str(small_qwen))
    path.parent.mkdir(parents=True)
    path.write_text(str(fresh_cache / "gone.json"))
    begin_process(str(small_qwen))
    assert take_process(str(small_qwen), "{}") is None


def test_it_ends_with_the_program_and_imports_nothing_of_the_user(begun, tmp_path):
    """A ``json.py`` in the present directory is no business of ours, and nor is a process that nobody asks any more."""
    for name in ("json.py", "struct.py", "tokenizers.py"):
        (tmp_path / name).write_text("raise RuntimeError('imported')")
    path = state_note(begun[0]).read_text()
    command = [sys.executable, "-c", tokenizer_process._COMMAND, path]
    environment = {**os.environ, "PYTHONPATH": str(Path(tokenizer_process.__file__).parents[1])}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, input=b"", capture_output=True, timeout=60, check=True
    )
    assert done.stderr == b""
    assert done.stdout[8:] == tokenizer_process._digest(begun[1])
