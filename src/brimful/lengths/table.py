"""Lengths of all samples: the only thing that planning needs to know about a data set.

Columns of the file, one row a sample:

==========================  =================  =================================================================
``tokens``                  ``int32``          length in tokens; −1 for a rejected sample
others                      ``int32``          further budgets by name, such as ``loss_tokens`` (``brimful
                                               measure --budget loss_tokens``)
``targets``                 ``int32``          targets of the loss of each sample packed whole; only if key
                                               ``targets`` is ``runs``
``target_runs``             list of ``int32``  ``start, end, start, end, …`` of the runs of targets in each
                                               sample; as above
``media_states``            ``int64``          only of an encoder of media: 63 bits of XXH3-64 over ``size
                                               mtime_ns offset size;`` of the file of each medium of the sample
                                               (``docs/media.md``); 0 for a sample without files
``prefix_order``            ``int64``          only with ``--share prefixes``: the samples in an order in which
                                               the ones of a tree are neighbors, in the order of their tokens;
                                               ``prefixes`` in the description has the ``least`` number of
                                               tokens that are shared
``prefix_shared``           ``int32``          tokens that sample ``prefix_order[i]`` shares with
                                               ``prefix_order[i - 1]``; 0 where a tree begins
``prefix_shared_<budget>``  ``int32``          how much of a budget of media lies within these tokens
==========================  =================  =================================================================

Keys of its description, JSON in the metadata of the schema:

=====================  =========================================================================================
``kind``, ``version``  ``"length_table"``, ``1``
``budgets``            names of the columns
``fingerprint``        of the numbers alone
``provenance``         ``settings`` of encoder and format, ``source`` (its title), ``source_fingerprint``,
                       ``parts`` (``[file, rows]`` of each file, in order: the origin of each sample),
                       ``num_samples``; empty for a table of plain numbers
``rejects``            ``[sample_id, where, reason]`` of rejected samples, at most 1,000
``targets``            ``runs``: as in the columns; ``all``: every token but the first is a target; absent: not
                       measured
=====================  =========================================================================================
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from brimful.base.checks import path_of, position
from brimful.base.fingerprint import fingerprint_array, fingerprint_of, short
from brimful.base.sharing import SHARING, SharedLengths, wing_of
from brimful.base.tables import open_table, write_table
from brimful.base.typing import (
    AnyArray,
    AnyIntArray,
    AnyPath,
    BoolArray,
    Fingerprint,
    Int64Array,
    IntArrayLike,
    Lengths,
)
from brimful.errors import CorruptFileError, InvalidLengthsError, SettingsError
from brimful.lengths.targets import Account, Targets, as_lengths

STATES = "media_states"
"""Column of the states of the files of attachments, ``int64``: 0 for a sample without files."""

REJECTED = -1
"""Length of a sample that could not be read or encoded."""

_KIND, _VERSION = "length_table", 1


class LengthTable:
    """Lengths by named budget: always ``tokens``. Immutable; mapped from its file when opened.

    Attributes:
        budgets: ``int32[num_samples]`` of each name.
        tokens: the budget of that name: tokens of each sample, -1 for rejected ones.
        provenance: fingerprints and settings of source and encoder, for comparison.
        rejects: ``[sample_id, where, reason]`` of the rejected samples, the first thousand.
        group_size: samples of one row, which are packed together; 1 for most.
        num_rows: rows that the samples are of.
        per_turn: true if each answer of a conversation is a sample.
        joins_rows: true if a sample is made of several rows, and must keep its beginning.
        targets: targets of the loss in each sample, not in the fingerprint; None if not measured.
        states: ``int64[num_samples]``, states of the files of each sample's attachments; None for
            texts.
        sharing: what samples could share; None if it was not looked for.

    >>> LengthTable({"tokens": np.array([3, -1, 5], dtype=np.int32)})
    LengthTable(3 samples, 8 tokens, 1 rejected, 4ba7723)
    """

    def __init__(
        self,
        budgets: Mapping[str, IntArrayLike],
        *,
        provenance: Mapping[str, Any] | None = None,
        rejects: Sequence[Sequence[Any]] = (),
        targets: Targets | None = None,
        states: Int64Array | None = None,
        sharing: SharedLengths | None = None,
        path: str | None = None,
    ) -> None:
        if "tokens" not in budgets:
            has = sorted(budgets)
            raise SettingsError(f"a length table needs the budget 'tokens' and has {has}")
        self.budgets: dict[str, Lengths] = {
            name: as_lengths(column, "lengths" if name == "tokens" else name)
            for name, column in budgets.items()
        }
        if len(set(map(len, self.budgets.values()))) != 1:
            sizes = {name: len(column) for name, column in self.budgets.items()}
            raise InvalidLengthsError(f"the budgets have different numbers of samples: {sizes}")
        if sharing is not None and len(sharing) != len(budgets["tokens"]):
            raise InvalidLengthsError(
                f"the {sharing.kind.value} are of {len(sharing):,} samples and the lengths of "
                f"{len(budgets['tokens']):,}"
            )
        self.tokens = self.budgets["tokens"]
        self.provenance: dict[str, Any] = dict(provenance or {})
        self.group_size = int(self.provenance.get("group_size", 1))
        self.per_turn = "num_rows" in self.provenance
        self.num_rows = int(self.provenance.get("num_rows", len(self.tokens) // self.group_size))
        self.joins_rows = bool(self.provenance.get("has_mismatches", False))
        self.rejects, self.path = list(map(list, rejects)), path
        self.targets, self.states, self.sharing = targets, states, sharing

    @classmethod
    def from_lengths(cls, lengths: IntArrayLike, **budgets: IntArrayLike) -> LengthTable:
        """Make a table of plain numbers; further budgets by keyword.

        >>> LengthTable.from_lengths([3, 5], patches=[0, 64]).budgets["patches"].tolist()
        [0, 64]
        """
        table = cls({"tokens": as_lengths(lengths, "tokens"), **budgets})
        if len(table) and int(table.tokens.min()) < 1:
            sample = int(np.argmax(table.tokens < 1))
            raise InvalidLengthsError(
                f"sample {sample} has length {table[sample]}; every sample needs 1 token"
            )
        return table

    def __len__(self) -> int:
        return len(self.tokens)

    @overload
    def __getitem__(self, index: int) -> int: ...

    @overload
    def __getitem__(self, index: slice | AnyIntArray | BoolArray) -> Lengths: ...

    def __getitem__(self, index: int | slice | AnyIntArray | BoolArray) -> int | Lengths:
        """Return the tokens of one sample, -1 if it was rejected; of several, ``int32``.

        >>> table = LengthTable.from_lengths([3, 5, 4])
        >>> table[0], table[-1], table[1:].tolist()
        (3, 4, [5, 4])
        """
        if isinstance(index, (slice, list, np.ndarray)):
            return self.tokens[index]
        return int(self.tokens[position(index, len(self), "sample")])

    def __iter__(self) -> Iterator[int]:
        return iter(self.tokens.tolist())

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> AnyArray:
        """Return ``tokens`` for ``np.asarray``; copied only on request."""
        return np.array(self.tokens, dtype=dtype, copy=copy)

    @property
    def rejected_ids(self) -> Int64Array:
        """Ids of the samples that could not be read or encoded: ``int64[num_rejected]``."""
        return np.flatnonzero(self.tokens < 0)

    @property
    def total_tokens(self) -> int:
        """Sum of all lengths."""
        return int(self.tokens.sum(dtype=np.int64)) + len(self.rejected_ids)

    @property
    def groups(self) -> Int64Array | None:
        """``int64[num_samples]``: the row of each sample; None if each row is one sample."""
        return None if self.group_size == 1 else np.arange(len(self)) // self.group_size

    @property
    def account(self) -> Account:
        """Account of the rows: kinds of samples, unread columns, reasons of missing targets."""
        return Account.sum([self.provenance.get("account", {})])

    @cached_property
    def fingerprint(self) -> Fingerprint:
        """Fingerprint of the numbers alone: equal lengths of any origin give equal plans."""
        contents: dict[str, Any] = {
            name: fingerprint_array(self.budgets[name]) for name in self.budgets
        }
        if self.sharing is not None:
            contents[self.sharing.kind.value] = self.sharing.identity
        return fingerprint_of(contents)

    def save(self, path: AnyPath) -> None:
        """Write the table to one file, atomically."""
        description: dict[str, Any] = {"kind": _KIND, "version": _VERSION}
        description |= {"budgets": list(self.budgets), "fingerprint": self.fingerprint}
        description |= {"provenance": self.provenance, "rejects": self.rejects}
        columns: dict[str, Any] = dict(self.budgets)
        if self.targets is not None:
            description["targets"] = self.targets.kind
            columns |= self.targets.columns
        if self.states is not None:
            columns[STATES] = self.states
        if self.sharing is not None:
            description[self.sharing.kind.value] = self.sharing.description
            columns |= self.sharing.columns
        write_table(path, columns, description)
        self.path = os.fspath(path)

    @classmethod
    def open(cls, path: AnyPath) -> LengthTable:
        """Map a table into memory and check all of its numbers.

        Raises:
            SourceNotFoundError: no such file.
            CorruptFileError: cut short or damaged, or not a length table.
        """
        name = path_of("path", path, "the path of a length table")
        columns = open_table(name)
        meta = columns.description
        kind, version = meta.get("kind", "file"), meta.get("version")
        if (kind, version) != (_KIND, _VERSION):
            of_version = f"has length table version {version}; this brimful reads {_VERSION}"
            raise CorruptFileError(
                f"{name} {of_version if kind == _KIND else f'is a {kind} and not a length table'}"
            )
        try:
            table = cls(
                {budget: columns.flat(budget) for budget in meta["budgets"]},
                provenance=meta["provenance"],
                rejects=meta["rejects"],
                targets=Targets.of_columns(columns, meta.get("targets")),
                states=columns.flat(STATES) if STATES in columns else None,
                sharing=next(
                    (
                        wing_of(share).of_table(columns, meta[share.value])
                        for share in SHARING
                        if share.value in meta
                    ),
                    None,
                ),
                path=name,
            )
            table.fingerprint = meta["fingerprint"]
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
