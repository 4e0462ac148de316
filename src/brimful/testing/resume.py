"""Kit that stops a loader at every step, resumes from its state, and says whether it served the
same batches.

It takes any loader that is iterable and has ``state_dict`` and ``load_state_dict``, ours or not.
One loader stands for each rank, all in this process, so a world of any size costs no more than its
batches::

    without a stop     step 0   1   2   3   4   5
    stopped after 2         0   1 | 2   3   4   5      2 ranks, then 1; or 2 workers, then none
    resume of a resume      0   1 | 2 | 3   4   5
"""

from __future__ import annotations

import contextlib
import copy
from collections import Counter
from collections.abc import Callable, Generator, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any

from brimful.base.checks import setting_number
from brimful.base.wording import counted
from brimful.errors import SettingsError

__all__ = ["RunRank", "ResumeCase", "ResumeRow", "ResumeTable", "check_resume", "resume_cases"]


@dataclass(frozen=True)
class RunRank:
    """One rank of one run, for which the factory makes a loader.

    Attributes:
        dp_rank, dp_world_size: the rank, and the number of ranks of the run.
        micro_batches: batches that each rank takes in a step, so that every world has global
            batches of the same size.
        num_workers: worker processes of the loader.
    """

    dp_rank: int
    dp_world_size: int
    micro_batches: int
    num_workers: int


@dataclass(frozen=True)
class ResumeCase:
    """Runs one after another, each from the state of the previous one.

    Attributes:
        name: in the table.
        runs: ranks and workers of each run; the first one gives the expected batches.
        is_late: the state is loaded after the loader has begun to serve, when workers have batches
            ahead.
    """

    name: str
    runs: tuple[tuple[int, int], ...]
    is_late: bool = False


@dataclass
class ResumeRow:
    """Outcome of one case over all its stops.

    Attributes:
        case: that was run.
        verdict: ``exact``; ``same samples, other batches``; ``repeats n, loses m samples``;
            ``unequal ranks``; ``refused``, if a state was refused; ``fails``, with an error while
            serving; or ``no state``.
        stop: number of steps before the first stop that was not exact; None if all were.
        reason: the message of an error.
    """

    case: ResumeCase
    verdict: str = "exact"
    stop: int | None = None
    reason: str = ""

    @property
    def is_exact(self) -> bool:
        """True if no stop changed the batches."""
        return self.verdict == "exact"


@dataclass
class ResumeTable:
    """Rows of one loader, one for each case.

    Attributes:
        title: name of the loader.
        rows: in the order of the cases.
    """

    title: str
    rows: list[ResumeRow] = field(default_factory=list)

    @property
    def is_exact(self) -> bool:
        """True if every case was exact."""
        return all(row.is_exact for row in self.rows)

    def __str__(self) -> str:
        width = max(len(row.case.name) for row in self.rows)
        lines = [self.title]
        for row in self.rows:
            where = "" if row.stop is None else f" (stopped after {counted(row.stop, 'step')})"
            reason = f": {row.reason[:160]}" if row.reason else ""
            lines.append(f"  {row.case.name:<{width}}  {row.verdict}{where}{reason}")
        return "\n".join(lines)


