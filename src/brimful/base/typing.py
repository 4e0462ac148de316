"""Aliases of types: the name of an array says dtype, shape and unit.

>>> import numpy as np
>>> lengths: Lengths = np.array([3, 5], dtype=np.int32)
"""

import os
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

IGNORE_INDEX = -100
"""Label of a position that takes no part in the loss (the default of
``torch.nn.CrossEntropyLoss``).
"""

TARGET_MASKS = ("loss_mask", "completion_mask", "assistant_masks")
"""Keys that mark the targets of a sample without labels."""

PAIRS_PER_BLOCK = 64 * 64
"""Pairs of patches in one unit of the budget ``patch_blocks``: sums of squared patches exceed 32
bits.
"""

AnyPath: TypeAlias = str | os.PathLike[str]
"""Path, or where URLs are allowed, a URL."""

Fingerprint: TypeAlias = str
"""32 hexadecimal digits that identify ordered contents and settings."""

AnyArray: TypeAlias = npt.NDArray[Any]
"""Array of any dtype, such as a column or features of media."""
Int8Array: TypeAlias = npt.NDArray[np.int8]
Int32Array: TypeAlias = npt.NDArray[np.int32]
Int64Array: TypeAlias = npt.NDArray[np.int64]
AnyIntArray: TypeAlias = npt.NDArray[np.integer[Any]]
"""Integers of any width, as callers may pass them."""
IntArrayLike: TypeAlias = AnyIntArray | Sequence[int]
"""Whole numbers as an array or a sequence."""
BoolArray: TypeAlias = npt.NDArray[np.bool_]
Float32Array: TypeAlias = npt.NDArray[np.float32]
Float64Array: TypeAlias = npt.NDArray[np.float64]

Lengths: TypeAlias = npt.NDArray[np.int32]
"""``int32[num_samples]``: share of each sample in one budget, in the budget's unit."""

SampleIds: TypeAlias = npt.NDArray[np.int64]
"""``int64[num_segments]``: index of a sample in its source."""

Offsets: TypeAlias = npt.NDArray[np.int64]
"""``int64[num_groups + 1]``: group ``i`` is ``[offsets[i], offsets[i + 1])`` of a flat array."""

TokenIds: TypeAlias = npt.NDArray[np.int32]
"""``int32[num_tokens]``."""

LossMask: TypeAlias = npt.NDArray[np.bool_]
"""``bool[num_tokens]``: true where the token is a target of the loss."""

Labels: TypeAlias = npt.NDArray[np.int64]
"""``int64[num_tokens]``: the token id where it is a target, else ``IGNORE_INDEX``. Not shifted."""

CuSeqlens: TypeAlias = npt.NDArray[np.int32]
"""``int32[num_segments + 1]``: the first token of each segment, and the total at the end."""
