"""Setup under test: model, collator and samples, and runs of them packed, one by one, and with a
row each.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch

from brimful.base.typing import IGNORE_INDEX, Int64Array
from brimful.doctor.probing.model_facts import (
    at_least_float32,
    config_of,
    media_tokens,
    parity_limit_of,
    position_start_of,
    tokens_of_config,
)
from brimful.doctor.probing.modes import seeded
from brimful.errors import CollateError, SettingsError
from brimful.media import MediaKind
from brimful.verify.collated_batch import CollatedBatch, as_rows
from brimful.verify.implementations import without_runs
from brimful.verify.locate import Place, SampleLayout, lay_out_markers, locate_with_markers
from brimful.verify.media_items import KINDS, shown_media
from brimful.verify.reference_samples import UNCHANGED, Change, ReferenceSample, ReferenceSamples
from brimful.verify.tree_rows import first_visibility, with_tree_masks

_LABEL_KEYS = ("labels", "shift_labels", "num_items_in_batch", "loss_weights")
"""Keyword arguments that only the loss needs."""

_TYPES_OF_TOKENS = {MediaKind.IMAGE: 1, MediaKind.VIDEO: 2, MediaKind.AUDIO: 3}
"""Numbers of ``mm_token_type_ids``; 0 is text."""


class ModelOutput(NamedTuple):
    """Output of a model that was given labels.

    Attributes:
        logits: ``float[B, T, V]``.
        loss: scalar; None if the model gives none.
        other_losses: names of other scalars of the output that end in ``loss``.
    """

    logits: torch.Tensor
    loss: torch.Tensor | None
    other_losses: list[str]


@dataclass(frozen=True)
class PerSampleReference:
    """Truth that batches are compared with: the model on every sample alone.

    Attributes:
        logits: of each segment, ``float[n, V]``.
        loss_sums: of each segment, the loss summed over its targets.
        gradients: of the mean over all targets, by parameter name; empty if not asked for.
    """

    logits: list[torch.Tensor]
    loss_sums: list[float]
    gradients: dict[str, torch.Tensor]


@dataclass(frozen=True)
class PackingSetup:
    """A model with a collator and samples; attention, mode and dtype are the model's at the time of
    a call.

    Attributes:
        tolerance: largest relative difference that the caller allows; None allows parity the
            rounding of the dtype, and isolation the movement that correct runs measure.
    """

    model: Any
    collator: Callable[[list[Any]], Mapping[str, Any]]
    samples: ReferenceSamples
    tolerance: float | None = None
    with_gradients: bool = True

    @cached_property
    def batch(self) -> CollatedBatch:
        """All features in one batch."""
        return self.collate()

    @property
    def parity_limit(self) -> float:
        """Largest difference of batch and single samples that passes, relative to the largest value
        (at least 1).
        """
        return parity_limit_of(self.dtype) if self.tolerance is None else self.tolerance

    @property
    def dtype(self) -> Any:
        """Dtype of the model's parameters."""
        return next(self.model.parameters()).dtype

    @property
    def dtype_name(self) -> str:
        """Name of the dtype, such as ``bfloat16``."""
        return str(self.dtype).removeprefix("torch.")

    @property
    def device(self) -> Any:
        """Device of the model's parameters."""
        return next(self.model.parameters()).device

    @property
    def config(self) -> Any:
        """Configuration of the model; None if it has none."""
        return config_of(self.model)

    @cached_property
    def position_start(self) -> int:
        """Position of the first token of a sample."""
        return position_start_of(self.config)

    def collate(self, change: Change = UNCHANGED) -> CollatedBatch:
        """Call the collator with copies of the samples, one of them perhaps changed, and find them
        in its batch.

        Raises:
            CollateError: the batch is not a mapping, or has no tensor of ``input_ids``.
        """
        kwargs, ids = self._call_collator(self.samples.copies(change.new_ids))
        has_trees = self.samples.has_trees
        visible = first_visibility(kwargs, *ids.shape) if has_trees else None
        layout = locate_with_markers(
            ids, self.samples.changed(change.new_ids), self._markers, visible
        )
        batch = CollatedBatch(kwargs, ids, layout, self.samples.segments, has_trees)
        return self._with_other_media(batch, change)

    def _call_collator(self, features: list[Any]) -> tuple[dict[str, Any], Int64Array]:
        """Return keyword arguments of the model from the collator, on its device, and their
        ``input_ids``: ``int64[B, T]``.
        """
        batch = self.collator(features)
        kwargs: dict[str, Any] = {}
        for key, value in batch.items() if isinstance(batch, Mapping) else ():
            value = torch.from_numpy(value) if isinstance(value, np.ndarray) else value
            kwargs[str(key)] = value.to(self.device) if isinstance(value, torch.Tensor) else value
        ids = kwargs.get("input_ids")
        if not isinstance(ids, torch.Tensor):
            raise CollateError(
                f"input_ids of the batch must be a tensor and are a {type(ids).__name__}: the "
                "collator must return a mapping of the model's arguments"
            )
        return kwargs, as_rows(ids)

    @cached_property
    def _markers(self) -> SampleLayout | None:
        """Layout of a batch of markers: tokens that occur neither in the samples nor as padding."""

        def collate_ids(features: list[Any]) -> Int64Array:
            return self._call_collator(features)[1]

        reserved_tokens = set(tokens_of_config(self.config, "pad", "bos", "eos", "unk", "mask"))
        reserved_tokens |= {
            *self.samples.token_ids.tolist(),
            *np.unique(collate_ids(self.samples.copies())).tolist(),
        }
        return lay_out_markers(
            collate_ids,
            self.samples,
            media_ids=media_tokens(self.config),
            reserved_tokens=reserved_tokens,
        )

    def in_rows(self, change: Change = UNCHANGED) -> CollatedBatch:
        """Return the samples with a row each, no collator involved: nothing is packed, and all are
        in one forward.
        """
        batch = self._rows(self.samples.changed(change.new_ids))
        return self._with_other_media(batch, change)

    def _with_other_media(self, batch: CollatedBatch, change: Change) -> CollatedBatch:
        """Return the batch with the sign of the values of one part's media changed.

        Media lie in the order of their tokens.
        """
        if change.ids is not None or change.part < 0:
            return batch
        kwargs = dict(batch.kwargs)
        for kind in KINDS:
            start = 0
            for item, *_ in shown_media(kind, batch):
                end = start + len(item.values)
                values = kwargs.get(kind.values)
                is_changed = self.samples.part_at(item.segment, item.start) == change.part
                if is_changed and isinstance(values, torch.Tensor):
                    kwargs[kind.values] = values.clone()
                    kwargs[kind.values][start:end] *= -1
                start = end
        return replace(batch, kwargs=kwargs)

    def alone(self, index: int) -> CollatedBatch:
        """Return one sample alone, with its labels, no collator involved.

        With media, a model that can make its own positions from token types does so: the collator's
        may be wrong.
        """
        segment = self.samples.segments[index]
        batch = self._rows([segment])
        if (
            segment.features
            and "mm_token_type_ids" in inspect.signature(self.model.forward).parameters
            and batch.kwargs.pop("position_ids", None) is not None
        ):
            types = np.zeros(len(segment.ids), dtype=np.int64)
            for item in segment.media:
                size = item.num_tokens // len(item.runs)
                for start in item.runs:
                    first = item.start + start
                    types[first : first + size] = _TYPES_OF_TOKENS[item.medium.kind]
            batch.kwargs["mm_token_type_ids"] = torch.from_numpy(types[None]).to(self.device)
        return batch

    def _rows(self, segments: Sequence[ReferenceSample]) -> CollatedBatch:
        """Return segments with a row each.

        After a sample, its last token that stands for no medium fills the row; no earlier token
        sees it.
        """
        width = max(len(segment.ids) for segment in segments)
        media = media_tokens(self.config)
        ids = np.zeros((len(segments), width), dtype=np.int64)
        labels = np.full_like(ids, IGNORE_INDEX)
        positions, places = [], []
        for row, segment in enumerate(segments):
            size = len(segment.ids)
            places.append(Place(row, 0, size))
            ids[row] = [*segment.ids[-1:], *segment.ids[~np.isin(segment.ids, media)]][-1]
            ids[row, :size], labels[row, :size] = segment.ids, segment.labels
            if segment.positions is not None:
                positions.append(np.pad(segment.positions, ((0, 0), (0, width - size)), "edge"))
        arrays = {"input_ids": ids, "labels": labels}
        if len(positions) == len(segments):
            own_positions = np.stack(positions, axis=1)
            arrays["position_ids"] = own_positions if len(own_positions) > 1 else own_positions[0]
        # The towers' inputs of the samples, in their order.
        for name in {name: None for segment in segments for name in segment.features}:
            arrays[name] = np.concatenate(
                [item.features[name] for item in segments if name in item.features]
            )
        kwargs: dict[str, Any] = {
            name: torch.tensor(array).to(self.device) for name, array in arrays.items()
        }
        if self.accepts("use_cache"):
            kwargs["use_cache"] = False
        layout = SampleLayout(tuple(places), (), np.zeros(ids.shape, dtype=bool), True)
        return CollatedBatch(kwargs, ids, layout, segments)

    def accepts(self, name: str) -> bool:
        """Return true if the model's forward takes this keyword."""
        parameters = inspect.signature(self.model.forward).parameters
        return name in parameters or any(
            item.kind is item.VAR_KEYWORD for item in parameters.values()
        )

    def logits(self, kwargs: Mapping[str, Any]) -> torch.Tensor:
        """Return ``float32[B, T, V]`` of a batch (float64 stays), without gradients."""
        with torch.no_grad():
            return self.forward(kwargs).detach()

    def forward(self, kwargs: Mapping[str, Any], seed: int = 0) -> torch.Tensor:
        """Return the logits of a batch with gradients if they are enabled; the seed is for a random
        model.
        """
        return self.output(
            {key: value for key, value in kwargs.items() if key not in _LABEL_KEYS}, seed
        ).logits

    def output(self, kwargs: Mapping[str, Any], seed: int = 0) -> ModelOutput:
        """Return logits, loss and the outputs that are called a loss; with gradients if enabled.

        Raises:
            SettingsError: the output has no logits.
        """
        with seeded(self.device, seed), without_runs(self.model, kwargs):
            output = self.model(**with_tree_masks(self.model, kwargs))
        if not isinstance(output, Mapping):
            output = {name: getattr(output, name, None) for name in ("logits", "loss")}
        logits, loss = output.get("logits"), output.get("loss")
        if logits is None:
            raise SettingsError(
                "the model returns no logits: give a causal language model (AutoModelForCausalLM)"
            )
        logits = at_least_float32(logits)
        other_losses = [
            name
            for name, value in output.items()
            if name.endswith("_loss") and isinstance(value, torch.Tensor) and value.numel() == 1
        ]
        return ModelOutput(logits if logits.ndim == 3 else logits[None], loss, other_losses)

    def per_sample_reference(self) -> PerSampleReference:
        """Run every sample alone: logits, loss, gradients of the mean over all targets."""
        num_targets = max(1, self.samples.num_targets)
        all_logits, loss_sums = [], []
        self.model.zero_grad(set_to_none=True)
        for index in range(len(self.samples.segments)):
            batch = self.alone(index)
            assert batch.targets is not None
            with torch.set_grad_enabled(self.with_gradients):
                logits = self.forward(batch.kwargs)[0]
                total = targets_loss(logits, batch.targets)
                # The samples' gradients add up to the mean's; a frozen model has none.
                if total.requires_grad:
                    (total / num_targets).backward()
            all_logits.append(logits.detach())
            loss_sums.append(float(total.detach()))
        return PerSampleReference(all_logits, loss_sums, self.take_gradients())

    def take_gradients(self) -> dict[str, torch.Tensor]:
        """Return copies of the gradients by parameter name, and clear the model's own."""
        gradients = {
            name: parameter.grad.detach().clone()
            for name, parameter in self.model.named_parameters()
            if parameter.grad is not None
        }
        self.model.zero_grad(set_to_none=True)
        return gradients