def resume_cases(dp_world_size: int = 2, num_workers: Iterable[int] = (0, 2)) -> list[ResumeCase]:
    """Return the cases of one world: same, half and twice the ranks, resumed twice, late, and with
    other workers.

    >>> [case.name for case in resume_cases(num_workers=[0])][:3]
    ['same ranks', 'half the ranks', 'twice the ranks']
    """
    world, half = dp_world_size, max(1, dp_world_size // 2)
    cases = []
    for workers in num_workers:
        suffix = f", {workers} workers" if workers else ""
        same = (world, workers)
        cases += [
            ResumeCase(f"same ranks{suffix}", (same, same)),
            ResumeCase(f"half the ranks{suffix}", (same, (half, workers))),
            ResumeCase(f"twice the ranks{suffix}", (same, (2 * world, workers))),
            ResumeCase(f"resumed twice{suffix}", (same, same, same)),
            ResumeCase(f"state loaded late{suffix}", (same, same), is_late=True),
        ]
    cases.append(ResumeCase("half the ranks and back", ((world, 0), (half, 0), (world, 0))))
    if any(num_workers):
        cases.append(ResumeCase("0, then 4, then 1 workers", ((world, 0), (world, 4), (world, 1))))
    return cases


def check_resume(
    make_loader: Callable[[RunRank], Any],
    samples_of: Callable[[Any], Iterable[Hashable]],
    *,
    title: str = "loader",
    num_steps: int = 6,
    micro_batches: int = 2,
    cases: Sequence[ResumeCase] | None = None,
    stops: Sequence[int] | None = None,
) -> ResumeTable:
    """Stop a loader at every step, resume from its state, and compare the global batches with a run
    without stops.

    Args:
        make_loader: returns a new loader for a ``RunRank``; iterable, with ``state_dict`` and
            ``load_state_dict``. One that ends is iterated again: it serves the next epoch.
        samples_of: names of the samples of a batch, without filler samples.
        title: of the table.
        num_steps: of the run without a stop; beyond the end of an epoch, if the loader has fewer.
        micro_batches: batches of each rank in a step of the first world; even, if twice the ranks
            are among the cases.
        cases: ``resume_cases()`` if None.
        stops: steps before the first stop; all from 0 to ``num_steps - 1`` if None.

    Raises:
        SettingsError: a world size that does not divide the batches of a step.

    >>> from brimful import PackLoader
    >>> from brimful.testing.toys import toy_packs
    >>> def make(place):
    ...     ranks = {"dp_rank": place.dp_rank, "dp_world_size": place.dp_world_size}
    ...     return PackLoader(toy_packs(10), **ranks, micro_batches=place.micro_batches)
    >>> def samples(batch):
    ...     return [int(pack.sample_ids[0]) for pack in batch if pack.num_loss_tokens]
    >>> check_resume(make, samples, cases=resume_cases(num_workers=[0])).is_exact
    True
    """
    setting_number("num_steps", num_steps, minimum=2)
    table = ResumeTable(title)
    steps_without_stops: dict[tuple[int, int], list[Counter[Hashable]]] = {}
    for case in resume_cases() if cases is None else cases:
        table.rows.append(row := ResumeRow(case))
        first = case.runs[0]
        serve = partial(_serve, make_loader, samples_of, first[0] * micro_batches, case.is_late)
        if first not in steps_without_stops:
            steps_without_stops[first] = serve([first], [num_steps])
        assert any(steps_without_stops[first]), "a loader without samples shows nothing"
        for stop in range(num_steps) if stops is None else stops:
            # Each further run but the last serves one step.
            last = stop + len(case.runs) - 1
            try:
                steps = serve(case.runs, [*range(stop, last), max(num_steps, last)])
                row.verdict = _verdict(steps_without_stops[first], steps[:num_steps])
            except _NotServed as error:
                row.verdict, row.reason = error.verdict, str(error)
            if not row.is_exact:
                row.stop = stop
                break
    return table


class _NotServed(Exception):
    """A run that failed instead of serving its batches."""

    def __init__(self, verdict: str, text: str) -> None:
        super().__init__(text.splitlines()[0] if text else "")
        self.verdict = verdict


@contextlib.contextmanager
def _named(verdict: str) -> Iterator[None]:
    """Give any error of a loader a verdict."""
    try:
        yield
    except Exception as error:
        raise _NotServed(verdict, f"{type(error).__name__}: {error}") from error


def _serve(
    make_loader: Callable[[RunRank], Any],
    samples_of: Callable[[Any], Iterable[Hashable]],
    batches_per_step: int,
    is_late: bool,
    runs: Sequence[tuple[int, int]],
    ends: Sequence[int],
) -> list[Counter[Hashable]]:
    """Serve up to each end with one run after the other, and return the samples of each step."""
    steps: list[Counter[Hashable]] = []
    states: list[Any] = []
    for (world_size, num_workers), end in zip(runs, ends, strict=True):
        own_batches, remainder = divmod(batches_per_step, world_size)
        if remainder:
            raise SettingsError(
                f"{counted(world_size, 'rank')} cannot share {batches_per_step} batches of a "
                "step: give micro_batches as a multiple"
            )
        loaders = []
        for rank in range(world_size):
            loaders.append(
                loader := make_loader(RunRank(rank, world_size, own_batches, num_workers))
            )
            if states:
                iterator = iter(loader) if is_late else iter(())
                next(iterator, None)
                with _named("refused"):
                    # Ranks may have saved different states: take the nearest.
                    loader.load_state_dict(copy.deepcopy(states[rank * len(states) // world_size]))
        ranks = [_without_end(loader) for loader in loaders]
        with contextlib.ExitStack() as stack:
            for batches in ranks:
                stack.callback(batches.close)
            while len(steps) < end:
                with _named("fails"):
                    batches_of_ranks = [list(islice(batches, own_batches)) for batches in ranks]
                    names = [
                        name
                        for batches_of_rank in batches_of_ranks
                        for batch in batches_of_rank
                        for name in samples_of(batch)
                    ]
                num_batches = list(map(len, batches_of_ranks))
                if len(set(num_batches)) > 1:
                    raise _NotServed("unequal ranks", f"{num_batches} batches in one step")
                if not num_batches[0]:
                    break
                steps.append(Counter(names))
            if end != ends[-1]:  # no run resumes from the last one
                with _named("no state"):
                    states = [copy.deepcopy(loader.state_dict()) for loader in loaders]
    return steps


def _without_end(loader: Any) -> Generator[Any, None, None]:
    """Serve one epoch after another, until two in a row are empty."""
    num_empty = 0
    while num_empty < 2:
        num_empty += 1
        for batch in loader:
            num_empty = 0
            yield batch


def _verdict(expected: Sequence[Counter[Hashable]], served: Sequence[Counter[Hashable]]) -> str:
    if list(expected) == list(served):
        return "exact"
    all_expected, all_served = sum(expected, Counter()), sum(served, Counter())
    if all_expected == all_served:
        return "same samples, other batches"
    num_repeated = (all_served - all_expected).total()
    return f"repeats {num_repeated}, loses {counted((all_expected - all_served).total(), 'sample')}"
