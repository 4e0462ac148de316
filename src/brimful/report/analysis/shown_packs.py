"""Packs as they are: segments, texts by targets, and media, with drawings of a few."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from io import BytesIO
from itertools import islice, pairwise
from typing import Any, TypeAlias

import numpy as np

from brimful.base.typing import TokenIds
from brimful.errors import MissingExtraError
from brimful.media import BadMediumError, MediaKind, PlacedMedium
from brimful.media.audio import audio_header, load_audio
from brimful.media.images import image_size, load_image
from brimful.media.videos import load_frames, video_header
from brimful.store.shards import Pack, PackSequence

_CANDIDATES = 64
"""Number of evenly spread packs from which the shown ones are choices."""

_MEDIA = 48
"""Maximum number of media that are drawn in all shown packs; the others appear by title."""

_SIDE = 112
"""Pixels of the longer side of a thumbnail, of 2 to 5 kB as JPEG."""

_PEAKS = 96
"""Points of a waveform."""

_CHARACTERS = 500
"""Maximum number of characters shown of the text between two media."""

_SEGMENTS = 24
"""Maximum number of segments shown of a pack; the strip shows all."""

_MAX_BYTES, _MAX_PIXELS = 1 << 26, 50_000_000
"""Limits of bytes in a file, and of pixels of an image or frame, or audio samples: larger media are
not drawn.
"""

_COLUMNS = 480
"""Columns of the strip of a pack."""

_MAX_NAME = 80
"""Maximum number of characters of a name that are shown: a name is any text, and may be a whole
path.
"""

_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""Control characters, including text direction, which a terminal or a page obeys; data must not
contain them.
"""

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


def split_at_media(
    segment: Segment, media: Sequence[PlacedMedium]
) -> Iterator[slice | PlacedMedium]:
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


@dataclass(frozen=True)
class ShownMedium:
    """A medium of a pack that is drawn.

    Attributes:
        facts: its name, size and tokens.
        thumbnail: JPEG of an image or of the first frame of a video; empty for audio, and if it
            cannot be drawn.
        peaks: loudest sample of each of equal parts of an audio clip, from 0 to 1.
        note: why it is not drawn; empty if it is.
    """

    facts: MediumFacts
    thumbnail: bytes = b""
    peaks: tuple[float, ...] = ()
    note: str = ""


ShownSegment: TypeAlias = "tuple[Segment, tuple[ShownText | ShownMedium, ...]]"
"""A segment of a pack, and its texts and media."""


@dataclass(frozen=True)
class ShownPack:
    """One pack of a report.

    Attributes:
        index: its number.
        tokens: its tokens.
        budgets: use and capacity of tokens, and of patches if they are limited.
        strip: kind of each of up to 480 equal parts of the pack: ``text``, ``target``, ``image``,
            ``video``, ``audio`` or ``padding``.
        boundaries: first tokens of its segments, as shares of the capacity.
        segments: the first of them.
        hidden: number of segments that are not shown.
    """

    index: int
    tokens: int
    budgets: dict[str, tuple[int, int]]
    strip: tuple[str, ...]
    boundaries: tuple[float, ...]
    segments: tuple[ShownSegment, ...]
    hidden: int

    def as_dict(self) -> dict[str, Any]:
        """Return the numbers of a pack for JSON, without images and texts."""
        media = [
            part.facts
            for _, parts in self.segments
            for part in parts
            if isinstance(part, ShownMedium)
        ]
        return {
            "pack": self.index,
            "tokens": self.tokens,
            "budgets": {
                name: {"used": amount, "capacity": capacity}
                for name, (amount, capacity) in self.budgets.items()
            },
            "media": [asdict(facts) for facts in media],
        }


