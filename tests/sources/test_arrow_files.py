"""Rows of Arrow and Parquet files: what their blocks are told apart by."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from brimful.measure import measure_lengths
from brimful.sources import arrow_files, open_source, rows
from tests.measure.encoders import Letters


@pytest.mark.parametrize("group", [7, 4])
def test_pieces_of_a_row_group_have_their_own_lengths(tmp_path, monkeypatch, group):
    """Lengths are kept by the fingerprint of a piece: if two are equal, rows have the lengths of others."""
    monkeypatch.setattr(arrow_files, "_PIECE_ROWS", 2)
    monkeypatch.setattr(rows, "BLOCK_ROWS", 2)
    texts = ["a" * number for number in range(1, 8)]
    pq.write_table(pa.table({"text": texts}), tmp_path / "rows.parquet", row_group_size=group)
    source = open_source(tmp_path / "rows.parquet")
    assert len({block.fingerprint for block in source.rows.blocks}) == len(source.rows.blocks) > 3
    assert measure_lengths(source, Letters()).tokens.tolist() == [*map(len, texts)]
