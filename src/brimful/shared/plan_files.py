"""Files of plans that ranks share: kept under what decides them, opened by everybody, sent in chunks where needed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

from brimful.blobs import atomic_file
from brimful.errors import BrimfulError, CorruptFileError
from brimful.fingerprint import fingerprint_stream
from brimful.plan import Plan
from brimful.shared.channel import Channel
from brimful.shared.status import PublishedFile
from brimful.typing import Fingerprint

CHUNK_BYTES = 1 << 20
"""Bytes of one document when a file is sent: stores refuse values of more than a few MB."""


def published(directory: Path, path: str) -> PublishedFile:
    """Describe a file below a directory for those who open it."""
    return PublishedFile(path, os.path.getsize(directory / path), fingerprint_stream(_pieces(directory / path)))


def is_here(directory: Path, file: PublishedFile) -> bool:
    """Return true if a file of that size lies here; its content is held against its fingerprint when it is opened."""
    try:
        return (directory / file.path).stat().st_size == file.num_bytes
    except OSError:
        return False


def open_published(directory: Path, file: PublishedFile, fingerprint: Fingerprint) -> Plan | None:
    """Map a plan if it lies here and is the one that was published; None if it is absent or another.

    Milliseconds, whatever its size: its arrays are held against the fingerprint by who serves them.
    """
    if not is_here(directory, file):
        return None
    try:
        plan = Plan.open(directory / file.path)
    except (BrimfulError, OSError):
        return None
    return plan if plan.fingerprint == fingerprint else None


def send(channel: Channel, file: PublishedFile, directory: Path) -> None:
    """Put a file into the channel, chunk by chunk."""
    for number, piece in enumerate(_pieces(directory / file.path)):
        channel.put(_chunk(file, number), piece)


def receive(channel: Channel, file: PublishedFile, directory: Path, wait: Callable[[], None]) -> None:
    """Write a file from its chunks; it appears whole, and only if it is what was published.

    Args:
        wait: called while the next chunk is not there; raises if it will never come.

    Raises:
        CorruptFileError: the bytes that came are others.
    """
    with atomic_file(directory / file.path) as part:

        def arriving() -> Iterator[bytes]:
            for number in range(_num_chunks(file)):
                while (piece := channel.get(_chunk(file, number))) is None:
                    wait()
                part.write(piece)
                yield piece

        if fingerprint_stream(arriving()) != file.content:
            raise CorruptFileError(
                f"{directory / file.path}: the copy that rank 0 sent differs from its plan: start again"
            )


def forget(channel: Channel, file: PublishedFile) -> None:
    """Take the chunks of a file out of the channel."""
    for number in range(_num_chunks(file)):
        channel.delete(_chunk(file, number))


def _num_chunks(file: PublishedFile) -> int:
    return -(-file.num_bytes // CHUNK_BYTES)


def _chunk(file: PublishedFile, number: int) -> str:
    return f"{file.path}:{number}"


def _pieces(path: Path) -> Iterator[bytes]:
    with open(path, "rb") as file:
        while piece := file.read(CHUNK_BYTES):
            yield piece
