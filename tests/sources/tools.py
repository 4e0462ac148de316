"""What tests of sources share: three rows, as a file has them, the texts of a source, chats, pictures and tars."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

Put: TypeAlias = Callable[[str, bytes | str], str]
"""Type of the fixture ``put``: name and content of a file, and its path."""

ROWS = [{"text": "one"}, {"text": "two"}, {"text": "three"}]
JSONL = "".join(json.dumps(row) + "\n" for row in ROWS)


def texts(source: Any) -> list[Any]:
    return [sample.text for sample in source.read(0, len(source))]


def chat(content: Any, **columns: Any) -> dict[str, Any]:
    """A question and the answer ``a``, with further columns."""
    return {"messages": [{"role": "user", "content": content}, {"role": "assistant", "content": "a"}], **columns}


def picture(colour: int = 0, size: tuple[int, int] = (40, 40)) -> bytes:
    """A PNG of one colour."""
    from PIL import Image

    file = io.BytesIO()
    Image.new("RGB", size, (colour, 0, 0)).save(file, "PNG")
    return file.getvalue()


def tar_of(path: Path, members: Mapping[str, Any] | Iterable[tuple[str, Any]]) -> Path:
    """Write a tar of members by name: bytes, texts, objects as JSON, or a ``TarInfo`` as it is."""
    pairs = members.items() if isinstance(members, Mapping) else members
    with tarfile.open(path, "w") as archive:
        for name, content in pairs:
            if isinstance(content, tarfile.TarInfo):
                archive.addfile(content)
                continue
            data = json.dumps(content) if not isinstance(content, (bytes, str)) else content
            data = data.encode() if isinstance(data, str) else data
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path


def results(source: Any) -> list[Any]:
    """For each row the contents of its media, or the reason for none."""
    from brimful.errors import BadSampleError

    return [
        result.reason if isinstance(result, BadSampleError) else [medium.read() for medium in result.attachments]
        for result in source.read(0, len(source))
    ]
