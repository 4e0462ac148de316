"""Packs that other projects wrote, read as rows again: ms-swift's lines, LLaVA-OneVision's folders.

``open_source`` asks ``open_rows`` (``base/wings.py``), and feeds of growing files ``rows_of_line``.
"""

from __future__ import annotations

import abc
import io
import json
import os
import re
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import accumulate, chain, groupby, pairwise
from pathlib import Path
from typing import IO, Any, NamedTuple, TypeAlias

import numpy as np

from brimful.base.checks import MalformedRowError
from brimful.base.fingerprint import canonical_json, fingerprint_bytes
from brimful.base.typing import AnyPath, Fingerprint
from brimful.errors import SourceError
from brimful.sources.attachment_names import MARK
from brimful.sources.lines import JsonLines
from brimful.sources.rows import UniformBlockRows
from brimful.sources.sample import exchange
from brimful.sources.stamp import Stamp, changed, require_file


class PackedRows(UniformBlockRows):
    """Rows of packs; a subclass reads the packs.

    Args:
        title: name for messages.
        counts: number of samples of each pack.
    """

    unit = "one sample of a pack a row"

    def __init__(self, title: str, counts: Sequence[int]) -> None:
        self.title = title
        self._first_rows = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)

    @abc.abstractmethod
    def _packs(self, first: int, last: int) -> Iterator[Sequence[Any]]:
        """Yield the rows of each of the packs ``first … last-1``."""

    @abc.abstractmethod
    def _location(self, pack: int) -> str:
        """Return the place of a pack, for messages."""

    def _content(self, row: dict[str, Any]) -> dict[str, Any]:
        """Return all that a row holds or refers to, for fingerprints."""
        return row

    def __len__(self) -> int:
        return int(self._first_rows[-1])

    def _pack_of(self, index: int) -> int:
        return int(np.searchsorted(self._first_rows, index, side="right")) - 1

    def read(self, start: int, stop: int) -> Iterator[Any]:
        stop = min(stop, len(self))
        first = self._pack_of(start)
        for pack, rows in enumerate(self._packs(first, self._pack_of(stop - 1) + 1), first):
            first_row = int(self._first_rows[pack])
            yield from rows[max(0, start - first_row) : stop - first_row]

    def where(self, index: int) -> str:
        pack = self._pack_of(index)
        return f"{self._location(pack)}: sample {index - int(self._first_rows[pack])} of the pack"

    def block_fingerprint(self, start: int, stop: int) -> Fingerprint:
        rows = [
            str(row) if isinstance(row, MalformedRowError) else self._content(row)
            for row in self.read(start, stop)
        ]
        return fingerprint_bytes(canonical_json(rows))


CHUNK_NAME = re.compile(r"chunk_\d+\.jsonl")
_MARK = b'"pack_length"'


class PackedChunk(PackedRows):
    """Rows of one chunk.

    Opening a chunk reads it once, to count the samples in each pack.

    Args:
        path: of the chunk.
        cache: directory of line indexes.
    """

    def __init__(self, path: AnyPath, *, cache: Path | None = None) -> None:
        self._lines = JsonLines(path, cache=cache)
        super().__init__(os.fspath(path), [len(rows) for rows in self._packs(0, len(self._lines))])

    def _packs(self, first: int, last: int) -> Iterator[Sequence[Any]]:
        return map(rows_of_pack, self._lines.read(first, last))

    def _location(self, pack: int) -> str:
        return self._lines.where(pack)


def rows_of_line(name: str, row: Any) -> list[Any]:
    """Return the rows in one line of a file that is still arriving: the samples of a pack, or the
    line itself.

    >>> rows_of_line("in/chunk_00000.jsonl", {"text": "a"})
    [{'text': 'a'}]
    """
    is_pack = (
        isinstance(row, Mapping)
        and "pack_length" in row
        and CHUNK_NAME.fullmatch(os.path.basename(name))
    )
    return rows_of_pack(row) if is_pack else [row]


