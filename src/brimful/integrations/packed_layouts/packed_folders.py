"""Samples in LLaVA-OneVision-1.5's layout after packing: packs ``ps_00000000`` of images, questions and answers.

::

    ps_00000000.img000.jpg  ps_00000000.img002.jpg  ps_00000000.json
    {"images":   [["img000.jpg"], [], ["img002.jpg"]],
     "prompts":  [["what is it"], ["hi"], ["who?", "and this?"]],
     "captions": [["a cat"], ["hello"], ["Ann", "Bob"]]}

Entry ``i`` of each list belongs to sample ``i`` of the pack, and the number of an image is that position. Lists of
captions and of single questions are flat. ``prompt`` is read as ``prompts``. Packs are files in a directory, or members
of tars. Images without a mark ``<image>`` in the text are placed before the first question.
"""

import io
import json
import os
import re
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any

from brimful.errors import SourceNotFoundError
from brimful.integrations.packed_layouts.packed_rows import PackedRows
from brimful.sources.media_places import MARK
from brimful.sources.sample import MalformedRowError, exchange
from brimful.sources.stamp import Stamp, changed, require_file

_IMAGE_NAME = re.compile(r"img(\d+)(?:_(?:sub)?(\d+))?\.\w+")
"""Names of images, with or without leading zeros: sample in the pack, and index among its images."""

_KEY = re.compile(r"ps_\d+")


@dataclass(frozen=True)
class _Place:
    """Place of a pack: in a tar, from its first header to its end; in a directory, only the file of its JSON.

    Attributes:
        path: of the tar, or of the JSON.
        begin, end: first byte of the pack, and the byte after its last; 0 for a file.
        json_begin, json_size: of its JSON in the tar.
    """

    path: str
    begin: int = 0
    end: int = 0
    json_begin: int = 0
    json_size: int | None = None


class PackedPairs(PackedRows):
    """Rows of packs of images, questions and answers.

    Opening reads the JSON of every pack once, for the number of its samples; fingerprints read everything.

    Args:
        path: of a directory of ``ps_….json`` with their images, or of tars; or of one tar.

    Raises:
        SourceNotFoundError: the path holds no packs.
    """

    block_rows = 256

    def __init__(self, path: str | os.PathLike[str]) -> None:
        title = os.fspath(path)
        self._places = [place for file in _files(Path(path)) for place in _places(file)]
        if not self._places:
            raise SourceNotFoundError(f"{title} holds no packs: neither ps_00000000.json nor tars with them")
        self._stamps = {place.path: Stamp.of(place.path) for place in self._places}
        super().__init__(title, [_num_samples(_json(place)) for place in self._places])

    @property
    def directory(self) -> str:
        path = os.path.abspath(self.title)
        return path if os.path.isdir(path) else os.path.dirname(path)

    def _packs(self, first: int, last: int) -> Iterator[Sequence[Any]]:
        for place in self._places[first:last]:
            try:
                rows = list(rows_of_pack(*_open(place)))
            except (OSError, tarfile.TarError) as error:
                raise changed(place.path) from error
            # Checked after the read: the bytes come from the file that was counted and fingerprinted.
            self._stamps[place.path].check(place.path)
            yield rows

    def _place(self, pack: int) -> str:
        return f"{self._places[pack].path}: pack {pack}"

    def _content(self, row: dict[str, Any]) -> dict[str, Any]:
        images = [
            image if isinstance(image, Mapping) else _bytes_or_name(os.path.join(self.directory, image))
            for image in row.get("images", ())
        ]
        return {**row, "images": images}


def open_rows(path: str, cache: Path | None) -> PackedPairs | None:
    """Return the rows of a directory or tar of packs; None for another path."""
    return PackedPairs(path) if holds_packed_pairs(path) else None


def holds_packed_pairs(path: str | os.PathLike[str]) -> bool:
    """Return true for a directory of packs or of tars with packs, and for such a tar, judged by the first name in it.

    >>> holds_packed_pairs(os.devnull)
    False
    """
    if not os.path.isdir(path):
        return str(path).lower().endswith(".tar") and os.path.isfile(path) and _is_tar_of_packs(path)
    with os.scandir(path) as entries:
        for entry in entries:
            if _KEY.fullmatch(entry.name.removesuffix(".json")) and entry.name.endswith(".json"):
                return True
            if entry.name.endswith(".tar"):
                return entry.is_file() and _is_tar_of_packs(entry.path)
    return False


def _is_tar_of_packs(path: str | os.PathLike[str]) -> bool:
    try:
        with tarfile.open(path, "r:") as tar:
            first = tar.next()  # skips extended headers, with which some writers begin
    except (OSError, tarfile.TarError):
        return False
    return first is not None and _KEY.fullmatch(first.name.partition(".")[0]) is not None


