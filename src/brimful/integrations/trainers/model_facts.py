"""Facts about a model that matter for packing, read from its class, configuration and source, or
measured on a small model of its architecture.
"""

import ast
import inspect
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from brimful.base.checks import check_type
from brimful.trees.small_models import sees_later_tokens

__all__ = ["ModelFacts", "facts_of"]

_DROP_BOUNDARIES = frozenset(
    {
        "mamba",
        "mamba2",
        "falcon_mamba",
        "jamba",
        "zamba",
        "rwkv",
        "recurrent_gemma",
        "lfm3",
        "minimax",
        "xlstm",
    }
)
"""Types whose recurrent layers never get the boundaries of samples (Transformers 5.23)."""
_KERNELS = frozenset({"causal_conv1d", "fla", "mamba_ssm"})
"""Packages that isolate samples in recurrent layers; a model's source names the ones it can use.

Without them such a model is refused."""
_BEHIND_PADDING = frozenset(
    {
        "roberta",
        "xlm-roberta",
        "xlm-roberta-xl",
        "camembert",
        "roberta-prelayernorm",
        "data2vec-text",
        "xmod",
    }
)
"""Types whose positions begin at ``pad_token_id + 1``."""
_BIASED = frozenset({"bloom", "mpt", "falcon"})
"""Types that compute ALiBi from a two-dimensional mask."""
_TWO_WAYS = (
    "ForMaskedLM",
    "ForTokenClassification",
    "ForSequenceClassification",
    "ForQuestionAnswering",
)
"""Endings of class names of encoders, whose tokens see later tokens."""
_BOTH_WAYS = "attends in both directions"
_MAYBE_BOTH_WAYS = (
    "has masks of both directions, and no small model of it could be made that would show whether "
    "its tokens see later ones,"
)
_MASK_ARGUMENTS = {"config", "attention_mask"}
_EMBEDDINGS = {"inputs_embeds", "input_embeds"}
_SUPPORT_FLAGS = {
    "_supports_sdpa": ("sdpa",),
    "_supports_flex_attn": ("flex_attention",),
    "_supports_flash_attn": ("flash_attention_2", "flash_attention_3", "flash_attention_4"),
}
"""Attention implementations of a class by its flag in Transformers; every class has ``eager``."""


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """Facts about one model.

    Attributes:
        name: class name, for messages.
        supported: attention implementations of the class, by Transformers' names.
        wish: the implementation that its configuration requests; None for Transformers' own
            default.
        blind: the reason why eager, SDPA and flex attention do not detect packs from position ids;
            empty if they do.
        has_windows: some layers have sliding or chunked windows, so that one mask does not fit all
            layers.
        takes_a_mask: the model uses a mask of all token pairs unchanged.
        bidirectional: words for a model whose tokens see later tokens, or may; empty for a causal
            one.
        overlays: its module lets tokens of one image see each other.
        kernels: packages that isolate samples in its recurrent layers; empty without such layers.
        drops_boundaries: recurrent layers never get the boundaries of samples.
        position_start: position of a sample's first token.
        mrope: packs of text must have four rows of positions.
    """

    name: str
    supported: frozenset[str]
    wish: str | None
    blind: str
    has_windows: bool
    takes_a_mask: bool
    bidirectional: str
    overlays: bool
    kernels: frozenset[str]
    drops_boundaries: bool
    position_start: int
    mrope: bool


def facts_of(model: Any) -> ModelFacts:
    """Return the facts of a model of Transformers, or of the class that a configuration names."""
    config = getattr(model, "config", model)
    if not (hasattr(model, "parameters") or hasattr(config, "get_text_config")):
        check_type("model", model, (), "a model of Transformers, or its configuration")
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    if hasattr(model, "parameters"):
        model_class = type(unwrapped(model))
    else:
        model_class = _class_of(config)
    module = getattr(model_class, "__module__", "")
    source_names = _names_in(module)
    # With towers around a language model of another module, that module makes the masks that
    # isolate samples.
    inner = None if text is config or "create_causal_mask" in source_names else _class_of(text)
    mask_module = getattr(inner, "__module__", module)
    types = {str(getattr(config, "model_type", "")), str(getattr(text, "model_type", ""))}
    name = getattr(model_class, "__name__", "") or str(getattr(config, "model_type", "the model"))
    supported = {
        "eager",
        *(
            name
            for flag, names in _SUPPORT_FLAGS.items()
            if getattr(model_class, flag, False)
            for name in names
        ),
    }
    wish = getattr(config, "_attn_implementation", None)
    # Transformers writes its default into every configuration, so that value is not a request.
    default = "sdpa" if "sdpa" in supported else "eager"
    padding = getattr(text, "pad_token_id", None)
    if module.startswith("transformers."):
        blind = "" if _masks_see_positions(mask_module) else "builds its mask without position_ids"
    else:
        blind = "has custom code"
    return ModelFacts(
        name=name,
        supported=frozenset(supported),
        wish=None if wish in (None, default) else str(wish),
        blind=blind,
        has_windows=has_windows(text),
        takes_a_mask=not types & _BIASED,
        bidirectional=_BOTH_WAYS
        if getattr(config, "is_encoder_decoder", False) or name.endswith(_TWO_WAYS)
        else _direction([(model_class, config), (inner, text)], _names_in(mask_module)),
        overlays="block_sequence_ids" in source_names,
        kernels=_KERNELS & source_names,
        drops_boundaries=bool(types & _DROP_BOUNDARIES),
        position_start=(1 if padding is None else int(padding)) + 1
        if types & _BEHIND_PADDING
        else 0,
        mrope="mrope_section" in (getattr(text, "rope_parameters", None) or {}),
    )


