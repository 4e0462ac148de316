"""Packs with the bytes of their pictures, read and checked, against the same bytes in a bare Arrow file.

Ours is ``open_packs(directory)[i]`` and ``PlacedMedium.read`` for each picture: shard and row found, checksum of the row, places of
the media, bytes by range from their container, fingerprint of the bytes. The peer maps one Arrow file of the same columns (tokens, mask,
lengths, sample ids and starts as in a shard, pictures as ``list<large_binary>``), takes the arrays of a row as views, its mask in bits and
each picture as ``bytes``, and checks nothing. Both sum every array and count the bytes that they got. Files are in the page cache, and
opened anew for each pass, as a process reads a medium once in an epoch. A second pass through what is open is printed beside it:
then each page that the peer maps is in its memory, which grows to the size of the file, and ours stays as it was.

Then the peak memory of a whole job that packs and reads, in a process of its own: 2,000 and 20,000 samples with a small picture
each. It stays flat as samples grow tenfold if the ratio is near 1. Private memory is the process's own (``RssAnon``); pages of
mapped files, which belong to the cache of the system and are shared with other processes, are in the other row.
"""

from __future__ import annotations

import io
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from compare import Row, in_turn, main_of

from brimful import PlanSettings, open_packs, open_source, pack_dataset
from brimful.encode.encoded import EncodedSample
from brimful.media import PlacedMedium
from brimful.serve import PackStore
from brimful.sources import Sample
from brimful.testing.toys import toy_chat_encoder

__all__ = ["measure"]

_TOKENS_OF_PICTURE = 256
_CAPACITY = 2048


class _PictureEncoder(type(toy_chat_encoder())):  # type: ignore[misc]
    """The toy encoder with a fixed number of tokens for a picture."""

    takes_attachments = True

    @property
    def budgets(self) -> tuple[str, ...]:
        return ("images",)

    @property
    def length_settings(self) -> dict[str, Any]:
        return {**super().length_settings, "media": {"family": "a fixed number of tokens"}}

    def attachment_sizes(self, attachments: Any) -> dict[str, int]:
        return {"images": len(attachments)}

    def encode_batch(self, samples: Any) -> list[Any]:
        return [_encoded(sample) for sample in samples]


def _encoded(sample: Sample) -> EncodedSample:
    media, ids = [], np.full(_TOKENS_OF_PICTURE * len(sample.attachments) + 4, 7, dtype=np.int32)
    for index, medium in enumerate(sample.attachments):
        size = _TOKENS_OF_PICTURE
        grid = (1, 32, 32)
        media.append(
            PlacedMedium(
                medium, size * index, size, num_tokens=size, num_patches=4 * size, grid=grid
            )
        )
    return EncodedSample(ids, np.arange(len(ids)) >= len(ids) - 4, tuple(media))


def _pictures(folder: Path, count: int, num_bytes: int) -> None:
    """Write files of random bytes: nobody decodes them here."""
    folder.mkdir(parents=True)
    for number in range(count):
        (folder / f"{number}.jpg").write_bytes(np.random.default_rng(number).bytes(num_bytes))


def _pack(home: Path, count: int, directory: Path, storage: str) -> PackStore:
    rows = home / "rows.jsonl"
    with open(rows, "w", encoding="utf-8") as file:
        for number in range(count):
            messages = [
                {"role": "user", "content": "<image>"},
                {"role": "assistant", "content": "ok"},
            ]
            file.write(
                json.dumps({"messages": messages, "images": [f"pictures/{number}.jpg"]}) + "\n"
            )
    source = open_source(rows, media=True, cache_dir=home / "cache")
    settings = PlanSettings(capacity=_CAPACITY)
    pack_dataset(
        source,
        _PictureEncoder(),
        directory,
        settings,
        media_storage=storage,
        cache_dir=home / "cache",
    )
    return open_packs(directory)


def _write_bare(packs: PackStore, path: Path) -> None:
    """Write the same bytes as one Arrow file: every column of the packs, and the pictures beside them."""
    schema = pa.schema(
        [
            ("input_ids", pa.list_(pa.int32())),
            ("loss_mask", pa.binary()),
            ("lengths", pa.list_(pa.int32())),
            ("sample_ids", pa.list_(pa.int64())),
            ("starts", pa.list_(pa.int32())),
            ("pictures", pa.list_(pa.large_binary())),
        ]
    )
    with pa.OSFile(str(path), "w") as sink, pa.ipc.new_file(sink, schema) as writer:
        for begin in range(0, len(packs), 16):
            group = packs[begin : begin + 16]
            columns = [
                [pack.input_ids for pack in group],
                [np.packbits(pack.loss_mask, bitorder="little").tobytes() for pack in group],
                [np.diff(pack.cu_seqlens) for pack in group],
                [pack.sample_ids for pack in group],
                [pack.starts for pack in group],
                [[item.read() for item in pack.attachments] for pack in group],
            ]
            writer.write_batch(pa.record_batch(columns, schema=schema))


def _rows(path: Path) -> list[tuple[Any, int]]:
    """Map the file of the peer, and return its rows with their batches at hand."""
    reader = pa.ipc.open_file(pa.memory_map(str(path)))
    batches = [reader.get_batch(number) for number in range(reader.num_record_batches)]
    return [(batch, row) for batch in batches for row in range(batch.num_rows)]