def rows_of_pack(pack: Any) -> list[Any]:
    """Return the samples of a packed row; for a row that contradicts itself, one error.

    >>> rows_of_pack({"input_ids": [5, 6, 7], "labels": [-100, 6, -100], "lengths": [2, 1], "pack_length": 3})
    [{'input_ids': [5, 6], 'labels': [-100, 6]}, {'input_ids': [7], 'labels': [-100]}]
    """
    if isinstance(pack, MalformedRowError):
        return [pack]
    try:
        ids, labels, lengths = (pack[name] for name in ("input_ids", "labels", "lengths"))
        reason = _contradiction(pack, ids, labels, lengths)
    except (KeyError, TypeError) as error:
        reason = f"is not a packed row ({error!r}): `brimful produce` packs raw rows"
    if reason:
        return [MalformedRowError(reason)]
    return [
        {"input_ids": ids[a:b], "labels": labels[a:b]}
        for a, b in pairwise(accumulate(lengths, initial=0))
    ]


def _contradiction(pack: Mapping[str, Any], ids: Any, labels: Any, lengths: Any) -> str:
    """Return what contradicts the lengths in a packed row; empty if nothing does."""
    if not lengths or min(lengths) < 1:
        return "its lengths are not sample lengths: each must be at least 1"
    num_tokens = sum(lengths)
    for name, count in (
        ("input_ids", len(ids)),
        ("labels", len(labels)),
        ("pack_length", pack.get("pack_length")),
    ):
        if count != num_tokens:
            return f"its lengths are {num_tokens:,} tokens, but {name} gives {count!r}"
    positions = pack.get("position_ids")
    if positions is not None and positions != [
        position for length in lengths for position in range(length)
    ]:
        return "its position_ids do not restart where its lengths say that a sample begins"
    return ""


_IMAGE_NAME = re.compile(r"img(\d+)(?:_(?:sub)?(\d+))?\.\w+")
"""Names of images, with or without leading zeros: sample in the pack, and index among its
images.
"""

_KEY = re.compile(r"ps_\d+")


ImageValue: TypeAlias = Callable[[int, int, str], Any]
"""Function from sample, number of the image in it, and name to the value in a row."""


class _PackLocation(NamedTuple):
    """Place of a pack: a tar, the first byte of the pack and the byte after its last; or its JSON
    file alone.
    """

    path: str
    start: int = 0
    end: int = 0


class PackedPairs(PackedRows):
    """Rows of packs of images, questions and answers.

    Opening reads the JSON of every pack once, for the number of its samples; fingerprints read
    everything.

    Args:
        path: of a directory of ``ps_….json`` with their images, or of tars; or of one tar.
    """

    block_rows = 256

    def __init__(self, path: AnyPath) -> None:
        title, files = os.fspath(path), _files(Path(path))
        self._stamps = {str(file): Stamp.of(file) for file in files}
        self._locations: list[_PackLocation] = []
        counts: list[int] = []
        for location, text in chain.from_iterable(map(_packs_of, files)):
            pack = _parsed(text)
            self._locations.append(location)
            # A pack that cannot be read counts as one malformed row.
            counts.append(1 if isinstance(pack, MalformedRowError) else len(pack["captions"]))
        super().__init__(title, counts)

    @property
    def directory(self) -> str:
        path = os.path.abspath(self.title)
        return path if os.path.isdir(path) else os.path.dirname(path)

    def _packs(self, first: int, last: int) -> Iterator[Sequence[Any]]:
        for location in self._locations[first:last]:
            try:
                rows = list(rows_of_pairs(*_read(location)))
            except (OSError, tarfile.TarError) as error:
                raise changed(location.path) from error
            # Checked after the read: the bytes come from the file that was counted and
            # fingerprinted.
            self._stamps[location.path].check(location.path)
            yield rows

    def _location(self, pack: int) -> str:
        return f"{self._locations[pack].path}: pack {pack}"

    def _content(self, row: dict[str, Any]) -> dict[str, Any]:
        images = [
            image if isinstance(image, Mapping) else self._bytes(image)
            for image in row.get("images", ())
        ]
        return {**row, "images": images}

    def _bytes(self, image: str) -> bytes | str:
        """Return the bytes of an image in the directory; its path if it cannot be read."""
        path = Path(self.directory, image)
        try:
            return path.read_bytes()
        except OSError:
            return str(path)


