"""What is verified: model, collator and samples, and how to run them packed and alone."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch

from brimful.errors import SettingsError
from brimful.typing import IGNORE_INDEX, Int64Array
from brimful.verify.case import Case
from brimful.verify.layout import Collated, collate

__all__ = ["Alone", "Subject", "Tolerance", "difference", "targets_loss", "tolerance_of"]


@dataclass(frozen=True, slots=True)
class Tolerance:
    """Most that numbers may differ, relative to the largest of them (at least 1).

    Attributes:
        parity: packed against alone. Kernels add in another order there, so bf16 needs room.
        isolation: before against after, in the same layout: only what leaks can move.
    """

    parity: float
    isolation: float


_TOLERANCES = {
    torch.float64: Tolerance(1e-9, 1e-9),
    torch.float32: Tolerance(1e-5, 1e-5),
    torch.float16: Tolerance(1e-2, 2e-3),
    torch.bfloat16: Tolerance(6e-2, 2e-2),
}
"""bf16 has 8 bits: one rounding is 4e-3, and they add up over the layers. A leak is most often above 1e-1."""


def tolerance_of(dtype: Any) -> Tolerance:
    """What a dtype allows."""
    return _TOLERANCES.get(dtype, _TOLERANCES[torch.bfloat16])


@dataclass(frozen=True)
class Alone:
    """The truth: every sample by itself.

    Attributes:
        logits: of each segment, ``float[n, V]``.
        sums: of each segment, the loss summed over its targets.
        gradients: of the mean over all targets, by parameter name; empty if not asked for.
    """

    logits: list[torch.Tensor]
    sums: list[float]
    gradients: dict[str, torch.Tensor]


@dataclass(frozen=True)
class Subject:
    """A model with a collator and samples; attention is whatever the model is set to now."""

    model: Any
    collator: Callable[[list[Any]], Mapping[str, Any]]
    case: Case
    tolerance: Tolerance
    with_gradients: bool = True

    @cached_property
    def batch(self) -> Collated:
        """All features in one batch."""
        return self.collate()

    @property
    def device(self) -> Any:
        """Where the model is."""
        return next(self.model.parameters()).device

    @property
    def config(self) -> Any:
        """Configuration of the model or of what a wrapper holds; None where there is none."""
        return next((module.config for module in self.model.modules() if hasattr(module, "config")), None)

    @cached_property
    def position_start(self) -> int:
        """Position of the first token of a sample."""
        offset_models = {"roberta", "xlm-roberta", "xlm-roberta-xl", "camembert", "mpnet", "esm", "data2vec-text"}
        offset_models |= {"roberta-prelayernorm", "xmod", "luke", "longformer"}
        if getattr(self.config, "model_type", "") in offset_models:
            return int(getattr(self.config, "pad_token_id", None) or 0) + 1
        return 0

    def collate(self, replaced: Mapping[int, Int64Array] | None = None) -> Collated:
        """The batch, with other tokens in some segments."""
        return collate(self.collator, self.case, device=self.device, replaced=replaced)

    def of(self, case: Case) -> Subject:
        """The same with other samples."""
        return replace(self, case=case)

    def accepts(self, name: str) -> bool:
        """Whether the model's forward takes this keyword."""
        parameters = inspect.signature(self.model.forward).parameters
        return name in parameters or any(item.kind is item.VAR_KEYWORD for item in parameters.values())

    def logits(self, kwargs: Mapping[str, Any]) -> torch.Tensor:
        """``float32[B, T, V]`` of a batch (float64 stays), without gradients."""
        with torch.no_grad():
            return _logits(self.model(**{key: value for key, value in kwargs.items() if key not in _LABELS})).detach()

    def loss(self, kwargs: Mapping[str, Any]) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Logits and loss, with gradients."""
        out = self.model(**kwargs)
        loss = out.get("loss") if isinstance(out, Mapping) else getattr(out, "loss", None)
        return _logits(out), loss

    def solo(self, index: int) -> torch.Tensor:
        """``float[n, V]``: one sample by itself, no collator involved."""
        segment = self.case.segments[index]
        kwargs: dict[str, Any] = {"input_ids": torch.from_numpy(segment.ids).to(self.device)[None]}
        if self.accepts("use_cache"):
            kwargs["use_cache"] = False
        if segment.positions is not None:
            positions = torch.from_numpy(segment.positions).to(self.device)
            kwargs["position_ids"] = positions if len(positions) == 1 else positions[:, None]
        return _logits(self.model(**kwargs))[0]

    def alone(self) -> Alone:
        """Every sample by itself: logits, loss, gradients of the mean over all targets."""
        count = max(1, self.case.num_targets)
        logits, sums = [], []
        self.model.zero_grad(set_to_none=True)
        for index, segment in enumerate(self.case.segments):
            with torch.set_grad_enabled(self.with_gradients):
                out = self.solo(index)
                wanted = np.concatenate([segment.labels[1:], [IGNORE_INDEX]])
                total = targets_loss(out, wanted)
                if self.with_gradients:
                    (total / count).backward()
            logits.append(out.detach())
            sums.append(float(total.detach()))
        return Alone(logits, sums, self.gradients())

    def gradients(self) -> dict[str, torch.Tensor]:
        """Copies of the gradients; the model's own are cleared."""
        found = {
            name: parameter.grad.detach().clone()
            for name, parameter in self.model.named_parameters()
            if parameter.grad is not None
        }
        self.model.zero_grad(set_to_none=True)
        return found


_LABELS = ("labels", "shift_labels", "num_items_in_batch")


def targets_loss(logits: torch.Tensor, targets: Int64Array) -> torch.Tensor:
    """Cross-entropy summed over the targets; a scalar in the precision of fp32 or better."""
    wanted = torch.from_numpy(targets.reshape(-1)).to(logits.device)
    flat = logits.reshape(-1, logits.shape[-1])
    return torch.nn.functional.cross_entropy(flat, wanted, ignore_index=IGNORE_INDEX, reduction="sum")


def difference(expected: torch.Tensor, got: torch.Tensor) -> float:
    """Largest difference, relative to the largest value (at least 1); infinite where something is no number."""
    if expected.numel() == 0:
        return 0.0
    worst = float((expected - got).abs().max()) / max(1.0, float(expected.abs().max()))
    return worst if np.isfinite(worst) else float("inf")


def _logits(out: Any) -> torch.Tensor:
    logits = out.get("logits") if isinstance(out, Mapping) else getattr(out, "logits", None)
    if logits is None:
        raise SettingsError("the model returns no logits: give a causal language model (AutoModelForCausalLM)")
    logits = logits if logits.dtype == torch.float64 else logits.float()
    return logits if logits.ndim == 3 else logits[None]
