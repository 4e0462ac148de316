"""What a row says that nobody reads: refused where training without it would be wrong, named where it would not.

A column is *read* if the row's format takes it. Of the others, some change what the sample means: the picture of a
question, the answer that was rejected, the mark that says an answer was bad. A row with one of those is an error until
it can be packed, unless the caller says that it may be ignored. The rest (``id``, ``source``, …) is named once, with
the share of rows that have it.

>>> refusal({"messages": [], "label": False}, frozenset({"messages"}), ignore=frozenset())
... # doctest: +ELLIPSIS
'column ...label... says which answers are wanted...'
>>> refusal({"text": "a", "id": 3}, frozenset({"text"}), ignore=frozenset()) is None
True
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from brimful.messages import setting
from brimful.sources.sample import Message

__all__ = ["MESSAGE_KEYS", "placeholder", "refusal", "unread_columns", "unread_of_messages"]

_MEDIA = {
    **dict.fromkeys(("image", "images", "image_path", "image_paths", "image_url"), "pictures"),
    **dict.fromkeys(("video", "videos", "video_path", "video_paths"), "video"),
    **dict.fromkeys(("audio", "audios", "audio_path", "audio_paths", "speech"), "sound"),
}
_PREFERENCE = ("chosen", "rejected", "chosen_messages", "rejected_messages")

MESSAGE_KEYS = frozenset(
    {
        "role",
        "content",
        "tool_calls",
        "tool_call_id",
        "name",
        "weight",
        "loss_weight",
        "reasoning_content",
    }
)
"""Keys of a message that are read: by the chat template, or by whoever finds the targets."""

_PLACEHOLDER = re.compile(r"<(image|video|audio)\d*>|<\|(?:image|video|audio)(?:_pad|_soft_token)?\|>")


def refusal(row: Any, read: frozenset[str], *, ignore: frozenset[str]) -> str | None:
    """Why a row cannot be packed without what one of its columns says, or None.

    Args:
        row: as its file has it; a bare text has no columns.
        read: columns that its format reads.
        ignore: columns that the caller does not want.
    """
    if not isinstance(row, Mapping):
        return None
    for column, value in row.items():
        if column in read or column in ignore or _says_nothing(value):
            continue
        if column in _MEDIA:
            return f"column {column!r} holds {_MEDIA[column]}, which cannot be packed so far: {_way_out(column)}"
        if column == "label":
            return (
                f"column {column!r} says which answers are wanted, and packing would train all of them: keep the rows "
                f"you want, or {_way_out(column)}"
            )
        if column in _PREFERENCE:
            return (
                f"column {column!r} is half of a preference, and pairs cannot be packed so far: make rows of the "
                f"answers you want, or {_way_out(column)}"
            )
    return None


def placeholder(text: str, *, ignore: frozenset[str]) -> str | None:
    """The first mark of a medium in a text, such as ``<image>``; None if there is none or it may stay.

    A mark that is closed (``<video> … </video>``) is markup, not a place for a medium.

    >>> placeholder("Who is it? <image1>", ignore=frozenset())
    '<image1>'
    >>> placeholder("<video><source></video>", ignore=frozenset()) is None
    True
    """
    if "<" not in text:
        return None
    for match in _PLACEHOLDER.finditer(text):
        name = match.group(1)
        closed = name is not None and f"</{name}" in text
        if not closed and match.group() not in ignore:
            return match.group()
    return None


def unread_columns(row: Any, read: frozenset[str]) -> list[str]:
    """Columns of a row that its format does not read and that hold something."""
    if not isinstance(row, Mapping) or row.keys() <= read:
        return []
    return [str(column) for column, value in row.items() if column not in read and not _says_nothing(value)]


def unread_of_messages(messages: Iterable[Message]) -> set[str]:
    """Keys of messages beside those of OpenAI's format; a chat template may know them."""
    return {
        f"messages[].{key}"
        for message in messages
        if not message.keys() <= MESSAGE_KEYS
        for key, value in message.items()
        if key not in MESSAGE_KEYS and not _says_nothing(value)
    }


def _says_nothing(value: Any) -> bool:
    return value is None or (isinstance(value, (str, list, tuple, dict)) and len(value) == 0)


def _way_out(column: str) -> str:
    return f"leave it out with {setting('ignore', [column])}"