def open_rows(path: str, settings: object, cache: Path | None) -> PackedPairs | PackedChunk | None:
    """Return the rows of a directory or tar of packs, or of a chunk: a file with its name whose
    first line is a pack; None for another path.
    """
    if holds_packed_pairs(path):
        return PackedPairs(path)
    if not CHUNK_NAME.fullmatch(os.path.basename(path)) or not os.path.isfile(path):
        return None
    with open(path, "rb") as file:
        return PackedChunk(path, cache=cache) if _MARK in file.readline() else None


def holds_packed_pairs(path: AnyPath) -> bool:
    """Return true for a directory of packs or of tars with packs, and for such a tar, judged by the
    first name in it.

    >>> holds_packed_pairs(os.devnull)
    False
    """
    if not os.path.isdir(path):
        return (
            str(path).lower().endswith(".tar") and os.path.isfile(path) and _is_tar_of_packs(path)
        )
    with os.scandir(path) as entries:
        for entry in entries:
            if _KEY.fullmatch(entry.name.removesuffix(".json")) and entry.name.endswith(".json"):
                return True
            if entry.name.endswith(".tar"):
                return entry.is_file() and _is_tar_of_packs(entry.path)
    return False


def _is_tar_of_packs(path: AnyPath) -> bool:
    try:
        with open(path, "rb") as file, _open_tar(file) as tar:
            first = tar.next()  # skips extended headers, with which some writers begin
    except (OSError, tarfile.TarError):
        return False
    return first is not None and _KEY.fullmatch(first.name.partition(".")[0]) is not None


def rows_of_pairs(pack: Any, image_value: ImageValue) -> Iterator[Any]:
    """Yield the samples of a pack as rows of messages; a malformed sample as its error.

    Args:
        pack: its JSON; or an error.
        image_value: gives the images of its samples.

    >>> pack = {"images": [["img000.jpg"], []], "prompt": [["what"], ["hi"]], "captions": [["cat"], ["hello"]]}
    >>> for row in rows_of_pairs(pack, lambda sample, number, name: name):
    ...     print(row["messages"][0]["content"].split(), row.get("images"))
    ['<image>', 'what'] ['img000.jpg']
    ['hi'] None
    """
    if isinstance(pack, MalformedRowError):
        yield pack
        return
    lists = [pack.get("images"), pack.get("prompts", pack.get("prompt")), pack["captions"]]
    for position, (images, prompts, captions) in enumerate(zip(*lists, strict=True)):
        try:
            yield _row(position, images, prompts, captions, image_value)
        except MalformedRowError as error:
            yield error


def _row(position: int, images: Any, prompts: Any, captions: Any, image_value: ImageValue) -> Any:
    questions, answers, names = (
        _as_list(prompts),
        _as_list(captions),
        [name for name in _as_list(images) if name],
    )
    if len(questions) != len(answers) or not all(
        isinstance(text, str) for text in (*questions, *answers, *names)
    ):
        raise MalformedRowError(
            f"it has {len(questions):,} prompts and {len(answers):,} captions: each needs one text"
        )
    if names and questions and not any(MARK.search(text) for text in (*questions, *answers)):
        marks = "<image>" * len(names)
        questions[0] = f"{marks}\n{questions[0]}" if questions[0] else marks
    messages = []
    for question, answer in zip(questions, answers, strict=True):
        messages += exchange(question, answer)
    row: dict[str, Any] = {"messages": messages}
    if names:
        row["images"] = [image_value(position, index, name) for index, name in enumerate(names)]
    return row


def _as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list) else [] if value is None else [value]


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    files = sorted([*path.glob("*.tar"), *path.glob("ps_*.json")])
    for file in files:
        require_file(file)
    return files


