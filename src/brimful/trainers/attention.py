"""Which attention keeps packed samples apart: on this machine, with this model; and the collator that goes with it."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import torch

from brimful.collate.padding import Padding
from brimful.collate.torch import PackCollator
from brimful.errors import SettingsError
from brimful.trainers.model_facts import ModelFacts, facts_of

__all__ = ["AttentionChoice", "Machine", "choose_attention", "collator_for"]

_PACKAGES = ("flash_attn", "flash_attn_interface", "torch_npu", "triton", "causal_conv1d", "fla", "mamba_ssm")
_ONE_PER_ROW = "PackCollator(dialect='plain'), which gives each sample a row of its own"
_told: set[str] = set()


@dataclass(frozen=True, slots=True)
class Machine:
    """What the choice depends on beside the model.

    Attributes:
        device: ``cuda``, ``npu``, ``mps``, ``cpu``, or another type of torch.
        capability: of a CUDA device, such as ``(7, 0)`` for V100 and ``(7, 5)`` for T4; None elsewhere.
        packages: which of the packages with kernels can be imported.
    """

    device: str
    capability: tuple[int, int] | None = None
    packages: frozenset[str] = frozenset()

    @classmethod
    def here(cls, device: str | torch.device | None = None) -> Machine:
        """This machine; its accelerator if ``device`` is None, and the CPU if it has none."""
        place = torch.device(device) if device is not None else _accelerator()
        capability = None
        if place.type == "cuda" and torch.cuda.is_available():
            capability = torch.cuda.get_device_capability(place)
        return cls(place.type, capability, frozenset(name for name in _PACKAGES if find_spec(name) is not None))

    @property
    def modern(self) -> bool:
        """Whether flash and flex attention have kernels for it."""
        return self.device == "cuda" and (self.capability or (0, 0)) >= (8, 0)

    @property
    def title(self) -> str:
        """For people: ``CUDA 7.5``, ``NPU``, ``CPU``."""
        number = "" if self.capability is None else f" {self.capability[0]}.{self.capability[1]}"
        return self.device.upper() + number


@dataclass(frozen=True, slots=True)
class AttentionChoice:
    """What was chosen, and why.

    Attributes:
        name: as Transformers calls it, for ``attn_implementation`` and ``set_attn_implementation``.
        dialect: of ``PackCollator``.
        reason: one line.
        position_start: of the collator: 0, or 2 for models whose positions begin behind the padding's.
        mrope: of the collator: whether the model sees packs only in four rows of positions.
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
    """The fastest attention that keeps packed samples apart here. Nothing has to be installed.

    ::

        flash attention   CUDA of capability 8 and above with flash-attn, or an NPU with its own
        flex attention    CUDA of capability 8 and above with Triton; a block mask, no T² memory
        sdpa              anywhere: V100, T4, MPS, NPU, CPU; a mask of T² booleans
        eager             where the model has no other

    ``attention`` or a configuration that asks for flash, flex or eager attention is obeyed or refused, never replaced.
    (``sdpa`` in a configuration is what Transformers puts there by itself, and no wish.)

    Args:
        model: a model of Transformers, or its configuration.
        device: where it will run; this machine's accelerator if None.
        attention: the one to use, by Transformers' name.
        machine: facts to go by instead of this machine's.

    Raises:
        SettingsError: packed samples would see each other with this model, or the attention cannot run here; names the
            nearest setting that works.

    >>> from transformers import LlamaConfig
    >>> choice = choose_attention(LlamaConfig(), machine=Machine("cuda", (7, 0)))
    >>> print(choice)
    attention sdpa, batches as transformers: flash and flex attention need CUDA 8.0 and this is CUDA 7.0; the mask takes T² bytes
    """
    facts = facts_of(model)
    machine = Machine.here(device if device is not None else _place_of(model)) if machine is None else machine
    _refuse_what_leaks(facts, machine)
    wish = attention or facts.wish
    if wish is not None:
        return _obey(wish, facts, machine)
    reasons = []
    for name in ("flash_attention_3", "flash_attention_2", "flex_attention"):
        missing = _missing(name, facts, machine)
        if missing is None:
            return _described(name, facts, "no mask is made" if name.startswith("flash") else "a block mask")
        reasons.append(missing)
    # Of the two flash attentions, what is said of the second: the first is for Hopper alone.
    why = "; ".join(dict.fromkeys(reasons[1:]))
    if not machine.modern and machine.device != "npu":
        why = f"flash and flex attention need CUDA 8.0 and this is {machine.title}"
    for name in ("sdpa", "eager"):
        if _missing(name, facts, machine) is None:
            return _described(name, facts, f"{why}; the mask takes {'T²' if name == 'sdpa' else '4 T²'} bytes")
    raise AssertionError("eager is always there")


def collator_for(
    model: Any,
    *,
    device: str | torch.device | None = None,
    attention: str | None = None,
    pad_to: int | None = None,
    padding: Padding | None = None,
    pad_token_id: int = 0,
    loss_weights: Any = None,
    quiet: bool = False,
) -> PackCollator:
    """A ``PackCollator`` for this model, and the model switched to the attention that goes with it.

    Says in one line on stderr what was chosen and why, once and on the first rank.

    Args:
        model: a model of Transformers.
        device, attention: as in ``choose_attention``.
        pad_to, padding, pad_token_id, loss_weights: as in ``PackCollator``.
        quiet: say nothing.

    Raises:
        SettingsError: as in ``choose_attention``.
    """
    choice = choose_attention(model, device=device, attention=attention)
    if getattr(model.config, "_attn_implementation", None) != choice.name:
        model.set_attn_implementation(choice.name)
    if not quiet:
        _tell(f"brimful: {choice}")
    return PackCollator(
        dialect=choice.dialect,
        pad_to=pad_to,
        padding=padding,
        pad_token_id=pad_token_id,
        vocab_size=getattr(model.config.get_text_config(), "vocab_size", None),
        loss_weights=loss_weights,
        position_start=choice.position_start,
        mrope=choice.mrope,
    )


