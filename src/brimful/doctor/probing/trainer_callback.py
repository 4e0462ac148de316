"""Probe as a callback of Transformers' ``Trainer``, and of trainers built on it: TRL, ms-swift."""

import math
from functools import wraps
from typing import Any

from brimful.base.optional import optional
from brimful.doctor.probing.probe import HasProbe, Probe

with optional("transformers", "text", "ProbeCallback"):
    import transformers

__all__ = ["ProbeCallback"]

_MEAN_LOSSES = ("nll", "chunked_nll")
"""Losses of TRL that are a mean over targets."""


class ProbeCallback(HasProbe, transformers.TrainerCallback):  # type: ignore[misc]  # transformers is not typed here
    """Callback that probes a model at its first forward, and removes itself after the first step.

    Rank 0 logs findings, or prints that there are none. The report stays in ``report``.

    Args:
        trainer: the trainer. With it the loss that the trainer differentiates is compared too;
            without it only a loss that the model itself returns.
        **options: ``on_fault``, ``group``, ``tokens``, ``tokenizer`` and ``timeout``, as in ``probe``.

    >>> callback = ProbeCallback()  # trainer.add_callback(ProbeCallback(trainer))
    >>> callback.report is None
    True
    """

    def __init__(self, trainer: Any = None, **options: Any) -> None:
        self._trainer, self._options = trainer, options

    def on_train_begin(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
        if self._probe is None:
            options = {"tokenizer": objects.get("processing_class"), **self._options}
            self._probe = Probe(objects["model"], **options).attach()
            if self._trainer is not None:
                _watch_loss(self._trainer, self._probe)


def _watch_loss(trainer: Any, probe: Probe) -> None:
    """Give the probe the first loss that a trainer computes, and its divisor.

    A step that fails takes the probe's hooks with it: the next training has another probe.
    """
    compute_loss, training_step = trainer.compute_loss, trainer.training_step

    def watched_step(*arguments: Any, **options: Any) -> Any:
        try:
            return training_step(*arguments, **options)
        except BaseException as error:
            probe.__exit__(type(error), error, None)
            raise

    @wraps(compute_loss)
    def watched(model: Any, inputs: Any, *arguments: Any, **options: Any) -> Any:
        if probe.complete:
            return compute_loss(model, inputs, *arguments, **options)
        # A trainer may take words out of the batch before the model gets it.
        probe.tell_batch(dict(inputs))
        has_labels = "labels" in inputs
        result = compute_loss(model, inputs, *arguments, **options)
        loss = result[0] if isinstance(result, tuple) else result
        if trainer.model.training:
            _tell_loss(trainer, probe, loss, has_labels, options.get("num_items_in_batch"))
        return result

    trainer.compute_loss, trainer.training_step = watched, watched_step


def _tell_loss(trainer: Any, probe: Probe, loss: Any, has_labels: bool, num_items: Any) -> None:
    """Tell a loss that is a mean over targets, or one that is known before the first step."""
    args = trainer.args
    kind = getattr(args, "loss_type", None) or "nll"
    if hasattr(args, "beta") and kind in ("sigmoid", ["sigmoid"]) and not trainer.state.global_step:
        probe.tell_loss(loss, expected=math.log(2))
    is_mean = kind in _MEAN_LOSSES and trainer.compute_loss_func is None
    if not has_labels or not is_mean or args.label_smoothing_factor:
        return
    number = None if num_items is None else float(num_items)
    divisor = number
    if number is not None and args.average_tokens_across_devices:
        # Gradients are averaged over ranks, so the trainer multiplies its loss by their number.
        divisor = number / (trainer.accelerator.num_processes // trainer.get_tp_size())
    probe.tell_loss(loss, divisor=divisor, num_items=number)
