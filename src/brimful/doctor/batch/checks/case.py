"""One batch under examination, and the two kinds of finding."""

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from brimful.base.typing import IGNORE_INDEX, BoolArray, Int64Array
from brimful.doctor.batch.claims import Claim
from brimful.doctor.batch.run_facts import RunFacts
from brimful.doctor.batch.view import BatchView, Labeling
from brimful.doctor.report import Evidence, Finding, Judgment


@dataclass(frozen=True, eq=False)
class BatchCase:
    """A batch, and facts of its run.

    Attributes:
        view: the batch.
        facts: special tokens and settings of the run.
        prefix: of its words, such as ``chosen_``.
    """

    view: BatchView
    facts: RunFacts = field(default_factory=RunFacts)
    prefix: str = ""

    @property
    def ids(self) -> Int64Array:
        """Tokens of the flattened batch: ``int64[N]``."""
        return self.view.ids.reshape(-1)

    @cached_property
    def is_target(self) -> BoolArray:
        """Positions that are trained to predict, in the flattened batch: ``bool[N]``."""
        if self.view.labeling is Labeling.NONE:
            return np.zeros(self.view.ids.size, dtype=bool)
        return np.asarray(self.view.targets.reshape(-1) != IGNORE_INDEX)

    @cached_property
    def is_predicted(self) -> BoolArray:
        """Tokens that are trained to be predicted, in the flattened batch: ``bool[N]``."""
        table = np.zeros(self.view.shape, dtype=bool)
        table[:, 1:] = self.is_target.reshape(self.view.shape)[:, :-1]
        return table.reshape(-1)

    @property
    def num_targets(self) -> int:
        """Targets of the batch."""
        return int(self.is_target.sum())

    @property
    def has_labels(self) -> bool:
        """True if the batch says what is trained, in a way that was understood."""
        return self.view.labeling not in (Labeling.NONE, Labeling.OTHER)

    @property
    def labels_name(self) -> str:
        """Keys that lead to the labels."""
        return str(self.view.labels_word or "labels")

    @property
    def positions_name(self) -> str:
        """Keys that lead to the positions."""
        return str(self.view.positions_word or "position_ids")

    @cached_property
    def padding_tokens(self) -> tuple[int, ...]:
        """Tokens of padding: of the tokenizer, or the only one in the padding of the batch."""
        if self.facts.pad:
            return self.facts.pad
        tokens = np.unique(self.view.ids[self.view.padding])
        has_one = len(tokens) == 1 and self.view.labeling is not Labeling.NONE
        return (int(tokens[0]),) if has_one else ()

    @cached_property
    def sample_stops(self) -> Int64Array:
        """End of each segment without the padding that no word marks: ``int64[n]``.

        EOS that is padding as well ends a sample once.
        """
        starts, stops = self.view.bounds
        is_fill = np.isin(self.ids, (*self.padding_tokens, 0)) & ~self.is_predicted
        places = np.where(is_fill, -1, np.arange(len(self.ids)))
        fill_starts = np.maximum(np.maximum.accumulate(places)[stops - 1], starts) + 1
        is_end = np.isin(self.ids, self.facts.ends)
        is_untrained_end = (fill_starts < stops) & is_end[np.minimum(fill_starts, stops - 1)]
        has_end = is_end[fill_starts - 1] & self.is_predicted[fill_starts - 1]
        return np.asarray(fill_starts + (is_untrained_end & ~has_end))

    @cached_property
    def segment_of(self) -> Int64Array:
        """Segment of each token of the flattened batch, -1 in padding: ``int64[N]``."""
        starts, stops = self.view.bounds
        owner = np.searchsorted(starts, np.arange(self.view.ids.size), side="right") - 1
        inside = (owner >= 0) & (np.arange(self.view.ids.size) < stops[owner])
        return np.where(inside, owner, -1).astype(np.int64)

    @property
    def row_starts(self) -> Int64Array:
        """First token of each row in the flattened batch."""
        rows, width = self.view.shape
        return np.arange(rows, dtype=np.int64) * width

    def inner_starts(self, claim: Claim) -> Int64Array:
        """Return the beginnings of a claim at tokens of samples, other than those of rows."""
        starts = claim.starts[claim.real]
        is_real = ~self.view.padding.reshape(-1)[starts]
        return np.setdiff1d(starts[is_real], self._first_tokens)

    @cached_property
    def _first_tokens(self) -> Int64Array:
        """First token of each row that is not padding."""
        starts, _ = self.view.bounds
        rows = self.view.rows_of_segments
        return starts[np.append(True, rows[1:] != rows[:-1])] if len(starts) else starts

    def place(self, token: int) -> str:
        """Return row and column of a token of the flattened batch, in words."""
        row, column = divmod(int(token), self.view.shape[1])
        return f"row {row}, token {column:,}" if self.view.shape[0] > 1 else f"token {column:,}"

    def places(self, tokens: Int64Array) -> str:
        """Return the first places of some tokens, in words."""
        text = "; ".join(self.place(token) for token in tokens[:3].tolist())
        return f"{text} and {len(tokens) - 3:,} more" if len(tokens) > 3 else text


def wrong(topic: str, problem: str, detail: str, change: str = "", thread: str = "") -> Finding:
    """Return a finding about what a batch shows to be wrong."""
    return Finding(topic, Judgment.WRONG, detail, Evidence.SEEN, problem, change, thread)


def suspect(topic: str, problem: str, detail: str, change: str = "") -> Finding:
    """Return a finding about what may be wrong, depending on what a batch does not show."""
    return Finding(topic, Judgment.SUSPECT, detail, Evidence.SEEN, problem, change)
