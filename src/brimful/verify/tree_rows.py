"""Attention in rows of trees: what each token sees, as a batch says it, and as the samples need it.

::

    row      a b c | d e | f        samples  a b c d e · a b c f
    batch    tree_in, tree_out; a mask of pairs; runs of queries with gathered keys
    samples  d sees a b c d, f sees a b c f
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch

from brimful.base.typing import BoolArray, Int64Array
from brimful.doctor.batch.claims import visible_in_blocks, visible_of
from brimful.doctor.batch.words import as_array
from brimful.doctor.probing.modes import switchable_module
from brimful.errors import SettingsError
from brimful.trees.attention import TREE_ATTENTION, masks_of
from brimful.verify.collated_batch import CollatedBatch, as_integers
from brimful.verify.implementations import NotSupported

MAX_PAIRED_TOKENS = 4096
"""Tokens of a row whose pairs are compared."""


class Visibility(NamedTuple):
    """Statement of a batch about the tokens that each token sees.

    Attributes:
        name: of the keys that say it.
        visible: ``bool[T, T]``, true if the query sees the key.
        has_windows: true if it also says how far a token sees; kernels of the others know it.
        kind: type of the layers that it is for; empty for all.
    """

    name: str
    visible: BoolArray
    has_windows: bool = False
    kind: str = ""


def claims_of(kwargs: Mapping[str, Any], width: int) -> Iterator[Visibility]:
    """Yield what a batch of one row says about visible tokens, in each of its forms.

    Args:
        kwargs: of the model.
        width: tokens of the row.
    """
    if kwargs.get("tree_in") is not None and kwargs.get("tree_out") is not None:
        begins, ends = (as_integers(kwargs[name]).reshape(-1) for name in ("tree_in", "tree_out"))
        if len(begins) == len(ends) == width:
            order = begins[:, None]
            yield Visibility("tree_in, tree_out", (begins <= order) & (order < ends))
    if kwargs.get("tree_kv_index") is not None:
        yield Visibility("tree_kv_index", _visible_in_runs(kwargs, width))
    for name in ("attention_mask", "block_mask"):
        value = kwargs.get(name)
        for kind, mask in value.items() if isinstance(value, Mapping) else [("", value)]:
            if (visible := _visible_in_mask(mask, width)) is not None:
                title = f"{name} of {kind}" if kind else name
                yield Visibility(title, visible, True, kind)


def first_visibility(kwargs: Mapping[str, Any], num_rows: int, width: int) -> BoolArray | None:
    """Return the first of these claims: ``bool[T, T]``; None if a batch has several rows or says
    nothing, or if its rows are too long.
    """
    if num_rows != 1 or width > MAX_PAIRED_TOKENS:
        return None
    return next((claim.visible for claim in claims_of(kwargs, width)), None)


def _visible_in_runs(kwargs: Mapping[str, Any], width: int) -> BoolArray:
    """Return what variable-length attention shows, causal from the bottom right."""
    keys, q_edges, k_edges = (
        as_integers(kwargs[name]).reshape(-1)
        for name in ("tree_kv_index", "tree_cu_seqlens_q", "tree_cu_seqlens_k")
    )
    visible = np.zeros((width, width), dtype=bool)
    for run in range(len(q_edges) - 1):
        run_keys = keys[k_edges[run] : k_edges[run + 1]]
        queries = np.arange(q_edges[run], min(q_edges[run + 1], width))
        for query, count in zip(
            queries, len(run_keys) - len(queries) + 1 + np.arange(len(queries)), strict=True
        ):
            visible[query, run_keys[: max(count, 0)]] = True
    return visible


def _visible_in_mask(mask: Any, width: int) -> BoolArray | None:
    """Return ``bool[T, T]`` of a mask of all pairs, or of FlexAttention; None of any other."""
    if hasattr(mask, "mask_mod"):
        places = torch.arange(width, device=mask.kv_num_blocks.device)
        return visible_in_blocks(mask, 0, places[:, None], places[None]).reshape(width, width)
    array = as_array(mask)
    if array is None or array.shape[-2:] != (width, width):
        return None
    return visible_of(array.reshape(-1, width, width)[0])


class Paths(NamedTuple):
    """Tokens that the tokens of a row of trees have to see.

    Attributes:
        visible: ``bool[T, T]``: the path of each token; padding sees itself.
        depths: ``int64[T]``: the place of each token in its samples; 0 of padding.
    """

    visible: BoolArray
    depths: Int64Array

    def within(self, window: int | None) -> BoolArray:
        """Return what a layer shows that sees the last ``window`` tokens of a path; all if None."""
        if window is None:
            return self.visible
        return self.visible & (self.depths[:, None] - self.depths < window)


def paths_of(batch: CollatedBatch) -> Paths:
    """Return the paths of the samples that were found in a batch of one row."""
    width = batch.ids.shape[1]
    visible, depths = np.eye(width, dtype=bool), np.zeros(width, dtype=np.int64)
    for _, place in batch.located:
        columns = place.columns
        depths[columns] = np.arange(len(columns))
        visible[np.ix_(columns, columns)] |= np.tril(np.ones((len(columns),) * 2, dtype=bool))
    return Paths(visible, depths)


def lacks_masks(model: Any, kwargs: Mapping[str, Any]) -> bool:
    """Return true if the attention of a model needs a mask of a batch of trees that has none."""
    module = switchable_module(model)
    return (
        module is not None
        and kwargs.get("tree_out") is not None
        and kwargs.get("attention_mask") is None
        and text_config(module)._attn_implementation != TREE_ATTENTION
    )


def with_tree_masks(model: Any, kwargs: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a batch of trees with the mask of ``masks_of``, if it lacks one.

    Raises:
        NotSupported: layers that have no such mask.
    """
    if not lacks_masks(model, kwargs):
        return kwargs
    try:
        return {**kwargs, "attention_mask": masks_of(kwargs, switchable_module(model).config)}
    except SettingsError as error:
        raise NotSupported(str(error)) from error


def text_config(module: Any) -> Any:
    """Return the configuration of the language model of a model of Transformers."""
    return module.config.get_text_config()


def windows_of(module: Any) -> dict[str, int | None]:
    """Return how many tokens each type of layer sees; None for all."""
    config = text_config(module)
    window = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None)
    if not kinds:
        kinds = ["full_attention" if window is None else "sliding_attention"]
    return {kind: window if kind == "sliding_attention" else None for kind in kinds}
