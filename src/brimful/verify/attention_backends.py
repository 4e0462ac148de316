"""Attention implementations on the same model, one after the other, and the first one again at the end."""

import contextlib
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

IMPLEMENTATIONS = ("eager", "sdpa", "flex_attention", "flash_attention_2")
"""Implementations that are tried if the caller names none."""

_FLASH_PACKAGES = {"flash_attention_2": "flash_attn", "flash_attention_3": "flash_attn_interface"}
"""Package of each flash attention that has one."""


class NotSupported(Exception):
    """A setting cannot be run here: the reason, and a setting that works instead."""

    def __init__(self, reason: str, way_out: str = "") -> None:
        super().__init__(reason)
        self.way_out = way_out


def current_implementation(model: Any) -> str:
    """Return the name of the implementation that the model has now; ``as it is`` if it names none."""
    config = getattr(_switchable_module(model), "config", None)
    return str(getattr(config, "_attn_implementation", None) or "as it is")


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
            _switchable_module(model).set_attn_implementation(initial)


def first_sentence(error: BaseException) -> str:
    """Return the message of an error without the advice after it, at most 200 characters."""
    text = " ".join(str(error).split())
    for stop in (". ", " Please"):
        text = text.split(stop, 1)[0]
    return text[:200] or type(error).__name__


def _switch(model: Any, name: str) -> None:
    """Set an implementation that the model does not have now."""
    module = _switchable_module(model)
    if module is None:
        raise NotSupported("the model has no set_attn_implementation", "build the model with this implementation")
    # Flash attention needs a GPU and its package, and Transformers sees neither before the first forward.
    if name.startswith("flash_attention") and next(model.parameters()).device.type == "cpu":
        raise NotSupported("flash attention needs a GPU and the model is on a CPU", "put the model on a GPU, as cuda")
    package = _FLASH_PACKAGES.get(name)
    if package is not None and find_spec(package) is None:
        raise NotSupported(f"{package} is not installed", "pip install flash-attn")
    try:
        module.set_attn_implementation(name)
    except (ValueError, ImportError, NotImplementedError) as error:
        raise NotSupported(first_sentence(error)) from error
    # Some classes only warn, and keep the implementation that they were built with.
    if current_implementation(model) != name:
        raise NotSupported(f"{type(module).__name__} cannot switch its attention", "build the model with it")


def _switchable_module(model: Any) -> Any:
    """Return the outermost module that can switch: the model itself, or the one in a wrapper; None if neither can."""
    return next((module for module in model.modules() if hasattr(module, "set_attn_implementation")), None)


@contextlib.contextmanager
def _dense_flex(model: Any, name: str) -> Iterator[None]:
    """Run flex attention on a CPU in its dense form while it is checked: the same mask and the same math.

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

    replacements = (
        (flex, "_validate_device", lambda *tensors: None),
        (integration, "compile_friendly_flex_attention", dense),
    )
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.compiler.set_stance("force_eager"))
        for module, attribute, replacement in replacements:
            # Both names are private to their libraries: a release without one of them needs no replacement.
            if hasattr(module, attribute):
                stack.callback(setattr, module, attribute, getattr(module, attribute))
                setattr(module, attribute, replacement)
        yield
