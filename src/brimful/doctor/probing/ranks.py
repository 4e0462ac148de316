"""Talk of the ranks of a job that never hangs: values in the store of their process group, with
timeouts.

A collective that one rank does not join stops all others for as long as the job's own timeout. A
store has no such state: each rank writes what it has, waits for the others for a limited time, and
then all take the same list of missing ranks, the one that was written first::

    rank 0    write 0 · wait for 0, 1, 2 · nothing of 2    missing [2] ┐ first one counts
    rank 1    write 1 · wait for 0, 1, 2 · nothing of 2    missing [2] ┘
    rank 2    (late) write 2 · wait · all are there        missing [2]   reads the same list
"""

import itertools
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from brimful.serve.process_group import process_group

_NUMBERS = itertools.count()
"""Number of each talk of this process: all ranks open theirs in the same order."""


class ProbeStopped(Exception):
    """A probe that cannot go on: the reason. Training does."""


@dataclass(frozen=True)
class Answers:
    """Answers of all ranks to one question, the same on every rank.

    Attributes:
        values: of each rank that answered, by its number.
        missing: ranks that gave no answer in time.
    """

    values: dict[int, Any]
    missing: tuple[int, ...] = ()


@dataclass
class RankTalk:
    """Questions that all ranks of a group answer.

    Attributes:
        rank: number of this process in the job.
        ranks: numbers of all ranks of the group.
        timeout: seconds that a rank waits for the others at each question.
        store: key-value store of the process group; None for a single process.

    >>> RankTalk().ask("ready", True)
    Answers(values={0: True}, missing=())
    """

    rank: int = 0
    ranks: Sequence[int] = (0,)
    timeout: float = 60.0
    store: Any = None
    _number: int = field(default_factory=lambda: next(_NUMBERS))

    @classmethod
    def of_group(cls, group: Any = None, timeout: float = 60.0) -> "RankTalk":
        """Open the talk of a process group; of the default group if None, of this process alone
        without one.
        """
        distributed = process_group()
        if distributed is None:
            return cls(timeout=timeout)
        from torch.distributed import distributed_c10d

        ranks = distributed.get_process_group_ranks(group or distributed.group.WORLD)
        store = distributed_c10d._get_default_store()
        return cls(distributed.get_rank(), ranks, timeout, store if len(ranks) > 1 else None)

    @property
    def is_alone(self) -> bool:
        """True if no other rank takes part."""
        return self.store is None

    @property
    def is_first(self) -> bool:
        """True on the rank that speaks for the group."""
        return self.rank == self.ranks[0]

    def ask(self, question: str, value: Any) -> Answers:
        """Give this rank's answer and return all answers; each rank asks the same questions in the
        same order.

        Args:
            question: its name; each is asked once.
            value: the answer of this rank: numbers, strings, lists and dictionaries.
        """
        if self.store is None:
            return Answers({self.rank: value})
        topic = f"brimful/probe/{self._number}/{self.ranks[0]}/{question}"
        keys = {rank: f"{topic}/{rank}" for rank in self.ranks}
        try:
            self.store.set(keys[self.rank], json.dumps(value))
            absent = self._absent(keys)
            # The first list that is written counts for all, also on a rank that came late.
            text = self.store.compare_set(f"{topic}/missing", "", json.dumps(absent))
            absentees = tuple(json.loads(text))
            values = {
                rank: json.loads(self.store.get(key))
                for rank, key in keys.items()
                if rank not in absentees
            }
        except RuntimeError:  # the process that holds the store is gone
            absentees = tuple(rank for rank in self.ranks if rank != self.rank)
            return Answers({self.rank: value}, absentees)
        return Answers(values, absentees)

    def agree(self, question: str, reason: str, *values: Any) -> dict[int, list[Any]]:
        """Ask all ranks whether each can go on, and return the other values of each.

        Raises:
            ProbeStopped: a rank cannot, for a reason that is not empty, or gave no answer; names it.
        """
        answers = self.ask(question, [reason, *values])
        if answers.missing:
            names = rank_names(answers.missing)
            raise ProbeStopped(f"no answer from {names} in {self.timeout:g} seconds")
        for rank, (text, *_) in answers.values.items():
            if text:
                prefix = "" if self.is_alone else f"{rank_names([rank])}: "
                raise ProbeStopped(f"{prefix}{text}")
        return {rank: pair[1:] for rank, pair in answers.values.items()}

    def _absent(self, keys: dict[int, str]) -> list[int]:
        """Wait for all keys; return the ranks without one when the time is over."""
        try:
            self.store.wait(list(keys.values()), timedelta(seconds=self.timeout))
        except RuntimeError:
            return [rank for rank, key in keys.items() if not self.store.check([key])]
        return []


def rank_names(numbers: Iterable[int]) -> str:
    """Return the name of ranks.

    >>> rank_names([3]), rank_names([0, 1, 5])
    ('rank 3', 'ranks 0, 1 and 5')
    """
    *names, last = map(str, numbers)
    return f"ranks {', '.join(names)} and {last}" if names else f"rank {last}"
