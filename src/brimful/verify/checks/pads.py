"""Padding: no label, no crowd of one-token samples, and no influence on samples."""

import numpy as np
import torch

from brimful.base.typing import IGNORE_INDEX
from brimful.verify.checks.isolation import movement_in_rows
from brimful.verify.checks.labels import is_near_padding
from brimful.verify.checks.positions import position_rows
from brimful.verify.noise import measure_movement
from brimful.verify.setup import PackingSetup, difference, media_tokens
from brimful.verify.verify_report import Diagnosis, Finding, compared, failed, joined, passed

_PADDING_IS_SEEN = Diagnosis(
    "padding before or between samples is attended to, or takes part in routing or state",
    "put padding at the end, as a last segment of its own",
)


def check_padding(setup: PackingSetup) -> Finding:
    """Check that padding has no label and is not cut into samples of one token each."""
    batch = setup.batch
    padding = batch.padding
    count = int(padding.sum())
    if not count:
        return passed("padding", "no padding in the batch")
    if batch.targets is not None:
        num_targets = int(((batch.targets != IGNORE_INDEX) & is_near_padding(batch)).sum())
        if num_targets:
            detail = f"{num_targets} targets are padding, of {count} padding tokens"
            return failed("padding", detail, "labels are copied from the padded tokens", "label padding with -100")
    # Boundaries are read from positions only without a mask, and only matter where samples share a row.
    rows = position_rows(setup)
    if rows is not None and batch.is_packed and batch.kwargs.get("attention_mask") is None:
        pairs = padding[:, 1:] & padding[:, :-1]
        num_resets = int((pairs & (np.diff(rows[0], axis=-1) == 0)).sum())
        if num_resets:
            position = int(rows[0][padding][0])
            return failed(
                "padding",
                f"{num_resets + 1} of {count} padding tokens stand at position {position}",
                f"pad at position {position}: where boundaries are read from positions, every padding token is a "
                f"sample of its own, and kernels allocate for each or crash",
                "number the padding 0, 1, 2, … as one last segment",
            )
    return passed("padding", f"{count} tokens, no label among them")


def check_padding_moves_nothing(setup: PackingSetup) -> Finding | None:
    """Put other tokens into the padding; None without padding, or if the collator pads with several tokens."""
    batch = setup.batch
    if not batch.padding.any():
        return None
    ids = batch.kwargs["input_ids"].clone()
    vocab = int(batch.ids.max()) + 1
    mask = torch.from_numpy(batch.padding.reshape(tuple(ids.shape))).to(ids.device)
    # Different tokens at every place: equal ones could move nothing by symmetry.
    ids[mask] = (ids[mask] + 1 + torch.arange(int(mask.sum()), device=ids.device)) % vocab
    # A medium's token would require a medium that the batch does not have.
    for token in media_tokens(setup.config):
        ids[mask & (ids == token)] = 1

    def measure() -> float:
        logits, changed_logits = setup.logits(batch.kwargs), setup.logits({**batch.kwargs, "input_ids": ids})
        return max(
            (difference(logits[place.index], changed_logits[place.index]) for _, place in batch.located), default=0.0
        )

    movement = measure_movement(setup, measure, lambda: movement_in_rows(setup))
    return compared(
        "padding",
        movement.size,
        movement.limit,
        passed=joined("other tokens in the padding move nothing", movement.remark),
        failed=joined("other tokens in the padding move the logits of samples", movement.remark),
        diagnosis=_PADDING_IS_SEEN,
    )
