"""One image, video or audio clip: a reference to its bytes, and the tokens that stand for it."""

from __future__ import annotations

import io
import os
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property, partial
from os import pread
from typing import BinaryIO

from brimful.base.attachment import BadAttachmentError
from brimful.base.blobs import BlobStore
from brimful.base.checks import special_file
from brimful.base.fingerprint import fingerprint_bytes, fingerprint_stream, short_digest
from brimful.base.typing import Fingerprint
from brimful.base.wording import setting

_PIECE_BYTES = 1 << 20
"""Bytes of a file that are in memory while it is fingerprinted: a video need not fit."""


class MediaKind(str, Enum):
    """Kind of a medium."""

    IMAGE = "image"
    VIDEO = "video"
    AUDIO = "audio"


class BadMediumError(BadAttachmentError):
    """A medium that cannot be used; gives the reason without its name, which the caller adds."""


@dataclass(frozen=True)
class Medium:
    """One medium of a sample: a whole file, a part of one (a member of a tar), or bytes that came
    with the row.

    Attributes:
        kind: image, video or audio.
        name: as the row has it, for messages and for exports; any text.
        path: absolute path of the file; empty if the bytes came with the row.
        offset: first byte in the file.
        size: bytes; None for all after ``offset``.
        data: the bytes themselves, if they came with the row.
        container: file of a pack store that holds the bytes, at ``offset``; ``path`` is its path or
            URL.

    >>> medium = Medium(MediaKind.IMAGE, "a.png", data=b"abc")
    >>> medium.read(), medium.num_bytes
    (b'abc', 3)
    """

    kind: MediaKind
    name: str
    path: str = ""
    offset: int = 0
    size: int | None = None
    data: bytes | None = None
    container: MediaContainer | None = field(default=None, repr=False, compare=False)

    def open(self) -> BinaryIO:
        """Return a binary file of the medium's bytes alone.

        Raises:
            BadMediumError: the file does not exist or cannot be read.
        """
        if self.data is not None:
            return io.BytesIO(self.data)
        if self.offset or self.size is not None:
            return io.BytesIO(self.read())
        self._state()
        try:
            return open(self.path, "rb")
        except OSError as error:
            raise _unreadable(error) from error

    def read(self) -> bytes:
        """Return the medium's bytes.

        Raises:
            BadMediumError: the file does not exist, cannot be read, or is shorter than it was.
        """
        if self.data is not None:
            return self.data
        if self.container is not None:
            assert self.size is not None
            return self.container.read(self.offset, self.size)
        # The size shows whether a file was cut short, before anything is read.
        num_bytes = self._state().st_size - self.offset
        if self.size is not None and num_bytes < self.size:
            raise BadMediumError(
                f"has {max(0, num_bytes):,} bytes and {self.size:,} are due: the file was cut short"
            )
        try:
            with open(self.path, "rb") as file:
                file.seek(self.offset)
                return file.read(-1 if self.size is None else self.size)
        except OSError as error:
            raise _unreadable(error) from error

    @cached_property
    def num_bytes(self) -> int:
        """Bytes of the medium; ``BadMediumError`` if the file does not exist."""
        if self.data is not None:
            return len(self.data)
        if self.size is not None:
            return self.size
        return self._state().st_size - self.offset

    def fingerprint(self) -> Fingerprint:
        """Return the fingerprint of its bytes; a file is read a piece at a time.

        Raises:
            BadMediumError: as for ``read``.
        """
        with self.open() as file:
            try:
                return fingerprint_stream(iter(partial(file.read, _PIECE_BYTES), b""))
            except OSError as error:
                raise _unreadable(error) from error

    def state(self) -> bytes:
        """Return what identifies its bytes without reading them: size and time of the file, offset
        and size in it.

        A copy that keeps times (``cp -p``, ``rsync -a``) has the same state. Empty for bytes that
        came with the row.

        Raises:
            BadMediumError: the file does not exist.
        """
        if not self.path:
            return b""
        state = self._state()
        return f"{state.st_size} {state.st_mtime_ns} {self.offset} {self.size};".encode()

    def stamp(self) -> int:
        """Return a number for the current state of its file (size, times, inode); 0 for bytes that
        are not in a file.

        Equal numbers mean that the file was not written in between: the number includes the time
        that the system sets at each write, not only the time of the last change, which a copying
        tool may set back.

        Raises:
            BadMediumError: the file does not exist.
        """
        if not self.path:
            return 0
        state = self._state()
        return short_digest(
            f"{state.st_size} {state.st_mtime_ns} {state.st_ctime_ns} {state.st_ino}".encode()
        )

    def _state(self) -> os.stat_result:
        """Return the state of its file, checked before opening: a pipe would block, and a device
        has no end.
        """
        try:
            state = os.stat(self.path)
        except OSError as error:
            raise _unreadable(error) from error
        special = special_file(state.st_mode)
        if special:
            raise BadMediumError(f"is {special} and not a file: {self.path!r}")
        return state


