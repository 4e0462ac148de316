"""Writing packs whose tokens are there already, against bare Arrow writing the same bytes to the same disk.

Ours is ``write_packs`` from the tokens that measuring leaves (``StoredSamples``): gathers the segments of each pack,
packs the masks into bits, sums every row and every file, writes, flushes, renames, and commits each shard in the log.

The peers hold the same content of the same shards in memory, and do nothing but write it with ``pyarrow.ipc``, flush
the file to the device and close it; they make files of the same size, to the byte:

- *from arrays*: NumPy rows of every pack, which Arrow takes over batch by batch, as whoever writes packs by hand does.
  The aim, at least half its speed, is held against it, in one process each.
- *from record batches*: nothing to take over any more: the least that any writer must do.

The disk is the limit of all: the last row is one ``write`` and one flush of as many zeros. It is the disk of the
temporary directory: set TMPDIR where that is memory.

Data: 200 MB of packs of 8,192 random tokens, samples of lognormal length.
"""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from compare import Row, in_turn, main_of

from brimful.base.execute import available_cores
from brimful.encode.encoded import EncodedBatch, EncodedSample, StoredSamples, write_stored
from brimful.plan import Plan, plan_packs
from brimful.sources import Source, open_source
from brimful.store import write_packs
from brimful.testing.toys import toy_chat_encoder

__all__ = ["lengths_like_chats", "measure", "write_synthetic_packs"]

CAPACITY = 8192
_BLOCK = 4096


