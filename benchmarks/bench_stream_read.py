"""Reading a stream by one rank: from local files, from S3 on loopback, and waiting for what is not there yet.

From local files, ``StreamLoader`` serves every pack once and each token is summed; the peer is the bare Arrow memory map
of ``bench_read``, which verifies nothing. The aim is at least half.

From S3, shards come through the cache of copies: requested in parts, compared with size and hash, written to a file,
mapped, and every token summed. The peer is a client that reads the same objects by ranges of the same size, one after
the other, and drops the bytes. Both talk to one server in a process of its own. The aim is at least half.

Waiting: 64 ranks on one directory wait for a shard that does not come; the time of the processor is compared with the
5 % of one core that they may take. The aim is at least 1.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from bench_read import _Bare
from bench_write import write_synthetic_packs
from compare import Row, in_turn, main_of

from brimful.base.blobs import LocalBlobStore
from brimful.errors import StreamTimeoutError
from brimful.stream import StreamLoader
from brimful.stream.followed_packs import FollowedLog
from brimful.testing.toys import ToyProducer

__all__ = ["measure"]

_RANKS, _SHARE = 64, 0.05
_PART_BYTES = 8 << 20


def measure(quick: bool) -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        directory = write_synthetic_packs(2_000_000 if quick else 50_000_000, Path(folder))
        rows = [
            _local(directory, 1 if quick else 7),
            *_s3(directory, Path(folder), 1 if quick else 5),
        ]
    return [*rows, _waiting(2.0 if quick else 30.0)]


def _served(loader: StreamLoader) -> int:
    """Sum every array of every pack, as ``bench_read`` does."""
    total = 0
    for (pack,) in loader:
        touched = (
            pack.loss_mask.sum() + pack.cu_seqlens.sum() + pack.sample_ids.sum() + pack.starts.sum()
        )
        total += int(pack.input_ids.sum(dtype=np.int64)) + 0 * int(touched)
    return total


def _local(directory: Path, repetitions: int) -> Row:
    loader, bare = StreamLoader(directory), _Bare(directory)
    num_packs, num_tokens = len(bare._rows), loader.packs.log.end.tokens  # type: ignore[union-attr]

    def ours() -> int:
        loader.start_epoch(0)
        return _served(loader)

    def peer() -> int:
        return sum(bare.total(index) for index in range(num_packs))

    assert ours() == peer(), "not the same tokens"
    seconds = in_turn({"ours": ours, "peer": peer}, repetitions=repetitions)
    rates = {key: num_tokens / 1e6 / value for key, value in seconds.items()}
    title = f"serve a stream of {num_packs:,} packs"
    return Row(title, "M tokens/s", rates["ours"], "pyarrow memory map", rates["peer"], aim=0.5)


@contextlib.contextmanager
def _server() -> Iterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(300):
            with (
                contextlib.suppress(OSError),
                socket.create_connection(("127.0.0.1", port), timeout=1),
            ):
                break
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


def _s3(directory: Path, folder: Path, repetitions: int) -> list[Row]:
    try:
        import moto.server  # noqa: F401
        import s3fs
    except ImportError as error:
        print(f"left out, S3: {error}", file=sys.stderr)
        return []
    with _server() as address:
        for name, value in {
            "AWS_ENDPOINT_URL": address,
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_DEFAULT_REGION": "us-east-1",
        }.items():
            os.environ[name] = value
        client = s3fs.S3FileSystem()
        client.mkdir("bench")
        for name in ("stream.json", "log", "shards"):
            client.put(
                str(directory / name), f"bench/packs/{name}", recursive=(directory / name).is_dir()
            )
        sizes = {name: client.size(name) for name in client.ls("bench/packs/shards", detail=False)}
        cache = folder / "copies"

        def ours() -> int:
            shutil.rmtree(cache, ignore_errors=True)
            return _served(StreamLoader("s3://bench/packs", cache_dir=cache))

        def peer() -> int:
            return sum(
                len(client.cat_file(name, start=start, end=min(start + _PART_BYTES, size)))
                for name, size in sizes.items()
                for start in range(0, size, _PART_BYTES)
            )

        assert ours() == _served(StreamLoader(directory)), "not the same tokens"
        seconds = in_turn({"ours": ours, "peer": peer}, repetitions=repetitions)
    size = sum(sizes.values()) / 1e6
    title = f"serve {size:,.0f} MB from S3 on loopback"
    return [
        Row(title, "MB/s", size / seconds["ours"], "s3fs, ranges", size / seconds["peer"], aim=0.5)
    ]


def _waiting(seconds: float) -> Row:
    with tempfile.TemporaryDirectory() as folder:
        ToyProducer(folder).append(1)

        def wait() -> None:
            with contextlib.suppress(StreamTimeoutError):
                FollowedLog(LocalBlobStore(folder), timeout=seconds).wait_until(
                    lambda: False, "nothing"
                )

        threads = [threading.Thread(target=wait) for _ in range(_RANKS)]
        begin, begin_processor = time.monotonic(), time.process_time()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        share = (time.process_time() - begin_processor) / (time.monotonic() - begin)
    title = f"{_RANKS} ranks wait for {seconds:.0f} s, {100 * share:.2f} % of a core"
    return Row(
        title,
        "ranks a core",
        _RANKS / share,
        f"{100 * _SHARE:.0f} % of a core",
        _RANKS / _SHARE,
        aim=1.0,
    )


if __name__ == "__main__":
    main_of(measure, __doc__)
