"""What is read from a tokenizer's files is what Transformers makes of them, or nothing is read."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip(
    "transformers", minversion="5.23", reason="the reference is a Transformers that was compared; Python 3.10 has none"
)

from transformers import AutoTokenizer

from brimful.encode.tokenizer_facts import TokenizerFacts
from brimful.encode.verdicts import knows_transformers, transformers_digest
from brimful.fast import tokenizer_files
from brimful.fast.tokenizer_files import read_facts

PLAIN = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}


def added(token_id: int, content: str, **flags: bool) -> dict[str, Any]:
    return {"id": token_id, "content": content, **PLAIN, **flags}


STATE: dict[str, Any] = {
    "version": "1.0",
    "truncation": None,
    "padding": None,
    "added_tokens": [added(4, "<eos>"), added(5, "<im>"), added(6, "<tool>", special=False)],
    "normalizer": {"type": "NFC"},
    "pre_tokenizer": tokenizer_files._QWEN2_STEPS["pre_tokenizer"],
    "post_processor": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False},
    "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
    "model": {
        **tokenizer_files._PLAIN_BPE,
        "vocab": {"a": 0, "b": 1, "Ġ": 2, "ab": 3, "<eos>": 4, "<im>": 5, "<tool>": 6},
        "merges": [["a", "b"]],
    },
}
STATE["model"]["vocab"] = {token: index for token, index in STATE["model"]["vocab"].items() if index < 4}
CONFIG: dict[str, Any] = {
    "tokenizer_class": "Qwen2Tokenizer",
    "added_tokens_decoder": {
        str(token["id"]): {k: v for k, v in token.items() if k != "id"} for token in STATE["added_tokens"]
    },
    "bos_token": None,
    "eos_token": "<eos>",
    "unk_token": None,
    "pad_token": "<eos>",
    "additional_special_tokens": ["<im>"],
    "add_bos_token": False,
    "add_prefix_space": False,
    "split_special_tokens": False,
    "errors": "replace",
    "model_max_length": 100,
    "chat_template": "{% for m in messages %}{{ m.content }}{% endfor %}",
}


def write(folder: Path, state: dict[str, Any], settings: dict[str, Any], **files: Any) -> Path:
    folder.mkdir(exist_ok=True)
    for name, content in {"tokenizer": state, "tokenizer_config": settings, **files}.items():
        (folder / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
    return folder


def completed(changes: dict[str, Any]) -> dict[str, Any]:
    """The configuration with changes; without a list of tokens where that is None."""
    config = {**CONFIG, **changes}
    return {key: value for key, value in config.items() if (key, value) != ("added_tokens_decoder", None)}


def both(folder: Path) -> tuple[TokenizerFacts | None, TokenizerFacts]:
    """The facts as they are read, and Transformers' own."""
    read = read_facts(str(folder))
    return None if read is None else read[0], TokenizerFacts.of(AutoTokenizer.from_pretrained(folder))


def assert_equal(read: TokenizerFacts, expected: TokenizerFacts) -> None:
    ours, theirs = dict(vars(read)), dict(vars(expected))
    sizes = ours.pop("sizes"), theirs.pop("sizes")
    assert json.loads(ours.pop("state")) == json.loads(theirs.pop("state"))
    assert ours == theirs
    assert (sizes[0] is None) == (sizes[1] is None)
    if sizes[0] is not None and sizes[1] is not None:
        assert sizes[0].form == sizes[1].form
        np.testing.assert_array_equal(sizes[0].num_bytes, sizes[1].num_bytes)


def test_the_installed_transformers_was_compared():
    """A release that changes one of its files is read without the fast library until the tests of this module passed with it.

    Then its digest, which this test shows, belongs into ``verdicts``."""
    assert knows_transformers(), transformers_digest()


@pytest.mark.parametrize("name", ["qwen2.5", "bert-base-uncased"])
def test_real_tokenizers(data_dir, name):
    """BERT's class builds its tokenizer in an unknown way."""
    read, expected = both(data_dir / "tokenizers" / name)
    assert (read is not None) == (name == "qwen2.5")
    if read is not None:
        assert_equal(read, expected)