def _reading(home: Path, count: int, num_bytes: int, repetitions: int) -> list[Row]:
    _pictures(home / "pictures", count, num_bytes)
    packs = _pack(home, count, home / "packs", "bytes")
    bare = home / "bare.arrow"
    _write_bare(packs, bare)
    megabytes = count * num_bytes / 1e6
    title = f"{count:,} pictures of {num_bytes / 1e3:,.0f} kB in {len(packs):,} packs, at random"
    order = np.random.default_rng(0).permutation(len(packs)).tolist()

    def ours(packs: PackStore) -> int:
        total = 0
        for index in order:
            pack = packs[index]
            touched = (
                pack.loss_mask.sum()
                + pack.cu_seqlens.sum()
                + pack.sample_ids.sum()
                + pack.starts.sum()
            )
            total += 0 * int(pack.input_ids.sum() + touched) + sum(
                len(item.read()) for item in pack.attachments
            )
        return total

    def peer(rows: list[tuple[Any, int]]) -> int:
        total = 0
        for index in order:
            batch, row = rows[index]
            ids, *numbers = (
                batch.column(name)[row].values.to_numpy()
                for name in ("input_ids", "lengths", "sample_ids", "starts")
            )
            bits = np.frombuffer(batch.column("loss_mask")[row].as_buffer(), dtype=np.uint8)
            touched = bits.sum() + sum(column.sum() for column in numbers)
            total += 0 * int(ids.sum() + touched) + sum(
                len(picture.as_py()) for picture in batch.column("pictures")[row]
            )
        return total

    assert ours(packs) == peer(_rows(bare)) == count * num_bytes, "not the same bytes"
    opened = packs, _rows(bare)
    return [
        *_compared(f"{title}, files opened anew", megabytes, repetitions, {
            "ours": lambda: ours(open_packs(home / "packs")), "peer": lambda: peer(_rows(bare)),
        }),
        *_compared(f"{title}, a second time", megabytes, repetitions, {
            "ours": lambda: ours(opened[0]), "peer": lambda: peer(opened[1]),
        }),
    ]  # fmt: skip


def _compared(
    title: str, megabytes: float, repetitions: int, functions: dict[str, Any]
) -> list[Row]:
    """Two rows: ours and the peer in turn, on the clock and by processor time."""
    processor: dict[str, list[float]] = {name: [] for name in functions}

    def timed(name: str) -> Any:
        def call() -> None:
            start = time.process_time()
            functions[name]()
            processor[name].append(time.process_time() - start)

        return call

    seconds = in_turn({name: timed(name) for name in functions}, repetitions=repetitions)
    on_the_clock = {name: megabytes / value for name, value in seconds.items()}
    # The first round is not counted, as on the clock; of a machine that others use too, this is the number that holds.
    of_processor = {
        name: megabytes / statistics.median(values[1:]) for name, values in processor.items()
    }
    return [
        Row(
            title,
            "MB/s",
            on_the_clock["ours"],
            "bare Arrow file, memory map",
            on_the_clock["peer"],
            aim=0.5,
        ),
        Row(
            "the same, by processor time",
            "MB/s",
            of_processor["ours"],
            "as above",
            of_processor["peer"],
            aim=0.5,
        ),
    ]


_PEAK = """
import sys, threading
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import bench_media_read
peaks, is_done = {"RssAnon": 0, "VmRSS": 0}, threading.Event()
def watch():
    while not is_done.wait(0.002):
        for line in open("/proc/self/status"):
            name, value = line.split(":")
            if name in peaks:
                peaks[name] = max(peaks[name], int(value.split()[0]))
watcher = threading.Thread(target=watch)
watcher.start()
home = Path(sys.argv[2])
packs = bench_media_read._pack(home, int(sys.argv[3]), home / sys.argv[4], sys.argv[4])
assert sum(len(item.read()) for pack in packs for item in pack.attachments)
is_done.set()
watcher.join()
print(peaks["RssAnon"], peaks["VmRSS"])
"""


def _peak_memory(home: Path, count: int, storage: str) -> tuple[float, float]:
    """Megabytes of the process that packs and reads so many samples with a PNG each: private ones, and all resident ones."""
    from PIL import Image

    folder = home / str(count)
    if not folder.exists():
        (folder / "pictures").mkdir(parents=True)
        for number in range(count):
            pixels = np.random.default_rng(number).integers(0, 256, (24, 24, 3), dtype=np.uint8)
            file = io.BytesIO()
            Image.fromarray(pixels).save(file, "PNG")
            (folder / "pictures" / f"{number}.jpg").write_bytes(file.getvalue())
    command = [
        sys.executable,
        "-c",
        _PEAK,
        str(Path(__file__).resolve().parent),
        str(folder),
        str(count),
        storage,
    ]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    private, resident = (int(value) / 1e3 for value in text.split()[-2:])
    return private, resident


def measure(quick: bool) -> list[Row]:
    """Rows for the shared table."""
    rows = []
    for count, num_bytes in ((200, 100_000),) if quick else ((2_000, 100_000), (10_000, 10_000)):
        with tempfile.TemporaryDirectory() as folder:
            rows += _reading(Path(folder), count, num_bytes, 1 if quick else 7)
    few, many = (200, 2_000) if quick else (2_000, 20_000)
    with tempfile.TemporaryDirectory() as folder:
        for storage in ("references", "bytes"):
            (private, resident), peer = (
                _peak_memory(Path(folder), count, storage) for count in (many, few)
            )
            title = f"peak private memory of a job of {many:,} samples with a PNG each, {storage}"
            name = f"{few:,} samples"
            rows.append(Row(title, "MB", private, name, peer[0], less_is_better=True, aim=0.8))
            title = "the same, with pages of mapped files"
            rows.append(Row(title, "MB", resident, name, peer[1], less_is_better=True))
    return rows


if __name__ == "__main__":
    main_of(measure, __doc__)