def _unreadable(error: OSError) -> BadMediumError:
    # The whole path: the name in the row is often right, and the directory wrong.
    if isinstance(error, FileNotFoundError):
        return BadMediumError(f"does not exist, looked for at {str(error.filename)!r}")
    return BadMediumError(f"{error.strerror}: {str(error.filename)!r}")


_NOT_OPEN = -1
"""Number in the place of an open file."""


class MediaContainer:
    """Bytes of media in one blob of a store. Picklable and safe to fork: each process opens the
    file itself.

    Args:
        store: of the packs.
        key: of the blob.
        holds_features: true if its members are blocks of features (``media/feature_block.py``), not
            files.

    Attributes:
        path: of the file, or its URL.

    >>> import tempfile
    >>> from brimful.base.blobs import open_blob_store
    >>> store = open_blob_store(tempfile.mkdtemp())
    >>> store.put_atomic("media/a.tar", b"abcdef")
    >>> MediaContainer(store, "media/a.tar").read(2, 3)
    b'cde'
    """

    def __init__(self, store: BlobStore, key: str, holds_features: bool = False) -> None:
        self.store, self.key, self.holds_features = store, key, holds_features
        self._local_path = store.local_path(key)
        self.path = self._local_path or f"{store.url}/{key}"
        self._descriptor = _NOT_OPEN

    def read(self, offset: int, size: int) -> bytes:
        """Return a range of the bytes.

        Raises:
            BadMediumError: the file is gone, cannot be read, or is too short.
        """
        try:
            if self._local_path is None:
                content = self.store.get_range(self.key, offset, offset + size)
            else:
                # By position: the descriptor is shared with forked processes. Not by a memory map:
                # its pages stay in the process until it holds the whole file, and a read past the
                # end of a file that was cut kills the process.
                if self._descriptor < 0:
                    self._descriptor = os.open(self._local_path, os.O_RDONLY)
                content = pread(self._descriptor, size, offset)
                # A call reads at most 2 GiB, and a film may have more.
                while len(content) < size:
                    rest = pread(self._descriptor, size - len(content), offset + len(content))
                    if not rest:
                        break
                    content += rest
        except OSError as error:
            reason = (
                "is missing"
                if isinstance(error, FileNotFoundError)
                else str(error.strerror or error)
            )
            raise BadMediumError(f"its file {self.path} {reason}: write the packs again") from error
        if len(content) != size:
            raise BadMediumError(
                f"its file {self.path} ends at byte {offset + len(content):,}: write the packs "
                "again"
            )
        return content

    def __reduce__(self) -> tuple[object, ...]:
        return MediaContainer, (self.store, self.key, self.holds_features)

    def __del__(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = _NOT_OPEN


CHANGED = "was changed since it was packed: restore it, or pack the data again"
"""Reason for bytes that differ from the packed ones."""


_READ = (
    *("length", "num_tokens", "num_patches", "grid", "num_frames", "num_mel_frames", "runs"),
    "seconds_per_grid",
)
"""Facts of a placed medium that decide what a model reads of it, besides its bytes."""


@dataclass(frozen=True)
class PlacedMedium:
    """One image, video or audio clip of an encoded sample, or of a pack.

    Attributes:
        medium: where its bytes are.
        start: first of its tokens, counted in the sample or in the pack.
        length: number of its tokens: all that replace its placeholder.
        num_tokens: number of these whose embeddings come from a tower.
        num_patches: patches of the vision tower.
        grid: patches along time, height and width; None for audio, and for models without a grid.
        num_frames: frames taken from a video; 1 for an image.
        num_mel_frames: columns of the spectrogram of an audio clip.
        runs: first token of each run of tokens from a tower, counted from ``start``: several in a
            video whose frames are between timestamps.
        seconds_per_grid: seconds from one grid of a video to the next, for models whose positions
            follow them.
        segment: number of the segment that it belongs to; 0 in a sample.
        fingerprint: of its bytes when it was packed; empty before packing.
        stamp: state of its file before its header was read (``Medium.stamp``); 0 for bytes that
            came with the row.
        shard: while packs are written, the shard whose container holds its bytes, at the offset of
            ``medium``; -1 for a reference to a file.
    """

    medium: Medium
    start: int
    length: int
    num_tokens: int
    num_patches: int = 0
    grid: tuple[int, int, int] | None = None
    num_frames: int = 0
    num_mel_frames: int = 0
    runs: tuple[int, ...] = (0,)
    seconds_per_grid: float | None = None
    segment: int = 0
    fingerprint: Fingerprint = ""
    stamp: int = field(default=0, repr=False, compare=False)
    shard: int = field(default=-1, repr=False, compare=False)

    @property
    def title(self) -> str:
        """Kind and name, for messages."""
        return f"{self.medium.kind.value} {self.medium.name[:200]!r}"

    @property
    def identity(self) -> bytes:
        """Bytes that are equal if a model reads two media as equal: of their content (equal bytes
        that came with rows, or one place in files with its state) and of what was made of it.

        Raises:
            BadMediumError: its file is gone.

        >>> one, other = (PlacedMedium(Medium(MediaKind.IMAGE, name, data=b"a"), 0, 4, 4) for name in "ab")
        >>> one.identity == other.identity, one.identity == replace(other, num_frames=2).identity
        (True, False)
        """
        medium, facts = self.medium, [getattr(self, name) for name in _READ]
        content = medium.state() if medium.data is None else medium.fingerprint()
        return repr((medium.kind.value, medium.path, content, facts)).encode()

    @property
    def is_unchanged(self) -> bool:
        """True if its file is in the state in which its header was read; ``BadMediumError`` if it
        is gone.
        """
        return self.medium.stamp() == self.stamp

    def in_container(self, shard: int, offset: int, size: int) -> PlacedMedium:
        """Return the medium with its bytes in the container of a shard, for a pack to write."""
        medium = replace(self.medium, path="", offset=offset, size=size, data=None)
        return replace(self, medium=medium, shard=shard)

    def read(self) -> bytes:
        """Return the medium's bytes, which must equal the packed ones.

        Raises:
            BadMediumError: it is gone, was changed after packing, or is stored as features.
        """
        source = self.medium.container
        if source is not None and source.holds_features:
            raise BadMediumError(
                "is in the store as features, and its bytes are not: pack with "
                f"{setting('media_storage', 'bytes')} or {setting('media_storage', 'references')}"
            )
        content = self.medium.read()
        if self.fingerprint and fingerprint_bytes(content) != self.fingerprint:
            if source is None:
                raise BadMediumError(CHANGED)
            end = self.medium.offset + len(content)
            raise BadMediumError(
                f"bytes {self.medium.offset:,} … {end:,} of {source.path} differ from what was "
                "written: write the packs again"
            )
        return content
