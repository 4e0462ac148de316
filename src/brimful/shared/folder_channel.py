"""A channel of small files in a directory that all ranks see."""

from __future__ import annotations

import contextlib
import os
import uuid
from pathlib import Path

from brimful.shared.channel import Channel

_ASKS = "asks"


class FolderChannel(Channel):
    """Documents as files that appear whole, by renaming.

    What lies there may be of an earlier job that died. So a follower asks by a file with a nonce, and believes only a
    document that answers it: no clock and no name of a job has to be right for that.

    >>> import tempfile
    >>> channel = FolderChannel(Path(tempfile.mkdtemp()))
    >>> channel.put("status", b"12"), channel.get("status"), channel.get("nothing")
    (None, b'12', None)
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def put(self, name: str, data: bytes) -> None:
        # Not flushed to the device as blobs are: after a power cut nobody of this job is left to read it.
        part = self.folder / f".{name}.{os.getpid()}-{uuid.uuid4().hex[:8]}"
        try:
            part.write_bytes(data)
            os.replace(part, self.folder / name)
        except OSError:
            part.unlink(missing_ok=True)
            raise

    def get(self, name: str) -> bytes | None:
        # NFS looks for a new file of that name only after the directory was read again.
        with contextlib.suppress(OSError):
            os.listdir(self.folder)
        try:
            return (self.folder / name).read_bytes()
        except OSError:  # absent, or replaced while it was read (ESTALE): the next look finds it
            return None

    def delete(self, name: str) -> None:
        with contextlib.suppress(OSError):
            (self.folder / name).unlink()

    def tell(self, topic: str, who: str) -> None:
        folder = self.folder / topic
        folder.mkdir(exist_ok=True)
        (folder / who).touch()

    def told(self, topic: str) -> int:
        return len(self._names(topic))

    def ask(self) -> str | None:
        nonce = uuid.uuid4().hex
        self.tell(_ASKS, nonce)
        return nonce

    def asked(self) -> tuple[str, ...]:
        return tuple(self._names(_ASKS))

    def answered(self, nonce: str) -> None:
        with contextlib.suppress(OSError):
            (self.folder / _ASKS / nonce).unlink()

    def clear(self) -> None:
        """Remove what an earlier job left, but for questions: those may be of this job's followers."""
        for entry in list(self.folder.iterdir()):
            if entry.is_dir() and entry.name != _ASKS:
                for name in self._names(entry.name):
                    (entry / name).unlink(missing_ok=True)

    def _names(self, topic: str) -> list[str]:
        try:
            return sorted(os.listdir(self.folder / topic))
        except OSError:
            return []
