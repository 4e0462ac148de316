"""Columns of a pack: named values of each token, such as old log-probabilities, advantages or
expert routes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

import numpy as np
import numpy.typing as npt

from brimful.base.attachment import attachment_inputs
from brimful.base.checks import choice_of, is_number
from brimful.base.typing import AnyArray, BoolArray, CuSeqlens
from brimful.collate.dialects import DIALECTS
from brimful.collate.padding import shift_left
from brimful.errors import CollateError, SettingsError

RESERVED_NAMES = {"target_weights"} | {
    key.name.partition(".")[0] for dialect in DIALECTS.values() for key in dialect.keys
}
"""Names that no column may have: keys of all dialects, and of weights in a part of a row."""


class ColumnPlace(str, Enum):
    """Token to which a value of a column belongs.

    ::

        tokens           a    b    c
        predictions      b    c    .         a predicts b
        token            r_a  r_b  r_c       what the model did or should do when it reads the token
        target           .    p_b  p_c       what belongs to the token as a prediction, as its label does
    """

    TOKEN = "token"
    """The value belongs to the token that is read: routes of its experts, values of a critic. Never
    shifted.
    """
    TARGET = "target"
    """The value belongs to the token that is predicted, like a label: log-probabilities,
    advantages, weights. No token predicts the first token of a segment, so it has the fill value;
    dialects with shifted labels shift the column in the same way.
    """


@dataclass(frozen=True, slots=True, eq=False)
class Column:
    """One value of each of T tokens.

    Attributes:
        name: key in the batch.
        values: ``[T, …]``, numbers of any width, with any further dimensions.
        fill: value at padding, and at tokens without a prediction.
        place: whether values belong to the token that is read (``token``), or to the token that is
            predicted (``target``).

    >>> Column("advantages", np.array([0.0, 1.5], dtype=np.float32))
    Column('advantages', float32[2], fill 0, of the target)
    """

    name: str
    values: AnyArray
    fill: float = 0
    place: ColumnPlace | str = ColumnPlace.TARGET

    def __post_init__(self) -> None:
        object.__setattr__(self, "place", choice_of(ColumnPlace, self.place, argument="place"))
        check_column_name(self.name)
        if (
            not isinstance(self.values, np.ndarray)
            or self.values.dtype.kind not in "biuf"
            or self.values.ndim == 0
        ):
            raise CollateError(
                f"column {self.name!r} must be an array of numbers, [tokens, …], and is "
                f"{_title(self.values)}"
            )
        check_fill(self.name, self.fill, self.values.dtype)

    def __len__(self) -> int:
        return len(self.values)

    def shifted(self, cu_seqlens: CuSeqlens) -> Column:
        """Return the column for shifted labels: values of targets move to the token that predicts
        the target.
        """
        if self.place is ColumnPlace.TOKEN:
            return self
        moved = shift_left(np.moveaxis(self.values, 0, -1), cu_seqlens, by=1, fill=self.fill)
        return replace(self, values=np.ascontiguousarray(np.moveaxis(moved, -1, 0)))

    def __repr__(self) -> str:
        return (
            f"Column({self.name!r}, {_title(self.values)}, fill {self.fill:g}, of the "
            f"{ColumnPlace(self.place).value})"
        )


def check_column_name(name: str) -> None:
    """Refuse names that are not text, and keys of a dialect.

    Raises:
        SettingsError: names the column.
    """
    if not isinstance(name, str) or not name:
        raise SettingsError(f"the name of a column must be a text and is {name!r}")
    if name in RESERVED_NAMES or name in attachment_inputs().ARRAY_KEYS:
        raise SettingsError(
            f"a column cannot be called {name!r}, which is a key of the batch of some trainer: "
            "rename it"
        )


def check_fill(name: str, fill: float, dtype: npt.DTypeLike) -> None:
    """Refuse a fill value that the dtype of the column cannot represent.

    Raises:
        SettingsError: names the column, the fill and the dtype.
    """
    dtype = np.dtype(dtype)
    if not (is_number(fill) or isinstance(fill, (bool, np.bool_))):
        raise SettingsError(f"column {name!r}: fill must be a number and is {fill!r}")
    if dtype.kind == "f":
        return
    limits = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    if not (limits[0] <= fill <= limits[1] and fill == int(fill)):
        raise SettingsError(
            f"column {name!r} is {dtype} and cannot be filled with {fill!r}: choose another fill "
            "or dtype"
        )


def join_columns(
    packs: Sequence[tuple[Sequence[Column], int, str]], cu_seqlens: CuSeqlens, is_token: BoolArray
) -> tuple[Column, ...]:
    """Join columns of several packs into columns of one row, with the fill value at padding.

    ::

        pack values     1 2 3 | 4 5             segments in multiples of 4, fill 9
        of the token    1 2 3 9 | 4 5 9 9
        of the target   9 2 3 9 | 9 5 9 9

    Args:
        packs: columns, number of tokens, and name in errors, for each pack.
        cu_seqlens: ``int32[S + 1]`` of the row; of its trees if segments make trees.
        is_token: ``bool[T]`` of the row, false at padding.

    Raises:
        CollateError: columns that only some packs have; columns whose shape, dtype, fill or place
            differs between packs; or columns for another number of tokens.
    """
    row_columns = []
    by_name = [{column.name: column for column in columns} for columns, _, _ in packs]
    for (columns, num_tokens, title), columns_of_pack in zip(packs, by_name, strict=True):
        if len(columns_of_pack) < len(columns) or columns_of_pack.keys() != by_name[0].keys():
            raise CollateError(
                f"{title} has the columns {[column.name for column in columns]} and others of the "
                f"batch {list(by_name[0])}: give each column once, to all packs or to none"
            )
        for column in columns:
            if len(column) != num_tokens:
                raise CollateError(
                    f"{title}: column {column.name!r} is for {len(column):,} tokens and the pack "
                    f"has {num_tokens:,}"
                )
    for column in packs[0][0]:
        group = [columns_of_pack[column.name] for columns_of_pack in by_name]
        for peer, (_, _, title) in zip(group, packs, strict=True):
            if _described(peer) != _described(column):
                raise CollateError(
                    f"{title}: column {column.name!r} is {_described(peer)} and "
                    f"{_described(column)} elsewhere in the batch"
                )
        values = np.full(
            (len(is_token), *column.values.shape[1:]), column.fill, dtype=column.values.dtype
        )
        values[is_token] = np.concatenate([peer.values for peer in group])
        if column.place is ColumnPlace.TARGET:
            starts = cu_seqlens[:-1]
            values[starts[starts < len(is_token)]] = column.fill
        row_columns.append(replace(column, values=values))
    return tuple(row_columns)


def _described(column: Column) -> str:
    """Describe what columns of one name must have in common; the fill with all digits."""
    shape = "".join(f", {size}" for size in column.values.shape[1:])
    return (
        f"{column.values.dtype}[tokens{shape}] with fill {float(column.fill):.17g} of the "
        f"{ColumnPlace(column.place).value}"
    )


def _title(values: Any) -> str:
    if not isinstance(values, np.ndarray):
        return type(values).__name__
    return f"{values.dtype}[{', '.join(map(str, values.shape))}]"
