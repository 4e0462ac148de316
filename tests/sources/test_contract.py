"""Every kind of source keeps the contract of ``Rows``."""

import gzip
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from brimful.media.sources.paired_files import PairRows
from brimful.media.sources.tars import TarRows
from brimful.sources import open_source
from brimful.sources.memory import MemoryRows, TableRows
from brimful.sources.rows import ChainedRows, FirstRows
from brimful.testing.contracts import RowsContract
from tests.sources.tools import tar_of


def json_lines(texts):
    return "".join(json.dumps({"text": text}) + "\n" for text in texts).encode()


class TestMemoryRows(RowsContract):
    def make_rows(self, folder, texts):
        return MemoryRows([{"text": text} for text in texts])


class TestJsonLines(RowsContract):
    def make_rows(self, folder, texts):
        (folder / "rows.jsonl").write_bytes(json_lines(texts))
        return open_source(folder / "rows.jsonl").rows


class TestPackedJsonLines(RowsContract):
    def make_rows(self, folder, texts):
        (folder / "rows.jsonl.gz").write_bytes(gzip.compress(json_lines(texts), compresslevel=1))
        return open_source(folder / "rows.jsonl.gz").rows


class TestJsonArray(RowsContract):
    def make_rows(self, folder, texts):
        (folder / "rows.json").write_text(json.dumps([{"text": text} for text in texts], indent=1))
        return open_source(folder / "rows.json").rows


class TestTextLines(RowsContract):
    def make_rows(self, folder, texts):
        (folder / "rows.txt").write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
        return open_source(folder / "rows.txt", text_unit="line").rows

    def text_of(self, row):
        return row


class TestTextFiles(RowsContract):
    num_rows = 300  # blocks of 256 files
    knows_prefixes = False

    def make_rows(self, folder, texts):
        for number, text in enumerate(texts):
            (folder / f"{number:04d}.txt").write_text(text, encoding="utf-8")
        return open_source(folder, text_unit="file").rows

    def text_of(self, row):
        return row


class TestParquetRows(RowsContract):
    knows_prefixes = False

    def make_rows(self, folder, texts):
        pq.write_table(pa.table({"text": list(texts)}), folder / "rows.parquet", row_group_size=1000)
        return open_source(folder / "rows.parquet").rows


class TestPairRows(RowsContract):
    num_rows = 300  # a file each; that blocks are cut is seen in a tar, which has a catalogue too

    def make_rows(self, folder, texts):
        for number, text in enumerate(texts):
            (folder / f"output_{number:08d}.json").write_text(json.dumps({"text": text}, indent=1))
        return PairRows.of(str(folder))


class TestTarRows(RowsContract):
    def make_rows(self, folder, texts):
        members = {f"{number:06d}.json": json.dumps({"text": text}) for number, text in enumerate(texts)}
        return TarRows.of(str(tar_of(folder / "rows.tar", members)))


class TestTableRows(RowsContract):
    knows_prefixes = False

    def make_rows(self, folder, texts):
        return TableRows.of(pa.table({"text": list(texts)}))


class TestHuggingFaceRows(RowsContract):
    knows_prefixes = False

    def make_rows(self, folder, texts):
        datasets = pytest.importorskip("datasets")
        datasets.Dataset.from_dict({"text": list(texts)}).save_to_disk(folder / "saved", num_shards=2)
        return open_source(folder / "saved").rows


class TestChainedRows(RowsContract):
    def make_rows(self, folder, texts):
        return ChainedRows(
            [MemoryRows([{"text": text}], f"part {number}") for number, text in enumerate(texts)], "parts"
        )


class TestFilesOfADirectory(RowsContract):
    knows_prefixes = False  # the last file has another name and another end

    def make_rows(self, folder, texts):
        middle = len(texts) // 2
        (folder / "1.jsonl").write_bytes(json_lines(texts[:middle]))
        (folder / "2.jsonl").write_bytes(json_lines(texts[middle:]))
        return open_source(folder).rows


class TestFirstRows(RowsContract):
    knows_prefixes = False

    def make_rows(self, folder, texts):
        return FirstRows(MemoryRows([{"text": text} for text in [*texts, "left out"]]), len(texts))
