"""Settings of a model for a while: training mode without its randomness, or float32; and as it was afterwards."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

__all__ = ["evaluating", "in_float32", "left_as_it_was", "seeded", "training"]

_RANDOM = ("drop", "jitter")
"""In names of rates: attention_dropout, layerdrop, drop_path_rate, router_jitter_noise."""


@contextlib.contextmanager
def seeded(device: Any, seed: int = 0) -> Iterator[None]:
    """The same random numbers each time, and the caller's own undisturbed."""
    where = torch.device(device)
    devices = [where] if where.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        yield


@contextlib.contextmanager
def left_as_it_was(model: Any) -> Iterator[None]:
    """Put back at the end: the mode of every module, running statistics, and no gradients."""
    flags = [(module, module.training) for module in model.modules()]
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
    try:
        yield
    finally:
        for module, flag in flags:
            module.training = flag
        with torch.no_grad():
            for buffer, before in buffers:
                buffer.copy_(before)
        model.zero_grad(set_to_none=True)


@contextlib.contextmanager
def evaluating(model: Any) -> Iterator[None]:
    """``model.eval()`` for a while."""
    flags = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, flag in flags:
            module.training = flag


@contextlib.contextmanager
def training(model: Any) -> Iterator[None]:
    """Training mode with every rate of dropout and jitter at 0.

    A model that is in training mode keeps the parts in ``eval()`` that it has (frozen encoders).

    >>> layer = torch.nn.Sequential(torch.nn.Dropout(0.5)).eval()
    >>> with training(layer):
    ...     layer.training, layer(torch.ones(3)).tolist()
    (True, [1.0, 1.0, 1.0])
    >>> layer.training, layer[0].p
    (False, 0.5)
    """
    flags = [(module, module.training) for module in model.modules()]
    if not model.training:
        model.train()
    holders = {id(holder): holder for module in model.modules() for holder in _holders(module)}
    rates = [(holder, name, rate) for holder in holders.values() for name, rate in _rates(holder)]
    try:
        for holder, name, _ in rates:
            holder.__dict__[name] = 0.0
        yield
    finally:
        for holder, name, rate in rates:
            holder.__dict__[name] = rate
        for module, flag in flags:
            module.training = flag


@contextlib.contextmanager
def in_float32(model: Any) -> Iterator[None]:
    """Weights and buffers of lower precision in float32; the very same tensors again afterwards."""
    saved = [(tensor, tensor.data) for tensor in [*model.parameters(), *model.buffers()]]
    try:
        for tensor, data in saved:
            if data.dtype in (torch.bfloat16, torch.float16):
                tensor.data = data.float()
        yield
    finally:
        model.zero_grad(set_to_none=True)
        for tensor, data in saved:
            tensor.data = data


def _holders(module: Any) -> list[Any]:
    """What may hold a rate: the module, and its configuration with the parts of that."""
    config = getattr(module, "config", None)
    parts = [value for name, value in getattr(config, "__dict__", {}).items() if name.endswith("config")]
    return [one for one in (module, config, *parts) if hasattr(one, "__dict__")]


def _rates(holder: Any) -> list[tuple[str, float]]:
    """Names and values of the rates that a module or configuration holds."""
    is_dropout = "drop" in type(holder).__name__.lower()
    return [
        (name, value)
        for name, value in vars(holder).items()
        if isinstance(value, float)
        and value > 0
        and (any(word in name for word in _RANDOM) or (is_dropout and name == "p"))
    ]