def _packs_of(file: Path) -> Iterator[tuple[_PackLocation, bytes]]:
    """Yield the place and the JSON of each pack of a file, without its images."""
    if file.suffix == ".json":
        yield _PackLocation(str(file)), file.read_bytes()
        return
    for key, start, end, members in tar_groups(file):
        if _KEY.fullmatch(key):
            facts = next((member for member in members if member.name == f"{key}.json"), None)
            text = b""
            if facts is not None:
                with open(file, "rb") as tar:
                    tar.seek(facts.offset_data)
                    text = tar.read(facts.size)
            yield _PackLocation(str(file), start, end), text


def tar_groups(path: AnyPath) -> Iterator[tuple[str, int, int, list[tarfile.TarInfo]]]:
    """Yield the members of a tar by their keys: the key of each group, its first byte and the byte
    after its last, and the members. Only their headers are read.
    """

    def headers(tar: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
        while (member := tar.next()) is not None:
            # A TarFile keeps every header that it has read, and a shard has many.
            tar.members = []  # type: ignore[attr-defined]
            yield member

    try:
        with open(path, "rb") as file, _open_tar(file) as tar:
            for key, group in groupby(
                headers(tar), key=lambda member: member.name.partition(".")[0]
            ):
                members = list(group)
                last = members[-1]
                end = last.offset_data + -(-last.size // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE
                yield key, members[0].offset, end, members
    except tarfile.TarError as error:
        raise SourceError(f"{path} is not a readable tar: {error}") from error


def _open_tar(file: IO[bytes]) -> AbstractContextManager[tarfile.TarFile]:
    """Open a tar; loads media only here, since streams of texts read this module too."""
    from brimful.media.tars import open_tar

    return open_tar(file)


def _read(location: _PackLocation) -> tuple[Any, ImageValue]:
    """Return the JSON of a pack, and the function that finds its images."""
    if not location.end:
        return _parsed(Path(location.path).read_bytes()), _images_beside(Path(location.path))
    with open(location.path, "rb") as file:
        file.seek(location.start)
        content = io.BytesIO(file.read(location.end - location.start))
    with _open_tar(content) as tar:
        files = ((member.name.partition(".")[2], tar.extractfile(member)) for member in tar)
        members = {name: file.read() for name, file in files if file is not None}
    return _parsed(members.get("json", b"")), images_among(members)


def _parsed(text: bytes) -> Any:
    """Return the JSON of a pack; an error if it is not one."""
    try:
        pack = json.loads(text)
    except ValueError as error:
        return MalformedRowError(f"the JSON of its pack cannot be read: {error}")
    keys = (
        "images",
        "prompts" if isinstance(pack, dict) and "prompts" in pack else "prompt",
        "captions",
    )
    lists = [pack.get(key) for key in keys] if isinstance(pack, dict) else [None]
    sizes = {len(values) if isinstance(values, list) else -1 for values in lists}
    if len(sizes) != 1 or -1 in sizes:
        return MalformedRowError("its pack needs lists images, prompts and captions of one length")
    return pack


def _images_beside(json_file: Path) -> ImageValue:
    """Return the names of images as files next to the JSON of their pack."""

    def image_value(sample: int, index: int, name: str) -> str:
        own_name = f"{json_file.stem}.{name}"
        return own_name if (json_file.parent / own_name).exists() else name

    return image_value


def images_among(members: Mapping[str, bytes]) -> ImageValue:
    """Return the images among the members of the tar that holds their pack."""
    names = {_position(name): name for name in members}

    def image_value(sample: int, index: int, name: str) -> dict[str, Any]:
        # Writers disagree on zeros in names, and some keep the original path: then the position
        # decides.
        member = name if name in members else names.get(_position(name) or (sample, index))
        if member is None:
            raise MalformedRowError(f"its image {name!r} is not a member of its pack")
        return {"bytes": members[member], "path": name}

    return image_value


def _position(name: str) -> tuple[int, int] | None:
    """Return the sample and the number of an image that its name gives."""
    match = _IMAGE_NAME.fullmatch(name)
    return (int(match[1]), int(match[2] or 0)) if match else None
