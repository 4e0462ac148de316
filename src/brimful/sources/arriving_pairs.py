"""Rows that arrive as a separate file with the name of their medium: a recording and its transcript.

``a.txt`` next to ``a.wav`` holds the words, ``a.json`` a row of any format. The medium is written first: once the text
exists, both have arrived. (``brimful.sources.pairs`` opens a complete directory.)
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import PurePath
from typing import Any

from brimful.sources.media_files import media_kind
from brimful.sources.pairs import with_media_of_its_name
from brimful.sources.rows import MAX_ROW_BYTES, oversized
from brimful.sources.sample import MalformedRowError

TRANSCRIPT, ROW = ".txt", ".json"
"""Endings of the files next to media: plain words, and rows."""


def stem_of(name: str) -> str:
    """Return a name with its folders and without its ending.

    >>> stem_of("day1/a.b.wav")
    'day1/a.b'
    """
    return name[: -len(PurePath(name).suffix)] if PurePath(name).suffix else name


def row_beside(ending: str, data: bytes, media: Sequence[str]) -> Any:
    """Return the row in a file next to media of its name, or the error that says why it has none.

    Args:
        ending: ``TRANSCRIPT`` or ``ROW``.
        data: bytes of the file.
        media: names of the media.

    >>> row_beside(".txt", b"Hello.", ["a.wav"])
    {'audio': 'a.wav', 'text': 'Hello.'}
    """
    if len(data) > MAX_ROW_BYTES:
        return oversized()
    try:
        if ending == ROW:
            row = json.loads(data)
            if not isinstance(row, dict):
                return MalformedRowError(f"a row must be an object and is {type(row).__name__}")
            result = with_media_of_its_name(row, media)
            return MalformedRowError(result) if isinstance(result, str) else result
        text = data.decode("utf-8-sig").strip()
    except UnicodeDecodeError as error:
        return MalformedRowError(f"invalid UTF-8 at byte {error.start} ({error.reason})")
    except (ValueError, RecursionError) as error:
        return MalformedRowError(f"not readable as JSON: {error}")
    if len(media) != 1:
        names = ", ".join(sorted(media))
        return MalformedRowError(
            f"several media have its name ({names}): which one is meant is unclear"
            if media
            else "no recording has its name: a recording must be there before its transcript"
        )
    kind = media_kind(media[0])
    assert kind is not None
    return {kind.value: media[0], "text" if kind.value == "audio" else "caption": text}