def rows_of_pack(pack: Any, image_value: Callable[[int, int, str], Any]) -> Iterator[Any]:
    """Yield the samples of a pack as rows of messages; a malformed sample as its error.

    Args:
        pack: its JSON; or an error.
        image_value: function from sample, number of the image in it, and name to the value in a row.

    >>> pack = {"images": [["img000.jpg"], []], "prompt": [["what"], ["hi"]], "captions": [["cat"], ["hello"]]}
    >>> for row in rows_of_pack(pack, lambda sample, number, name: name):
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


def _row(position: int, images: Any, prompts: Any, captions: Any, image_value: Callable[[int, int, str], Any]) -> Any:
    questions, answers, names = _as_list(prompts), _as_list(captions), [name for name in _as_list(images) if name]
    if len(questions) != len(answers) or not all(isinstance(text, str) for text in (*questions, *answers, *names)):
        raise MalformedRowError(f"it has {len(questions):,} prompts and {len(answers):,} captions: each needs one text")
    if names and questions and not any(MARK.search(text) for text in (*questions, *answers)):
        marks = "<image>" * len(names)
        questions[0] = f"{marks}\n{questions[0]}" if questions[0] else marks
    messages = []
    for question, answer in zip(questions, answers, strict=True):
        messages += exchange(question, answer)
    row: dict[str, Any] = {"messages": messages}
    if names:
        row["images"] = [image_value(position, number, name) for number, name in enumerate(names)]
    return row


def _as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list) else [] if value is None else [value]


def _num_samples(pack: Any) -> int:
    """Return the number of samples in a pack; a pack that cannot be read counts as one malformed row."""
    return 1 if isinstance(pack, MalformedRowError) else len(pack["captions"])


def _files(path: Path) -> list[Path]:
    if path.is_dir():
        files = sorted([*path.glob("*.tar"), *path.glob("ps_*.json")])
        for file in files:
            require_file(file)
        return files
    if path.is_file():
        return [path]
    raise SourceNotFoundError(f"{path}: no such file or directory")


def _places(file: Path) -> Iterator[_Place]:
    if file.suffix == ".json":
        yield _Place(str(file))
        return
    with tarfile.open(file, "r:") as tar:
        for key, group in groupby(_headers(tar), key=lambda member: member.name.partition(".")[0]):
            if _KEY.fullmatch(key):
                members = list(group)
                last = members[-1]
                end = last.offset_data + -(-last.size // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE
                facts = next((member for member in members if member.name == f"{key}.json"), None)
                place = (facts.offset_data, facts.size) if facts is not None else (0, 0)
                yield _Place(str(file), members[0].offset, end, *place)


def _headers(tar: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    while (member := tar.next()) is not None:
        # A TarFile keeps every header that it has read, and a shard has many.
        tar.members = []  # type: ignore[attr-defined]
        yield member


def _json(place: _Place) -> Any:
    """Return the JSON of a pack, without its images; an error if it cannot be read."""
    with open(place.path, "rb") as file:
        file.seek(place.json_begin)
        return _parsed(file.read() if place.json_size is None else file.read(place.json_size))


def _open(place: _Place) -> tuple[Any, Callable[[int, int, str], Any]]:
    """Return the JSON of a pack, and the function that finds its images."""
    pack = _json(place)
    return (pack, _InTar(_members(place))) if place.end else (pack, _BesideJson(Path(place.path)))


def _members(place: _Place) -> dict[str, bytes]:
    """Return the members of one pack of a tar, without its key."""
    with open(place.path, "rb") as file:
        file.seek(place.begin)
        content = io.BytesIO(file.read(place.end - place.begin))
    with tarfile.open(fileobj=content, mode="r:") as tar:
        files = ((member.name.partition(".")[2], tar.extractfile(member)) for member in tar)
        return {name: file.read() for name, file in files if file is not None}


def _parsed(text: bytes) -> Any:
    try:
        pack = json.loads(text)
    except ValueError as error:
        return MalformedRowError(f"the JSON of its pack cannot be read: {error}")
    keys = ("images", "prompts" if isinstance(pack, dict) and "prompts" in pack else "prompt", "captions")
    lists = [pack.get(key) for key in keys] if isinstance(pack, dict) else [None]
    sizes = {len(values) if isinstance(values, list) else -1 for values in lists}
    if len(sizes) != 1 or sizes == {-1}:
        return MalformedRowError("its pack needs lists images, prompts and captions of one length")
    return pack


@dataclass(frozen=True)
class _BesideJson:
    """Images as files next to the JSON of their pack."""

    json_file: Path

    def __call__(self, sample: int, number: int, name: str) -> str:
        own_name = f"{self.json_file.stem}.{name}"
        return own_name if (self.json_file.parent / own_name).exists() else name


@dataclass(frozen=True)
class _InTar:
    """Images as members of the tar that holds their pack."""

    members: Mapping[str, bytes]

    @cached_property
    def by_position(self) -> dict[tuple[int, int], str]:
        """Member of each image, by sample and number."""
        found = ((name, _IMAGE_NAME.fullmatch(name)) for name in self.members)
        return {(int(match[1]), int(match[2] or 0)): name for name, match in found if match}

    def __call__(self, sample: int, number: int, name: str) -> dict[str, Any]:
        # Writers disagree on zeros in names, and some keep the original path: then the position decides.
        match = _IMAGE_NAME.fullmatch(name)
        position = (int(match[1]), int(match[2] or 0)) if match else (sample, number)
        member = name if name in self.members else self.by_position.get(position)
        if member is None:
            raise MalformedRowError(f"its image {name!r} is not a member of its pack")
        return {"bytes": self.members[member], "path": name}


def _bytes_or_name(path: str) -> Any:
    try:
        return Path(path).read_bytes()
    except OSError:
        return path


def samples_of(pack: Mapping[str, Any], members: Mapping[str, bytes]) -> Sequence[Any]:
    """Return the rows of one pack read elsewhere, given its JSON and its members, whose names lack the pack's key."""
    return list(rows_of_pack(pack, _InTar(members)))
