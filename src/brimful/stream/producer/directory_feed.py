"""Data that is still arriving: ``open_feed``, and files of a directory as they arrive.

JSON lines may grow; other files are complete once they have their name.
"""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any

from brimful.base.arguments import as_settings, settings_from
from brimful.base.checks import MalformedRowError
from brimful.base.fingerprint import fingerprint_bytes, fingerprint_of
from brimful.base.typing import AnyPath
from brimful.errors import BadSampleError, SettingsError, SourceError, SourceNotFoundError
from brimful.integrations.packed_layouts import rows_of_line
from brimful.sources.copies import is_json_array
from brimful.sources.directory import is_pack_store
from brimful.sources.json_rows import row_of_line
from brimful.sources.opening import (
    LINE_ENDINGS,
    STANDARD_INPUT,
    file_type_of,
    open_source,
    row_settings,
)
from brimful.sources.reading import Reading
from brimful.sources.rows import MAX_ROW_BYTES, oversized
from brimful.sources.sample import Sample
from brimful.sources.settings import RowSettings, SourceSettings
from brimful.sources.source import Source
from brimful.sources.stamp import require_file
from brimful.stream.producer.feed import (
    Cursor,
    Feed,
    IteratorFeed,
    arriving_lines,
    numbered,
    reading_of_arrivals,
    sample_of,
)

_CHECKED_BYTES = 4096
"""Bytes before a position that must be unchanged when reading continues after it."""

_PIECE_BYTES = 1 << 20
"""Maximum bytes of one read of a growing file."""

_BOM = b"\xef\xbb\xbf"


@dataclass
class _Progress:
    """Position in one file, as stored in a cursor.

    Attributes:
        rows: taken so far.
        bytes: for a file of lines, the bytes that were taken; for a whole file, its size.
        check: fingerprint of bytes that must be unchanged when reading continues.
        format: name of the format of its rows, once it is known.
        is_done: the whole file was taken.
    """

    rows: int = 0
    bytes: int = 0
    check: str = ""
    format: str | None = None
    is_done: bool = False


