"""What is verified: model, collator and samples, and how to run them packed, alone, and with a row each."""

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
from brimful.verify.layout import Collated, Found, as_rows, collate, expected_targets
from brimful.verify.markers import Marked, Place, lay_out_markers
from brimful.verify.modes import seeded

__all__ = ["Alone", "Subject", "difference", "media_tokens", "targets_loss"]

_PARITY = {torch.float64: 1e-9, torch.float32: 1e-5, torch.float16: 1e-2, torch.bfloat16: 6e-2}
"""Packed against alone kernels add in another order. In bf16, of 8 bits, one rounding is 4e-3, and they add up."""


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
    """A model with a collator and samples; attention, mode and dtype are whatever the model is set to now.

    Attributes:
        tolerance: largest relative difference that the caller allows; None to hold parity against what the dtype
            rounds, and isolation against what right runs measure.
    """

    model: Any
    collator: Callable[[list[Any]], Mapping[str, Any]]
    case: Case
    tolerance: float | None = None
    with_gradients: bool = True

    @cached_property
    def batch(self) -> Collated:
        """All features in one batch."""
        return self.collate()

    @property
    def parity_limit(self) -> float:
        """Most that numbers of the batch may differ from those alone, relative to the largest of them (at least 1)."""
        return self.tolerance if self.tolerance is not None else _PARITY.get(self.dtype, _PARITY[torch.bfloat16])

    @property
    def dtype(self) -> Any:
        """Of the model's parameters."""
        return next(self.model.parameters()).dtype

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
        return collate(self.collator, self.case, device=self.device, marked=self._marked, replaced=replaced)

    @cached_property
    def _marked(self) -> Marked | None:
        """Where the collator puts markers: tokens that occur nowhere else, not in the samples and not as padding."""
        special = [getattr(self.config, f"{name}_token_id", None) for name in ("pad", "bos", "eos", "unk", "mask")]
        avoided = {value for value in special if isinstance(value, int)}
        made = self.collator(self.case.copies())
        if isinstance(made, Mapping) and "input_ids" in made:
            avoided |= set(as_rows(made["input_ids"]).reshape(-1).tolist())
        avoided |= {int(token) for segment in self.case.segments for token in segment.ids}
        kept = media_tokens(self.config)
        return lay_out_markers(self.collator, self.case, kept=kept, avoided=avoided, read=as_rows)

    def in_rows(self, replaced: Mapping[int, Int64Array] | None = None) -> Collated:
        """The samples with a row each, no collator involved: nothing is packed, and still all are in one forward.

        Rows are filled up behind the samples with their last token, which no earlier token sees.
        """
        segments = self.case.segments
        wanted = [
            segment.ids if replaced is None else replaced.get(i, segment.ids) for i, segment in enumerate(segments)
        ]
        longest = max(len(ids) for ids in wanted)
        ids = np.stack([np.pad(one, (0, longest - len(one)), mode="edge") for one in wanted])
        kwargs: dict[str, Any] = {"input_ids": torch.from_numpy(ids).to(self.device)}
        if self.accepts("use_cache"):
            kwargs["use_cache"] = False
        own = [one.positions for one in segments if one.positions is not None]
        if len(own) == len(segments):
            rows = [np.pad(one, ((0, 0), (0, longest - one.shape[1])), mode="edge") for one in own]
            positions = torch.from_numpy(np.stack(rows, axis=1)).to(self.device)
            kwargs["position_ids"] = positions if len(positions) > 1 else positions[0]
        places = tuple(Place(row, 0, len(one)) for row, one in enumerate(wanted))
        free = np.arange(longest)[None] >= np.array([len(one) for one in wanted])[:, None]
        batch = Collated(kwargs, ids, None, True, Found(places, (), np.zeros_like(free), True), free)
        return replace(batch, targets=expected_targets(batch, segments))

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
            return self.forward(kwargs).detach()

    def forward(self, kwargs: Mapping[str, Any], seed: int = 0) -> torch.Tensor:
        """The same with gradients, where they are enabled, and with other randomness if there is any."""
        with seeded(self.device, seed):
            return _logits(self.model(**{key: value for key, value in kwargs.items() if key not in _LABELS}))

    def loss(self, kwargs: Mapping[str, Any]) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Logits and loss of the model, with gradients."""
        logits, loss, _ = self.losses(kwargs)
        return logits, loss

    def losses(self, kwargs: Mapping[str, Any]) -> tuple[torch.Tensor, torch.Tensor | None, dict[str, float]]:
        """Logits, loss, and by name what else of the output calls itself a loss."""
        with seeded(self.device):
            out = self.model(**kwargs)
        items = dict(out) if isinstance(out, Mapping) else {}
        named = {
            name: float(value.detach())
            for name, value in items.items()
            if name.endswith("loss") and name != "loss" and isinstance(value, torch.Tensor) and value.numel() == 1
        }
        return _logits(out), items.get("loss") if items else getattr(out, "loss", None), named

    def solo(self, index: int) -> torch.Tensor:
        """``float[n, V]``: logits of one sample by itself, no collator involved."""
        return self.forward(self.solo_kwargs(index))[0]

    def solo_kwargs(self, index: int) -> dict[str, Any]:
        """What the model is called with for one sample by itself."""
        segment = self.case.segments[index]
        kwargs: dict[str, Any] = {"input_ids": torch.from_numpy(segment.ids).to(self.device)[None]}
        if self.accepts("use_cache"):
            kwargs["use_cache"] = False
        if segment.positions is not None:
            positions = torch.from_numpy(segment.positions).to(self.device)
            kwargs["position_ids"] = positions if len(positions) == 1 else positions[:, None]
        return kwargs

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


def media_tokens(config: Any) -> list[int]:
    """Tokens that stand for images, videos and audio: they stay where tokens are changed."""
    names = ("image", "video", "audio", "vision_start", "vision_end")
    values = [getattr(config, f"{name}_{kind}", None) for name in names for kind in ("token_id", "token_index")]
    return [int(value) for value in values if isinstance(value, int)]


def difference(expected: torch.Tensor, got: torch.Tensor) -> float:
    """Largest difference, relative to the largest value (at least 1); infinite where something is no number."""
    if expected.numel() == 0 or torch.equal(expected, got):
        return 0.0
    worst = float((expected - got).abs().max()) / max(1.0, float(expected.abs().max()))
    return worst if np.isfinite(worst) else float("inf")


def _logits(out: Any) -> torch.Tensor:
    logits = out.get("logits") if isinstance(out, Mapping) else getattr(out, "logits", None)
    if logits is None:
        raise SettingsError("the model returns no logits: give a causal language model (AutoModelForCausalLM)")
    logits = logits if logits.dtype == torch.float64 else logits.float()
    rows: torch.Tensor = logits if logits.ndim == 3 else logits[None]
    return rows
