"""Masks: which tokens does each token see?"""

from collections.abc import Iterator

import numpy as np

from brimful.base.typing import BoolArray
from brimful.base.wording import counted
from brimful.doctor.batch.claims import is_boundary_mask, per_token, visible_pairs
from brimful.doctor.batch.view import BatchView
from brimful.doctor.batch.words import BatchWord, Role
from brimful.doctor.report import Finding, suspect, wrong

_TOPIC = "isolation"

_BELIEVE_MASKS = ("sdpa", "eager", "flex")
"""Attention implementations of Transformers that take any mask of two dimensions for one of
padding, and then do not look at positions.
"""

_OWN_ATTENTION = "linear_attn_cu_seq_lens_q"
"""Word of VeOmni, whose own attention reads boundaries and no mask. Its sdpa does not."""

_OF_STATES = "seq_idx"
"""Word for layers with a state, which attention does not read."""


def check_flat_mask(view: BatchView) -> Iterator[Finding]:
    """Check that no mask of two dimensions hides the samples of a row.

    Transformers looks for samples in positions only in a batch without a mask. Flash attention
    drops a mask of ones, and looks at boundaries and positions then; all other implementations, and
    flash attention itself with zeros in the mask, believe the mask.
    """
    names = {word.name for word in view.words if word.array is not None}
    claims = [claim for claim in view.claims if len(view.inner_starts(claim))]
    believes = any(name in view.facts.attention.lower() for name in _BELIEVE_MASKS)
    if not claims or (_OWN_ATTENTION in names and not believes):
        return
    others = [
        claim for claim in claims if claim.role is not Role.POSITIONS and claim.word != _OF_STATES
    ]
    by_positions = not others
    by_transformers = bool(others) and all("cu_seq_lens_" in claim.word for claim in others)
    for word in view.words_with(Role.MASK):
        values = per_token(word.array, view.shape)
        if values is None or values.ndim != 2 or is_boundary_mask(word, view.shape):
            continue
        is_numbered = bool(values.max() > 1)
        text = "numbers the samples" if is_numbered else "marks padding alone"
        if values.all() and not is_numbered:
            text = "is all ones"
        detail = (
            f"{word} {text}, and {claims[0].word} begins {counted(len(view.segments), 'sample')} in "
            f"{counted(view.shape[0], 'row')}"
        )
        change = f"no {word} in a batch of packed rows"
        if believes and (by_positions or by_transformers or is_numbered):
            detail += (
                f": {view.facts.attention} takes it for a mask of padding, and looks no further"
            )
            yield wrong(_TOPIC, "mask_hides_packs", detail, change)
        # Numbers are for a flash attention that was made to read them.
        elif not is_numbered and (by_positions or (by_transformers and not values.all())):
            detail += ": attention that gets a mask does not look there"
            yield suspect(_TOPIC, "mask_hides_packs", detail, change)


def check_pairs(view: BatchView) -> Iterator[Finding]:
    """Check each mask of all pairs of tokens."""
    for word in view.words_with(Role.MASK):
        visible = visible_pairs(word, view.shape)
        if visible is not None:
            yield from _neighbors_seen(view, word, visible)
            yield from _padding_seen(view, word, visible)
            yield from _empty_rows(view, word, visible)


def _neighbors_seen(view: BatchView, word: BatchWord, visible: BoolArray) -> Iterator[Finding]:
    """Check that no token sees a sample before its own, by the claim of any word."""
    claim = next((claim for claim in view.claims if len(view.inner_starts(claim))), None)
    if claim is None:
        return
    shape, width = view.shape, view.shape[1]
    starts = np.union1d(view.inner_starts(claim), view.row_starts)
    begin = starts[np.searchsorted(starts, np.arange(view.ids.size), side="right") - 1]
    column = (begin % width).reshape(shape)
    first_seen = np.where(visible.any(axis=2), visible.argmax(axis=2), width)
    leaks = (first_seen < column) & ~view.padding
    if view.positions is not None:
        # Branches of shared prefixes see their prefix, and go on from its positions.
        base = view.positions.reshape(-1)[begin].reshape(shape)
        leaks &= base == base.min()
    tokens = np.flatnonzero(leaks)
    if len(tokens):
        token = tokens[0]
        yield wrong(
            _TOPIC,
            "neighbors_seen",
            f"{word} lets {counted(len(tokens), 'token')} see another sample: {view.place(token)} "
            f"sees token {int(first_seen.reshape(-1)[token]):,}, and by {claim.word} its sample "
            f"begins at {int(column.reshape(-1)[token]):,}",
            f"{word}: true only within a sample",
        )


def _padding_seen(view: BatchView, word: BatchWord, visible: BoolArray) -> Iterator[Finding]:
    """Check that no token of a sample sees padding."""
    padding = view.padding
    number = 0
    for row in np.flatnonzero(padding.any(axis=1) & ~padding.all(axis=1)).tolist():
        sees_padding = visible[row][:, padding[row]].any(axis=1)
        number += int((sees_padding & ~padding[row]).sum())
    if number:
        yield wrong(
            _TOPIC,
            "padding_seen",
            f"{word} lets {counted(number, 'token')} of samples see padding",
            f"{word}: false for keys that are padding",
        )


def _empty_rows(view: BatchView, word: BatchWord, visible: BoolArray) -> Iterator[Finding]:
    """Check that no token sees nothing.

    A softmax over nothing but −∞, or the lowest number of 16 bits, is not a number. Over the
    lowest number of 32 bits it is the mean of all tokens, which is harmless in padding.
    """
    is_empty = ~visible.any(axis=2)
    number = int((is_empty & ~view.padding).sum())
    change = f"{word}: let each token see itself, padding too"
    if number:
        yield wrong(
            _TOPIC,
            "masked_rows",
            f"{word} lets {counted(number, 'token')} of samples see nothing",
            change,
        )
    elif is_empty.any() and (kind := _kind_without_mean(word)):
        yield suspect(
            _TOPIC,
            "masked_rows",
            f"{word} lets {counted(int(is_empty.sum()), 'token')} of padding see nothing, in {kind}",
            change,
        )


def _kind_without_mean(word: BatchWord) -> str:
    """Return the kind of numbers whose empty softmax is not a number; empty for others."""
    dtype = str(getattr(word.value, "dtype", "")).removeprefix("torch.")
    if dtype in ("float16", "bfloat16"):
        return dtype
    assert word.array is not None
    return "−∞" if word.array.dtype.kind == "f" and bool(np.isneginf(word.array).any()) else ""
