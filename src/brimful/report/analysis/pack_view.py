"""A pack as it is: its segments, their texts by targets, and facts of their media."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

import numpy as np

from brimful.errors import MissingExtraError
from brimful.media import BadMediumError, MediaKind, PlacedMedium
from brimful.media.audio import audio_header
from brimful.media.images import image_size
from brimful.media.videos import video_header
from brimful.shards import Pack
from brimful.typing import TokenIds

_MAX_NAME = 80
"""Maximum number of characters of a name that are shown: a name is any text, and may be a whole path."""

_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""Control characters, including text direction, which a terminal or a page obeys; data must not contain them."""

Decode: TypeAlias = Callable[[TokenIds], str]
"""Function from tokens to their text."""


@dataclass(frozen=True)
class MediumFacts:
    """One medium of a pack, as its reader knows it.

    Attributes:
        kind: ``image``, ``video`` or ``audio``.
        name: as the row has it.
        segment: number of its segment in the pack.
        start, length: its tokens in the pack.
        patches: of the vision tower.
        grid: patches along time, height and width.
        size: of the file, such as ``640×480`` or ``3.2 s``; empty if it cannot be read.
        frames: taken from a video.
        problem: why it cannot be read; empty if it can.
    """

    kind: str
    name: str
    segment: int
    start: int
    length: int
    patches: int
    grid: tuple[int, int, int] | None
    size: str
    frames: int
    problem: str

    @classmethod
    def of(cls, item: PlacedMedium) -> MediumFacts:
        """Return the facts of a medium, whose header is read."""
        size, problem = "", ""
        try:
            size = _size(item)
        except (BadMediumError, MissingExtraError) as error:
            problem = str(error)
        return cls(
            kind=item.medium.kind.value,
            # A file name need not be valid Unicode, but shown text must be.
            name=item.medium.name.encode("utf-8", "backslashreplace").decode(),
            segment=item.segment,
            start=item.start,
            length=item.length,
            patches=item.num_patches,
            grid=item.grid,
            size=size,
            frames=item.num_frames if item.medium.kind is MediaKind.VIDEO else 0,
            problem=problem,
        )

    @property
    def title(self) -> str:
        """Kind and name, with every control character escaped."""
        name = self.name if len(self.name) <= _MAX_NAME else f"…{self.name[1 - _MAX_NAME :]}"
        return f"{self.kind} {name!r}" if name else self.kind

    def describe(self) -> str:
        """Return the medium in brackets, as it appears in a text.

        >>> MediumFacts("image", "a.jpg", 0, 5, 391, 1564, (1, 34, 46), "640×480", 0, "").describe()
        "[image 'a.jpg' 640×480, 391 tokens, 34×46 patches]"
        >>> MediumFacts("audio", "", 0, 5, 25, 0, None, "", 0, "no such file").describe()
        '[audio: no such file, 25 tokens]'
        """
        title = f"{self.title}: {self.problem}" if self.problem else f"{self.title} {self.size}"
        parts = [title, f"{self.length:,} tokens"]
        if self.frames:
            parts.insert(1, f"{self.frames:,} frames taken")
        if self.grid is not None:
            sides = self.grid[1:] if self.grid[0] == 1 else self.grid
            parts.append(f"{'×'.join(map(str, sides))} patches")
        elif self.patches:
            parts.append(f"{self.patches:,} patches")
        return f"[{', '.join(parts)}]"


def _size(item: PlacedMedium) -> str:
    """Return width and height of an image or a video, and seconds of video and audio."""
    if item.medium.kind is MediaKind.IMAGE:
        return "{}×{}".format(*image_size(item.medium))
    if item.medium.kind is MediaKind.AUDIO:
        sound = audio_header(item.medium)
        return f"{sound.num_frames / sound.sampling_rate:.1f} s"
    video = video_header(item.medium)
    return f"{video.width}×{video.height}, {video.num_frames / video.fps:.1f} s"


@dataclass(frozen=True)
class Segment:
    """A segment of a pack.

    Attributes:
        sample_id: its sample.
        first: its first token in the pack.
        start: its first token in the sample; above 0 if the sample was cut.
        tokens: number of its tokens.
        loss_tokens: number of its targets of the loss.
    """

    sample_id: int
    first: int
    start: int
    tokens: int
    loss_tokens: int


@dataclass(frozen=True)
class ShownText:
    """A text whose tokens are all targets, or none of them."""

    text: str
    is_target: bool


def segments_of(pack: Pack) -> Iterator[tuple[Segment, list[PlacedMedium]]]:
    """Yield each segment of a pack with its media."""
    for number, (begin, end) in enumerate(pairwise(pack.cu_seqlens.tolist())):
        num_targets = int(np.count_nonzero(pack.loss_mask[begin:end]))
        sample_id, start = int(pack.sample_ids[number]), int(pack.starts[number])
        media = [item for item in pack.media if item.segment == number]
        yield Segment(sample_id, begin, start, end - begin, num_targets), media


def split_at_media(segment: Segment, media: Sequence[PlacedMedium]) -> Iterator[slice | PlacedMedium]:
    """Yield the media of a segment, and the tokens of the pack between them, in order."""
    begin, end = segment.first, segment.first + segment.tokens
    for item in media:
        if begin < item.start:
            yield slice(begin, item.start)
        yield item
        begin = item.start + item.length
    if begin < end:
        yield slice(begin, end)


def texts_of(pack: Pack, tokens: slice, decode: Decode) -> Iterator[ShownText]:
    """Yield runs of targets and of other tokens as texts, with control characters escaped."""
    ids, mask = pack.input_ids[tokens], pack.loss_mask[tokens]
    edges = [0, *(np.flatnonzero(mask[1:] != mask[:-1]) + 1).tolist(), len(ids)]
    for begin, end in pairwise(edges):
        yield ShownText(without_controls(decode(ids[begin:end])), bool(mask[begin]))


def without_controls(text: str) -> str:
    """Return a text whose control characters are escaped.

    >>> without_controls("a\u202eb\tc")
    'a\\\\u202eb\tc'
    """
    return _CONTROLS.sub(lambda match: match.group().encode("unicode_escape").decode(), text)
