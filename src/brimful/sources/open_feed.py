"""The entry point for data that is still arriving: ``open_feed`` turns a path or an iterable into a ``Feed``."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from brimful.errors import SettingsError, SourceNotFoundError
from brimful.sources.directory_feed import DirectoryFeed
from brimful.sources.feed import Feed
from brimful.sources.media_places import MediaPlace
from brimful.sources.opening import STANDARD_INPUT, arrival_of
from brimful.sources.reading import RowOptions
from brimful.sources.row_feed import IteratorFeed, PipeFeed
from brimful.sources.stamp import require_file


def open_feed(
    data: Any,
    *,
    format: str | None = None,
    fields: Mapping[str, str] | None = None,
    ignore: Sequence[str] = (),
    prompt: str | None = None,
    media: bool = False,
    media_dir: str | os.PathLike[str] | None = None,
    media_outside: bool = False,
    cache_dir: str | os.PathLike[str] | None = None,
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
        format, fields, ignore, prompt, media, media_dir, media_outside, cache_dir: see ``open_source``.

    Raises:
        SourceNotFoundError: no such file or directory.
        SettingsError: a value from which nothing can arrive.

    >>> open_feed([{"text": "a"}]).title
    'list of rows'
    """
    if isinstance(data, Feed):
        return data
    place = MediaPlace(os.fspath(media_dir or ""), media_outside) if media or media_dir is not None else None
    options = RowOptions(format, fields, (ignore,) if isinstance(ignore, str) else tuple(ignore), prompt, place)
    if isinstance(data, (str, os.PathLike)):
        path = os.fspath(data)
        if path == STANDARD_INPUT:
            return PipeFeed(sys.stdin.fileno(), "standard input", options)
        if os.path.isdir(path):
            return DirectoryFeed(path, options, cache_dir=cache_dir)
        require_file(path)
        if not os.path.isfile(path):
            raise SourceNotFoundError(f"{path}: no such file or directory; a feed follows local files only")
        if arrival_of(path) is None:
            raise SettingsError(f"{path} is not JSON lines, JSON, Parquet, a tar or text")
        return DirectoryFeed(os.path.dirname(path) or ".", options, only=os.path.basename(path), cache_dir=cache_dir)
    if isinstance(data, Iterable) and not isinstance(data, (bytes, bytearray, Mapping)):
        return IteratorFeed(data, options)
    raise SettingsError(f"a feed is opened from a path, '-' or an iterable of rows, not {type(data).__name__}")
