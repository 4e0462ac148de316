"""Tokens that each token of a row of trees sees: its path, and nothing else.

::

    row          a b c | d e | f | . .        f must see a b c f
    siblings     f sees d or e                a mask by causality alone, or tree_out too late
    trunks       f does not see a b c         a mask of segments, or of parents alone
"""

from typing import NamedTuple

import numpy as np

from brimful.base.typing import BoolArray, Int64Array
from brimful.doctor.probing.modes import switchable_module
from brimful.verify.setup import PackingSetup
from brimful.verify.tree_rows import (
    MAX_PAIRED_TOKENS,
    Paths,
    Visibility,
    claims_of,
    paths_of,
    windows_of,
)
from brimful.verify.verify_report import CheckResult, failed, passed

_WAY_OUT = (
    "token k is visible to q if tree_in[k] <= tree_in[q] < tree_out[k], in depth-first order: "
    "PackCollator makes both, and masks_of the masks"
)


class _Tokens(NamedTuple):
    """Samples and parts of the tokens of a row.

    Attributes:
        sample: ``int64[T]``: a sample that has the token; -1 for padding.
        level: ``int64[T]``: how many segments of its path lie before its own, in the row.
        root: ``int64[T]``: first part of its path; -1 for padding.
    """

    sample: Int64Array
    level: Int64Array
    root: Int64Array


def check_seen_tokens(setup: PackingSetup) -> CheckResult:
    """Compare what a batch of trees says about visible tokens, in each of its forms, with the paths
    of the samples.
    """
    batch = setup.batch
    num_rows, width = batch.ids.shape
    if num_rows > 1 or width > MAX_PAIRED_TOKENS:
        return passed(
            "boundaries", f"{num_rows} rows of {width:,} tokens, whose pairs are not compared"
        )
    claims = list(claims_of(batch.kwargs, width))
    if not claims:
        return passed("boundaries", "the batch has none; positions alone mark the samples")
    paths, tokens = paths_of(batch), _tokens_of(setup)
    module = switchable_module(setup.model)
    windows = {"": None} if module is None else windows_of(module)
    for claim in claims:
        # A mask of all layers must be right in each of them.
        kinds = [claim.kind] if claim.kind in windows else list(windows)
        for kind in kinds if claim.has_windows else [""]:
            window = windows.get(kind)
            fault = _fault(setup, claim, paths, tokens, window)
            if fault is not None:
                return failed("boundaries", *fault, _WAY_OUT)
    return passed("boundaries", ", ".join(claim.name for claim in claims))


def _tokens_of(setup: PackingSetup) -> _Tokens:
    located, width = setup.batch.located, setup.batch.ids.shape[1]
    tokens = _Tokens(*(np.full(width, -1, dtype=np.int64) for _ in range(3)))
    is_on_path = np.zeros((width, len(located)), dtype=bool)
    for number, (_, place) in enumerate(located):
        is_on_path[place.columns, number] = True
    for sample, place in located:
        # Tokens of one segment lie on the same paths.
        path = is_on_path[place.columns]
        tokens.level[place.columns[1:]] = (path[1:] != path[:-1]).any(axis=1).cumsum()
        tokens.level[place.columns[0]] = 0
        tokens.sample[place.columns] = sample.index
        tokens.root[place.columns] = sample.parts[0]
    return tokens


def _fault(
    setup: PackingSetup, claim: Visibility, paths: Paths, tokens: _Tokens, window: int | None
) -> tuple[str, str] | None:
    """Return the first fault of a claim and its cause; None if it is right."""
    truth, is_real = paths.within(window), tokens.sample >= 0
    surplus = claim.visible & ~truth & is_real[:, None]
    deficit = truth & ~claim.visible & is_real[:, None]
    if not surplus.any() and not deficit.any():
        return None
    query, key = (int(place) for place in np.argwhere(surplus if surplus.any() else deficit)[0])
    verb = "sees" if surplus.any() else "does not see"
    detail = (
        f"{claim.name}: {_name(setup, paths, tokens, query)} {verb} "
        f"{_name(setup, paths, tokens, key)}; {int(surplus.sum())} pairs too many, "
        f"{int(deficit.sum())} too few"
    )
    if "tree_in" in claim.name and (part := _scattered_part(setup)) is not None:
        name = setup.samples.name_of(part)
        return detail, (
            f"segments are not in depth-first order: what continues {name} does not lie side by "
            "side, and tree_in and tree_out tell one range for each segment"
        )
    if surplus.any():
        return detail, _cause_of_seen(claim, paths, tokens, surplus, window)
    return detail, _cause_of_hidden(paths, tokens, deficit, window)


def _name(setup: PackingSetup, paths: Paths, tokens: _Tokens, place: int) -> str:
    if tokens.sample[place] < 0:
        return f"padding at {place}"
    name = setup.samples.segments[tokens.sample[place]].name
    return f"token {int(paths.depths[place])} of {name}"


def _cause_of_seen(
    claim: Visibility, paths: Paths, tokens: _Tokens, surplus: BoolArray, window: int | None
) -> str:
    """Name what is seen and should not be."""
    is_real = tokens.sample >= 0
    places = np.arange(len(is_real))
    if (surplus & (places[:, None] < places)).any():
        return "tokens see later tokens of the row"
    if window is not None and not (surplus & ~paths.visible).any():
        return (
            f"a mask without the window of {window} tokens: it replaces the windows of the model's "
            "layers"
        )
    if (surplus & ~is_real).any():
        return "padding lies inside a path: it stands between a trunk and what continues it"
    is_earlier_pair = (places[:, None] > places) & is_real[:, None] & is_real
    if (claim.visible | ~is_earlier_pair).all():
        return "a mask by causality alone: each token sees every earlier token of the row"
    if (surplus & (tokens.root[:, None] == tokens.root)).any():
        return "siblings are visible: a branch sees the branch before it, which the same trunk has"
    return "trees of a row see each other"


def _cause_of_hidden(paths: Paths, tokens: _Tokens, deficit: BoolArray, window: int | None) -> str:
    """Name what is not seen and should be."""
    queries, keys = np.nonzero(deficit)
    if window is not None and ((queries - keys) >= window).all():
        return (
            f"the window of {window} tokens is measured along the row instead of the path: "
            "siblings in between take its place"
        )
    levels = tokens.level[queries] - tokens.level[keys]
    if levels.min() >= 2:
        return (
            "a branch sees its own trunk, and not the trunk of that trunk: right at depth 1, wrong "
            "below"
        )
    if levels.min() == 1:
        return "branches do not see their trunk"
    return "tokens do not see the tokens before them in their own segment"


def _scattered_part(setup: PackingSetup) -> int | None:
    """Return the first part whose continuations do not lie in one range of the row; None if all
    do.
    """
    samples, batch = setup.samples, setup.batch
    places = batch.places
    for part in range(len(samples.parts)):
        columns = [
            places[index].columns[samples.depth_of(part, index) :]
            for index in samples.samples_of(part)
            if index in places
        ]
        if not columns:
            continue
        subtree = np.unique(np.concatenate(columns))
        width = np.ptp(subtree) + 1 if len(subtree) else 0
        gaps = np.setdiff1d(np.arange(width) + subtree[:1], subtree)
        if not batch.padding[0, gaps].all():
            return part
    return None
