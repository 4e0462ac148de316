"""Probe as a callback of Lightning."""

from typing import Any

from brimful.base.optional import optional
from brimful.doctor.probing.probe import HasProbe, Probe

with optional("lightning", "lightning", "LightningProbe"):
    import lightning.pytorch as pl

__all__ = ["LightningProbe"]


class LightningProbe(HasProbe, pl.Callback):  # type: ignore[misc]  # lightning is not typed here
    """Callback that probes the first batch of training, with what the loader knows about it.

    Rank 0 logs findings, or prints that there are none. The report stays in ``report``. A loss that ``training_step`` computes
    itself is not compared: its divisor is the module's own.

    Args:
        **options: ``on_fault``, ``group``, ``tokens`` and ``timeout``, as in ``probe``.

    >>> callback = LightningProbe()  # pl.Trainer(callbacks=[callback])
    >>> callback.report is None
    True
    """

    def __init__(self, **options: Any) -> None:
        self._options = options

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        if self._probe is None:
            self._probe = Probe(pl_module, **self._options).attach()

    def on_train_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, *arguments: Any
    ) -> None:
        if self._probe is not None:
            self._probe.tell_batch(batch)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        if self._probe is not None:
            self._probe.__exit__(type(exception), exception, None)
