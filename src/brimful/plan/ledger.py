"""Where every sample and every token went."""

from __future__ import annotations

from dataclasses import asdict, dataclass

__all__ = ["Ledger"]


@dataclass(frozen=True)
class Ledger:
    """The account of one plan: in = packed + dropped, by sample; and truncated beside them, by token.

    Rejected samples (malformed rows) have no length and are counted apart.

    >>> Ledger(samples_in=2, tokens_in=9, samples_packed=1, tokens_packed=4, samples_dropped=1, tokens_dropped=5)
    ... # doctest: +ELLIPSIS
    Ledger(samples_in=2, ...)
    """

    samples_in: int = 0
    tokens_in: int = 0
    samples_packed: int = 0
    tokens_packed: int = 0
    samples_dropped: int = 0
    tokens_dropped: int = 0
    samples_truncated: int = 0
    tokens_truncated: int = 0
    samples_split: int = 0
    segments: int = 0
    samples_rejected: int = 0

    def __post_init__(self) -> None:
        samples = self.samples_packed + self.samples_dropped + self.samples_rejected
        tokens = self.tokens_packed + self.tokens_dropped + self.tokens_truncated
        assert samples == self.samples_in, f"{samples} samples accounted for, {self.samples_in} came in"
        assert tokens == self.tokens_in, f"{tokens} tokens accounted for, {self.tokens_in} came in"

    def as_dict(self) -> dict[str, int]:
        """For JSON."""
        return asdict(self)
