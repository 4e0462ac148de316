"""What has to be known of a model to pack for it: read from its class, its configuration and its source."""

from __future__ import annotations

import ast
import inspect
import sys
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from brimful.checks import check_type

__all__ = ["ModelFacts", "facts_of"]

_DROP_BOUNDARIES = frozenset(
    {"mamba", "mamba2", "falcon_mamba", "jamba", "zamba", "rwkv", "recurrent_gemma", "lfm3", "minimax", "xlstm"}
)
"""Types whose layers are never told where samples begin (Transformers 5.23)."""
_KERNELS = frozenset({"causal_conv1d", "fla", "mamba_ssm"})
"""Packages that a model's source names where its layers can use them, and refuses packs without."""
_BEHIND_PADDING = frozenset(
    {"roberta", "xlm-roberta", "xlm-roberta-xl", "camembert", "roberta-prelayernorm", "data2vec-text", "xmod"}
)
"""Types whose positions begin at ``pad_token_id + 1``."""
_BIASED = frozenset({"bloom", "mpt", "falcon"})
"""Types that make ALiBi from a mask of two dimensions."""
_TWO_WAYS = ("ForMaskedLM", "ForTokenClassification", "ForSequenceClassification", "ForQuestionAnswering")
_MASK_ARGUMENTS = {"config", "attention_mask"}
_EMBEDDINGS = {"inputs_embeds", "input_embeds"}


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What packing depends on.

    Attributes:
        name: of the class, for people.
        supported: attention implementations that the class has, by Transformers' names.
        wish: the implementation that its configuration asks for; None for what Transformers puts there by itself.
        blind: why eager, SDPA and flex attention do not see packs in a row of positions; empty if they do.
        has_windows: whether layers differ in what they see (sliding, chunked), so that one mask cannot serve all.
        takes_a_mask: whether it takes a mask of all pairs as it is.
        bidirectional: whether tokens see what comes after them.
        kernels: packages that keep recurrent layers apart; empty if there are none such.
        drops_boundaries: whether recurrent layers are never told where samples begin.
        position_start: position of a sample's first token.
        mrope: whether packs of text must bring four rows of positions.
    """

    name: str
    supported: frozenset[str]
    wish: str | None
    blind: str
    has_windows: bool
    takes_a_mask: bool
    bidirectional: bool
    kernels: frozenset[str]
    drops_boundaries: bool
    position_start: int
    mrope: bool


def facts_of(model: Any) -> ModelFacts:
    """Facts of a model of Transformers, or of a configuration (by the class that it names)."""
    config = getattr(model, "config", model)
    if not (hasattr(model, "parameters") or hasattr(config, "get_text_config")):
        check_type("model", model, (), "a model of Transformers, or its configuration")
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    kind = type(_unwrapped(model)) if hasattr(model, "parameters") else _class_of(config)
    module = getattr(kind, "__module__", "")
    layers = " ".join(map(str, getattr(text, "layer_types", None) or ()))
    types = {str(getattr(config, "model_type", "")), str(getattr(text, "model_type", ""))}
    names = _names_in(module)
    name = getattr(kind, "__name__", "") or str(getattr(config, "model_type", "the model"))
    supported = _supported(kind)
    wish = getattr(config, "_attn_implementation", None)
    by_itself = (None, "sdpa" if "sdpa" in supported else "eager")
    padding = getattr(text, "pad_token_id", None)
    return ModelFacts(
        name=name,
        supported=supported,
        wish=None if wish in by_itself else str(wish),
        blind=_blindness(module),
        has_windows=any(word in layers for word in ("sliding", "chunked")) or _one_window(text, layers),
        takes_a_mask=not types & _BIASED,
        bidirectional=_looks_both_ways(config, name, names),
        kernels=_KERNELS & names,
        drops_boundaries=bool(types & _DROP_BOUNDARIES),
        position_start=(1 if padding is None else int(padding)) + 1 if types & _BEHIND_PADDING else 0,
        mrope="mrope_section" in (getattr(text, "rope_parameters", None) or {}),
    )


def _unwrapped(model: Any) -> Any:
    """The model inside of an adapter (PEFT), a compiled one, or a data-parallel one."""
    for name in ("_orig_mod", "module"):
        model = getattr(model, name, model)
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def _class_of(config: Any) -> Any:
    """The class that the configuration names, else the causal language model of its type."""
    import transformers

    for name in getattr(config, "architectures", None) or ():
        if hasattr(transformers, name):
            return getattr(transformers, name)
    mapping = transformers.MODEL_FOR_CAUSAL_LM_MAPPING
    for kind in (type(config), type(config.get_text_config())):
        if kind in mapping:
            found = mapping[kind]
            return found[0] if isinstance(found, (tuple, list)) else found
    return None


def _supported(kind: Any) -> frozenset[str]:
    names = {"eager"}
    for flag, implementations in (
        ("_supports_sdpa", ("sdpa",)),
        ("_supports_flex_attn", ("flex_attention",)),
        ("_supports_flash_attn", ("flash_attention_2", "flash_attention_3", "flash_attention_4")),
    ):
        if getattr(kind, flag, False):
            names.update(implementations)
    return frozenset(names)


def _one_window(text: Any, layers: str) -> bool:
    """A window in a configuration without kinds of layers is every layer's (Mistral)."""
    return (
        not layers and getattr(text, "sliding_window", None) is not None and getattr(text, "use_sliding_window", True)
    )


