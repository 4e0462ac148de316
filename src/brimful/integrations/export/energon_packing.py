"""The planner inside Megatron-Energon: samples of its buffer that share a pack."""

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from brimful.base.typing import Int64Array
from brimful.measure import LengthTable
from brimful.plan import plan_packs


def select_samples_to_pack(
    samples: Sequence[Any],
    *,
    capacity: int,
    length_of: Callable[[Any], int] | None = None,
    budgets: Mapping[str, tuple[int, Callable[[Any], int]]] | None = None,
    seed: int = 0,
) -> list[list[Any]]:
    """Return groups of samples that share a pack, for ``select_samples_to_pack`` of an Energon task encoder.

    ::

        def select_samples_to_pack(self, samples):
            return select_samples_to_pack(samples, capacity=8192)

    Args:
        samples: Energon's buffer of encoded samples.
        capacity: most tokens of a pack.
        length_of: function from a sample to its number of tokens; ``len(sample.tokens)`` if None.
        budgets: by name, the limit of a pack and the function from a sample to its use:
            ``{"patches": (32_768, lambda sample: sample.num_patches)}``.
        seed: of the order of equally long samples.

    Raises:
        OversizedSampleError: a sample is longer than a pack: refuse it in ``encode_sample`` (``SkipSample``).

    >>> packs = select_samples_to_pack(["aaa", "bbb", "ccccc", "dddddd", "e", "f"], capacity=7, length_of=len)
    >>> sorted(packs, key=len)
    [['ccccc'], ['dddddd', 'f'], ['bbb', 'aaa', 'e']]
    """
    if not samples:
        return []
    measure = length_of if length_of is not None else (lambda sample: len(sample.tokens))

    def measured(amount: Callable[[Any], int]) -> Int64Array:
        return np.array([amount(sample) for sample in samples], dtype=np.int64)

    limits = budgets or {}
    columns = {name: measured(amount) for name, (_, amount) in limits.items()}
    plan = plan_packs(
        LengthTable.from_lengths(measured(measure), **columns),
        capacity=capacity,
        budgets={name: most for name, (most, _) in limits.items()} or None,
        seed=seed,
    )
    ids = plan.sample_ids.tolist()
    return [[samples[number] for number in ids[begin:end]] for begin, end in pairwise(plan.offsets.tolist())]
