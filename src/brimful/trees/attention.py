"""Attention of Transformers for rows of trees: keys and values of each run are gathered along its
path.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache, partial
from importlib import import_module
from typing import Any, NamedTuple

import torch
from torch.nn.functional import pad, scaled_dot_product_attention

from brimful.base.typing import IGNORE_INDEX
from brimful.base.wording import setting
from brimful.collate.dialects.masks import additive_mask
from brimful.collate.loss_torch import packed_loss_sum
from brimful.collate.torch import NO_WEIGHTS
from brimful.errors import CollateError, SettingsError
from brimful.integrations.trainers.model_facts import facts_of, has_windows, unwrapped
from brimful.trees.masks import tree_block_mask, tree_mask
from brimful.trees.small_models import measured

__all__ = ["TREE_ATTENTION", "masks_of", "use_tree_attention"]

TREE_ATTENTION = "brimful_tree"
"""Name of the attention in Transformers, as ``sdpa`` is one."""

_BEFORE = "attention_before_trees"
"""Attribute of layers: the attention that they had before, for batches without runs."""

TREES_FOR_SAMPLES = (
    "the packs are trees, and the attention of the model takes their segments for samples: call "
    "use_tree_attention(model) before collator_for(model)"
)
"""Message for trees whose attention is not the model's."""


def use_tree_attention(model: Any) -> None:
    """Switch a model of Transformers to the attention for rows of trees.

    The rows are from ``collator_for(model)``. On a GPU, half-precision rows are
    one call of flash attention (``flash-attn`` 3 or 2, or torch's own); elsewhere, and with
    softcaps and attention sinks, each run is a call of its own, with the same results. Rows of flat
    packs are right too. Batches without runs, such as padded ones and generation, get the attention
    that the model had before. The loss of the model takes the weights of the batch: Σ w·nll ÷ Σ w.

    Args:
        model: a causal language model; of a model with towers, only the language model is switched.

    Raises:
        SettingsError: the model cannot take trees; names the reason.

    >>> from brimful.verify.models import tiny_model
    >>> model = tiny_model("qwen3")
    >>> use_tree_attention(model)
    >>> model.config._attn_implementation
    'brimful_tree'
    """
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(TREE_ATTENTION, tree_attention)
    AttentionMaskInterface.register(TREE_ATTENTION, _lazy_mask)
    fault = _refuse_models(model)
    text = model.config.get_text_config()
    before = text._attn_implementation
    _switch(model)
    # Without proof that runs reach the layers, a batch that seems to have none is refused.
    if fault == "" and before != TREE_ATTENTION:
        for module in model.modules():
            if getattr(module, "config", None) is text:
                setattr(module, _BEFORE, before)
    unwrapped(model).loss_function = weighted_loss


def _switch(model: Any) -> None:
    """Switch the language model of a model to the attention for trees."""
    text = model.config.get_text_config()
    names: Any = TREE_ATTENTION if text is model.config else _names_of(model.config, text)
    model.set_attn_implementation(names)


@measured
def _fault_with_trees(model: Any) -> str:
    """Return the reason why a small model does not compute a branch as its sample alone; empty if
    it does.
    """
    alone = model(input_ids=torch.tensor([[11, 12, 13]])).logits[0, -1]
    _switch(model)
    # A trunk of two tokens, with the branches 14 and 13.
    row = {
        "input_ids": [[11, 12, 14, 13]],
        "position_ids": [[0, 1, 2, 2]],
        "tree_kv_index": [0, 1, 2, 0, 1, 3],
        "tree_cu_seqlens_q": [0, 3, 4],
        "tree_cu_seqlens_k": [0, 3, 6],
        "tree_max_length_q": 3,
        "tree_max_length_k": 3,
    }
    try:
        inputs = {name: torch.tensor(values) for name, values in row.items()}
        branch = model(**inputs, use_cache=False).logits[0, -1]
    except Exception:  # without the runs, or with a mask that the model reads itself
        return "its layers do not pass the keywords of a batch on to their attention"
    if (branch - alone).abs().max() <= 1e-3 * alone.abs().max():
        return ""
    return "a branch is not computed as its sample alone in a small model of it"


def _names_of(config: Any, text: Any) -> dict[str, Any] | None:
    """Return the attention of the text configuration inside another, by the names on the way to
    it; None if it is not inside.
    """
    for name in config.sub_configs:
        child = getattr(config, name, None)
        if child is text:
            return {name: TREE_ATTENTION}
        if child is not None and (names := _names_of(child, text)) is not None:
            return {name: names}
    return None