def lengths_like_chats(tokens: int, seed: int = 0) -> np.ndarray:
    """``int32``: lengths of samples, lognormal with a median of 350, that add up to about so many tokens."""
    rng = np.random.default_rng(seed)
    drawn = np.exp(rng.normal(np.log(350), 0.9, size=tokens // 400)).astype(np.int32)
    return np.clip(drawn, 8, CAPACITY)


def stored_samples(lengths: np.ndarray, folder: Path) -> StoredSamples:
    """Random samples of these lengths on disk, as measuring leaves them: the second half of each is a target."""
    rng = np.random.default_rng(1)
    parts = []
    for begin in range(0, len(lengths), _BLOCK):
        samples = []
        for length in lengths[begin : begin + _BLOCK].tolist():
            ids = rng.integers(0, 150_000, length, dtype=np.int32)
            samples.append(EncodedSample(ids, np.arange(length) >= length // 2))
        path = str(folder / f"{begin}.arrow")
        batch = EncodedBatch.of(samples)
        write_stored(path, batch.ids, batch.loss_mask)
        parts.append((begin, path))
    return StoredSamples(parts)


def synthetic_job(tokens: int, folder: Path) -> tuple[Plan, Source, StoredSamples]:
    """A plan, a source of as many rows, which nobody reads, and the encoded samples."""
    lengths = lengths_like_chats(tokens)
    (folder / "encoded").mkdir(parents=True)
    plan = plan_packs(lengths, capacity=CAPACITY)
    plan.save(folder / "plan.arrow")
    source = open_source([{"text": "x"}] * len(lengths))
    return plan, source, stored_samples(lengths, folder / "encoded")


def write_synthetic_packs(tokens: int, folder: Path) -> Path:
    """A pack store of random tokens; for benchmarks of reading."""
    plan, source, encoded = synthetic_job(tokens, folder)
    write_packs(plan, source, toy_chat_encoder(), folder / "packs", encoded=encoded)
    return folder / "packs"


def measure(quick: bool) -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        return _measure(Path(folder), 2_000_000 if quick else 50_000_000, 1 if quick else 5)


def _measure(home: Path, tokens: int, repetitions: int) -> list[Row]:
    plan, source, encoded = synthetic_job(tokens, home)
    encoder = toy_chat_encoder()
    fresh = itertools.count()

    def ours(num_proc: int) -> Callable[[], object]:
        def write() -> None:
            write_packs(
                plan,
                source,
                encoder,
                home / f"out{next(fresh)}",
                encoded=encoded,
                num_proc=num_proc,
            )

        return write

    ours(1)()
    shards = [_in_memory(path) for path in sorted((home / "out0" / "shards").iterdir())]
    size = sum(path.stat().st_size for path in (home / "out0" / "shards").iterdir())

    def write_files(
        shards: Sequence[tuple[pa.Schema, Sequence[Any]]], take: Callable[[Any], pa.RecordBatch]
    ) -> None:
        folder = home / f"out{next(fresh)}"
        folder.mkdir()
        for number, (schema, batches) in enumerate(shards):
            with open(folder / f"{number}.arrow", "wb") as file:
                with pa.ipc.new_file(file, schema) as writer:
                    for batch in batches:
                        writer.write_batch(take(batch))
                file.flush()
                os.fsync(file.fileno())
        assert sum(path.stat().st_size for path in folder.iterdir()) == size, "not the same bytes"

    rows_of = [
        (schema, [(schema, _rows(batch)) for batch in batches]) for schema, batches in shards
    ]

    zeros = bytes(size)

    def plain() -> None:
        folder = home / f"out{next(fresh)}"
        folder.mkdir()
        with open(folder / "zeros", "wb", buffering=0) as file:
            view = memoryview(zeros)
            while view:
                view = view[file.write(view) :]
            os.fsync(file.fileno())

    def clean() -> None:
        for folder in home.glob("out*"):
            shutil.rmtree(folder)

    cores = available_cores()
    functions = {
        "ours": ours(1),
        "arrays": lambda: write_files(rows_of, lambda batch: _record_batch(*batch)),
        "batches": lambda: write_files(shards, lambda batch: batch),
        "plain": plain,
    }
    if cores > 1 and len(shards) > 1:
        functions["all"] = ours(cores)
    seconds = in_turn(functions, repetitions=repetitions, before=clean)
    rates = {name: size / 1e6 / time for name, time in seconds.items()}
    title = f"write {plan.num_packs:,} packs, {size / 1e6:,.0f} MB in {len(shards)} shards"
    rows = [
        Row(
            f"{title}, num_proc 1",
            "MB/s",
            rates["ours"],
            "pyarrow IPC from arrays",
            rates["arrays"],
            aim=0.5,
        )
    ]
    if "all" in rates:
        rows.append(
            Row(
                f"{title}, num_proc {cores}",
                "MB/s",
                rates["all"],
                "pyarrow IPC from arrays",
                rates["arrays"],
            )
        )
    return [
        *rows,
        Row(
            f"{title}, num_proc 1",
            "MB/s",
            rates["ours"],
            "pyarrow IPC from record batches",
            rates["batches"],
        ),
        Row(
            f"{title}, num_proc 1",
            "MB/s",
            rates["ours"],
            "one write + fsync (disk)",
            rates["plain"],
        ),
    ]


def _in_memory(path: Path) -> tuple[pa.Schema, list[pa.RecordBatch]]:
    """The record batches of a shard, copied out of the file."""
    reader = pa.ipc.open_file(pa.BufferReader(pa.py_buffer(path.read_bytes())))
    return reader.schema, [reader.get_batch(number) for number in range(reader.num_record_batches)]


def _rows(batch: pa.RecordBatch) -> list[list[np.ndarray]]:
    """Per column, one array a pack; the checksums are one array for all."""
    columns = []
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if name == "checksum":
            columns.append([column.to_numpy()])
        elif name == "loss_mask":
            columns.append(
                [np.frombuffer(mask.as_buffer(), dtype=np.uint8).copy() for mask in column]
            )
        else:
            columns.append([row.values.to_numpy().copy() for row in column])
    return columns


def _record_batch(schema: pa.Schema, columns: Sequence[Sequence[np.ndarray]]) -> pa.RecordBatch:
    """One batch from the rows of each column, with no more copies than Arrow needs: one."""
    arrays = []
    for field, rows in zip(schema, columns, strict=True):
        values = np.concatenate(rows)
        offsets = np.zeros(len(rows) + 1, dtype=np.int32)
        np.cumsum([len(row) for row in rows], out=offsets[1:])
        if field.name == "checksum":
            arrays.append(pa.array(values))
        elif field.name == "loss_mask":
            buffers = [None, pa.py_buffer(offsets), pa.py_buffer(values)]
            arrays.append(pa.Array.from_buffers(field.type, len(rows), buffers))
        else:
            arrays.append(pa.ListArray.from_arrays(pa.array(offsets), pa.array(values)))
    return pa.record_batch(arrays, schema=schema)


if __name__ == "__main__":
    main_of(measure, __doc__)
