"""Is padding inert?"""

from __future__ import annotations

import numpy as np
import torch

from brimful.typing import IGNORE_INDEX
from brimful.verify.checks.isolation import moved_in_rows
from brimful.verify.checks.labels import beside_padding
from brimful.verify.checks.positions import position_rows
from brimful.verify.noise import weigh
from brimful.verify.report import Finding, Status
from brimful.verify.subject import Subject, difference

__all__ = ["check_padding", "check_padding_moves_nothing"]


def check_padding(subject: Subject) -> Finding:
    """Padding has no label and is not cut into samples of one token each."""
    batch = subject.batch
    padding = batch.padding
    count = int(padding.sum())
    if not count:
        return Finding("padding", Status.PASS, detail="no padding in the batch")
    if batch.targets is not None:
        own = int(((batch.targets != IGNORE_INDEX) & beside_padding(batch)).sum())
        if own:
            return Finding(
                "padding",
                Status.FAIL,
                detail=f"{own} targets are padding, of {count} padding tokens",
                cause="labels are copied from the padded tokens",
                way_out="label padding with -100",
            )
    rows = position_rows(subject)
    if rows is not None and batch.packed and "attention_mask" not in batch.kwargs:
        pairs = padding[:, 1:] & padding[:, :-1]
        still = pairs & (np.diff(rows[0], axis=-1) == 0)
        if pairs.any() and still.any():
            value = int(rows[0][padding][0])
            return Finding(
                "padding",
                Status.FAIL,
                detail=f"{int(still.sum()) + 1} of {count} padding tokens stand at position {value}",
                cause=f"pad at position {value}: where boundaries are read from positions, every padding token is a "
                f"sample of its own, and kernels allocate for each or crash",
                way_out="number the padding 0, 1, 2, … as one last segment",
            )
    return Finding("padding", Status.PASS, detail=f"{count} tokens, no label among them")


def check_padding_moves_nothing(subject: Subject, attention: str) -> Finding | None:
    """Other tokens in the padding; None if there is none, or if the collator pads otherwise."""
    batch = subject.batch
    if not batch.padding.any():
        return None
    ids = batch.kwargs["input_ids"].clone()
    vocab = int(batch.ids.max()) + 1
    where = torch.from_numpy(batch.padding.reshape(tuple(ids.shape))).to(ids.device)
    ids[where] = (ids[where] + 1 + torch.arange(int(where.sum()), device=ids.device)) % vocab

    def measure() -> float:
        one, other = subject.logits(batch.kwargs), subject.logits({**batch.kwargs, "input_ids": ids})
        places = [(place.row, slice(place.start, place.stop)) for place in batch.places if place is not None]
        return max((difference(one[here], other[here]) for here in places), default=0.0)

    weighed = weigh(subject, measure, lambda: moved_in_rows(subject))
    if weighed.passed:
        detail = "; ".join(filter(None, ["other tokens in the padding move nothing", weighed.remark]))
        return Finding("padding", Status.PASS, attention, weighed.size, weighed.limit, detail)
    return Finding(
        "padding",
        Status.FAIL,
        attention,
        weighed.size,
        weighed.limit,
        detail="; ".join(filter(None, ["other tokens in the padding move the logits of samples", weighed.remark])),
        cause="padding before or between samples is attended to, or takes part in routing or state",
        way_out="put padding at the end, as a last segment of its own",
    )