def _blindness(module: str) -> str:
    if not module.startswith("transformers."):
        return "has code of its own"
    if not _masks_see_positions(module):
        return "builds its mask without position_ids"
    return ""


def _looks_both_ways(config: Any, name: str, names: set[str]) -> bool:
    """Encoders, and encoders that could be decoders and are not told to be."""
    if getattr(config, "is_encoder_decoder", False) or name.endswith(_TWO_WAYS):
        return True
    return "create_bidirectional_mask" in names and not getattr(config, "is_decoder", False)


@lru_cache(maxsize=64)
def _masks_see_positions(module: str) -> bool:
    """Whether the module's source gives ``position_ids`` to the functions that make masks, wherever it calls them.

    A call (or a dictionary of arguments for several) with a configuration, embeddings and a mask is such a call.
    """
    calls = [arguments for node in ast.walk(_source(module)) if (arguments := _mask_arguments(node))]
    return bool(calls) and all("position_ids" in arguments for arguments in calls)


def _names_in(module: str) -> set[str]:
    """Strings and names of functions in the module's source."""
    nodes = list(ast.walk(_source(module)))
    texts = {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    return texts | {node.id for node in nodes if isinstance(node, ast.Name)}


@lru_cache(maxsize=8)
def _source(module: str) -> ast.Module:
    """The module's source as a tree; empty if there is none."""
    found = sys.modules.get(module)
    try:
        return ast.parse(inspect.getsource(found)) if found is not None else ast.Module([], [])
    except (OSError, TypeError, SyntaxError):
        return ast.Module([], [])


def _mask_arguments(node: ast.AST) -> set[str]:
    """Names of the arguments, if this makes a causal mask, without those that are None."""
    if isinstance(node, ast.Call):
        if "bidirectional" in ast.unparse(node.func):
            return set()
        pairs = [(keyword.arg, keyword.value) for keyword in node.keywords if keyword.arg]
    elif isinstance(node, ast.Dict):
        pairs = [
            (key.value, value)
            for key, value in zip(node.keys, node.values, strict=True)
            if isinstance(key, ast.Constant) and isinstance(key.value, str)
        ]
    else:
        return set()
    names = {name for name, value in pairs if not (isinstance(value, ast.Constant) and value.value is None)}
    return names if names >= _MASK_ARGUMENTS and names & _EMBEDDINGS else set()