class DirectoryFeed(Feed):
    """Samples of the files in a directory and in the folders below it, in the order of their
    arrival.

    Files that exist at the same time come in the order of their names. A file that was begun is
    first read to its current end. A line of ``.jsonl`` is taken once it has its line end, so the
    file may grow. Every other file must be complete when it gets its name: write it as ``.name``
    and rename it. Hidden files are skipped. Each name is read once.

    A ``.txt`` next to a recording of its name is its transcript, and a ``.json`` next to a medium
    of its name is a row with it (``brimful.media.sources.paired_files``). If media are taken, a ``.txt``
    waits for its recording.

    Args:
        directory: searched again whenever everything found so far has been taken.
        settings: of the rows.
        only: name of the one file that is read; all if None.
        cache_dir: directory of line indexes and catalogues of whole files.
    """

    def __init__(
        self,
        directory: AnyPath,
        settings: RowSettings,
        *,
        only: str | None = None,
        cache_dir: AnyPath | None = None,
    ) -> None:
        self._directory, self._settings, self._only, self._cache = (
            Path(directory),
            settings,
            only,
            cache_dir,
        )
        self.title = str(self._directory if only is None else self._directory / only)
        self._start()

    def _start(self) -> None:
        self._files: dict[str, _Progress] = {}
        self._unsettled: dict[str, None] = {}
        self._current = ""
        self._queue: deque[str] = deque()
        self._readings: dict[str, Reading] = {}  # of files of lines
        self._source: tuple[str, Source] | None = None
        self._media: dict[str, list[str]] = {}  # names of media of the last listing, by their stem
        self.is_ended = False

    def poll(
        self, most: int, first_id: int, *, is_last: bool = False
    ) -> list[Sample | BadSampleError]:
        samples: list[Sample | BadSampleError] = []
        has_moved = is_listed = False
        while len(samples) < most:
            if not self._queue:
                # Only a current listing can say that nothing has come: more files may have arrived
                # since the last one.
                if samples or is_listed:
                    break
                self._queue, is_listed = deque(self._unread_names(is_last=is_last)), True
                continue
            name = self._queue[0]
            progress = self._files.setdefault(name, _Progress())
            earlier = progress.rows, progress.bytes, progress.is_done
            next_id, room = first_id + len(samples), most - len(samples)
            if name.lower().endswith(LINE_ENDINGS):
                taken = self._take_lines(name, progress, room, is_last)
            else:
                taken = (
                    self._take_pair(name, progress)
                    if self._is_pair(name)
                    else self._take_rows(name, progress, room)
                )
            samples += [numbered(sample, next_id + index) for index, sample in enumerate(taken)]
            is_moved = (progress.rows, progress.bytes, progress.is_done) != earlier
            if is_moved:
                has_moved = True
                self._unsettled[name] = None
                self._current = name
            if progress.is_done or not is_moved:
                self._queue.popleft()
        self.is_ended = is_last and not has_moved and not self._queue
        return samples

    def _unread_names(self, *, is_last: bool) -> list[str]:
        """Return the names of files that may have unread data: first the one that was begun, then
        the others.
        """
        names = []
        for name, size in sorted(self._sizes()):
            progress = self._files.get(name)
            if progress is None:
                # A transcript without its recording has not come yet.
                is_pair = not is_last and self._is_pair(name)
                if not is_pair or self._pairs.stem_of(name) in self._media:
                    names.append(name)
            elif size < progress.bytes or (progress.is_done and size != progress.bytes):
                raise SourceError(
                    f"{self._directory / name} has {size:,} bytes and had {progress.bytes:,} when "
                    "it was read: files may grow by lines of .jsonl, and no other change; give "
                    "new rows a new name"
                )
            elif size > progress.bytes or (
                not name.lower().endswith(LINE_ENDINGS) and not progress.is_done
            ):
                names.append(name)
        if self._current in names:
            names.remove(self._current)
            names.insert(0, self._current)
        return names

    def _sizes(self) -> list[tuple[str, int]]:
        """Return names and sizes of all data files."""
        if self._only is not None:
            return [(self._only, os.path.getsize(self._directory / self._only))]
        sizes, folders = [], [""]
        self._media = {}
        while folders:
            folder = folders.pop()
            with os.scandir(self._directory / folder) as entries:
                for entry in entries:
                    name = f"{folder}{entry.name}"
                    if entry.name.startswith("."):
                        continue
                    if entry.is_dir():
                        if not is_pack_store(entry.path):
                            folders.append(f"{name}/")
                    elif file_type_of(entry.name) is not None:
                        status = entry.stat()
                        require_file(entry.path, status)
                        sizes.append((name, status.st_size))
                    elif self._pairs.media_kind(entry.name) is not None:
                        self._media.setdefault(self._pairs.stem_of(name), []).append(entry.name)
        return sizes

    @cached_property
    def _pairs(self) -> Any:
        """Names of files next to media; loaded at the first file that is not of rows."""
        return import_module("brimful.media.sources.paired_files")

    def _is_pair(self, name: str) -> bool:
        """Return true for a file that belongs to a medium of its name, which exists or will
        arrive.
        """
        takes_media = self._settings.media_dir is not None
        if self._only is not None or not (self._media or takes_media):
            return False  # a stream of texts loads nothing of media
        transcript = self._pairs.TRANSCRIPT
        if not name.endswith((transcript, self._pairs.ROW)):
            return False
        if self._pairs.stem_of(name) not in self._media:
            return takes_media and name.endswith(transcript)
        # If media are not taken, it is still a pair, and is refused: words without their audio are
        # a different sample.
        return name.endswith(transcript) or not is_json_array(str(self._directory / name))

    def _take_pair(self, name: str, progress: _Progress) -> list[Sample | BadSampleError]:
        """Take the one row of a file next to a medium."""
        path = self._directory / name
        data = path.read_bytes()
        media = self._media.get(self._pairs.stem_of(name), [])
        row = self._pairs.row_beside(path.suffix, data, media)
        # Media of its name are in the same folder, wherever other rows have theirs.
        settings, folder = self._settings, str(path.parent)
        if settings.media_dir is not None:
            settings = replace(settings, media_dir=folder)
        reading = (
            None
            if isinstance(row, MalformedRowError)
            else reading_of_arrivals(settings, [row], str(path), folder)
        )
        progress.rows, progress.bytes, progress.is_done = 1, len(data), True
        progress.format = None if reading is None else reading.format.name
        return [sample_of(row, reading, str(path))]

    def _take_rows(
        self, name: str, progress: _Progress, most: int
    ) -> list[Sample | BadSampleError]:
        """Take rows of a file that is complete; a file that was begun must be unchanged."""
        if self._source is None or self._source[0] != name:
            path = self._directory / name
            with open(path, "rb") as file:
                size = os.fstat(file.fileno()).st_size
                file.seek(max(0, size - _CHECKED_BYTES))
                check = fingerprint_of([size, fingerprint_bytes(file.read())])
            if progress.check not in ("", check):
                raise SourceError(
                    f"{path} was changed after its first {progress.rows:,} rows were taken"
                )
            settings = settings_from(SourceSettings, vars(self._settings))
            source = open_source(path, settings, cache_dir=self._cache)
            progress.bytes, progress.check, progress.format = size, check, source.format_name
            self._source = (name, source)
        source = self._source[1]
        stop = min(progress.rows + most, len(source))
        samples = list(source.read(progress.rows, stop))
        progress.rows, progress.is_done = stop, stop == len(source)
        if progress.is_done:
            self._source = None
        return samples

    def _take_lines(
        self, name: str, progress: _Progress, most: int, is_last: bool
    ) -> list[Sample | BadSampleError]:
        """Take lines of a file that may grow; take a last line without a line end only if nothing
        more will come.
        """
        path = self._directory / name
        with open(path, "rb") as file:
            start = max(0, progress.bytes - _CHECKED_BYTES)
            file.seek(start)
            tail = file.read(progress.bytes - start)
            if progress.check not in ("", fingerprint_bytes(tail)):
                raise SourceError(
                    f"{path} was changed before byte {progress.bytes:,}, up to which it was read"
                )
            data = file.read(_PIECE_BYTES)
            while (
                b"\n" not in data and len(data) <= MAX_ROW_BYTES and (piece := file.read(len(data)))
            ):
                data += piece
            is_end = is_last and not file.read(1)
        if b"\n" not in data and len(data) > MAX_ROW_BYTES:
            raise SourceError(f"{path}: row {progress.rows}: {oversized()}")
        lines = data.split(b"\n")
        # After the last line end comes part of a line, or nothing.
        remainder = lines.pop()
        ends = [line + b"\n" for line in lines] + ([remainder] if is_end and remainder else [])
        rows: list[Any] = []
        num_bytes = 0
        for line in ends:
            if len(rows) >= most:  # the samples of a packed line come together
                break
            text = line.removeprefix(_BOM) if progress.bytes + num_bytes == 0 else line
            num_bytes += len(line)
            if text.strip():
                row = row_of_line(text)
                rows += rows_of_line(name, row)
        reading = self._readings.get(name)
        if rows and reading is None:
            settings = replace(self._settings, format=self._settings.format or progress.format)
            reading = reading_of_arrivals(settings, rows, str(path), str(path.parent))
            if reading is not None:
                self._readings[name] = reading
                progress.format = reading.format.name
        samples = [
            sample_of(row, reading, f"{path}: row {row_index}")
            for row_index, row in enumerate(rows, progress.rows)
        ]
        progress.check = fingerprint_bytes((tail + data[:num_bytes])[-_CHECKED_BYTES:])
        progress.rows += len(rows)
        progress.bytes += num_bytes
        return samples

    def cursor(self) -> Cursor:
        return {
            "current": self._current,
            "files": {name: asdict(self._files[name]) for name in self._unsettled},
        }

    def settle(self) -> None:
        self._unsettled.clear()

    def seek(self, cursors: Sequence[Cursor]) -> None:
        self._start()
        for cursor in cursors:
            self._current = cursor["current"]
            self._files.update(
                {name: _Progress(**values) for name, values in cursor["files"].items()}
            )
        for name, progress in self._files.items():
            is_begun = (
                progress.rows and not progress.is_done and not name.lower().endswith(LINE_ENDINGS)
            )
            if is_begun and not (self._directory / name).exists():
                raise SourceError(
                    f"{self._directory / name} was removed after its first {progress.rows:,} rows"
                )


