"""Targets of a row of trees: each is predicted by the token before it in its sample, as often as
samples train it.

::

    samples  a B C D · a B C F      capitals are targets
    targets  from a: B twice, from B: C twice, from C: D and F, which are two branches
"""

from collections import Counter
from itertools import pairwise
from typing import NamedTuple, TypeAlias

from brimful.base.typing import IGNORE_INDEX
from brimful.base.wording import counted
from brimful.verify.setup import PackingSetup
from brimful.verify.verify_report import CheckResult, failed, passed

_Term: TypeAlias = tuple[int, int]
"""Place in the flattened batch that predicts, and the token that it predicts."""

_WAY_OUT = (
    "PackCollator(branch='fork') repeats the last token of a trunk in each branch, and "
    "branch='index' names the place that predicts each target, with its weight"
)

_TOLERANCE = 1e-4
"""Largest difference of weights, which are sums in float32."""


class _Expected(NamedTuple):
    """Targets of the samples.

    Attributes:
        weights: how many samples train each.
        of_samples: the same of each sample, by its name.
        first: targets that are the first token of a branch, with the place of that token.
        last: targets that are the last token of a trunk of several branches.
    """

    weights: Counter[_Term]
    of_samples: dict[str, Counter[_Term]]
    first: dict[_Term, int]
    last: set[_Term]


def check_branch_targets(setup: PackingSetup) -> CheckResult:
    """Compare the targets of a batch of trees, and their weights, with the targets of the samples."""
    terms = setup.batch.terms
    assert terms is not None
    expected = _targets_of(setup)
    actual: Counter[_Term] = Counter()
    for place, target, weight in zip(*(part.tolist() for part in terms), strict=True):
        actual[place, target] += weight
    actual = Counter({term: weight for term, weight in actual.items() if weight})
    missing = expected.weights.keys() - actual.keys()
    # That padding predicts is told by another check.
    is_padding = setup.batch.padding.reshape(-1)
    extra = {term for term in actual.keys() - expected.weights.keys() if not is_padding[term[0]]}
    wrong = {
        term
        for term in actual.keys() & expected.weights.keys()
        if abs(actual[term] - expected.weights[term]) > _TOLERANCE
    }
    count = sum(expected.weights.values())
    if not missing and not extra and not wrong:
        detail = (
            f"{count} targets of {counted(len(setup.samples.segments), 'sample')} in "
            f"{counted(len(actual), 'term')}, {len(expected.first)} of them first of a branch"
        )
        return passed("labels", detail)
    detail = (
        f"{len(missing)} targets missing, {len(extra)} foreign, {len(wrong)} with another weight; "
        f"the batch has {sum(actual.values()):g} in all, the samples {count}"
    )
    cause = _cause(expected, actual, missing, extra, wrong)
    return failed("labels", detail, cause, _WAY_OUT)


def _targets_of(setup: PackingSetup) -> _Expected:
    samples, width = setup.samples, setup.batch.ids.shape[1]
    expected = _Expected(Counter(), {}, {}, set())
    followers: dict[int, set[int]] = {}
    for segment in samples.segments:
        path = [part for part in segment.parts if len(samples.parts[part])]
        for part, following in pairwise(path):
            followers.setdefault(part, set()).add(following)
    for segment, place in setup.batch.located:
        columns = place.columns
        targets = expected.of_samples.setdefault(segment.name, Counter())
        starts, ends, depth = set(), set(), 0
        for part in segment.parts:
            starts.add(depth)
            depth += len(samples.parts[part])
            if len(followers.get(part, ())) > 1:
                ends.add(depth - 1)
        for depth in range(1, len(columns)):
            if segment.labels[depth] == IGNORE_INDEX:
                continue
            term = (place.row * width + int(columns[depth - 1]), int(segment.labels[depth]))
            expected.weights[term] += 1
            targets[term] += 1
            if depth in starts:
                expected.first[term] = place.row * width + int(columns[depth])
            if depth in ends:
                expected.last.add(term)
    return expected


def _sample_left_out(expected: _Expected, actual: Counter[_Term]) -> str:
    """Return the sample whose targets alone the batch lacks; empty if it is none."""
    if any(weight - expected.weights[term] > _TOLERANCE for term, weight in actual.items()):
        return ""
    deficits = {
        term: round(weight - actual[term])
        for term, weight in expected.weights.items()
        if weight - actual[term] > _TOLERANCE
    }
    return next((name for name, terms in expected.of_samples.items() if terms == deficits), "")


def _cause(
    expected: _Expected,
    actual: Counter[_Term],
    missing: set[_Term],
    extra: set[_Term],
    wrong: set[_Term],
) -> str:
    """Name the likely cause by the pattern of the wrong targets."""
    if name := _sample_left_out(expected, actual):
        return (
            f"{name} is not trained: it ends where others go on, or is equal to another, and its "
            "targets were lost with it"
        )
    first = missing & expected.first.keys()
    # A label at the first token of a branch is predicted by the place before it in the row.
    from_sibling = [term for term in first if (expected.first[term] - 1, term[1]) in actual]
    if from_sibling:
        return (
            f"first tokens of branches ({len(from_sibling)}) are predicted by the last token of "
            "the branch before, and not by the last of their trunk"
        )
    if first and len(first) == len(missing) and not extra:
        return (
            f"first tokens of branches ({len(first)}) are not trained: the last token of a trunk "
            "predicts one branch, or none"
        )
    if missing:
        return f"targets of the samples ({len(missing)}) have no place that predicts them"
    if extra:
        return (
            f"targets of the batch ({len(extra)}) belong to no sample: a repeated token keeps its "
            "label, which the last token of the branch before it predicts, or prompts are trained"
        )
    shared = {term for term in expected.weights if expected.weights[term] > 1}
    if wrong == shared and all(actual[term] == 1 for term in wrong):
        return "a target that several samples share counts once: it needs the sum of their weights"
    if wrong <= expected.last and all(actual[term] < expected.weights[term] for term in wrong):
        return (
            "the last token of a trunk, which each branch repeats, has the weight of one branch "
            "instead of all"
        )
    return "weights of shared targets are not the number of samples that train them"
