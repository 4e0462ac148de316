"""Numbers and values that callers pass, and the words for them."""

import numpy as np
import pytest

from brimful.base.checks import check_rank, describe, is_number, is_whole_number, position
from brimful.errors import SettingsError


@pytest.mark.parametrize(
    ("value", "is_whole", "is_real"),
    [(3, 1, 1), (np.int32(3), 1, 1), (3.5, 0, 1), (np.float32(3), 0, 1), (True, 0, 0), (np.True_, 0, 0), ("3", 0, 0)],
)
def test_numbers_of_numpy_are_numbers_and_booleans_are_not(value, is_whole, is_real):
    """Lengths come from arrays; a flag that takes the place of a number is a slip."""
    assert (is_whole_number(value), is_number(value)) == (bool(is_whole), bool(is_real))


@pytest.mark.parametrize(("rank", "world_size", "most"), [(-1, 2, 1), (4, 4, 3), (1, 1, 0)])
def test_a_rank_out_of_range_is_told_the_range(rank, world_size, most):
    with pytest.raises(SettingsError, match=f"^dp_rank must be from 0 to {most} and is {rank}$"):
        check_rank(rank, world_size)
    assert check_rank(np.int64(most), world_size) == (most, world_size)


def test_positions_count_from_both_ends_and_end_there():
    """One more would be the first or the last again."""
    assert [position(kind(index), 5, "pack") for kind in (int, np.int64) for index in (-5, -1, 0, 4)] == [
        0,
        4,
        0,
        4,
    ] * 2
    for index in (-6, 5, np.int64(5)):
        with pytest.raises(IndexError, match=f"^pack {index} is not in 0 … 4$"):
            position(index, 5, "pack")
    with pytest.raises(IndexError, match=r"^no pack 0: the sequence is empty$"):
        position(0, 0, "pack")


def test_a_long_value_is_shown_by_its_beginning():
    """A row of a megabyte in a message hides what it says."""
    assert describe("a" * 58) == repr("a" * 58)
    assert describe("a" * 59) == f"'{'a' * 56}…'"
    assert describe(b"a" * 80) == f"b'{'a' * 55}…'"
    assert (describe(_Hidden()), describe(np.arange(2))) == ("a Hidden", "a ndarray")


class _Hidden:
    pass
