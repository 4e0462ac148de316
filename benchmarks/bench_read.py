"""Reading packs, every token touched, against a bare Arrow memory map of the same columns of the same files.

Ours is ``open_packs(directory)[i]``: finds the shard, verifies the checksum of the row, and gives tokens, mask,
boundaries and sample ids. The peer maps the same files, keeps their record batches at hand, and takes each of the
same columns of a row with ``.values.to_numpy()``; it verifies nothing and leaves the mask in bits. Both then sum every
array. In the rows with labels, ours also makes the ``int64`` labels and sums them; the peer stays as it is.

The files are in the page cache: this is the work of the reader, not of the disk. The aim is at least 0.3.

Data: 200 MB of packs of 8,192 random tokens, in order and in a random order.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
from bench_write import write_synthetic_packs
from compare import Row, in_turn, main_of

from brimful.serve import open_packs

__all__ = ["measure"]


def measure(quick: bool) -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        directory = write_synthetic_packs(2_000_000 if quick else 50_000_000, Path(folder))
        return _measure(directory, 1 if quick else 7)


class _Bare:
    """The rows of all shards, and nothing that a mapped Arrow file does not give by itself."""

    def __init__(self, directory: Path) -> None:
        self._rows: list[tuple[pa.RecordBatch, int]] = []
        for path in sorted((directory / "shards").iterdir()):
            reader = pa.ipc.open_file(pa.memory_map(str(path)))
            for number in range(reader.num_record_batches):
                batch = reader.get_batch(number)
                self._rows += [(batch, row) for row in range(batch.num_rows)]

    def total(self, index: int) -> int:
        batch, row = self._rows[index]
        ids = batch.column("input_ids")[row].values.to_numpy()
        bits = np.frombuffer(batch.column("loss_mask")[row].as_buffer(), dtype=np.uint8)
        lengths = batch.column("lengths")[row].values.to_numpy()
        sample_ids = batch.column("sample_ids")[row].values.to_numpy()
        starts = batch.column("starts")[row].values.to_numpy()
        touched = bits.sum() + lengths.sum() + sample_ids.sum() + starts.sum()
        return int(ids.sum(dtype=np.int64)) + 0 * int(touched)


def _measure(directory: Path, repetitions: int) -> list[Row]:
    packs, bare = open_packs(directory), _Bare(directory)
    size = sum(path.stat().st_size for path in (directory / "shards").iterdir())
    orders = {
        "in order": np.arange(len(packs)).tolist(),
        "at random": np.random.default_rng(0).permutation(len(packs)).tolist(),
    }
    rows = []
    for name, order in orders.items():

        def ours(order: Sequence[int] = order, labels: bool = False) -> int:
            total = 0
            for index in order:
                pack = packs[index]
                touched = (
                    pack.loss_mask.sum()
                    + pack.cu_seqlens.sum()
                    + pack.sample_ids.sum()
                    + pack.starts.sum()
                )
                total += int(pack.input_ids.sum(dtype=np.int64)) + 0 * int(touched)
                if labels:
                    pack.labels.sum()
            return total

        def peer(order: Sequence[int] = order) -> int:
            return sum(bare.total(index) for index in order)

        assert ours() == peer(), "not the same tokens"
        seconds = in_turn(
            {"ours": ours, "labels": lambda: ours(labels=True), "peer": peer},
            repetitions=repetitions,
        )
        rates = {key: packs.num_tokens / 1e6 / time for key, time in seconds.items()}
        title = f"read {len(packs):,} packs {name}, {size / 1e6:,.0f} MB"
        rows += [
            Row(title, "M tokens/s", rates["ours"], "pyarrow memory map", rates["peer"], aim=0.3),
            Row(
                f"{title}, labels made",
                "M tokens/s",
                rates["labels"],
                "pyarrow memory map",
                rates["peer"],
            ),
        ]
    return rows


if __name__ == "__main__":
    main_of(measure, __doc__)