def batch_loss(
    logits: torch.Tensor, batch: CollatedBatch, targets: Int64Array | None = None
) -> torch.Tensor:
    """Return the cross-entropy summed over the targets of a batch, each as often as it counts.

    Args:
        logits: ``[B, T, V]``.
        batch: with targets.
        targets: ``int64[B, T]`` in place of the batch's own.
    """
    assert batch.terms is not None
    if not batch.has_trees:
        numbers = batch.targets if targets is None else targets
        assert numbers is not None
        return targets_loss(logits, numbers)
    terms = batch.terms
    places = torch.from_numpy(terms.places).to(logits.device)
    numbers = terms.targets if targets is None else targets.reshape(-1)[terms.places]
    losses = torch.nn.functional.cross_entropy(
        logits.flatten(0, 1)[places],
        torch.from_numpy(numbers).to(logits.device),
        reduction="none",
    )
    return (losses * torch.from_numpy(terms.weights).to(losses)).sum()


def targets_loss(logits: torch.Tensor, targets: Int64Array) -> torch.Tensor:
    """Return the cross-entropy summed over the targets; a scalar in the precision of fp32 or
    better.
    """
    flat_targets = torch.from_numpy(targets.reshape(-1)).to(logits.device)
    flat_logits = logits.reshape(-1, logits.shape[-1])
    return torch.nn.functional.cross_entropy(
        flat_logits, flat_targets, ignore_index=IGNORE_INDEX, reduction="sum"
    )


def difference(reference: torch.Tensor, actual: torch.Tensor) -> float:
    """Return max|reference − actual| ÷ max(1, max|reference|); infinite if a difference is not
    finite.

    Equal values differ by 0, infinite ones too: some models put -inf at the entries of a padded
    vocabulary.
    """
    if reference.numel() == 0 or torch.equal(reference, actual):
        return 0.0
    finite = reference[reference.isfinite()]
    scale = max(1.0, float(finite.abs().max())) if finite.numel() else 1.0
    gaps = (reference - actual).abs().masked_fill(reference == actual, 0.0)
    largest = float(gaps.max()) / scale
    return largest if np.isfinite(largest) else float("inf")