def _direction(models: Sequence[tuple[Any, Any]], names: set[str]) -> str:
    """Return words for a model whose tokens see later tokens, or may; empty for a causal one.

    Modules with towers or cross attention make masks of both directions too, a configuration may
    change the direction, and tokens of a prefix or an image may see each other. So a small model
    shows it, unless the source has causal masks alone.

    Args:
        models: classes with their configurations: the model, and the language model inside.
        names: in the source that makes its masks.
    """
    others = ("bidirectional", "block_sequence_ids")
    if "create_causal_mask" in names and not any(
        fragment in name for fragment in others for name in names
    ):
        return ""
    for model_class, config in models:
        if (is_seen := sees_later_tokens(model_class, config)) is not None:
            return _BOTH_WAYS if is_seen else ""
    is_decoder = getattr(models[0][1], "is_decoder", False)
    return _MAYBE_BOTH_WAYS if "create_bidirectional_mask" in names and not is_decoder else ""


def _class_of(config: Any) -> Any:
    """Return the class that the configuration names or, without one, the causal language model of
    its type.
    """
    import transformers

    for name in getattr(config, "architectures", None) or ():
        if hasattr(transformers, name):
            return getattr(transformers, name)
    mapping = transformers.MODEL_FOR_CAUSAL_LM_MAPPING
    for config_class in (type(config), type(config.get_text_config())):
        if config_class in mapping:
            model_class = mapping[config_class]
            return model_class[0] if isinstance(model_class, (tuple, list)) else model_class
    return None


def unwrapped(model: Any) -> Any:
    """Return the model inside an adapter (PEFT), a compiled model or a data-parallel wrapper."""
    for wrapper in ("_orig_mod", "module"):
        model = getattr(model, wrapper, model)
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def has_windows(text: Any) -> bool:
    """Return true if some layers of a text configuration have sliding or chunked windows."""
    layers = " ".join(map(str, getattr(text, "layer_types", None) or ()))
    if layers:
        return "sliding" in layers or "chunked" in layers
    # Without layer types in the configuration, a window applies to every layer (Mistral).
    return getattr(text, "sliding_window", None) is not None and bool(
        getattr(text, "use_sliding_window", True)
    )


@lru_cache(maxsize=64)
def _masks_see_positions(module: str) -> bool:
    """Return true if the module's source passes ``position_ids`` in every call that makes a mask.

    A call (or a dictionary of arguments for several calls) makes a mask if it has a configuration,
    embeddings and a mask.
    """
    calls = [
        arguments for node in ast.walk(_source(module)) if (arguments := _mask_arguments(node))
    ]
    return bool(calls) and all("position_ids" in arguments for arguments in calls)


def _names_in(module: str) -> set[str]:
    """Return the strings and names in the module's source."""
    nodes = list(ast.walk(_source(module)))
    texts = {
        node.value
        for node in nodes
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    return texts | {node.id for node in nodes if isinstance(node, ast.Name)}


@lru_cache(maxsize=8)
def _source(module: str) -> ast.Module:
    """Parse the module's source; return an empty tree without source."""
    try:
        return ast.parse(inspect.getsource(sys.modules[module]))
    except (KeyError, OSError, TypeError, SyntaxError):
        return ast.Module([], [])


def _mask_arguments(node: ast.AST) -> set[str]:
    """Return the names of arguments that are not None if the node makes a causal mask, otherwise an
    empty set.
    """
    if isinstance(node, ast.Call):
        # A bidirectional mask never separates packs; ``ModelFacts.bidirectional`` lets such models
        # be refused.
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
    # ``position_ids=None`` passes no positions, so it counts as absent.
    names = {
        name
        for name, value in pairs
        if not (isinstance(value, ast.Constant) and value.value is None)
    }
    return names if names >= _MASK_ARGUMENTS and names & _EMBEDDINGS else set()