def show_packs(
    packs: PackSequence, *, budgets: dict[str, int], decode: Decode | None
) -> list[ShownPack]:
    """Return a few packs with media: the fullest in patches or audio, the middle one, and the
    emptiest that has any.

    They are choices from at most 64 packs, evenly spread, so that a large store is not read for its
    report.

    Args:
        packs: a store.
        budgets: capacity of each budget, ``tokens`` included.
        decode: tokens to text; None for no text.

    Raises:
        CorruptFileError: as reading a pack does.
    """
    if not len(packs):
        return []
    indices = np.unique(np.linspace(0, len(packs) - 1, _CANDIDATES).astype(np.int64)).tolist()
    weights = {
        index: sum(item.num_patches + item.num_mel_frames for item in packs[index].media)
        for index in indices
    }
    ranking = sorted(
        (index for index in indices if weights[index]), key=lambda index: (-weights[index], index)
    )
    if not ranking:
        return []
    choices = dict.fromkeys((ranking[0], ranking[len(ranking) // 2], ranking[-1]))
    # Each medium that is drawn in any of the packs takes one of these numbers.
    drawings = iter(range(_MEDIA))
    return [_show(packs[index], index, budgets, decode, drawings) for index in sorted(choices)]


def _show(
    pack: Pack, index: int, budgets: dict[str, int], decode: Decode | None, drawings: Iterator[int]
) -> ShownPack:
    uses = {"tokens": len(pack), "patches": sum(item.num_patches for item in pack.media)}
    capacity = budgets["tokens"]
    return ShownPack(
        index=index,
        tokens=len(pack),
        budgets={name: (amount, budgets[name]) for name, amount in uses.items() if name in budgets},
        strip=_strip(pack, capacity),
        boundaries=tuple(edge / capacity for edge in pack.cu_seqlens[1:-1].tolist()),
        segments=tuple(
            (segment, tuple(_parts(pack, segment, media, decode, drawings)))
            for segment, media in islice(segments_of(pack), _SEGMENTS)
        ),
        hidden=max(0, pack.num_segments - _SEGMENTS),
    )


def _parts(
    pack: Pack,
    segment: Segment,
    media: Sequence[PlacedMedium],
    decode: Decode | None,
    drawings: Iterator[int],
) -> Iterator[ShownText | ShownMedium]:
    """Yield texts and media of a segment in the order of their tokens."""
    for part in split_at_media(segment, media):
        if isinstance(part, PlacedMedium):
            is_drawn = next(drawings, None) is not None
            note = "not drawn: many before"
            yield _drawn(part) if is_drawn else ShownMedium(MediumFacts.of(part), note=note)
        elif decode is not None:
            for run in texts_of(pack, part, decode):
                text = run.text
                if len(text) > _CHARACTERS:
                    text = f"{text[: _CHARACTERS // 2]} … {text[-_CHARACTERS // 4 :]}"
                # Half of a surrogate pair cannot be written.
                yield replace(run, text=text.encode("utf-8", "backslashreplace").decode())


def _strip(pack: Pack, capacity: int) -> tuple[str, ...]:
    """Return the kind of equal parts of a pack: the most frequent of its tokens; media and targets
    win ties.
    """
    names = ("padding", "text", "target", *(kind.value for kind in MediaKind))
    kinds = np.zeros(capacity, dtype=np.int8)
    kinds[: len(pack)] = np.where(pack.loss_mask, 2, 1)
    for item in pack.media:
        kinds[item.start : item.start + item.length] = names.index(item.medium.kind.value)
    edges = np.linspace(0, capacity, min(_COLUMNS, capacity) + 1).astype(np.int64)
    columns = [
        np.bincount(kinds[begin:end], minlength=len(names))[::-1]
        for begin, end in pairwise(edges.tolist())
    ]
    return tuple(names[len(names) - 1 - int(np.argmax(counts))] for counts in columns)


def _drawn(item: PlacedMedium) -> ShownMedium:
    """Return a medium with its thumbnail or waveform, or with the reason why it has none."""
    facts = MediumFacts.of(item)
    if facts.problem:
        return ShownMedium(facts, note=facts.problem)
    try:
        if item.medium.num_bytes > _MAX_BYTES:
            return ShownMedium(
                facts, note=f"not drawn: it has {item.medium.num_bytes / 1e6:,.0f} MB"
            )
        # The bytes that were packed: an image replaced since then would be shown next to another
        # image's text.
        medium = replace(item.medium, data=item.read())
        if medium.kind is MediaKind.AUDIO:
            header = audio_header(medium)
            if header.num_frames * header.channels > _MAX_PIXELS:
                return ShownMedium(facts, note="not drawn: it is too large")
            return ShownMedium(facts, peaks=_peaks(load_audio(medium, header.sampling_rate)))
        header_size = image_size(medium) if medium.kind is MediaKind.IMAGE else video_header(medium)
        if header_size.width * header_size.height > _MAX_PIXELS:
            return ShownMedium(facts, note="not drawn: it is too large")
        if medium.kind is MediaKind.IMAGE:
            picture = load_image(medium)
        else:
            from PIL import Image

            picture = Image.fromarray(load_frames(medium, [0])[0])
        picture.thumbnail((_SIDE, _SIDE))
        file = BytesIO()
        picture.save(file, "JPEG", quality=75)
        return ShownMedium(facts, thumbnail=file.getvalue())
    except (BadMediumError, MissingExtraError, ImportError) as error:
        return ShownMedium(facts, note=str(error))


def _peaks(waveform: Any) -> tuple[float, ...]:
    """Return the loudest sample of each of equal parts, relative to the loudest of all."""
    parts = np.array_split(np.abs(waveform), min(_PEAKS, max(1, len(waveform))))
    peaks = np.array([part.max(initial=0.0) for part in parts])
    return tuple(round(float(peak), 3) for peak in peaks / max(float(peaks.max()), 1e-9))
