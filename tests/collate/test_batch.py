"""A batch before any dialect."""

from brimful.collate import lay_out
from brimful.testing.toys import toy_pack


def test_positions_have_one_three_or_four_rows():
    """A batch of text has the same in all."""
    batch = lay_out([toy_pack([2, 1])])
    assert batch.position_rows(1).tolist() == [[0, 1, 0]]
    assert batch.position_rows(3).tolist() == [[0, 1, 0]] * 3
    assert batch.position_rows(4).tolist() == [[0, 1, 0]] * 4