def _refuse_models(model: Any) -> str | None:
    """Refuse models in which more than attention, or another attention, connects tokens; return an
    empty text if a small model of it was right with a tree, and None if none could be made.
    """
    facts, config = facts_of(model), model.config.get_text_config()
    layer_types = set(getattr(config, "layer_types", None) or ())
    others = sorted(map(str, layer_types - {"full_attention", "sliding_attention"}))
    reason: str | None = ""
    if facts.drops_boundaries or facts.kernels:
        reason = (
            "its layers carry states from token to token, which a branch would get from its sibling"
        )
    elif others:
        reason = f"it has layers of the type {others[0]}"
    elif facts.bidirectional:
        reason = f"its tokens see later tokens (it {facts.bidirectional})"
    elif facts.overlays and config is not model.config:
        reason = "tokens of its images see later tokens"
    elif not (facts.takes_a_mask and getattr(model, "_supports_attention_backend", True)):
        reason = "its attention is its own and takes no other"
    else:
        reason = _fault_with_trees(type(unwrapped(model)), model.config)
    if reason:
        raise SettingsError(
            f"{facts.name} cannot train on trees, since {reason}: plan with "
            f"{setting('share', 'none')}, and train on flat packs"
        )
    return reason


class _LazyMask:
    """Mask of a batch, which is made in the first layer that finds no runs: only layers know
    whether the batch has any.

    Generation with a static cache makes masks before the forward, and asks for ``contiguous`` ones
    of some ``ndim``.
    """

    ndim = 4

    def __init__(self, *, attention_mask: torch.Tensor | None, **options: Any) -> None:
        self.has_padding = attention_mask is not None and not bool(attention_mask.all())
        self._options = {"attention_mask": attention_mask, **options}
        self._mask: Any = None

    def contiguous(self) -> _LazyMask:
        return self

    def of(self, attention: str) -> Any:
        """Return the mask that an attention of Transformers takes."""
        from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

        if self._options:
            self._mask = ALL_MASK_ATTENTION_FUNCTIONS[attention](**self._options)
            self._options = {}
        return self._mask


def _lazy_mask(*, attention_mask: Any = None, **options: Any) -> _LazyMask:
    """Return the mask of a batch; Transformers calls it."""
    if isinstance(attention_mask, _LazyMask):
        return attention_mask
    return _LazyMask(attention_mask=attention_mask, **options)


