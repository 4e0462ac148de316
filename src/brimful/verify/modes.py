"""Temporary settings of a model: its mode without randomness, or float32, and its own settings again afterwards."""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

_RATE_WORDS = ("drop", "jitter")
"""Words in names of random rates: attention_dropout, layerdrop, drop_path_rate, router_jitter_noise."""


@contextlib.contextmanager
def seeded(device: Any, seed: int = 0) -> Iterator[None]:
    """Give the same random numbers each time, and leave the caller's own undisturbed."""
    torch_device = torch.device(device)
    devices = [torch_device] if torch_device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        yield


@contextlib.contextmanager
def preserved(model: Any) -> Iterator[None]:
    """Put back at the end: the mode of every module, running statistics, and no gradients."""
    slots = _buffer_slots(model)
    values = [buffer.clone() for _, _, buffer in slots]
    with _mode_of_every_module(model):
        try:
            yield
        finally:
            _put_back(slots)
            with torch.no_grad():
                for (_, _, buffer), value in zip(slots, values, strict=True):
                    buffer.copy_(value)
            model.zero_grad(set_to_none=True)


@contextlib.contextmanager
def evaluating(model: Any) -> Iterator[None]:
    """Set ``model.eval()`` for a while."""
    with _mode_of_every_module(model):
        model.eval()
        yield


@contextlib.contextmanager
def training(model: Any) -> Iterator[None]:
    """Set training mode with every rate of dropout and jitter at 0.

    A model that is in training mode keeps the parts in ``eval()`` that it has (frozen encoders).

    >>> layer = torch.nn.Sequential(torch.nn.Dropout(0.5)).eval()
    >>> with training(layer):
    ...     layer.training, layer(torch.ones(3)).tolist()
    (True, [1.0, 1.0, 1.0])
    >>> layer.training, layer[0].p
    (False, 0.5)
    """
    # Modules share configurations: by identity, each rate is saved once, before it is 0.
    holders = {id(holder): holder for module in model.modules() for holder in _rate_holders(module)}
    rates = [(holder, name, rate) for holder in holders.values() for name, rate in _rates(holder)]
    with _mode_of_every_module(model):
        if not model.training:
            model.train()
        try:
            for holder, name, _ in rates:
                holder.__dict__[name] = 0.0
            yield
        finally:
            for holder, name, rate in rates:
                holder.__dict__[name] = rate


@contextlib.contextmanager
def in_float32(model: Any) -> Iterator[None]:
    """Compute in float32 if weights and buffers have lower precision; the original tensors are restored afterwards."""
    slots = _buffer_slots(model)
    originals = [(tensor, tensor.data) for tensor in [*model.parameters(), *model.buffers()]]
    try:
        for tensor, data in originals:
            if data.dtype in (torch.bfloat16, torch.float16):
                tensor.data = data.float()
        yield
    finally:
        model.zero_grad(set_to_none=True)
        _put_back(slots)
        for tensor, data in originals:
            tensor.data = data


@contextlib.contextmanager
def _mode_of_every_module(model: Any) -> Iterator[None]:
    """Put the mode of every module back at the end: ``model.train()`` would also wake frozen parts."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        yield
    finally:
        for module, is_training in modes:
            module.training = is_training


def _buffer_slots(model: Any) -> list[tuple[Any, str, torch.Tensor]]:
    """Return module, name and tensor of every buffer."""
    return [
        (module, name, buffer)
        for module in model.modules()
        for name, buffer in module._buffers.items()
        if buffer is not None
    ]


def _put_back(slots: list[tuple[Any, str, torch.Tensor]]) -> None:
    """Give each module its own tensors again: a forward may assign new ones, as in ``self.mean = 0.9 * self.mean``."""
    for module, name, buffer in slots:
        module._buffers[name] = buffer


def _rate_holders(module: Any) -> list[Any]:
    """Return the objects that may hold a rate: the module, and its configuration with its parts."""
    config = getattr(module, "config", None)
    parts = [value for name, value in getattr(config, "__dict__", {}).items() if name.endswith("config")]
    return [holder for holder in (module, config, *parts) if hasattr(holder, "__dict__")]


def _rates(holder: Any) -> list[tuple[str, float]]:
    """Return names and values of the rates that a module or configuration holds."""
    is_dropout = "drop" in type(holder).__name__.lower()
    return [
        (name, value)
        for name, value in vars(holder).items()
        if isinstance(value, float)
        and value > 0
        and (any(word in name for word in _RATE_WORDS) or (is_dropout and name == "p"))
    ]
