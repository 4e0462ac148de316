"""A tokenizer gives the ids of its reference by the fastest library that does, and is loaded once."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import unicodedata
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("transformers", reason="tokenizers need the extra brimful[text]")
pytest.importorskip("fastokens", reason="the fast tokenizer comes with brimful[fast]")

from brimful.encode.token_places import TextSpans
from brimful.encode.tokenizer import Tokenizer
from brimful.encode.tokenizer_facts import TokenizerFacts
from brimful.fast.fast_tokenizer import FastTokenizer, hard_texts
from brimful.sources import open_source
from tests.marks import long_but


@pytest.mark.parametrize("stride", long_but([64], [64, 1]))
def test_hard_texts_have_equal_ids(qwen, stride):
    """Every category of Unicode, added tokens inside text, runs, a megabyte without a blank."""
    texts = list(hard_texts())[::stride]
    assert qwen.is_fast
    ours, theirs = qwen.tokenize(texts), qwen.reference.tokenize(texts)
    np.testing.assert_array_equal(ours.offsets, theirs.offsets)
    np.testing.assert_array_equal(ours.values, theirs.values)


def test_hard_texts_hold_every_kind_of_character():
    """Without it a fast library that splits one script in another way would not be found out."""
    characters = set().union(*hard_texts())
    assert characters >= {chr(code) for code in range(0x3000)}
    assert {*map(unicodedata.category, characters)} == {unicodedata.category(chr(code)) for code in range(0x110000)} - {
        "Cs"
    }


@settings(max_examples=300)
@given(texts=st.lists(st.text(st.characters(exclude_categories=["Cs"])), max_size=3))
def test_any_texts_have_equal_ids(qwen, texts):
    """Without it two libraries could differ unseen."""
    assert qwen.ids(texts) == qwen.reference.ids(texts)


@pytest.mark.parametrize(
    "name",
    long_but(
        {"smile_zh_multiturn_3k.jsonl.gz"},
        ["gsm8k_test.jsonl", "peps_even.jsonl.gz", "smile_zh_multiturn_3k.jsonl.gz", "sgd_train_dialogues.jsonl.gz"],
    ),
)
def test_real_texts_have_equal_ids(qwen, data_dir, name):
    """English, code, Chinese, long documents."""
    source = open_source(data_dir / "text" / name)
    texts = []
    for sample in source.read(0, min(150, len(source))):
        texts += [sample.text] if sample.text else [turn["content"] or "" for turn in sample.messages]
    assert qwen.ids(texts) == qwen.reference.ids(texts)


def test_a_tokenizer_that_the_fast_library_refuses(data_dir):
    """WordPiece goes on by the reference, and says why."""
    tokenizer = Tokenizer(data_dir / "tokenizers" / "bert-base-uncased")
    assert not tokenizer.is_fast
    assert tokenizer.engine.startswith("tokenizers ")
    assert "(fastokens refuses it: " in tokenizer.engine
    assert tokenizer.ids(["hello"]) == [tokenizer.hf("hello", add_special_tokens=False)["input_ids"]]


def test_metaspace_is_refused_too(fresh_cache):
    """SentencePiece-style BPE: the fast library does not know it."""
    from tokenizers import Tokenizer as Backend
    from tokenizers import models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    backend = Backend(models.BPE(vocab={"▁": 0, "a": 1, "▁a": 2}, merges=[("▁", "a")]))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer = Tokenizer(PreTrainedTokenizerFast(tokenizer_object=backend))
    assert not tokenizer.is_fast
    assert tokenizer.ids([" a", "a a"]) == [encoding.ids for encoding in backend.encode_batch([" a", "a a"])]


def test_without_the_fast_library(small_qwen, monkeypatch):
    """It is an extra: the line names it."""
    monkeypatch.setattr(FastTokenizer, "version", staticmethod(lambda: None))
    tokenizer = Tokenizer(small_qwen)
    assert "(fastokens is not installed: pip install 'brimful[fast]')" in tokenizer.engine


def test_facts_of_a_second_job_are_those_of_the_first(small_qwen, fresh_cache, tmp_path, monkeypatch):
    """The second job does not import Transformers, and must not encode otherwise."""
    home = tmp_path / "tokenizer"
    shutil.copytree(small_qwen, home)
    first = Tokenizer(home).facts
    # From here on loading is an error.
    monkeypatch.setattr(TokenizerFacts, "of", classmethod(lambda cls, hf: pytest.fail("loaded again")))
    second = Tokenizer(home).facts
    for name, value in vars(first).items():
        if name != "sizes":
            assert getattr(second, name) == value, name
    assert first.sizes is not None
    assert second.sizes is not None
    np.testing.assert_array_equal(first.sizes.num_bytes, second.sizes.num_bytes)
    assert first.sizes.form == second.sizes.form


@pytest.mark.parametrize(
    ("alphabet", "is_joined"), [("ab", True), ("a ", False), (["#version", "b"], False), (["b", "#version"], True)]
)
def test_the_state_is_that_of_the_tokenizer(alphabet, is_joined, fresh_cache):
    """Merges are written as one text each, which loads in less time, unless that would change them."""
    from tokenizers import Tokenizer as Backend
    from tokenizers import models
    from transformers import PreTrainedTokenizerFast

    left, right = alphabet
    backend = Backend(models.BPE(vocab={left: 0, right: 1, left + right: 2}, merges=[(left, right)]))
    hf = PreTrainedTokenizerFast(tokenizer_object=backend)
    state = TokenizerFacts.of(hf).state
    assert state is not None
    assert json.loads(state)["model"]["merges"] == [f"{left} {right}" if is_joined else [left, right]]
    assert Backend.from_str(state).to_str() == hf.backend_tokenizer.to_str()


def test_the_state_of_a_real_tokenizer(small_qwen):
    """Ten thousand merges, added tokens, a normalizer."""
    from tokenizers import Tokenizer as Backend

    tokenizer = Tokenizer(small_qwen)
    assert tokenizer.facts.state is not None
    assert Backend.from_str(tokenizer.facts.state).to_str() == tokenizer.hf.backend_tokenizer.to_str()


def test_a_changed_tokenizer_is_loaded_again(small_qwen, fresh_cache, tmp_path):
    """Without it an edited template would be used in its old form."""
    home = tmp_path / "tokenizer"
    shutil.copytree(small_qwen, home)
    (home / "tokenizer_config.json").chmod(0o644)
    before = Tokenizer(home).facts
    text = (home / "tokenizer_config.json").read_text()
    (home / "tokenizer_config.json").unlink()
    (home / "tokenizer_config.json").write_text(text.replace("You are a helpful assistant", "You are terse"))
    after = Tokenizer(home).facts
    assert after.chat_template != before.chat_template
    assert after.fingerprint == before.fingerprint


@pytest.mark.parametrize("name", ["facts.arrow", "tokenizer.json"])
def test_damaged_facts_are_found(small_qwen, fresh_cache, name):
    """A cache is data like any other: a flipped byte must not change a token."""
    expected = Tokenizer(small_qwen).facts.fingerprint
    (path,) = fresh_cache.glob(f"tokenizers/*/{name}")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))
    assert TokenizerFacts.recall(str(small_qwen)) is None
    assert Tokenizer(small_qwen).facts.fingerprint == expected


def test_special_tokens_can_be_split(small_qwen, fresh_cache):
    """A setting of the tokenizer, which both libraries have to follow."""
    from transformers import AutoTokenizer

    hf = AutoTokenizer.from_pretrained(small_qwen, split_special_tokens=True)
    tokenizer = Tokenizer(hf)
    text = "a<|im_end|>b"
    assert tokenizer.ids([text]) == tokenizer.reference.ids([text]) == [hf(text)["input_ids"]]
    assert sys.modules["transformers"]


@pytest.fixture
def hub_cache(small_qwen, tmp_path, monkeypatch):
    """The hub's cache with one tokenizer, ``owner/name``, and no network."""
    from huggingface_hub import constants

    repository = tmp_path / "models--owner--name"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text("1" * 40)
    shutil.copytree(small_qwen, repository / "snapshots" / ("1" * 40))
    (repository / "snapshots" / ("1" * 40) / "config.json").write_text('{"model_type": "qwen2"}')
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    return repository


