"""Where every sample and every token went."""

from __future__ import annotations

from dataclasses import asdict, dataclass

__all__ = ["MUCH_LOST", "Ledger", "drop_reason"]

MUCH_LOST = 0.05
"""Share of the tokens from which a loss gets a warning: it is then seen in the mixture, and is rarely wanted."""


def drop_reason(name: str) -> str:
    """Words for a name in the setting ``dropped_by`` of a plan.

    >>> drop_reason("tokens"), drop_reason("patches")
    ('longer than a pack', 'for patches')
    """
    return _WHY.get(name, f"for {name}")


_WHY = {
    "tokens": "longer than a pack",
    "no_target": "without a target of the loss",
    "group_mate_rejected": "of a group that lost one to an error",
}


@dataclass(frozen=True)
class Ledger:
    """The account of one plan: in = packed + dropped, by sample; and truncated beside them, by token.

    Rejected samples (malformed rows) have no length and are counted apart. Targets of the loss are counted where they
    were measured: in = packed + dropped + cut, where ``cut`` are those that truncation takes and the first tokens of
    segments in the middle of a sample, which are no targets any more.

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
    samples_without_target: int = 0
    targets_in: int | None = None
    targets_packed: int | None = None
    targets_dropped: int | None = None
    targets_cut: int | None = None

    def __post_init__(self) -> None:
        samples = self.samples_packed + self.samples_dropped + self.samples_rejected
        tokens = self.tokens_packed + self.tokens_dropped + self.tokens_truncated
        assert samples == self.samples_in, f"{samples} samples accounted for, {self.samples_in} came in"
        assert tokens == self.tokens_in, f"{tokens} tokens accounted for, {self.tokens_in} came in"
        if self.targets_in is not None:
            targets = (self.targets_packed or 0) + (self.targets_dropped or 0) + (self.targets_cut or 0)
            assert targets == self.targets_in, f"{targets} targets accounted for, {self.targets_in} came in"

    @property
    def lost_ratio(self) -> float:
        """Share of the tokens that came in and are in no pack: dropped or truncated."""
        return (self.tokens_dropped + self.tokens_truncated) / max(1, self.tokens_in)

    @property
    def targets_lost_ratio(self) -> float:
        """Share of the targets that came in and are in no pack; 0 where they were not measured."""
        return ((self.targets_dropped or 0) + (self.targets_cut or 0)) / max(1, self.targets_in or 0)

    def as_dict(self) -> dict[str, int]:
        """For JSON; targets only where they were measured."""
        return {name: value for name, value in asdict(self).items() if value is not None}
