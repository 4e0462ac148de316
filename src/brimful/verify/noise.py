"""Movement of numbers without a leak, measured with a row for each sample.

In a dense model a token's numbers do not depend on what else is in the batch: changing another sample moves
nothing, to the last bit, in bf16 as in fp32. Experts are computed in groups whose size depends on all tokens of a batch,
and a kernel rounds differently for another size; in bf16 that may even change a router's choice. The same samples in
rows of their own, where no mask can fail, show the size of this rounding::

    changed        A A A · b b           packed: a leak, or rounding?
                   A A A                 b moves here too, and nothing but rounding can have moved it
                   b b

In fp32 rounding is far below any leak that matters, so 1e-5 is always allowed. In bf16 and fp16 nothing is allowed
if nothing moves in rows; if something does, float32 decides: the weights are the same, a leak stays, and rounding
is gone.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from brimful.verify.modes import experiment, in_float32
from brimful.verify.setup import PackingSetup, parity_limit_of

LOW_PRECISIONS = (torch.bfloat16, torch.float16)
"""Precisions in which rounding is large enough to change a router's choice."""

_PRECISE = (torch.float64, torch.float32)
"""Precisions in which rounding is far below any leak: the movement that parity allows always passes."""

_NOISE_FACTOR = 8
"""Movement that passes ÷ movement with a row for each sample."""

_MAX_NOISE = 1e-3
"""Largest relative movement in float32 that can be rounding."""


@dataclass(frozen=True, slots=True)
class Movement:
    """Movement of numbers, and its limit.

    Attributes:
        size: largest difference, relative to the largest value (at least 1).
        limit: largest size that passes.
        noise: size with a row for each sample, in the precision that decided.
        precise: true if float32 decided.
        remark: facts about the decision that a reader has to know.
    """

    size: float
    limit: float
    noise: float = 0.0
    precise: bool = False
    remark: str = ""

    @property
    def passed(self) -> bool:
        """True if only rounding moved anything."""
        return self.size <= self.limit

    @property
    def without_packing(self) -> bool:
        """True if samples also move each other with a row for each: packing is not the cause."""
        return self.noise > _MAX_NOISE and (self.precise or not self.remark)


def measure_movement(
    setup: PackingSetup, measure: Callable[[], float], measure_in_rows: Callable[[], float]
) -> Movement:
    """Measure a movement and, if it is not zero, the effect of rounding.

    Args:
        setup: says what the caller allows and in which precision the model is.
        measure: the movement in packed rows.
        measure_in_rows: the movement with a row for each sample.
    """
    size = measure()
    if setup.tolerance is not None:
        return Movement(size, setup.tolerance)
    always_allowed = parity_limit_of(setup.dtype) if setup.dtype in _PRECISE else 0.0
    if size <= always_allowed:
        return Movement(size, always_allowed)
    noise = experiment(measure_in_rows)
    if noise is None:  # a model of packed rows may take one row only
        remark = "a row for each sample is refused, so the effect of rounding was not measured"
        return Movement(size, always_allowed, remark=remark)
    # If nothing moves in rows, rounding is ruled out as the reason.
    if noise == 0 or setup.dtype not in LOW_PRECISIONS:
        return Movement(size, _limit(noise, always_allowed), noise)

    # In low precision a leak can be smaller than rounding, so no limit would tell the two apart.
    def measure_both() -> tuple[float, float]:
        with in_float32(setup.model):
            return measure(), measure_in_rows()

    precise = experiment(measure_both)
    if precise is None:  # kernels of low precision only, or no room for the weights
        remark = (
            f"rounding in {setup.dtype_name} moves {noise:.1e} with a row for each sample, and float32 cannot run here"
        )
        return Movement(size, _NOISE_FACTOR * noise, noise, remark=remark)
    remark = (
        f"told in float32; rounding in {setup.dtype_name} moves {size:.1e}, and {noise:.1e} with a row for each sample"
    )
    precise_size, precise_noise = precise
    limit = _limit(precise_noise, parity_limit_of(torch.float32))
    return Movement(precise_size, limit, precise_noise, precise=True, remark=remark)


def _limit(noise: float, always_allowed: float) -> float:
    """Return max(always allowed, factor × noise), without the noise if it is too large for rounding."""
    return always_allowed if noise > _MAX_NOISE else max(always_allowed, _NOISE_FACTOR * noise)
