"""Probe as a callback: of Transformers' ``Trainer`` and trainers built on it, such as TRL's, and of
Lightning.

A library is imported when its callback is made.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

from brimful.base.optional import optional
from brimful.doctor.probing.probe import Probe
from brimful.doctor.report import DoctorReport

__all__ = ["LightningProbe", "ProbeCallback"]

_MEAN_LOSSES = ("nll", "chunked_nll")
"""Losses of TRL that are a mean over targets."""


def ProbeCallback(trainer: Any = None, **options: Any) -> Any:
    """Return a callback for ``Trainer`` of Transformers and trainers built on it (TRL, ms-swift).

    It attaches when training begins, probes at the first forward, and removes itself after the
    first step. ``callback.report`` has the result, which is logged on rank 0.

    ::

        trainer.add_callback(ProbeCallback(trainer))

    Args:
        trainer: the trainer. With it the loss that the trainer differentiates is compared too;
            without it only a loss that the model itself returns.
        **options: ``on_fault``, ``group``, ``tokens`` and ``timeout``, as in ``probe``.

    Raises:
        MissingExtraError: Transformers is not installed.
    """
    return _transformers_callback()(trainer, options)


def LightningProbe(**options: Any) -> Any:
    """Return a callback for ``Trainer`` of Lightning.

    It probes the first batch of training, with what the loader knows about it. A loss that
    ``training_step`` computes itself is not compared: its divisor is the module's own.

    ::

        pl.Trainer(callbacks=[LightningProbe()])

    Args:
        **options: ``on_fault``, ``group``, ``tokens`` and ``timeout``, as in ``probe``.

    Raises:
        MissingExtraError: Lightning is not installed.
    """
    return _lightning_callback()(options)


class _ReportOfProbe:
    """Probe and report of a callback."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._options = options
        self._probe: Probe | None = None

    @property
    def report(self) -> DoctorReport | None:
        """The report so far; None before training begins."""
        return None if self._probe is None else self._probe.report

    def _attach(self, model: Any) -> Probe:
        if self._probe is None:
            self._probe = Probe(model, **self._options)
        return self._probe.attach()

    def _detach(self) -> None:
        if self._probe is not None:
            self._probe.detach()


@cache
def _transformers_callback() -> type:
    with optional("transformers", "text", "ProbeCallback"):
        import transformers

    class ProbeCallback(_ReportOfProbe, transformers.TrainerCallback):  # type: ignore[misc]
        """See the function of this name."""

        def __init__(self, trainer: Any, options: dict[str, Any]) -> None:
            super().__init__(options)
            self._trainer = trainer

        def on_train_begin(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
            probe = self._attach(objects["model"])
            if self._trainer is not None:
                _watch_loss(self._trainer, probe)

        def on_train_end(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
            self._detach()

    return ProbeCallback


def _watch_loss(trainer: Any, probe: Probe) -> None:
    """Give the probe the first loss that a trainer of Transformers computes, and its divisor."""
    compute_loss = trainer.compute_loss

    def watched(model: Any, inputs: Any, *arguments: Any, **options: Any) -> Any:
        # A trainer may take words out of the batch before the model gets it.
        probe.tell_batch(dict(inputs))
        result = compute_loss(model, inputs, *arguments, **options)
        loss = result[0] if isinstance(result, tuple) else result
        if not probe.complete and trainer.model.training:
            _tell_loss(trainer, probe, loss, "labels" in inputs, options.get("num_items_in_batch"))
        return result

    trainer.compute_loss = watched


def _tell_loss(trainer: Any, probe: Probe, loss: Any, has_labels: bool, num_items: Any) -> None:
    """Tell a loss that is a mean over targets, or one that is known before the first step."""
    args = trainer.args
    kind = getattr(args, "loss_type", None) or "nll"
    if hasattr(args, "beta") and kind in ("sigmoid", ["sigmoid"]) and not trainer.state.global_step:
        probe.tell_loss(loss, expected=math.log(2))
    is_mean = kind in _MEAN_LOSSES and trainer.compute_loss_func is None
    if not has_labels or not is_mean or getattr(args, "label_smoothing_factor", None):
        return
    number = None if num_items is None else float(num_items)
    divisor = number
    if number is not None and args.average_tokens_across_devices:
        # Gradients are averaged over ranks, so the trainer multiplies its loss by their number.
        divisor = number / (trainer.accelerator.num_processes // trainer.get_tp_size())
    probe.tell_loss(loss, divisor=divisor, num_items=number)


@cache
def _lightning_callback() -> type:
    with optional("lightning", "lightning", "LightningProbe"):
        import lightning.pytorch as pl

    class LightningProbe(_ReportOfProbe, pl.Callback):  # type: ignore[misc]
        """See the function of this name."""

        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            self._attach(pl_module)

        def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, *_: Any) -> None:
            if self._probe is not None:
                self._probe.tell_batch(batch)

        def on_train_end(self, trainer: Any, pl_module: Any) -> None:
            self._detach()

    return LightningProbe
