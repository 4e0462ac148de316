"""Lengths of all samples: the only thing that planning needs to know about a data set."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from brimful.base.checks import describe, path_of, position
from brimful.base.fingerprint import fingerprint_array, fingerprint_of, short
from brimful.base.tables import Table, open_table, write_table
from brimful.base.typing import AnyIntArray, BoolArray, Fingerprint, Int64Array, Lengths
from brimful.errors import CorruptFileError, InvalidLengthsError, SettingsError
from brimful.lengths.account import Account
from brimful.lengths.targets import Targets

_MAX_LENGTH = 2**31 - 1
"""Largest length: they are int32."""

REJECTED = -1
"""Length of a sample that could not be read or encoded."""

_KIND, _VERSION = "length_table", 1
_TARGETS, _RUNS, _STATES = "targets", "target_runs", "media_states"
"""Columns of a saved table in addition to the budgets."""


class LengthTable:
    """Lengths by named budget: always ``tokens``, and further ones. Immutable; mapped from its file when opened.

    Attributes:
        budgets: ``int32[num_samples]`` of each name.
        tokens: the budget of that name: tokens of each sample, -1 for rejected ones.
        provenance: fingerprints and settings of source and encoder, for comparison.
        rejects: ``[sample_id, where, reason]`` of the rejected samples, the first thousand.
        group_size: samples of one row, which are packed together; 1 for most.
        joins_rows: true if a sample is made of several rows: it depends on its neighbors, and must keep its beginning.
        targets: targets of the loss in each sample; None if they were not measured. Not part of the fingerprint:
            equal lengths are packed alike.
        media_states: ``int64[num_samples]``, states of the files of each sample's media (``measure.media_states``); None in
            a table of texts.

    >>> table = LengthTable({"tokens": np.array([3, -1, 5], dtype=np.int32)})
    >>> table
    LengthTable(3 samples, 8 tokens, 1 rejected, 4ba7723)
    >>> table.rejected_ids.tolist()
    [1]
    """

    def __init__(
        self,
        budgets: Mapping[str, Lengths],
        *,
        provenance: Mapping[str, Any] | None = None,
        rejects: Sequence[Sequence[Any]] = (),
        targets: Targets | None = None,
        media_states: Int64Array | None = None,
        path: str | None = None,
    ) -> None:
        if "tokens" not in budgets:
            raise SettingsError(f"a length table needs the budget 'tokens' and has {sorted(budgets)}")
        sizes = {name: len(column) for name, column in budgets.items()}
        if len(set(sizes.values())) != 1:
            raise InvalidLengthsError(f"the budgets have different numbers of samples: {sizes}")
        self.budgets: dict[str, Lengths] = {
            name: as_lengths(column, "lengths" if name == "tokens" else name) for name, column in budgets.items()
        }
        self.tokens = self.budgets["tokens"]
        self.provenance: dict[str, Any] = dict(provenance or {})
        self.group_size = int(self.provenance.get("group_size", 1))
        self.joins_rows = bool(self.provenance.get("has_mismatches", False))
        self.rejects = [list(reject) for reject in rejects]
        self.targets = targets
        self.media_states = media_states
        self.path = path
        self._fingerprint: Fingerprint | None = None

    @classmethod
    def from_lengths(cls, lengths: AnyIntArray | Sequence[int], **budgets: AnyIntArray | Sequence[int]) -> LengthTable:
        """Make a table of plain numbers; further budgets by keyword.

        >>> LengthTable.from_lengths([3, 5], patches=[0, 64]).budgets["patches"].tolist()
        [0, 64]
        """
        columns = {name: as_lengths(column, name) for name, column in {"tokens": lengths, **budgets}.items()}
        empty_ids = np.flatnonzero(columns["tokens"] < 1).tolist()
        if empty_ids:
            length = int(columns["tokens"][empty_ids[0]])
            raise InvalidLengthsError(f"sample {empty_ids[0]} has length {length}; every sample needs 1 token")
        return cls(columns)

    def __len__(self) -> int:
        return len(self.tokens)

    @overload
    def __getitem__(self, index: int) -> int: ...

    @overload
    def __getitem__(self, index: slice | AnyIntArray | BoolArray) -> Lengths: ...

    def __getitem__(self, index: int | slice | AnyIntArray | BoolArray) -> int | Lengths:
        """Return the tokens of one sample, -1 if it was rejected; for a slice or an array of indices, ``int32``.

        >>> table = LengthTable.from_lengths([3, 5, 4])
        >>> table[0], table[-1], table[1:].tolist()
        (3, 4, [5, 4])
        """
        if isinstance(index, (slice, list, np.ndarray)):
            return self.tokens[index]
        return int(self.tokens[position(index, len(self), "sample")])

    def __iter__(self) -> Iterator[int]:
        return iter(self.tokens.tolist())

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        """Return ``tokens`` for ``np.asarray``; copied only on request."""
        return np.array(self.tokens, dtype=dtype, copy=copy)

    @property
    def rejected_ids(self) -> Int64Array:
        """Ids of the samples that could not be read or encoded: ``int64[num_rejected]``."""
        return np.flatnonzero(self.tokens < 0)

    @property
    def total_tokens(self) -> int:
        """Sum of all lengths."""
        tokens = self.tokens
        return int(tokens.sum(dtype=np.int64)) + int(np.count_nonzero(tokens < 0))

    @property
    def groups(self) -> Int64Array | None:
        """``int64[num_samples]``: the row of each sample, if rows are several samples; otherwise None.

        >>> LengthTable({"tokens": np.array([3, 4, 5, 6], dtype=np.int32)}, provenance={"group_size": 2}).groups.tolist()
        [0, 0, 1, 1]
        """
        return None if self.group_size == 1 else np.arange(len(self)) // self.group_size

    @property
    def account(self) -> Account:
        """Account of the rows: kinds of samples, unread columns, reasons of missing targets."""
        return Account.sum([self.provenance.get("account", {})])

    @property
    def fingerprint(self) -> Fingerprint:
        """Fingerprint of the numbers alone: equal lengths of any origin give equal plans."""
        if self._fingerprint is None:
            parts = {name: fingerprint_array(column) for name, column in self.budgets.items()}
            self._fingerprint = fingerprint_of(parts)
        return self._fingerprint

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the table to one file, atomically."""
        description = {
            "kind": _KIND,
            "version": _VERSION,
            "budgets": list(self.budgets),
            "fingerprint": self.fingerprint,
            "provenance": self.provenance,
            "rejects": self.rejects,
        }
        columns: dict[str, Any] = dict(self.budgets)
        if self.targets is not None:
            description["targets"] = "all" if self.targets.runs is None else "runs"
            if self.targets.runs is not None:
                columns |= {_TARGETS: self.targets.counts, _RUNS: self.targets.runs}
        if self.media_states is not None:
            columns[_STATES] = self.media_states
        write_table(path, columns, description)
        self.path = os.fspath(path)

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> LengthTable:
        """Map a table into memory and check all of its numbers.

        Raises:
            SourceNotFoundError: no such file.
            CorruptFileError: cut short or damaged, or not a length table.
        """
        name = path_of("path", path, "the path of a length table")
        columns = open_table(name)
        meta = columns.description
        if meta.get("kind") != _KIND:
            raise CorruptFileError(f"{name} is a {meta.get('kind', 'file')} and not a length table")
        if meta.get("version") != _VERSION:
            version = meta.get("version")
            raise CorruptFileError(f"{name} has length table version {version}; this brimful reads {_VERSION}")
        try:
            table = cls(
                {budget: columns.flat(budget) for budget in meta["budgets"]},
                provenance=meta["provenance"],
                rejects=meta["rejects"],
                targets=_read_targets(columns, meta.get("targets")),
                media_states=columns.flat(_STATES) if _STATES in columns else None,
                path=name,
            )
            table._fingerprint = meta["fingerprint"]
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptFileError(f"{name}: its description is damaged ({error!r})") from error
        return table

    def __repr__(self) -> str:
        num_rejected = len(self.rejected_ids)
        budgets = "".join(f", {name}" for name in self.budgets if name != "tokens")
        return (
            f"LengthTable({len(self):,} samples, {self.total_tokens:,} tokens{budgets}"
            f"{f', {num_rejected:,} rejected' if num_rejected else ''}, {short(self.fingerprint)})"
        )


