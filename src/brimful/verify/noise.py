"""How far numbers move where nothing leaks: measured with a row for each sample.

In a dense model a token's numbers do not depend on what else is in the batch: another sample that is changed moves
nothing, to the last bit, in bf16 as in fp32. Experts are computed in groups whose size depends on all tokens of a batch,
and a kernel rounds otherwise for another size; in bf16 that may even turn a router's choice. The same samples in rows of
their own, where no mask could fail, show how much that is::

    changed        A A A · b b           packed: a leak, or rounding?
                   A A A                 b moves here too, and nothing but rounding can have moved it
                   b b

In fp32 rounding is far below any leak that matters, so 1e-5 is allowed in any case. In bf16 and fp16 nothing is allowed
where nothing moves in rows; where something does, float32 decides: the weights are the same, a leak stays, and rounding
is gone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from brimful.errors import BrimfulError
from brimful.verify.modes import in_float32
from brimful.verify.subject import Subject

__all__ = ["ROUNDED", "Weighed", "weigh"]

ROUNDED = (torch.bfloat16, torch.float16)
"""Precisions in which rounding is large enough to turn the choice of a router."""
_ROOM, _MOST = 8, 1e-3
"""Rounding may be eight times what it was in rows; above 1e-3 in float32 it is none."""
_LEAST = {torch.float64: 1e-9, torch.float32: 1e-5}
"""Allowed in any case; nothing in lower precisions."""


@dataclass(frozen=True, slots=True)
class Weighed:
    """A movement, and what may move.

    Attributes:
        size: what moved, relative to the largest value (at least 1).
        limit: most that it may be.
        noise: what moves with a row for each sample, in the precision that decided.
        precise: decided in float32.
        remark: what a reader has to know of it.
    """

    size: float
    limit: float
    noise: float = 0.0
    precise: bool = False
    remark: str = ""

    @property
    def passed(self) -> bool:
        """Nothing moved but by rounding."""
        return self.size <= self.limit

    @property
    def everywhere(self) -> bool:
        """Samples also move each other where each has a row: it is not the packing."""
        return self.noise > _MOST and (self.precise or not self.remark)


def weigh(subject: Subject, measure: Callable[[], float], control: Callable[[], float]) -> Weighed:
    """Measure a movement, and where there is one, what rounding does.

    Args:
        subject: says what the caller allows and in which precision the model is.
        measure: the movement in packed rows.
        control: the movement with a row for each sample.
    """
    size = measure()
    if subject.tolerance is not None:
        return Weighed(size, subject.tolerance)
    least = _LEAST.get(subject.dtype, 0.0)
    if size <= least or (noise := control()) == 0:
        return Weighed(size, least)
    if subject.dtype not in ROUNDED:
        return Weighed(size, _allowed(noise, least), noise)
    name = str(subject.dtype).removeprefix("torch.")
    try:
        with in_float32(subject.model):
            precise = measure()
            finer = control()
    except BrimfulError:
        raise
    except Exception:  # kernels of low precision only, or no room for the weights
        remark = f"rounding in {name} moves {noise:.1e} with a row for each sample, and float32 cannot run here"
        return Weighed(size, _ROOM * noise, noise, remark=remark)
    remark = f"told in float32; rounding in {name} moves {size:.1e}, and {noise:.1e} with a row for each sample"
    return Weighed(precise, _allowed(finer, _LEAST[torch.float32]), finer, precise=True, remark=remark)


def _allowed(noise: float, least: float) -> float:
    return least if noise > _MOST else max(least, _ROOM * noise)