def _obey(wish: str, facts: ModelFacts, machine: Machine) -> AttentionChoice:
    missing = _missing(wish, facts, machine)
    if missing is not None:
        raise SettingsError(
            f"attn_implementation={wish!r} cannot run here: {missing}; leave attn_implementation out, and sdpa or flex "
            f"attention is chosen, with the same results"
        )
    return _described(wish, facts, "as asked for")


def _missing(name: str, facts: ModelFacts, machine: Machine) -> str | None:
    """Why this attention cannot be used; None if it can."""
    if name not in facts.supported:
        return f"{facts.name} has no {_spoken(name)}"
    if name.startswith("flash_attention"):
        if machine.device == "npu" and name == "flash_attention_2":
            return None if "torch_npu" in machine.packages else "torch_npu is not installed"
        if not machine.modern:
            return f"flash attention needs CUDA 8.0 and this is {machine.title}"
        package, pip = {"flash_attention_3": ("flash_attn_interface", "flash-attn 3")}.get(
            name, ("flash_attn", "flash-attn")
        )
        if package not in machine.packages:
            return f"{pip} is not installed"
        if name == "flash_attention_3" and (machine.capability or (0, 0))[0] != 9:
            return f"flash attention 3 needs CUDA 9.0 and this is {machine.title}"
        return None
    if name == "flex_attention":
        if not machine.modern:
            return f"flex attention trains on CUDA 8.0 and this is {machine.title}"
        if facts.blind:
            return f"{facts.name} {facts.blind}, and so has no flex attention for packs"
        return None if "triton" in machine.packages else "triton is not installed"
    return None


def _described(name: str, facts: ModelFacts, reason: str) -> AttentionChoice:
    dialect = "transformers"
    if name in ("sdpa", "eager") and facts.blind:
        dialect = "dense_mask" if name == "sdpa" else "dense_mask_additive"
        reason = f"{reason}; {facts.name} {facts.blind}, so the batch brings the mask"
    missing = _refusal_of_mask(name, facts)
    if missing is not None:
        raise SettingsError(missing)
    mrope = facts.mrope and dialect == "transformers"
    return AttentionChoice(name, dialect, reason, facts.position_start, mrope)


def _refusal_of_mask(name: str, facts: ModelFacts) -> str | None:
    if name.startswith("flash"):
        return None
    if facts.bidirectional:
        return (
            f"{facts.name} looks both ways and its {name} mask knows no packs: use flash attention on a GPU (pip install "
            f"flash-attn), or {_ONE_PER_ROW}"
        )
    if facts.blind and (facts.has_windows or not facts.takes_a_mask):
        why = "a mask of the batch would replace its windows" if facts.has_windows else "its biases need a mask of rows"
        return f"{facts.name} {facts.blind}, and {why}: {_way_out(facts)}"
    return None


def _way_out(facts: ModelFacts) -> str:
    flash = "flash attention on a GPU (pip install flash-attn), or " if "flash_attention_2" in facts.supported else ""
    return f"use {flash}{_ONE_PER_ROW}"


def _refuse_what_leaks(facts: ModelFacts, machine: Machine) -> None:
    """State that runs on through the row is stopped by no attention."""
    if facts.drops_boundaries:
        raise SettingsError(
            f"{facts.name} carries the state of its recurrent layers from one sample into the next whatever the batch "
            f"says: use {_ONE_PER_ROW}"
        )
    if not facts.kernels:
        return
    missing = sorted(facts.kernels - machine.packages)
    if missing or machine.device != "cuda":
        needed = " and ".join(sorted(_PIP[name] for name in facts.kernels))
        why = "not on this device" if not missing else f"{' and '.join(_PIP[name] for name in missing)} not installed"
        raise SettingsError(
            f"{facts.name} keeps the state of its recurrent layers apart only with kernels ({why}): pip install {needed} "
            f"and run on CUDA, or use {_ONE_PER_ROW}"
        )


_PIP = {"causal_conv1d": "causal-conv1d", "fla": "flash-linear-attention", "mamba_ssm": "mamba-ssm"}


def _spoken(name: str) -> str:
    return name.replace("flash_attention_", "flash attention ").replace("_", " ")


def _accelerator() -> torch.device:
    if torch.cuda.is_available():
        return torch.device("cuda")
    for name in ("npu", "mps"):
        module = getattr(torch, name, None) or getattr(torch.backends, name, None)
        if module is not None and module.is_available():
            return torch.device(name)
    return torch.device("cpu")


def _place_of(model: Any) -> torch.device | None:
    """Where the model is, unless it still waits on the CPU to be moved by its trainer."""
    parameter = next(model.parameters(), None) if hasattr(model, "parameters") else None
    return None if parameter is None or parameter.device.type in ("cpu", "meta") else parameter.device


def _tell(line: str) -> None:
    if line in _told or os.environ.get("RANK", "0") != "0":
        return
    _told.add(line)
    print(line, file=sys.stderr, flush=True)
