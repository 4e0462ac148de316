"""Are the gradients those of the samples one by one, and does no sample's loss reach another's tokens?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from brimful.typing import IGNORE_INDEX
from brimful.verify.layout import Collated
from brimful.verify.noise import weigh
from brimful.verify.report import Finding, Status
from brimful.verify.subject import Alone, Subject, difference, targets_loss

__all__ = ["check_backward", "check_gradients"]


def check_gradients(
    subject: Subject, attention: str, alone: Alone, batch: Collated, loss: torch.Tensor
) -> list[Finding]:
    """Gradients of a loss by parameter; none where the model has no parameter that is trained."""
    subject.model.zero_grad(set_to_none=True)
    if loss.requires_grad:
        loss.backward()
    found = subject.gradients()
    if not found and not alone.gradients:
        return []
    worst, name = 0.0, ""
    for key in sorted({*found, *alone.gradients}):
        one, two = alone.gradients.get(key), found.get(key)
        one = torch.zeros_like(two) if one is None and two is not None else one
        two = torch.zeros_like(one) if two is None and one is not None else two
        assert one is not None
        assert two is not None
        size = difference(one.float(), two.float())
        if size > worst:
            worst, name = size, key
    status = Status.PASS if worst <= subject.parity_limit else Status.FAIL
    detail = "" if status is Status.PASS else f"largest in {name}"
    return [Finding("gradients", status, attention, worst, subject.parity_limit, detail)]


def check_backward(subject: Subject, attention: str) -> Finding | None:
    """Gradients of every second sample's loss at the embeddings of the others: there are none, to the last bit.

    ::

        targets of    a a a · · c c        gradients at    . . . b b . .      zero
                      · · · b b · ·                        a a a . . c c      zero

    A mask that holds in the forward and not in the backward moves no logit. Returns a failure, and None where nothing
    leaks or where the model does not let its embeddings be seen.
    """
    if subject.batch.targets is None or not subject.with_gradients:
        return None
    try:
        weighed = weigh(subject, lambda: _reached(subject, subject.batch), lambda: _reached(subject, subject.in_rows()))
    except _Unseen:
        return None
    if weighed.passed:
        return None
    return Finding(
        "gradients",
        Status.FAIL,
        attention,
        weighed.size,
        weighed.limit,
        detail="; ".join(
            filter(None, ["the loss of one sample has gradients at the tokens of another", weighed.remark])
        ),
        cause="leak in the backward: the forward keeps samples apart, and the gradients do not (the mask of a kernel's "
        "backward, or a custom autograd function)",
        way_out="another attention implementation or kernel; one sample per row where none is right",
    )


class _Unseen(Exception):
    """Embeddings that give no gradients."""


def _reached(subject: Subject, batch: Collated) -> float:
    """Largest gradient at tokens of samples whose targets do not count, relative to those whose do."""
    assert batch.targets is not None
    there = [(index, place) for index, place in enumerate(batch.places) if place is not None]
    leaves: list[torch.Tensor] = []
    logits = _with_embeddings(subject, batch, leaves.append)
    leaf = next((one for one in leaves if one.numel() // one.shape[-1] == batch.ids.size), None)
    if leaf is None:
        raise _Unseen
    worst = 0.0
    for side in (0, 1):
        targets = np.full_like(batch.targets, IGNORE_INDEX)
        for turn, (_, place) in enumerate(there):
            if turn % 2 == side:
                here = (place.row, slice(place.start, place.stop - 1))
                targets[here] = batch.targets[here]
        if not (targets != IGNORE_INDEX).any():
            continue
        (gradient,) = torch.autograd.grad(targets_loss(logits, targets), leaf, retain_graph=True, allow_unused=True)
        if gradient is None:
            raise _Unseen
        sizes = gradient.detach().abs().amax(dim=-1).reshape(batch.ids.shape).cpu()
        own = [float(sizes[place.row, place.start : place.stop].max()) for _, place in there]
        mine = max((size for turn, size in enumerate(own) if turn % 2 == side), default=0.0)
        others = max((size for turn, size in enumerate(own) if turn % 2 != side), default=0.0)
        worst = max(worst, others / mine if mine > 0 else 0.0)
    return worst


def _with_embeddings(subject: Subject, batch: Collated, seen: Callable[[torch.Tensor], Any]) -> torch.Tensor:
    """Logits of a batch, with the output of its token embeddings as a leaf that has gradients."""
    module = next((one for one in subject.model.modules() if hasattr(one, "get_input_embeddings")), None)
    if module is None or not isinstance(embeddings := module.get_input_embeddings(), torch.nn.Module):
        raise _Unseen

    def as_leaf(_: Any, __: Any, output: torch.Tensor) -> torch.Tensor:
        leaf = output.detach().requires_grad_()
        seen(leaf)
        return leaf

    handle = embeddings.register_forward_hook(as_leaf)
    try:
        with torch.enable_grad():
            return subject.forward(batch.kwargs)
    except BaseException as error:
        raise _Unseen from error
    finally:
        handle.remove()