def open_feed(
    data: Any,
    settings: RowSettings | None = None,
    *,
    media: bool = False,
    cache_dir: AnyPath | None = None,
    **options: Any,
) -> Feed:
    """Open data that is still arriving.

    ======================  ====================================================================
    a directory             its files as they arrive (``DirectoryFeed``); with ``media``, recordings with transcripts
    ``data.jsonl``          its lines as they are appended
    another data file       its rows
    ``-``                   JSON lines from standard input
    an iterable             its rows; None says that no row is ready yet
    ======================  ====================================================================

    Args:
        data: any of the above; a ``Feed`` is returned as it is.
        settings, options: a ``RowSettings``, or its fields as keywords.
        media, cache_dir: see ``open_source``.

    Raises:
        SourceNotFoundError: no such file or directory.
        SettingsError: a value from which nothing can arrive.

    >>> open_feed([{"text": "a"}]).title
    'list of rows'
    """
    if isinstance(data, Feed):
        return data
    settings = row_settings(as_settings(RowSettings, settings, options), media=media)
    if isinstance(data, (str, os.PathLike)):
        path = os.fspath(data)
        if path == STANDARD_INPUT:
            title = "standard input"
            return IteratorFeed(arriving_lines(sys.stdin.fileno(), title), settings, title)
        if os.path.isdir(path):
            return DirectoryFeed(path, settings, cache_dir=cache_dir)
        require_file(path)
        if not os.path.isfile(path):
            raise SourceNotFoundError(
                f"{path}: no such file or directory; a feed follows local files only"
            )
        if file_type_of(path) is None:
            raise SettingsError(f"{path} is not JSON lines, JSON, Parquet, a tar or text")
        return DirectoryFeed(
            os.path.dirname(path) or ".", settings, only=os.path.basename(path), cache_dir=cache_dir
        )
    if isinstance(data, Iterable) and not isinstance(data, (bytes, bytearray, Mapping)):
        return IteratorFeed(data, settings)
    raise SettingsError(
        f"a feed is opened from a path, '-' or an iterable of rows, not {type(data).__name__}"
    )
