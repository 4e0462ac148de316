"""What was read of the rows, beside their lengths: kinds of samples, columns that nobody read, why targets are missing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from brimful.sources.sample import Sample

__all__ = ["Account"]


@dataclass
class Account:
    """Counts of samples by what was read of them.

    Attributes:
        kinds: samples that are chats, texts and rows of tokens.
        unread: samples that have a column which nobody reads, by its name.
        no_target: samples without a target of the loss, by the reason.

    >>> account = Account()
    >>> account.add(Sample(0, text="a", unread=("id",)))
    >>> account.as_dict()
    {'kinds': {'text': 1}, 'unread': {'id': 1}, 'no_target': {}}
    """

    kinds: Counter[str] = field(default_factory=Counter)
    unread: Counter[str] = field(default_factory=Counter)
    no_target: Counter[str] = field(default_factory=Counter)

    def add(self, sample: Sample) -> None:
        """Count one sample that was encoded."""
        self.kinds[sample.kind] += 1
        if sample.unread:
            self.unread.update(sample.unread)

    @classmethod
    def sum(cls, accounts: Iterable[Mapping[str, Mapping[str, int]]]) -> Account:
        """Of several parts of a data set, each as ``as_dict`` gives it."""
        total = cls()
        for account in accounts:
            total.kinds.update(account.get("kinds", {}))
            total.unread.update(account.get("unread", {}))
            total.no_target.update(account.get("no_target", {}))
        return total

    def as_dict(self) -> dict[str, Any]:
        """For JSON, the most frequent first."""
        return {
            "kinds": dict(self.kinds.most_common()),
            "unread": dict(self.unread.most_common()),
            "no_target": dict(self.no_target.most_common()),
        }
