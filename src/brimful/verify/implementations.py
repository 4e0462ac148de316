"""Attention implementations of a model, switched for a while."""

import contextlib
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from typing import Any

import torch

from brimful.doctor.probing.modes import (
    current_implementation,
    first_sentence,
    switchable_module,
)
from brimful.errors import SettingsError
from brimful.trees.attention import TREE_ATTENTION, use_tree_attention, weighted_loss

IMPLEMENTATIONS = ("eager", "sdpa", "flex_attention", "flash_attention_2")
"""Implementations that are tried if the caller names none."""

TREE_IMPLEMENTATIONS = ("eager", "sdpa", "flex_attention", TREE_ATTENTION)
"""Implementations that are tried with trees."""

_FLASH_PACKAGES = {"flash_attention_2": "flash_attn", "flash_attention_3": "flash_attn_interface"}
"""Package of each flash attention that has one."""


class NotSupported(Exception):
    """A setting cannot be run here: the reason, and a setting that works instead."""

    def __init__(self, reason: str, way_out: str = "") -> None:
        super().__init__(reason)
        self.way_out = way_out


@contextlib.contextmanager
def with_weighted_loss(model: Any) -> Iterator[None]:
    """Give a model of Transformers the loss that ``use_tree_attention`` gives it, for a while:
    targets count as often as ``loss_weights`` says.
    """
    module = switchable_module(model)
    if not hasattr(module, "loss_function"):
        yield
        return
    initial = module.loss_function
    module.loss_function = weighted_loss
    try:
        yield
    finally:
        module.loss_function = initial


@contextlib.contextmanager
def using(model: Any, name: str) -> Iterator[None]:
    """Switch the implementation for a while.

    Raises:
        NotSupported: the model, the machine or the installed packages do not have it.
    """
    initial = current_implementation(model)
    try:
        if name != initial:
            _switch(model, name)
        with _dense_flex(model, name):
            yield
    finally:
        # A switch that fails may have changed the configuration before it noticed.
        if current_implementation(model) != initial:
            switchable_module(model).set_attn_implementation(initial)


@contextlib.contextmanager
def without_runs(model: Any, kwargs: Mapping[str, Any]) -> Iterator[None]:
    """Run a batch without trees in a model with the attention for trees: sdpa, or eager attention
    if it has no other.
    """
    if current_implementation(model) != TREE_ATTENTION or kwargs.get("tree_kv_index") is not None:
        yield
        return
    module = switchable_module(model)
    text = module.config.get_text_config()
    text._attn_implementation = "sdpa" if module._supports_sdpa else "eager"
    try:
        yield
    finally:
        text._attn_implementation = TREE_ATTENTION


def _switch(model: Any, name: str) -> None:
    """Set an implementation that the model does not have now."""
    module = switchable_module(model)
    if module is None:
        raise NotSupported(
            "the model has no set_attn_implementation", "build the model with this implementation"
        )
    # Flash attention needs a GPU and its package, and Transformers sees neither before the first
    # forward.
    if name.startswith("flash_attention") and next(model.parameters()).device.type == "cpu":
        raise NotSupported(
            "flash attention needs a GPU and the model is on a CPU",
            "put the model on a GPU, as cuda",
        )
    package = _FLASH_PACKAGES.get(name)
    if package is not None and find_spec(package) is None:
        raise NotSupported(f"{package} is not installed", "pip install flash-attn")
    try:
        if name == TREE_ATTENTION:
            use_tree_attention(module)
            return
        module.set_attn_implementation(name)
    except SettingsError as error:
        raise NotSupported(str(error)) from error
    except (ValueError, ImportError, NotImplementedError) as error:
        raise NotSupported(first_sentence(error)) from error
    # Some classes only warn, and keep the implementation that they were built with.
    if current_implementation(model) != name:
        raise NotSupported(
            f"{type(module).__name__} cannot switch its attention", "build the model with it"
        )


@contextlib.contextmanager
def _dense_flex(model: Any, name: str) -> Iterator[None]:
    """Run flex attention on a CPU in its dense form while it is checked: the same mask and the same
    math.

    PyTorch refuses the backward there because it would be slow, and compiling takes longer than
    these checks.
    """
    if name != "flex_attention" or next(model.parameters()).device.type != "cpu":
        yield
        return
    import torch.nn.attention.flex_attention as flex
    import transformers.integrations.flex_attention as integration

    def dense(query: Any, key: Any, value: Any, training: bool = False, **options: Any) -> Any:
        return flex.flex_attention(query, key, value, **options)

    replacements = (
        (flex, "_validate_device", lambda *tensors: None),
        (integration, "compile_friendly_flex_attention", dense),
    )
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.compiler.set_stance("force_eager"))
        for module, attribute, replacement in replacements:
            # Both names are private to their libraries: a release without one of them needs no
            # replacement.
            if hasattr(module, attribute):
                stack.callback(setattr, module, attribute, getattr(module, attribute))
                setattr(module, attribute, replacement)
        yield
