"""Account of the rows, next to their lengths: kinds of samples, unread columns, reasons of missing targets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol


class ReadSample(Protocol):
    """Sample as its source gives it."""

    @property
    def kind(self) -> str:
        """Kind of sample: a chat, a text, a row of tokens."""

    @property
    def unread(self) -> tuple[str, ...]:
        """Columns that are not read."""


@dataclass
class Account:
    """Counts of samples by what was read from them.

    Attributes:
        kinds: samples that are chats, texts and rows of tokens.
        unread: samples with a column that is not read, by its name.
        no_target: samples without a target of the loss, by the reason.
        filtered: samples that a filter left out, by its name. Duplicates are encoded first, and counted above too.

    >>> from brimful.sources import Sample
    >>> account = Account()
    >>> account.add([Sample(0, text="a", unread=("id",))])
    >>> account.as_dict()
    {'kinds': {'text': 1}, 'unread': {'id': 1}, 'no_target': {}}
    """

    kinds: Counter[str] = field(default_factory=Counter)
    unread: Counter[str] = field(default_factory=Counter)
    no_target: Counter[str] = field(default_factory=Counter)
    filtered: Counter[str] = field(default_factory=Counter)

    def add(self, samples: Iterable[ReadSample]) -> None:
        """Count samples that were encoded."""
        samples = list(samples)
        self.kinds.update([sample.kind for sample in samples])
        for unread in filter(None, [sample.unread for sample in samples]):
            self.unread.update(unread)

    @classmethod
    def sum(cls, accounts: Iterable[Mapping[str, Mapping[str, int]]]) -> Account:
        """Add the accounts of several parts of a data set, each in the form of ``as_dict``."""
        total = cls()
        for account in accounts:
            for name, counter in vars(total).items():
                counter.update(account.get(name, {}))
        return total

    def as_dict(self) -> dict[str, Any]:
        """Return the counts for JSON, in descending order; ``filtered`` only if a filter left out something."""
        counts = {name: dict(counter.most_common()) for name, counter in vars(self).items()}
        return {name: count for name, count in counts.items() if count or name != "filtered"}