def _attention_of(module: Any, name: str) -> Any:
    """Return an attention of Transformers for a layer."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    if name == "eager":  # which each module has of its own
        return vars(sys.modules[type(module).__module__])["eager_attention_forward"]
    return ALL_ATTENTION_FUNCTIONS[name]


class _Runs(NamedTuple):
    """Boundaries of queries and keys, and the place of each key; None for the row itself."""

    kv_index: torch.Tensor | None
    cu_seqlens_q: torch.Tensor
    cu_seqlens_k: torch.Tensor
    max_length_q: int
    max_length_k: int

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> _Runs | None:
        """Return the runs of a batch, from the keywords of the attention; None without trees and
        boundaries.
        """
        for prefix, index in (("tree_", "tree_kv_index"), ("", "")):
            lens = "seqlens" if prefix else "seq_lens"
            names = [
                *(f"{prefix}cu_{lens}_{side}" for side in "qk"),
                *(f"{prefix}max_length_{side}" for side in "qk"),
            ]
            if all(options.get(name) is not None for name in names):
                return cls(options.get(index), *(options[name] for name in names))
        return None


def tree_attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: Any,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    **options: Any,
) -> tuple[torch.Tensor, Any]:
    """Compute the attention of one layer for a row of trees; Transformers calls it.

    Args:
        module: the layer.
        query, key, value: ``[1, heads, T, head_dim]``.
        attention_mask: unread if the batch has runs, which say what each query sees.
        dropout, scaling, sliding_window: of the layer.
        **options: ``tree_*`` of the batch, or the boundaries of a flat one; ``softcap`` and
            ``s_aux`` (attention sinks) of the layer.

    Returns:
        ``[1, T, heads, head_dim]``; of a batch without runs, what the attention before returns.

    Raises:
        SettingsError: runs with padding, several rows or a cache; or no runs, in a model that may
            have dropped them.
    """
    runs = _Runs.of(options)
    if runs is None:
        before = getattr(module, _BEFORE, None)
        if before is None:
            raise SettingsError(
                f"{setting('attn_implementation', TREE_ATTENTION)} needs the runs of the row, and "
                f"{type(module).__name__} got none: the batch is not from collator_for(model), or "
                "the layers of the model do not pass keywords on; for other batches call "
                "model.set_attn_implementation('sdpa')"
            )
        if isinstance(attention_mask, _LazyMask):
            attention_mask = attention_mask.of(before)
        options |= {"dropout": dropout, "scaling": scaling, "sliding_window": sliding_window}
        attend: Any = _attention_of(module, before)
        return attend(module, query, key, value, attention_mask, **options)  # type: ignore[no-any-return]
    if getattr(attention_mask, "has_padding", False):
        raise SettingsError(
            f"{setting('attn_implementation', TREE_ATTENTION)} takes no attention_mask with "
            "padding in a row with runs: leave it out"
        )
    if query.shape[0] != 1 or key.shape[2] != query.shape[2]:
        raise SettingsError(
            f"{setting('attn_implementation', TREE_ATTENTION)} takes one row without a cache, and "
            f"the batch has {query.shape[0]} rows and {key.shape[2]:,} keys: leave the runs or "
            "boundaries of the row out for generation"
        )
    queries, keys, values = (states[0].transpose(0, 1) for states in (query, key, value))
    if torch.is_autocast_enabled(query.device.type):
        # Norms of queries and keys return float32, which flash attention does not take.
        dtype = torch.get_autocast_dtype(query.device.type)
        queries, keys, values = (states.to(dtype) for states in (queries, keys, values))
    if runs.kv_index is not None:
        keys, values = (states.index_select(0, runs.kv_index) for states in (keys, values))
    layer = _Layer(dropout, scaling, sliding_window, options.get("softcap"), options.get("s_aux"))
    kernel = _flash_kernel(query.device, queries.dtype, layer)
    attend = _attend_by_runs if kernel is None else kernel
    return attend(queries, keys, values, runs, layer)[None], None


class _Layer(NamedTuple):
    """Settings of the attention of a layer, by the names of Transformers."""

    dropout: float
    scaling: float | None
    sliding_window: int | None
    softcap: float | None
    s_aux: torch.Tensor | None

    @property
    def window(self) -> int:
        """Tokens before a query that it sees; -1 for all."""
        return -1 if self.sliding_window is None else self.sliding_window - 1


_Kernel = Callable[
    [torch.Tensor, torch.Tensor, torch.Tensor, _Runs, _Layer],
    torch.Tensor,
]


def _flash_kernel(device: torch.device, dtype: torch.dtype, layer: _Layer) -> _Kernel | None:
    """Return a kernel that takes all runs in one call, if there is one for the device and layer."""
    is_plain = layer.softcap is None and layer.s_aux is None
    if device.type != "cuda" or dtype not in (torch.float16, torch.bfloat16) or not is_plain:
        return None
    return _installed_kernel(torch.cuda.get_device_capability(device)[0], layer.dropout > 0)


@cache
def _installed_kernel(major: int, has_dropout: bool) -> _Kernel | None:
    """Return the fastest installed kernel for a GPU of this capability. All are causal from the
    bottom right: the last query of a run sees all keys.
    """
    if major < 8:
        return None
    packages = ["flash_attn_interface"] if major == 9 and not has_dropout else []
    for package in (*packages, "flash_attn"):
        with suppress(ImportError):
            return _flash_attention(import_module(package).flash_attn_varlen_func)
    if has_dropout:
        return None
    with suppress(ImportError):
        return _torch_varlen(import_module("torch.nn.attention.varlen").varlen_attn)
    return None


def _flash_attention(function: Callable[..., Any]) -> _Kernel:
    """Return the kernel that calls ``flash_attn_varlen_func`` of flash-attn."""

    def options(layer: _Layer, has_groups: bool) -> dict[str, Any]:
        dropout = {"dropout_p": layer.dropout} if layer.dropout else {}
        window = layer.window, -1 if layer.window < 0 else 0
        return {"softmax_scale": layer.scaling, "causal": True, "window_size": window, **dropout}

    return partial(_attend_in_one_call, function, options)


def _torch_varlen(function: Callable[..., Any]) -> _Kernel:
    """Return the kernel that calls ``varlen_attn`` of torch."""

    def options(layer: _Layer, has_groups: bool) -> dict[str, Any]:
        window = layer.window, 0
        return {"scale": layer.scaling, "window_size": window, "enable_gqa": has_groups}

    return partial(_attend_in_one_call, function, options)


def _attend_in_one_call(
    function: Callable[..., Any],
    options: Callable[[_Layer, bool], dict[str, Any]],
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    runs: _Runs,
    layer: _Layer,
) -> torch.Tensor:
    """Compute all runs by a function of another library; ``options`` of a layer, and of whether
    heads share keys, are its keyword arguments.
    """
    # These functions take values as wide as queries (MLA has narrower ones).
    size = values.shape[-1]
    values = pad(values, (0, queries.shape[-1] - size))
    has_groups = keys.shape[1] != queries.shape[1]
    result = function(queries, keys, values, *runs[1:], **options(layer, has_groups))
    output: torch.Tensor = result[0] if isinstance(result, tuple) else result
    return output[..., :size]


def _attend_by_runs(
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    runs: _Runs,
    layer: _Layer,
) -> torch.Tensor:
    """Compute one run after the other: exact, on every device and in every dtype."""
    outputs = []
    q_edges, k_edges = runs.cu_seqlens_q.tolist(), runs.cu_seqlens_k.tolist()
    for run in range(len(q_edges) - 1):
        num_queries, num_keys = (edges[run + 1] - edges[run] for edges in (q_edges, k_edges))
        if not num_queries:
            continue
        of_keys = slice(k_edges[run], k_edges[run + 1])
        mask = torch.ones(num_queries, num_keys, dtype=torch.bool, device=queries.device)
        mask = mask.tril_(num_keys - num_queries)
        if layer.window >= 0:
            mask = mask.triu_(num_keys - num_queries - layer.window)
        one_run = (
            queries[q_edges[run] : q_edges[run + 1]].transpose(0, 1),
            keys[of_keys].transpose(0, 1),
            values[of_keys].transpose(0, 1),
        )
        outputs.append(_attend(*one_run, mask, layer).transpose(0, 1))
    return torch.cat(outputs)


def _attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor, layer: _Layer
) -> torch.Tensor:
    """Return the attention of ``[heads, n, head_dim]`` with a mask ``bool[queries, keys]``."""
    if layer.softcap is None and layer.s_aux is None:
        return scaled_dot_product_attention(
            query[None],
            key[None],
            value[None],
            mask,
            layer.dropout,
            scale=layer.scaling,
            enable_gqa=len(query) != len(key),
        )[0]
    groups = len(query) // len(key)
    key, value = (states.repeat_interleave(groups, dim=0) for states in (key, value))
    scaling = query.shape[-1] ** -0.5 if layer.scaling is None else layer.scaling
    scores = query @ key.transpose(1, 2) * scaling
    if layer.softcap is not None:
        scores = torch.tanh(scores / layer.softcap) * layer.softcap
    scores = scores.masked_fill(~mask, -torch.inf)
    if layer.s_aux is not None:
        # A sink is one more key without a value.
        sinks = layer.s_aux.reshape(-1, 1, 1).expand(-1, scores.shape[1], 1)
        scores = torch.cat([scores, sinks.to(scores)], dim=-1)
    weights = scores.softmax(dim=-1, dtype=torch.float32).to(query)[..., : key.shape[1]]
    return torch.dropout(weights, layer.dropout, train=True) @ value


def weighted_loss(
    logits: torch.Tensor,
    labels: torch.Tensor,
    *arguments: Any,
    loss_weights: torch.Tensor | None = None,
    num_items_in_batch: Any = None,
    **options: Any,
) -> torch.Tensor:
    """Return the loss of a model whose batch has weights: Σ w·nll ÷ Σ w, or ÷ the divisor of the
    step.

    Args:
        logits: ``[B, T, V]``.
        labels: ``int64[B, T]``, not shifted.
        *arguments: the size of the vocabulary, unread.
        loss_weights: ``float32[B, T]``; 1 at every target if None.
        num_items_in_batch: Σ w of the step, a number such as from ``global_sum``.
        **options: of other losses, unread.

    Raises:
        SettingsError: weights, and the divisor of a trainer, which counts labels.
    """
    labels = labels.clone()
    # Rows are joined into one: the last token of a row does not predict the first of the next.
    labels[:, 0] = IGNORE_INDEX
    if loss_weights is None:
        loss_weights = (labels != IGNORE_INDEX).to(torch.float32)
    elif torch.is_tensor(num_items_in_batch):
        # A trainer counts labels; ``global_sum`` of weights is a number.
        raise SettingsError(
            "the batch has loss_weights, and its trainer divides by the number of labels: "
            f"{NO_WEIGHTS}"
        )
    weights = loss_weights.flatten()
    total = packed_loss_sum(logits.flatten(0, 1), labels.flatten(), loss_weights=weights)
    divisor = weights.sum().clamp(min=torch.finfo(weights.dtype).tiny)
    return total / (divisor if num_items_in_batch is None else num_items_in_batch)


def masks_of(batch: Mapping[str, Any], config: Any) -> Any:
    """Return what a model takes as ``attention_mask`` for a row of trees, with the windows of its
    layers.

    A mask given as it is would replace the windows of Mistral and the sliding layers of Gemma 3. A
    window counts tokens of the path.

    ::

        batch = collate(packs)  # "dense_mask" or "flex_attention"
        batch["attention_mask"] = masks_of(batch, model.config)

    Args:
        batch: from ``PackCollator``, on the device of the model.
        config: of the model; its attention decides the form: a ``BlockMask`` for
            ``flex_attention``, a mask of numbers for ``eager``, else of booleans.

    Returns:
        A mask, ``[1, 1, T, T]``; by type of layer if the model has several.

    Raises:
        CollateError: a batch without trees.
        SettingsError: layers that see something else.

    >>> from transformers import Gemma3TextConfig
    >>> from brimful.collate.torch import PackCollator
    >>> from brimful.testing.toys import toy_tree
    >>> batch = PackCollator(dialect="dense_mask")([toy_tree([[5, 6, 7], [5, 6, 8]])])
    >>> sorted(masks_of(batch, Gemma3TextConfig(num_hidden_layers=6)))
    ['full_attention', 'sliding_attention']
    """
    if "tree_out" not in batch:
        raise CollateError(
            "masks_of makes the masks of trees, and the batch has none: Transformers makes the "
            "masks of flat packs itself"
        )
    text = config.get_text_config()
    window = getattr(text, "sliding_window", None)
    layer_types = set(getattr(text, "layer_types", None) or ())
    if not layer_types:
        layer_types = {"sliding_attention" if has_windows(text) else "full_attention"}
    if others := sorted(layer_types - {"full_attention", "sliding_attention"}):
        raise SettingsError(
            f"{text.model_type} has layers of the type {others[0]}, whose masks are others: plan "
            f"with {setting('share', 'none')}"
        )
    tree_out = batch["tree_out"]
    # With mRoPE the first row of positions is of text.
    positions = batch["position_ids"].reshape(-1, len(tree_out))[0]
    masks = {
        layer_type: _mask_of(
            text, tree_out, positions, window if layer_type == "sliding_attention" else None
        )
        for layer_type in sorted(layer_types)
    }
    return masks if len(masks) > 1 else next(iter(masks.values()))


def batch_for(model: Any, batch: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a batch as a model computes it right: a mask of trees with the windows of its layers.

    Args:
        model: of Transformers, also wrapped; on the device of the batch.
        batch: from ``PackCollator``, with trees or without.

    Raises:
        SettingsError: the attention of the model would take segments of trees for samples.

    >>> from brimful.collate.torch import PackCollator
    >>> from brimful.testing.toys import toy_tree
    >>> from brimful.verify.models import tiny_model
    >>> batch = PackCollator(dialect="dense_mask")([toy_tree([[5, 6, 7], [5, 6, 8]])])
    >>> sorted(batch_for(tiny_model("gemma3_text"), batch)["attention_mask"])
    ['full_attention', 'sliding_attention']
    """
    if "tree_out" not in batch:
        return batch
    config = unwrapped(model).config
    text, mask = config.get_text_config(), batch.get("attention_mask")
    if text._attn_implementation == TREE_ATTENTION or isinstance(mask, Mapping):
        return batch
    if mask is None:
        raise SettingsError(TREES_FOR_SAMPLES)
    if not has_windows(text):
        return batch
    return {**batch, "attention_mask": masks_of(batch, config)}


def _mask_of(
    config: Any, tree_out: torch.Tensor, positions: torch.Tensor, window: int | None
) -> Any:
    """Return one mask in the form that the attention of a configuration takes."""
    if config._attn_implementation == "flex_attention":
        return tree_block_mask(tree_out, positions=positions, window=window)
    mask = tree_mask(tree_out)
    if window is not None:
        mask &= positions[:, None] - positions < window
    if config._attn_implementation == "eager":
        return additive_mask(mask[None, None], getattr(config, "dtype", None) or torch.float32)
    return mask[None, None]