READ: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    # name: changes of the state, changes of the configuration, other files
    "as it is": ({}, {}, {}),
    "fast class": ({}, {"tokenizer_class": "Qwen2TokenizerFast"}, {}),
    "offsets not trimmed": (
        {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            STATE["pre_tokenizer"]["pretokenizers"][0],
            {**STATE["pre_tokenizer"]["pretokenizers"][1], "trim_offsets": False},
        ]}}, {}, {},
    ),
    "other decoder": ({"decoder": {**STATE["decoder"], "use_regex": False}}, {}, {}),
    "no template": ({}, {"chat_template": None}, {}),
    "no list of tokens": ({}, {"added_tokens_decoder": None}, {}),
    "cutting and padding": ({"truncation": {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0}}, {}, {}),
    **{f"model {kind}": ({}, {}, {"config": {"model_type": kind}}) for kind in sorted(tokenizer_files._QWEN2)},
    "any file": ({"normalizer": None}, {"tokenizer_class": "PreTrainedTokenizerFast"}, {}),
    "backend": ({"normalizer": None}, {"tokenizer_class": "TokenizersBackend", "backend": "tokenizers"}, {}),
    "begins with BOS": (
        {"post_processor": {"type": "TemplateProcessing", "single": [
            {"SpecialToken": {"id": "<eos>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<eos>": {"id": "<eos>", "ids": [4], "tokens": ["<eos>"]}}}},
        {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<eos>"}, {},
    ),
    **{
        f"any model {kind}": ({}, {"tokenizer_class": "PreTrainedTokenizerFast"}, {"config": {"model_type": kind}})
        for kind in sorted(tokenizer_files._ANY)
    },
}  # fmt: skip


@pytest.mark.parametrize("name", READ)
def test_what_is_read(tmp_path, name):
    """Without it a tokenizer of these classes could be read otherwise than Transformers makes it."""
    state, config, files = READ[name]
    read, expected = both(write(tmp_path, {**STATE, **state}, completed(config), **files))
    assert read is not None
    assert_equal(read, expected)


def test_a_template_beside_wins(tmp_path):
    (write(tmp_path, STATE, CONFIG) / "chat_template.jinja").write_text("{{ messages }}", encoding="utf-8")
    read, expected = both(tmp_path)
    assert read is not None
    assert read.chat_template == expected.chat_template == "{{ messages }}"


LEFT: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "other class": ({}, {"tokenizer_class": "GPT2Tokenizer"}, {}),
    "other model": ({}, {}, {"config": {"model_type": "mistral"}}),
    "own code": ({}, {}, {"config": {"auto_map": {"AutoConfig": "a.B"}}}),
    "other normalizer": ({"normalizer": {"type": "NFKC"}}, {}, {}),
    "other pattern": ({"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}}, {}, {}),
    "another decoder": ({"decoder": {"type": "Fuse"}}, {}, {}),
    "bytes as tokens": ({"model": {**STATE["model"], "byte_fallback": True}}, {}, {}),
    "a token that the file lacks": ({"added_tokens": STATE["added_tokens"][:2]}, {}, {}),
    "a token that the list lacks": ({}, {"added_tokens_decoder": dict(list(CONFIG["added_tokens_decoder"].items())[:2])}, {}),
    "a list of no tokens": ({}, {"added_tokens_decoder": {}}, {}),
    "another flag": ({"added_tokens": [*STATE["added_tokens"][:2], added(6, "<tool>", lstrip=True)]}, {}, {}),
    "a special token that strips": (
        {"added_tokens": [added(4, "<eos>"), added(5, "<im>", rstrip=True), added(6, "<tool>", special=False)]},
        {"added_tokens_decoder": {**CONFIG["added_tokens_decoder"], "5": {"content": "<im>", **PLAIN, "rstrip": True}}}, {},
    ),
    "an ordinary token as EOS": ({}, {"eos_token": "<tool>"}, {}),
    "EOS of the class": ({}, {"eos_token": "<eos>", "pad_token": "<eos>", "unk_token": "<unk>"}, {}),
    "BOS in front": ({}, {"add_bos_token": True}, {}),
    "special tokens split": ({}, {"split_special_tokens": True}, {}),
    "a key that nobody knows": ({}, {"image_token": "<im>"}, {}),
    "several templates": ({}, {"chat_template": [{"name": "default", "template": "a"}]}, {}),
    "old files": ({}, {"added_tokens_decoder": None}, {"special_tokens_map": {}}),
}  # fmt: skip


@pytest.mark.parametrize("name", LEFT)
def test_what_transformers_is_asked_for(tmp_path, name):
    """Without it a change of the file by Transformers would be missed."""
    state, config, files = copy.deepcopy(LEFT[name])
    assert read_facts(str(write(tmp_path, {**STATE, **state}, completed(config), **files))) is None


def test_defaults_of_the_class_are_not_guessed(tmp_path):
    config = {key: value for key, value in CONFIG.items() if key != "pad_token"}
    assert read_facts(str(write(tmp_path, STATE, config))) is None


def test_no_transformers_is_imported(tmp_path):
    """That is what reading the files is for."""
    import subprocess
    import sys

    write(tmp_path, STATE, CONFIG)
    script = "import sys; from brimful.encode.tokenizer import Tokenizer; t = Tokenizer(sys.argv[1]); t.reference.ids(['ab']); print('transformers' in sys.modules, t.facts.eos_id)"
    shown = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=True)
    assert shown.stdout.split() == ["False", "4"]