def _read_targets(columns: Table, kind: str | None) -> Targets | None:
    """Read the targets of a saved table: runs, ``all`` tokens, or None if they were not measured."""
    if kind is None:
        return None
    if kind == "all":
        return Targets.of_all_tokens(columns.flat("tokens"))
    return Targets(columns.flat(_TARGETS), columns.ragged(_RUNS))


def as_table(lengths: LengthTable | AnyIntArray | Sequence[int]) -> LengthTable:
    """Return the table of these lengths: the table itself, or one of tokens alone.

    Raises:
        InvalidLengthsError: see ``as_lengths``.
    """
    return lengths if isinstance(lengths, LengthTable) else LengthTable({"tokens": as_lengths(lengths)})


def as_lengths(lengths: AnyIntArray | Sequence[int], name: str = "lengths") -> Lengths:
    """Convert one row of whole numbers to ``int32``; an ``int32`` array is returned unchanged.

    Raises:
        InvalidLengthsError: not one row, not whole numbers, or above 2**31 - 1.
    """
    if isinstance(lengths, (str, bytes)) or not (isinstance(lengths, Sequence) or hasattr(lengths, "__array__")):
        raise InvalidLengthsError(
            f"{name} must be whole numbers, one for each sample, and is {describe(lengths)}: open a file of lengths by "
            f"LengthTable.open or numpy.load, and measure data by measure_lengths"
        )
    try:
        array = np.asarray(lengths)
    except ValueError:  # rows of unequal length
        array = np.array([None])
    if array.size == 0:
        array = array.astype(np.int32)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise InvalidLengthsError(f"{name} must be {_expectation(lengths, array)}")
    if array.dtype != np.int32:
        if int(array.max()) > _MAX_LENGTH:
            longest = int(np.argmax(array))
            raise InvalidLengthsError(
                f"{name}: sample {longest} has {int(array[longest]):,}, above the maximum, {_MAX_LENGTH:,}"
            )
        # The conversion would wrap around numbers of wider types.
        if int(array.min()) < -_MAX_LENGTH:
            raise InvalidLengthsError(f"{name}: sample {int(np.argmin(array))} has {int(array.min()):,}")
        array = array.astype(np.int32)
    return array


def _expectation(lengths: Any, array: np.ndarray[Any, Any]) -> str:
    """Return the end of the message ``… must be …``: expected numbers, and the first thing that differs."""
    items = lengths if isinstance(lengths, Sequence) else ()
    for index, item in enumerate(items):
        if not isinstance(item, (int, float, np.number)):
            return (
                f"whole numbers, one for each sample, and the one of sample {index} is {describe(item)}: give the "
                f"number of its tokens"
            )
    if array.ndim != 1:
        return f"one row of numbers and has shape {array.shape}"
    return f"whole numbers and are {array.dtype}"
