"""Choice of an attention that isolates packed samples for a model on a machine, and of the matching
collator.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import Any

import torch

from brimful.base.typing import IGNORE_INDEX
from brimful.collate.batch import PackedBatch
from brimful.collate.loss_torch import packed_loss_sum
from brimful.collate.torch import PackCollator
from brimful.errors import SettingsError
from brimful.integrations.trainers.model_facts import ModelFacts, facts_of
from brimful.trees.attention import TREE_ATTENTION, TREES_FOR_SAMPLES

__all__ = ["AttentionChoice", "Machine", "choose_attention", "collator_for"]

_RECURRENT_KERNELS = {
    "causal_conv1d": "causal-conv1d",
    "fla": "flash-linear-attention",
    "mamba_ssm": "mamba-ssm",
}
"""Packages with kernels that isolate samples in recurrent layers, and their names for pip."""
_PACKAGES = ("flash_attn", "flash_attn_interface", "torch_npu", "triton", *_RECURRENT_KERNELS)
_MEAN_LOSSES = {"qwen2_audio"}
"""Types of models of Transformers 5.23 whose loss is always a mean over the targets of each
micro-batch.
"""

_ONE_PER_ROW = "PackCollator(dialect='plain'), which gives each sample a row of its own"


@dataclass(frozen=True, slots=True)
class Machine:
    """Device and packages, on which the choice depends in addition to the model.

    Attributes:
        device: ``cuda``, ``npu``, ``mps``, ``cpu``, or another type of torch.
        capability: of a CUDA device, such as ``(7, 0)`` for V100 and ``(7, 5)`` for T4; None
            elsewhere.
        packages: importable packages with kernels.
    """

    device: str
    capability: tuple[int, int] | None = None
    packages: frozenset[str] = frozenset()

    @classmethod
    def here(cls, device: str | torch.device | None = None) -> Machine:
        """Return this machine.

        Args:
            device: the device to use; if None, the machine's accelerator, or the CPU without one.
        """
        torch_device = torch.device(device) if device is not None else _accelerator()
        has_cuda = torch_device.type == "cuda" and torch.cuda.is_available()
        capability = torch.cuda.get_device_capability(torch_device) if has_cuda else None
        # Packages are searched, not imported: importing kernels takes seconds, and may fail on
        # another device.
        return cls(
            torch_device.type,
            capability,
            frozenset(name for name in _PACKAGES if find_spec(name) is not None),
        )

    @property
    def modern(self) -> bool:
        """True if flash and flex attention have kernels for the device."""
        return self.device == "cuda" and (self.capability or (0, 0)) >= (8, 0)

    @property
    def title(self) -> str:
        """Name for messages: ``CUDA 7.5``, ``NPU``, ``CPU``."""
        version = "" if self.capability is None else f" {self.capability[0]}.{self.capability[1]}"
        return self.device.upper() + version


@dataclass(frozen=True, slots=True)
class AttentionChoice:
    """An attention and the reason why it was chosen.

    Attributes:
        name: Transformers' name, for ``attn_implementation`` and ``set_attn_implementation``.
        dialect: of ``PackCollator``.
        reason: the reason, in one line.
        position_start: of the collator: 0, or 2 for models whose positions begin after the
            padding's position.
        mrope: of the collator: the model isolates samples only with four rows of positions.
    """

    name: str
    dialect: str
    reason: str
    position_start: int = 0
    mrope: bool = False

    def __str__(self) -> str:
        return f"attention {self.name}, batches as {self.dialect}: {self.reason}"


def choose_attention(
    model: Any,
    *,
    device: str | torch.device | None = None,
    attention: str | None = None,
    machine: Machine | None = None,
) -> AttentionChoice:
    """Choose the fastest attention that isolates packed samples on this machine. It needs no extra
    packages.

    ::

        flash attention   CUDA of capability 8 and above with flash-attn, or an NPU with its own
        flex attention    CUDA of capability 8 and above with Triton; a block mask, no T² memory
        sdpa              anywhere: V100, T4, MPS, NPU, CPU; a mask of T² booleans
        eager             if the model supports nothing else

    If ``attention`` or the configuration requests flash, flex or eager attention, the request is
    obeyed or refused, never replaced. (``sdpa`` in a configuration is Transformers' own default,
    not a request.) A model after ``use_tree_attention`` keeps its attention.

    Args:
        model: a model of Transformers, or its configuration.
        device: the device to run on; this machine's accelerator if None.
        attention: the attention to use, by Transformers' name.
        machine: choose for this machine instead of the current one.

    Raises:
        SettingsError: packed samples would see each other with this model, or the attention cannot
            run here; names the nearest setting that works.

    >>> from transformers import LlamaConfig
    >>> choice = choose_attention(LlamaConfig(), machine=Machine("cuda", (7, 0)))
    >>> print(choice)
    attention sdpa, batches as transformers: flash and flex attention need CUDA 8.0 and this is CUDA 7.0; the mask takes T² bytes
    """
    facts = facts_of(model)
    if attention is None and _has_tree_attention(model):
        return AttentionChoice(
            TREE_ATTENTION, "transformers_tree", "for trees, and for flat packs", 0, facts.mrope
        )
    if machine is None:
        machine = Machine.here(device if device is not None else _accelerator_of(model))
    _refuse_recurrent_leaks(facts, machine)
    # A requested attention is used or refused, so that no run silently trains with another one.
    request = attention or facts.wish
    if request is not None:
        obstacle = _obstacle(request, facts, machine)
        if obstacle is not None:
            raise SettingsError(
                f"attn_implementation={request!r} cannot run here: {obstacle}; leave "
                "attn_implementation out, and sdpa or flex attention is chosen, with the same "
                "results"
            )
        return _choice(request, facts, "as requested")
    # From the fastest to the slowest: the first without an obstacle is the choice.
    obstacles = {}
    for name in ("flash_attention_3", "flash_attention_2", "flex_attention"):
        obstacle = _obstacle(name, facts, machine)
        if obstacle is None:
            return _choice(
                name, facts, "no mask is needed" if name.startswith("flash") else "a block mask"
            )
        obstacles[name] = obstacle
    if machine.modern or machine.device == "npu":
        # Only the obstacle of flash attention 2 is reported: flash attention 3 is only for Hopper.
        del obstacles["flash_attention_3"]
        reason = "; ".join(dict.fromkeys(obstacles.values()))
    else:
        reason = f"flash and flex attention need CUDA 8.0 and this is {machine.title}"
    # Every model has eager attention. Its mask is float32; the mask of SDPA is boolean.
    name, size = ("eager", "4 T²") if _obstacle("sdpa", facts, machine) else ("sdpa", "T²")
    return _choice(name, facts, f"{reason}; the mask takes {size} bytes")


def collator_for(
    model: Any,
    *,
    device: str | torch.device | None = None,
    attention: str | None = None,
    quiet: bool = False,
    **options: Any,
) -> PackCollator:
    """Switch a model to an attention that isolates samples, and return its ``PackCollator``.

    For a model whose own loss ignores ``num_items_in_batch`` (Qwen2-Audio), the loss is replaced by
    the sum over targets divided by this number. A batch without targets then gives 0 instead of
    NaN.

    It prints the choice and its reason in one line on stderr, once, on the first rank.

    Args:
        model: a model of Transformers.
        device, attention: as in ``choose_attention``.
        quiet: print nothing.
        **options: ``pad_to``, ``padding``, ``pad_token_id``, ``loss_weights`` and ``media``, as in
            ``PackCollator``.

    Raises:
        SettingsError: as in ``choose_attention``.
    """
    choice = choose_attention(model, device=device, attention=attention)
    has_trees = choice.name == TREE_ATTENTION
    if not has_trees and getattr(model.config, "_attn_implementation", None) != choice.name:
        model.set_attn_implementation(choice.name)
    if (
        getattr(model.config, "model_type", None) in _MEAN_LOSSES
        and _loss_as_asked not in model._forward_hooks.values()
    ):
        model.register_forward_hook(_loss_as_asked, with_kwargs=True)
    if not quiet and os.environ.get("RANK", "0") == "0":
        _print(f"brimful: {choice}")
    collator = PackCollator if has_trees else _FlatCollator
    return collator(
        dialect=choice.dialect,
        vocab_size=getattr(model.config.get_text_config(), "vocab_size", None),
        position_start=choice.position_start,
        mrope=choice.mrope,
        **options,
    )


class _FlatCollator(PackCollator):
    """Collator for a model whose attention would take segments of trees for samples, or whose loss
    would ignore their weights.
    """

    def convert(self, rows: Sequence[PackedBatch]) -> dict[str, Any]:
        if any(batch.sharing is not None for batch in rows):
            raise SettingsError(TREES_FOR_SAMPLES)
        return super().convert(rows)


def _has_tree_attention(model: Any) -> bool:
    config = getattr(model, "config", model)
    return getattr(config.get_text_config(), "_attn_implementation", None) == TREE_ATTENTION


def _loss_as_asked(model: Any, args: Any, kwargs: dict[str, Any], output: Any) -> Any:
    """Replace the loss in the output of a model that ignores ``num_items_in_batch``."""
    labels, divisor = kwargs.get("labels"), kwargs.get("num_items_in_batch")
    if labels is not None and divisor is not None:
        # Rows are joined into one: the last token of a row does not predict the first token of the
        # next.
        targets = labels.clone()
        targets[:, 0] = IGNORE_INDEX
        output.loss = packed_loss_sum(output.logits.flatten(0, 1), targets.flatten()) / divisor
    return output


def _obstacle(name: str, facts: ModelFacts, machine: Machine) -> str | None:
    """Return the reason why an attention cannot run; None if it can."""
    if name not in facts.supported:
        spoken_name = name.replace("flash_attention_", "flash attention ").replace("_", " ")
        return f"{facts.name} has no {spoken_name}"
    if name.startswith("flash_attention"):
        if machine.device == "npu" and name == "flash_attention_2":
            return None if "torch_npu" in machine.packages else "torch_npu is not installed"
        # Apart from NPUs, which have their own kernels, only CUDA devices run flash attention.
        if not machine.modern:
            return f"flash attention needs CUDA 8.0 and this is {machine.title}"
        is_third = name == "flash_attention_3"
        package, pip_name = (
            ("flash_attn_interface", "flash-attn 3") if is_third else ("flash_attn", "flash-attn")
        )
        if package not in machine.packages:
            return f"{pip_name} is not installed"
        if is_third and (machine.capability or (0, 0))[0] != 9:
            return f"flash attention 3 needs CUDA 9.0 and this is {machine.title}"
    elif name == "flex_attention":
        if not machine.modern:
            return f"flex attention trains on CUDA 8.0 and this is {machine.title}"
        if facts.blind:
            return f"{facts.name} {facts.blind}, and so has no flex attention for packs"
        if "triton" not in machine.packages:
            return "triton is not installed"
    return None


def _choice(name: str, facts: ModelFacts, reason: str) -> AttentionChoice:
    """Return the choice of an attention that can run, with the matching dialect.

    Raises:
        SettingsError: packs leak in the model with this attention and any dialect.
    """
    dialect = "transformers"
    if not name.startswith("flash"):
        _refuse_mask_leaks(name, facts)
        # A model that builds its mask without positions takes the mask from the batch instead.
        if facts.blind and name in ("sdpa", "eager"):
            dialect = "dense_mask" if name == "sdpa" else "dense_mask_additive"
            reason = f"{reason}; {facts.name} {facts.blind}, so the batch holds the mask"
    return AttentionChoice(
        name, dialect, reason, facts.position_start, facts.mrope and dialect == "transformers"
    )


def _refuse_mask_leaks(name: str, facts: ModelFacts) -> None:
    """Refuse a model whose masks cannot isolate samples."""
    if facts.bidirectional:
        raise SettingsError(
            f"{facts.name} {facts.bidirectional} and its {name} mask ignores packs: use flash "
            f"attention on a GPU (pip install flash-attn), or {_ONE_PER_ROW}"
        )
    if facts.blind and (facts.has_windows or not facts.takes_a_mask):
        reason = (
            "a mask of the batch would replace its windows"
            if facts.has_windows
            else "its biases need a mask of rows"
        )
        has_flash = "flash_attention_2" in facts.supported
        flash = "flash attention on a GPU (pip install flash-attn), or " if has_flash else ""
        raise SettingsError(f"{facts.name} {facts.blind}, and {reason}: use {flash}{_ONE_PER_ROW}")


def _refuse_recurrent_leaks(facts: ModelFacts, machine: Machine) -> None:
    """Refuse a model whose recurrent state passes from sample to sample in a row; no attention
    prevents that.
    """
    if facts.drops_boundaries:
        raise SettingsError(
            f"{facts.name} carries the state of its recurrent layers from one sample into the next "
            f"with any batch: use {_ONE_PER_ROW}"
        )
    absent = sorted(facts.kernels - machine.packages)
    if facts.kernels and (absent or machine.device != "cuda"):
        pip_names = " and ".join(sorted(_RECURRENT_KERNELS[package] for package in facts.kernels))
        absent_names = " and ".join(_RECURRENT_KERNELS[package] for package in absent)
        reason = f"{absent_names} not installed" if absent else "not on this device"
        raise SettingsError(
            f"{facts.name} keeps the state of its recurrent layers apart only with kernels "
            f"({reason}): pip install {pip_names} and run on CUDA, or use {_ONE_PER_ROW}"
        )


def _accelerator() -> torch.device:
    """Return this machine's accelerator, or the CPU if it has none."""
    if torch.cuda.is_available():
        return torch.device("cuda")
    for name in ("npu", "mps"):
        module = getattr(torch, name, None) or getattr(torch.backends, name, None)
        if module is not None and module.is_available():
            return torch.device(name)
    return torch.device("cpu")


def _accelerator_of(model: Any) -> torch.device | None:
    """Return the device of a model; None on the CPU, since its trainer may still move it."""
    parameter = next(model.parameters(), None) if hasattr(model, "parameters") else None
    return (
        None if parameter is None or parameter.device.type in ("cpu", "meta") else parameter.device
    )


@cache
def _print(line: str) -> None:
    """Print a line once per process."""
    print(line, file=sys.stderr, flush=True)
