"""Masks: who may see whom, by the masks of a batch?"""

from collections.abc import Iterator

import numpy as np

from brimful.base.typing import AnyArray, BoolArray
from brimful.base.wording import counted
from brimful.doctor.batch.checks.case import BatchCase, suspect, wrong
from brimful.doctor.batch.claims import is_boundary_mask, per_token, visible_pairs
from brimful.doctor.batch.words import Role, Word
from brimful.doctor.report import Finding

_TOPIC = "isolation"
_OBEYS_MASKS = ("sdpa", "eager", "flex")
"""Attention implementations of Transformers that take any mask of two dimensions for one of
padding, and then do not look at positions.
"""
_OWN_KERNELS = "linear_attn_cu_seq_lens_q"
"""Word of VeOmni, whose attention reads boundaries and no mask."""


def check_flat_mask(case: BatchCase) -> Iterator[Finding]:
    """Check that no mask of two dimensions hides the samples of a row.

    Transformers finds packed samples by their positions only in a batch without a mask. Flash
    attention drops a mask of ones, and then it looks at boundaries and positions; all others, and
    flash attention itself where the mask has zeros, believe the mask.
    """
    view = case.view
    attention = case.known.attention.lower()
    names = {word.name for word in view.words if word.array is not None}
    if not any(len(case.inner_starts(claim)) for claim in view.claims) or _OWN_KERNELS in names:
        return
    for word in view.words_with(Role.MASK):
        values = per_token(word.array, view.shape)
        if values is None or values.ndim != 2 or is_boundary_mask(word, view.shape):
            continue
        obeys = any(name in attention for name in _OBEYS_MASKS)
        is_numbered = bool(values.max() > 1)
        by_positions = view.believed.role in (Role.POSITIONS, Role.LENGTHS)
        by_transformers = view.believed.word.startswith("cu_seq_lens_")
        if is_numbered and not obeys:
            continue  # a patched flash attention reads the numbers
        kind = "numbers the samples" if is_numbered else "is all ones"
        kind = kind if is_numbered or values.all() else "marks padding alone"
        detail = (
            f"{word} {kind}, and {view.believed.word} begins "
            f"{counted(len(view.segments), 'sample')} in {counted(view.shape[0], 'row')}"
        )
        change = f"no {word} in a batch of packed rows"
        if obeys and (by_positions or by_transformers or is_numbered):
            yield wrong(
                _TOPIC,
                "mask_hides_packs",
                f"{detail}: {case.known.attention} takes it for a mask of padding and looks no "
                "further",
                change,
            )
        elif by_positions or (by_transformers and not values.all()):
            yield suspect(
                _TOPIC,
                "mask_hides_packs",
                f"{detail}: attention that gets a mask does not look at them",
                change,
            )


def check_pairs(case: BatchCase) -> Iterator[Finding]:
    """Check what each token may see by a mask of all pairs."""
    for word in case.view.words_with(Role.MASK):
        visible = visible_pairs(word, case.view.shape)
        if visible is None or word.array is None or word.array.ndim < 3:
            continue
        yield from _neighbors_seen(case, word, visible)
        yield from _padding_seen(case, word, visible)
        yield from _masked_rows(case, word, visible)


def _neighbors_seen(case: BatchCase, word: Word, visible: BoolArray) -> Iterator[Finding]:
    """Check that no token sees one of another segment, by the claim of any word."""
    view = case.view
    other = next((claim for claim in view.claims if len(case.inner_starts(claim))), None)
    if other is None:
        return
    rows, width = view.shape
    starts = np.union1d(case.inner_starts(other), case.row_starts)
    own = starts[np.searchsorted(starts, np.arange(rows * width), side="right") - 1]
    column = (own % width).reshape(rows, width)
    # A token of another segment is seen before the beginning of the own one, in a causal mask or
    # not.
    first_seen = np.where(visible.any(axis=2), visible.argmax(axis=2), width)
    leaks = (first_seen < column) & ~view.padding
    if view.positions is not None:
        # Branches of shared prefixes see their prefix, and go on from its positions.
        base = view.positions.reshape(-1)[own].reshape(rows, width)
        leaks &= base == base.min()
    leaks = np.flatnonzero(leaks)
    if len(leaks):
        token = int(leaks[0])
        yield wrong(
            _TOPIC,
            "neighbors_seen",
            f"{word} lets {counted(len(leaks), 'token')} see another sample: {case.place(token)} "
            f"sees token {int(first_seen.reshape(-1)[token]):,}, and its sample begins at "
            f"{int(column.reshape(-1)[token]):,} by {other.word}",
            f"{word}: true only within a sample",
        )


def _padding_seen(case: BatchCase, word: Word, visible: BoolArray) -> Iterator[Finding]:
    """Check that no token of a sample sees padding."""
    padding = case.view.padding
    number = 0
    for row in np.flatnonzero(padding.any(axis=1) & ~padding.all(axis=1)).tolist():
        number += int((visible[row][:, padding[row]].any(axis=1) & ~padding[row]).sum())
    if number:
        yield wrong(
            _TOPIC,
            "padding_seen",
            f"{word} lets {counted(number, 'token')} of samples see padding",
            f"{word}: false where the key is padding",
        )


def _masked_rows(case: BatchCase, word: Word, visible: BoolArray) -> Iterator[Finding]:
    """Check that each token sees one at least, where nothing would not be a number.

    A softmax over nothing but the lowest number of 16 bits, or over −∞, is not a number. Over the
    lowest number of 32 bits it is the mean of all tokens, which padding may have.
    """
    assert word.array is not None
    empty = ~visible.any(axis=2)
    if not empty.any():
        return
    real = int((empty & ~case.view.padding).sum())
    low = _low_precision(word.value, word.array)
    if real or low:
        number = real or int(empty.sum())
        yield wrong(
            _TOPIC,
            "masked_rows",
            f"{word} lets {counted(number, 'token')} of {'samples' if real else 'padding'} see "
            f"nothing{f', in {low}' if low else ''}",
            f"{word}: let each token see itself, padding too",
        )


def _low_precision(value: object, array: AnyArray) -> str:
    """Return the kind of numbers whose empty softmax is not a number; empty for others."""
    dtype = str(getattr(value, "dtype", array.dtype)).removeprefix("torch.")
    if dtype in ("float16", "bfloat16", "half"):
        return dtype
    return "−∞" if array.dtype.kind == "f" and np.isneginf(array).any() else ""
