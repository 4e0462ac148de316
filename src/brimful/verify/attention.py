"""One attention implementation after the other, on the same model, and the first one back at the end."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

__all__ = ["IMPLEMENTATIONS", "NotSupported", "as_it_is", "first_sentence", "using"]

IMPLEMENTATIONS = ("eager", "sdpa", "flex_attention", "flash_attention_2")
"""Tried if the caller names none."""


class NotSupported(Exception):
    """A setting cannot be run here: the reason, and what works instead."""

    def __init__(self, reason: str, way_out: str = "") -> None:
        super().__init__(reason)
        self.way_out = way_out


def as_it_is(model: Any) -> str:
    """Name of the implementation that the model has now; ``as it is`` where it tells none."""
    inner = _switchable(model)
    return str(getattr(getattr(inner, "config", None), "_attn_implementation", None) or "as it is")


@contextlib.contextmanager
def using(model: Any, name: str) -> Iterator[None]:
    """Switch the implementation for a while.

    Raises:
        NotSupported: the model, the machine or the installed packages do not have it.
    """
    if name == as_it_is(model):
        with _dense_flex(model, name):
            yield
        return
    inner = _switchable(model)
    if inner is None:
        raise NotSupported("the model has no set_attn_implementation", "build the model with this implementation")
    if name.startswith("flash_attention"):
        _need_flash(name, next(model.parameters()).device.type)
    before = as_it_is(model)
    try:
        inner.set_attn_implementation(name)
        if as_it_is(model) != name:
            raise NotSupported(f"{type(inner).__name__} cannot switch its attention", "build the model with it")
    except (ValueError, ImportError, NotImplementedError) as error:
        raise NotSupported(first_sentence(error)) from error
    try:
        with _dense_flex(model, name):
            yield
    finally:
        inner.set_attn_implementation(before)


def first_sentence(error: BaseException) -> str:
    """What an error says, without the advice behind it."""
    text = " ".join(str(error).split())
    for stop in (". ", " Please"):
        text = text.split(stop, 1)[0]
    return text[:200] or type(error).__name__


def _switchable(model: Any) -> Any:
    """The outermost module that can switch: the model itself, or what a wrapper holds."""
    return next((module for module in model.modules() if hasattr(module, "set_attn_implementation")), None)


def _need_flash(name: str, device: str) -> None:
    package = {"flash_attention_2": "flash_attn", "flash_attention_3": "flash_attn_interface"}.get(name)
    if device == "cpu":
        raise NotSupported("flash attention needs a GPU and the model is on a CPU", "put the model on a GPU, as cuda")
    if package is not None and find_spec(package) is None:
        raise NotSupported(f"{package} is not installed", "pip install flash-attn")


@contextlib.contextmanager
def _dense_flex(model: Any, name: str) -> Iterator[None]:
    """On a CPU, flex attention in its dense form while it is checked: the same mask and the same math.

    PyTorch refuses the backward there because it would be slow, and compiling takes longer than these checks.
    """
    if name != "flex_attention" or next(model.parameters()).device.type != "cpu":
        yield
        return
    import torch
    import torch.nn.attention.flex_attention as flex
    import transformers.integrations.flex_attention as integration

    def dense(query: Any, key: Any, value: Any, training: bool = False, **options: Any) -> Any:
        return flex.flex_attention(query, key, value, **options)

    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.compiler.set_stance("force_eager"))
        for module, attribute, replacement in (
            (flex, "_validate_device", lambda *tensors: None),
            (integration, "compile_friendly_flex_attention", dense),
        ):
            if hasattr(module, attribute):
                stack.callback(setattr, module, attribute, getattr(module, attribute))
                setattr(module, attribute, replacement)
        yield
