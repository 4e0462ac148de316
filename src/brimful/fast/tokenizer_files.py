"""Facts about a tokenizer from its files, without Transformers, if Transformers takes the files as
they are.

``AutoTokenizer`` costs two seconds: it imports PyTorch for the model's configuration, and rebuilds
some tokenizers from their vocabulary. For the classes here and the versions of Transformers in
``verdicts``, the result is known from ``tokenizer.json`` and ``tokenizer_config.json``.
Transformers loads any other tokenizer or version.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from brimful.encode.tokenizer_facts import TokenizerFacts, settings_of
from brimful.encode.verdicts import knows_transformers

_NAMED_TOKENS = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)
"""Named special tokens, in the order in which Transformers lists them."""

_IRRELEVANT = {
    "added_tokens_decoder",
    "backend",
    "chat_template",
    "clean_up_tokenization_spaces",
    "errors",
    "is_local",
    "legacy",
    "local_files_only",
    "model_input_names",
    "model_max_length",
    "name_or_path",
    "padding_side",
    "processor_class",
    "tokenizer_class",
    "truncation_side",
    "verbose",
    "additional_special_tokens",
    "extra_special_tokens",
    *_NAMED_TOKENS,
}
"""Keys of a configuration that are read here, or do not affect tokens. With any other key,
Transformers is used.
"""

_OFF = {"add_bos_token", "add_eos_token", "add_prefix_space", "split_special_tokens"}
"""Keys that do not affect tokens if they are false."""

_QWEN2 = {
    "qwen2",
    "qwen2_5_omni",
    "qwen2_5_vl",
    "qwen2_audio",
    "qwen2_moe",
    "qwen2_vl",
    "qwen3",
    "qwen3_moe",
    "qwen3_next",
    "qwen3_vl",
    "qwen3_vl_moe",
}
"""Types of models whose tokenizer is ``Qwen2Tokenizer``."""

_ANY = {
    "llama",
    "smollm3",
    "gpt_oss",
    "glm4",
    "glm4_moe",
    "olmo2",
    "olmo3",
    "granite",
    "deepseek_v3",
}
"""Types of models whose ``tokenizer.json`` is read as it is, unless the configuration names a
class.
"""

_QWEN2_PATTERN = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_BYTE_LEVEL = {
    "type": "ByteLevel",
    "add_prefix_space": False,
    "trim_offsets": True,
    "use_regex": False,
}
_QWEN2_STEPS: dict[str, Any] = {
    "normalizer": {"type": "NFC"},
    "pre_tokenizer": {
        "type": "Sequence",
        "pretokenizers": [
            {
                "type": "Split",
                "pattern": {"Regex": _QWEN2_PATTERN},
                "behavior": "Isolated",
                "invert": False,
            },
            _BYTE_LEVEL,
        ],
    },
    "decoder": {
        "type": "ByteLevel",
        "add_prefix_space": True,
        "trim_offsets": True,
        "use_regex": True,
    },
}
"""Parts that ``Qwen2Tokenizer`` of Transformers 5 makes itself; ``trim_offsets`` here does not
affect tokens.
"""

_PLAIN_BPE: dict[str, Any] = {
    "type": "BPE",
    "dropout": None,
    "unk_token": None,
    "continuing_subword_prefix": "",
    "end_of_word_suffix": "",
    "fuse_unk": False,
    "byte_fallback": False,
    "ignore_merges": False,
}


def read_facts(directory: str) -> tuple[TokenizerFacts, Any] | None:
    """Return the facts of a directory's tokenizer, and its ``tokenizers`` object; None if
    Transformers must read it.
    """
    folder = Path(directory)
    try:
        if not knows_transformers() or (folder / "additional_chat_templates").exists():
            return None
        config = json.loads(_text(folder / "tokenizer_config.json", ""))
        model = json.loads(_text(folder / "config.json", "{}"))
        if "added_tokens_decoder" not in config and any(
            (folder / name).exists() for name in ("added_tokens.json", "special_tokens_map.json")
        ):
            return None
        is_qwen2 = _is_qwen2(config, model)
        if is_qwen2 is None:
            return None
        from tokenizers import Tokenizer as Backend

        backend = Backend.from_file(str(folder / "tokenizer.json"))
        template = _text(folder / "chat_template.jinja", config.get("chat_template"))
        return _facts_of(config, backend, template, is_qwen2=is_qwen2)
    except ImportError:
        raise
    # Also from the Rust library: Transformers then reads it, or refuses it with its own message.
    except Exception:
        return None


def _text(path: Path, absent: Any) -> Any:
    return path.read_text(encoding="utf-8") if path.exists() else absent


def _is_qwen2(config: Any, model: Any) -> bool | None:
    """Return true for Qwen2's class, false for one that reads any ``tokenizer.json``; None for all
    others.
    """
    if (
        "auto_map" in model
        or not set(config) <= _IRRELEVANT | _OFF
        or any(config.get(key) for key in _OFF)
    ):
        return None
    name = str(config.get("tokenizer_class")).removesuffix("Fast")
    model_type = model.get("model_type")
    if name == "Qwen2Tokenizer" and (model_type is None or model_type in _QWEN2):
        return True
    if name in ("PreTrainedTokenizer", "TokenizersBackend") and (
        model_type is None or model_type in _ANY
    ):
        return False
    return None


def _facts_of(
    config: Any, backend: Any, template: str | None, *, is_qwen2: bool
) -> tuple[TokenizerFacts, Any] | None:
    """Return the facts if Transformers would leave the file's tokens and processing as they are."""
    settings = settings_of(backend)
    tokens = {
        token["id"]: {key: token[key] for key in token if key != "id"}
        for token in settings["added_tokens"]
    }
    config_tokens = {
        int(key): value for key, value in config.get("added_tokens_decoder", {}).items()
    }
    # Transformers adds what the configuration lists and the file lacks; Qwen2's class has only that
    # list.
    if any(tokens.get(key) != value for key, value in config_tokens.items()) or (
        is_qwen2 and "added_tokens_decoder" in config and config_tokens != tokens
    ):
        return None
    named_tokens = {name: config[name] for name in _NAMED_TOKENS if config.get(name) is not None}
    extra = config.get("extra_special_tokens") or config.get("additional_special_tokens") or []
    ids = {token["content"]: key for key, token in tokens.items()}
    plain = {
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": True,
    }
    # Transformers makes special tokens with these names and flags; here they already are.
    if not isinstance(extra, list) or any(
        not isinstance(text, str) or tokens.get(ids.get(text)) != {"content": text, **plain}
        for text in (*named_tokens.values(), *extra)
    ):
        return None
    if not isinstance(template, (str, type(None))) or settings["post_processor"] is None:
        return None
    if is_qwen2:
        if not {"bos_token", "eos_token", "unk_token", "pad_token"} <= set(config):
            return None  # the class has its own
        if not _is_of_qwen2(settings):
            return None
        settings |= _QWEN2_STEPS
    bos_id = ids.get(named_tokens.get("bos_token"))
    special = [token["content"] for _, token in sorted(tokens.items()) if token["special"]]
    facts = TokenizerFacts.from_settings(
        settings,
        splits_special_tokens=False,
        chat_template=template or None,
        special_tokens=named_tokens,
        special_texts=tuple(dict.fromkeys([*named_tokens.values(), *extra, *special])),
        bos_id=bos_id,
        eos_id=ids.get(named_tokens.get("eos_token")),
        begins_with_bos=bos_id is not None and backend.encode("a").ids[:1] == [bos_id],
        aliases_reasoning=True,
    )
    return facts, backend


def _is_of_qwen2(settings: Any) -> bool:
    """Return true if the file matches what ``Qwen2Tokenizer`` makes, apart from what does not
    affect tokens.
    """
    steps = json.loads(json.dumps({key: settings[key] for key in _QWEN2_STEPS}))
    if steps["pre_tokenizer"].get("pretokenizers"):
        steps["pre_tokenizer"]["pretokenizers"][-1]["trim_offsets"] = True
    steps["decoder"] = _QWEN2_STEPS["decoder"] if steps["decoder"]["type"] == "ByteLevel" else None
    model = {
        key: value for key, value in settings["model"].items() if key not in ("vocab", "merges")
    }
    return steps == _QWEN2_STEPS and model == _PLAIN_BPE
