"""State of a job that forwards change, put back as it was.

A forward may write more than its output: running statistics, counters, caches, lists of auxiliary
losses, random numbers. A probe runs several forwards that the job does not know of, so all of it is
put back. Parameters are never written by a forward, and gradients need a backward.
"""

import contextlib
import random
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import torch

from brimful.doctor.probing.modes import own_modes_and_buffers, training

_OWN_ATTRIBUTES = frozenset(vars(torch.nn.Module())) - {"_forward_hooks", "_forward_pre_hooks"}
"""Attributes that torch itself keeps in a module: parameters, buffers, mode. Hooks may be new: models
of Transformers register some at their first forward.
"""

WRAPPERS = ("torch.distributed.", "torch.nn.parallel.", "torch._dynamo.", "deepspeed.")
"""Packages of modules that keep the state of a parallelism: a forward begins it once and for
all.
"""

_Restore: TypeAlias = Callable[[], object]


@contextlib.contextmanager
def preserved(model: torch.nn.Module) -> Iterator[None]:
    """Put everything back at the end that a forward may change.

    These are: modes, buffers, attributes of modules and of their configurations, and the random
    numbers of Python, NumPy, torch and of generators in modules.
    """
    restores: list[_Restore] = [
        _random_numbers(),
        *(partial(buffer.data.copy_, buffer.detach().clone()) for buffer in model.buffers()),
        *map(_attributes, _holders(model)),
    ]
    try:
        with own_modes_and_buffers(model):
            yield
    finally:
        with torch.no_grad():
            for restore in restores:
                restore()
        # Weights that autocast converts without gradients would be taken for the ones with.
        if torch.is_autocast_cache_enabled():
            torch.clear_autocast_cache()


@contextlib.contextmanager
def unchanged(model: torch.nn.Module) -> Iterator[None]:
    """Run forwards without gradients and with every rate of dropout at 0, and put everything back.

    >>> layer = torch.nn.BatchNorm1d(2)
    >>> with unchanged(layer):
    ...     output = layer(torch.rand(8, 2) + 5)
    >>> layer.running_mean.tolist(), int(layer.num_batches_tracked)
    ([0.0, 0.0], 0)
    """
    with preserved(model), torch.no_grad(), training(model):
        # Noise on embeddings (NEFTune) has a rate of its own.
        for module in model.modules():
            if "neftune_noise_alpha" in vars(module):
                vars(module)["neftune_noise_alpha"] = 0.0
        yield


def _holders(model: torch.nn.Module) -> list[Any]:
    """Return the modules that are not wrappers, and their configurations, each once."""
    holders: dict[int, Any] = {}
    for module in model.modules():
        if type(module).__module__.startswith(WRAPPERS):
            continue
        config = getattr(module, "config", None)
        for holder in (module, config):
            if hasattr(holder, "__dict__"):
                holders[id(holder)] = holder
    return list(holders.values())


def _random_numbers() -> _Restore:
    python, numpy, cpu = random.getstate(), np.random.get_state(), torch.get_rng_state()
    # A process that has not used its GPU has no numbers there.
    has_cuda = torch.cuda.is_available() and torch.cuda.is_initialized()
    cuda = torch.cuda.get_rng_state_all() if has_cuda else []

    def restore() -> None:
        random.setstate(python)
        np.random.set_state(numpy)
        torch.set_rng_state(cpu)
        if cuda:
            torch.cuda.set_rng_state_all(cuda)

    return restore


def _attributes(holder: Any) -> _Restore:
    """Return how the attributes of a module or a configuration are put back, and what is in
    them.
    """
    values = {name: item for name, item in vars(holder).items() if name not in _OWN_ATTRIBUTES}
    contents = [_contents(item) for item in values.values()]

    def restore() -> None:
        attributes = vars(holder)
        for name in attributes.keys() - values.keys() - _OWN_ATTRIBUTES:
            del attributes[name]
        attributes.update(values)
        for put_back in contents:
            put_back()

    return restore


def _contents(item: Any) -> _Restore:
    """Return how the contents of an object are put back: tensors, arrays, containers,
    generators.
    """
    if isinstance(item, torch.Tensor):
        # A view may be a weight whose memory a wrapper has given back for now.
        if item.requires_grad or item._is_view():
            return _nothing
        return partial(item.data.copy_, item.detach().clone())
    if isinstance(item, torch.Generator):
        return partial(item.set_state, item.get_state())
    if isinstance(item, np.ndarray):
        return partial(np.copyto, item, item.copy())
    if isinstance(item, list):
        return partial(item.__setitem__, slice(None), list(item))
    if isinstance(item, (dict, set)):
        return partial(_refill, item, item.copy())
    return _nothing


def _refill(container: Any, contents: Any) -> None:
    container.clear()
    container.update(contents)


def _nothing() -> None:
    """Put nothing back: numbers and strings cannot change."""
