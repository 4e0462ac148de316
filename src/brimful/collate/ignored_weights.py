"""Refusal of weights that the loss of a trainer would ignore."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from brimful.base.typing import IGNORE_INDEX
from brimful.collate.batch import PackedBatch
from brimful.errors import SettingsError

_LIBRARIES = ("transformers.", "trl.")
"""Modules of libraries whose own losses ignore weights."""

NO_WEIGHTS = "call brimful.integrations.trainers.use_loss_weights(trainer)"
"""Way out for a trainer whose loss ignores weights."""


def asked_by_own_loss() -> bool:
    """Return true if a trainer asks for a batch whose loss is the one of its library; false for any
    other trainer, and for a loop.

    A collator does not know who gets its batch, and weights are the business of a loop. But a
    trainer is on the stack where batches are made: in its process, in a worker that it forked, and
    where its collator is pickled for a worker that it spawns.
    """
    frame: Any = sys._getframe()
    while frame is not None:
        if str(frame.f_globals.get("__name__")).startswith(_LIBRARIES):
            loss = getattr(frame.f_locals.get("self"), "compute_loss", None)
            if loss is not None:
                return str(loss.__module__).startswith(_LIBRARIES)
        frame = frame.f_back
    return False


def refuse_ignored_weights(rows: Sequence[PackedBatch], is_ignored: bool) -> None:
    """Refuse targets with weights other than 1 for a trainer whose loss ignores them.

    Args:
        rows: of a batch; with terms of the loss they have no labels, and no loss of a library.
        is_ignored: known of the trainer that spawned this process; if false, the stack is searched.

    Raises:
        SettingsError: names the way out.
    """
    is_weighted = any(
        batch.loss_weights is not None
        and batch.loss_terms is None
        and (batch.loss_weights[batch.labels != IGNORE_INDEX] != 1).any()
        for batch in rows
    )
    if is_weighted and (is_ignored or asked_by_own_loss()):
        raise SettingsError(
            f"the batch has loss_weights, and the loss of the trainer ignores them: {NO_WEIGHTS}"
        )