def test_facts_of_a_hub_id_are_kept_offline(hub_cache, fresh_cache, small_qwen):
    """Nodes of a cluster have no network and name their tokenizer by its hub id: each job would import Transformers."""
    code = (
        "import sys; from brimful.encode.tokenizer import Tokenizer; "
        "print(Tokenizer('owner/name').facts.fingerprint, 'transformers' in sys.modules)"
    )
    # Transformers takes the place of the hub's cache from the environment, when it is imported.
    environment = {**os.environ, "HF_HUB_CACHE": str(hub_cache.parent), "HF_HUB_OFFLINE": "1"}
    fingerprint = Tokenizer(small_qwen).facts.fingerprint
    assert TokenizerFacts.recall(str(hub_cache / "snapshots" / ("1" * 40)), "owner/name") is None
    assert Tokenizer("owner/name").facts.fingerprint == fingerprint
    printed = subprocess.run([sys.executable, "-c", code], env=environment, check=True, capture_output=True, text=True)
    assert printed.stdout.split() == [fingerprint, "False"]


def test_facts_of_a_hub_id_are_of_its_present_files(hub_cache, fresh_cache, qwen, monkeypatch):
    """A name of the hub means other files tomorrow: facts of yesterday's files would give their tokens."""
    from huggingface_hub import constants

    first, second = (str(hub_cache / "snapshots" / (digit * 40)) for digit in "12")
    assert Tokenizer("owner/name")._files == (first, "owner/name")
    qwen.facts.remember(first, "owner/name")
    assert Tokenizer("owner/name").facts.fingerprint == qwen.fingerprint
    # Transformers may read a directory otherwise than a hub id of the same files.
    assert TokenizerFacts.recall(first, "another/name") is None
    shutil.copytree(first, second)
    (Path(second) / "config.json").write_text("{}")
    (hub_cache / "refs" / "main").write_text("2" * 40)
    assert Tokenizer("owner/name")._files == (second, "owner/name")
    assert TokenizerFacts.recall(second, "owner/name") is None
    # Where the hub can be asked, it is.
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    assert Tokenizer("owner/name")._files == (None, "owner/name")
    assert Tokenizer("./owner")._files == (None, "./owner")


def test_the_reference_loads_no_tokenizer_of_its_own(small_qwen, fresh_cache, monkeypatch):
    """It takes half a second, and each job compares some rows with the reference."""
    from tokenizers import Tokenizer as Backend

    Tokenizer(small_qwen).facts  # noqa: B018  # kept for the tokenizer below, which loads no Transformers for them
    tokenizer = Tokenizer(small_qwen)
    assert tokenizer.facts.state is not None
    backend = Backend.from_str(tokenizer.facts.state)
    loads = []

    class Recorder:
        @staticmethod
        def from_str(state):
            loads.append(len(state))
            return backend

    monkeypatch.setattr("tokenizers.Tokenizer", Recorder)
    monkeypatch.setattr(FastTokenizer, "version", lambda: None)
    for copy in (tokenizer, tokenizer.reference):
        copy.align(["a b"], TextSpans.of_lists({0: [(0, 1)]}))
    assert len(loads) == 1
