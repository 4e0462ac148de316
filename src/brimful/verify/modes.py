"""Temporary settings of a model, and its own again afterwards: a mode without randomness, float32,
an attention.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from importlib.util import find_spec
from typing import Any, TypeVar

import torch

from brimful.errors import BrimfulError, SettingsError
from brimful.trees.attention import (
    TREE_ATTENTION,
    use_tree_attention,
    weighted_loss,
)

Result = TypeVar("Result")

IMPLEMENTATIONS = ("eager", "sdpa", "flex_attention", "flash_attention_2")
"""Implementations that are tried if the caller names none."""

TREE_IMPLEMENTATIONS = ("eager", "sdpa", "flex_attention", TREE_ATTENTION)
"""Implementations that are tried with trees."""

LOW_PRECISIONS = (torch.bfloat16, torch.float16)
"""Precisions in which rounding is large enough to change a router's choice."""

_FLASH_PACKAGES = {"flash_attention_2": "flash_attn", "flash_attention_3": "flash_attn_interface"}
"""Package of each flash attention that has one."""

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
def preserved(model: Any) -> Iterator[None]:
    """Put back at the end: the mode of every module, running statistics, and no gradients."""
    with _own_modes_and_buffers(model) as buffers:
        values = [buffer.clone() for buffer in buffers]
        try:
            yield
        finally:
            with torch.no_grad():
                for buffer, value in zip(buffers, values, strict=True):
                    buffer.copy_(value)
            model.zero_grad(set_to_none=True)


@contextlib.contextmanager
def evaluating(model: Any) -> Iterator[None]:
    """Set ``model.eval()`` for a while."""
    with _own_modes_and_buffers(model):
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
    with _own_modes_and_buffers(model):
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
    with _own_modes_and_buffers(model):
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
def _own_modes_and_buffers(model: Any) -> Iterator[list[torch.Tensor]]:
    """Put the mode of every module back at the end, and its own buffers.

    ``model.train()`` would also wake frozen parts, and a forward may assign new tensors, as in
    ``self.mean = 0.9 * self.mean``.
    """
    modules = [(module, module.training, dict(module._buffers)) for module in model.modules()]
    try:
        yield list(model.buffers())
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


class NotSupported(Exception):
    """A setting cannot be run here: the reason, and a setting that works instead."""

    def __init__(self, reason: str, way_out: str = "") -> None:
        super().__init__(reason)
        self.way_out = way_out


def current_implementation(model: Any) -> str:
    """Return the name of the implementation that the model has now; ``as it is`` if it names
    none.
    """
    config = getattr(switchable_module(model), "config", None)
    # Towers may have another one.
    text = getattr(config, "get_text_config", lambda: config)()
    return str(getattr(text, "_attn_implementation", None) or "as it is")


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


def first_sentence(error: BaseException) -> str:
    """Return the message of an error without the advice after it, at most 200 characters."""
    text = " ".join(str(error).split())
    for stop in (". ", " Please"):
        text = text.split(stop, 1)[0]
    return text[:200] or type(error).__name__


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


def switchable_module(model: Any) -> Any:
    """Return the outermost module that can switch: the model itself, or the one in a wrapper; None
    if neither can.
    """
    return next(
        (module for module in model.modules() if hasattr(module, "set_attn_implementation")), None
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
