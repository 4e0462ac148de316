"""Temporary settings of a model, and its own again afterwards: a mode without randomness, float32."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch

from brimful.errors import BrimfulError

Result = TypeVar("Result")

LOW_PRECISIONS = (torch.bfloat16, torch.float16)
"""Precisions in which rounding is large enough to change a router's choice."""

_RATE_WORDS = ("drop", "jitter")
"""Words in names of random rates: attention_dropout, layerdrop, drop_path_rate,
router_jitter_noise.
"""


@contextlib.contextmanager
def seeded(device: Any, seed: int = 0) -> Iterator[None]:
    """Give the same random numbers each time, and leave the caller's own undisturbed."""
    torch_device = torch.device(device)
    devices = [torch_device] if torch_device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        yield


@contextlib.contextmanager
def evaluating(model: Any) -> Iterator[None]:
    """Set ``model.eval()`` for a while."""
    with own_modes_and_buffers(model):
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
    with own_modes_and_buffers(model):
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
    """Compute in float32 if weights and buffers have lower precision; the original tensors are
    restored afterwards.
    """
    originals = [(tensor, tensor.data) for tensor in [*model.parameters(), *model.buffers()]]
    with own_modes_and_buffers(model):
        try:
            for tensor, data in originals:
                if data.dtype in LOW_PRECISIONS:
                    tensor.data = data.float()
            yield
        finally:
            model.zero_grad(set_to_none=True)
            for tensor, data in originals:
                tensor.data = data


@contextlib.contextmanager
def own_modes_and_buffers(model: Any) -> Iterator[None]:
    """Put the mode of every module back at the end, and its own buffers.

    ``model.train()`` would also wake frozen parts, and a forward may assign new tensors, as in
    ``self.mean = 0.9 * self.mean``.
    """
    modules = [(module, module.training, dict(module._buffers)) for module in model.modules()]
    try:
        yield
    finally:
        for module, is_training, buffers in modules:
            module.training = is_training
            module._buffers.update(buffers)


def _rate_holders(module: Any) -> list[Any]:
    """Return the objects that may hold a rate: the module, and its configuration with its parts."""
    config = getattr(module, "config", None)
    parts = [
        value for name, value in getattr(config, "__dict__", {}).items() if name.endswith("config")
    ]
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


def experiment(run: Callable[[], Result]) -> Result | None:
    """Return the result of a run of the model; None if the model refuses it, in whichever way it
    likes.

    Raises:
        BrimfulError: the samples or the collator are at fault.
    """
    try:
        return run()
    except BrimfulError:
        raise
    except Exception:
        return None


def current_implementation(model: Any) -> str:
    """Return the name of the implementation that the model has now; ``as it is`` if it names
    none.
    """
    config = getattr(switchable_module(model), "config", None)
    # Towers may have another one.
    text = getattr(config, "get_text_config", lambda: config)()
    return str(getattr(text, "_attn_implementation", None) or "as it is")


def first_sentence(error: BaseException) -> str:
    """Return the message of an error without the advice after it, at most 200 characters."""
    text = " ".join(str(error).split())
    for stop in (". ", " Please"):
        text = text.split(stop, 1)[0]
    return text[:200] or type(error).__name__


def switchable_module(model: Any) -> Any:
    """Return the outermost module that can switch: the model itself, or the one in a wrapper; None
    if neither can.
    """
    return next(
        (module for module in model.modules() if hasattr(module, "set_attn_implementation")), None
    )
