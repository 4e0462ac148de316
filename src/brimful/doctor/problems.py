"""Problems that happened before: a sentence for everyone, and the threads where they were told."""

from dataclasses import dataclass
from functools import cache

from brimful.doctor.fact_files import read_toml


@dataclass(frozen=True, slots=True)
class Problem:
    """One kind of fault.

    Attributes:
        name: such as ``neighbors_seen``.
        sentence: what it does to a training, for a person who does not know packing.
        threads: links to where it happened.
    """

    name: str
    sentence: str
    threads: tuple[str, ...]


@cache
def problems() -> dict[str, Problem]:
    """Return all problems by name, from ``problems.toml``."""
    return {
        name: Problem(name, entry["sentence"], tuple(entry["threads"]))
        for name, entry in read_toml("problems.toml").items()
    }


def problem_of(name: str) -> Problem:
    """Return a problem by its name.

    >>> problem_of("neighbors_seen").sentence
    'Samples in one row see each other, so the model learns from texts that do not belong together.'
    """
    return problems()[name]
