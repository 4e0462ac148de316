"""Packs as they are: segments, texts by targets, and media, with drawings of a few."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from io import BytesIO
from itertools import islice, pairwise
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from brimful.base.ragged import offsets_of
from brimful.base.typing import AnyIntArray, Int64Array, TokenIds
from brimful.base.wording import counted
from brimful.errors import MissingExtraError
from brimful.media import BadMediumError, MediaKind, PlacedMedium
from brimful.media.audio import audio_header, load_audio
from brimful.media.images import image_size, load_image
from brimful.media.videos import load_frames, video_header
from brimful.store.shards import Pack, PackSequence
from brimful.trees.pack_tree import PackTree, tree_of

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
"""Maximum number of segments shown of a pack."""

_MAX_BYTES, _MAX_PIXELS = 1 << 26, 50_000_000
"""Limits of bytes in a file, and of pixels of an image or frame, or audio samples: larger media are
not drawn.
"""

_TOO_LARGE = "not drawn: it is too large"

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
        medium, size, problem = item.medium, "", ""
        try:
            if medium.kind is MediaKind.IMAGE:
                size = "{}×{}".format(*image_size(medium))
            elif medium.kind is MediaKind.AUDIO:
                sound = audio_header(medium)
                size = f"{sound.num_frames / sound.sampling_rate:.1f} s"
            else:
                video = video_header(medium)
                size = f"{video.width}×{video.height}, {video.num_frames / video.fps:.1f} s"
        except (BadMediumError, MissingExtraError) as error:
            problem = str(error)
        return cls(
            kind=medium.kind.value,
            # A file name need not be valid Unicode, but shown text must be.
            name=medium.name.encode("utf-8", "backslashreplace").decode(),
            segment=item.segment,
            start=item.start,
            length=item.length,
            patches=item.num_patches,
            grid=item.grid,
            size=size,
            frames=item.num_frames if medium.kind is MediaKind.VIDEO else 0,
            problem=problem,
        )

    def describe(self) -> str:
        """Return the medium in brackets, as it appears in a text.

        >>> MediumFacts("image", "a.jpg", 0, 5, 391, 1564, (1, 34, 46), "640×480", 0, "").describe()
        "[image 'a.jpg' 640×480, 391 tokens, 34×46 patches]"
        >>> MediumFacts("audio", "", 0, 5, 25, 0, None, "", 0, "no such file").describe()
        '[audio: no such file, 25 tokens]'
        """
        # With its quotation marks a name has every control character escaped.
        title = f"{self.kind} {self.name!r}" if self.name else self.kind
        title += f": {self.problem}" if self.problem else f" {self.size}"
        phrases = [title, f"{self.length:,} tokens"]
        if self.frames:
            phrases.insert(1, f"{self.frames:,} frames taken")
        if self.grid is not None:
            sides = self.grid[1:] if self.grid[0] == 1 else self.grid
            phrases.append(f"{'×'.join(map(str, sides))} patches")
        elif self.patches:
            phrases.append(f"{self.patches:,} patches")
        return f"[{', '.join(phrases)}]"


@dataclass(frozen=True)
class SegmentFacts:
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


def segments_of(pack: Pack) -> Iterator[tuple[SegmentFacts, list[PlacedMedium]]]:
    """Yield each segment of a pack with its media."""
    for index, (first, end) in enumerate(pairwise(pack.cu_seqlens.tolist())):
        num_targets = int(np.count_nonzero(pack.loss_mask[first:end]))
        sample_id, start = int(pack.sample_ids[index]), int(pack.starts[index])
        media = [item for item in pack.attachments if item.segment == index]
        yield SegmentFacts(sample_id, first, start, end - first, num_targets), media


def samples_through(tree: PackTree) -> Int64Array:
    """Return the number of samples that pass through each segment, ``int64[num_segments]``.

    >>> from brimful.testing.toys import toy_tree
    >>> samples_through(toy_tree([[5, 6, 7], [5, 6, 8], [9]]).sharing).tolist()
    [2, 1, 1, 1]
    """
    is_end = np.zeros(len(tree.parents), dtype=np.int64)
    is_end[tree.ends] = 1
    ends_before = offsets_of(is_end)
    return ends_before[tree.subtree_ends()] - ends_before[:-1]


def name_segments(tree: PackTree, sample_ids: AnyIntArray) -> list[str]:
    """Name each segment by the sample that ends with it, and by the samples that share it.

    >>> from brimful.testing.toys import toy_tree
    >>> pack = toy_tree([[5, 6, 7], [5, 6], [5, 6, 8]])
    >>> name_segments(pack.sharing, pack.sample_ids)
    ['sample 1, trunk of 3 samples', 'sample 0', 'sample 2']
    """
    ends = set(tree.ends.tolist())
    names = []
    for segment, count in enumerate(samples_through(tree).tolist()):
        phrases = [f"sample {int(sample_ids[segment])}"] * (segment in ends)
        phrases += [f"trunk of {counted(count, 'sample')}"] * (count > 1 or segment not in ends)
        names.append(", ".join(phrases))
    return names


def split_at_media(
    segment: SegmentFacts, media: Sequence[PlacedMedium]
) -> Iterator[slice | PlacedMedium]:
    """Yield the media of a segment, and the tokens of the pack between them, in order."""
    first, end = segment.first, segment.first + segment.tokens
    for item in media:
        if first < item.start:
            yield slice(first, item.start)
        yield item
        first = item.start + item.length
    if first < end:
        yield slice(first, end)


def texts_of(pack: Pack, tokens: slice, decode: Decode) -> Iterator[ShownText]:
    """Yield runs of targets and of other tokens as texts, with control characters escaped."""
    ids, mask = pack.input_ids[tokens], pack.loss_mask[tokens]
    edges = [0, *(np.flatnonzero(mask[1:] != mask[:-1]) + 1).tolist(), len(ids)]
    for first, end in pairwise(edges):
        yield ShownText(without_controls(decode(ids[first:end])), bool(mask[first]))


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


class ShownSegment(NamedTuple):
    """A segment of a pack, and its texts and media.

    Attributes:
        name: its sample; in a tree also the number of samples that share it.
        level: branches up to it; 0 unless samples share their beginnings.
        facts: its place.
        items: in the order of their tokens.
    """

    name: str
    level: int
    facts: SegmentFacts
    items: tuple[ShownText | ShownMedium, ...]


@dataclass(frozen=True)
class ShownPack:
    """One pack of a report.

    Attributes:
        index: its number.
        tokens: its tokens.
        budgets: use and capacity of tokens, and of patches if they are limited.
        segments: the first of them.
        hidden: number of segments that are not shown.
    """

    index: int
    tokens: int
    budgets: dict[str, tuple[int, int]]
    segments: tuple[ShownSegment, ...]
    hidden: int

    def as_dict(self) -> dict[str, Any]:
        """Return the numbers of a pack for JSON, without images and texts."""
        media = [
            item.facts
            for segment in self.segments
            for item in segment.items
            if isinstance(item, ShownMedium)
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
        index: sum(item.num_patches + item.num_mel_frames for item in packs[index].attachments)
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
    if pack.sharing is None:
        names, levels = (
            [f"sample {sample_id:,}" for sample_id in pack.sample_ids],
            [0] * pack.num_segments,
        )
    else:
        names, levels = name_segments(tree_of(pack), pack.sample_ids), []
        parents = tree_of(pack).parents
        # A segment that alone continues its parent is not a branch.
        num_branches = np.bincount(parents[parents >= 0], minlength=len(parents)).tolist()
        for parent in parents.tolist():
            levels.append(0 if parent < 0 else levels[parent] + (num_branches[parent] > 1))
    uses = {"tokens": len(pack), "patches": sum(item.num_patches for item in pack.attachments)}
    return ShownPack(
        index=index,
        tokens=len(pack),
        budgets={name: (amount, budgets[name]) for name, amount in uses.items() if name in budgets},
        segments=tuple(
            ShownSegment(name, level, facts, tuple(_items(pack, facts, media, decode, drawings)))
            for (facts, media), name, level in zip(
                islice(segments_of(pack), _SEGMENTS), names, levels, strict=False
            )
        ),
        hidden=max(0, pack.num_segments - _SEGMENTS),
    )


def _items(
    pack: Pack,
    segment: SegmentFacts,
    media: Sequence[PlacedMedium],
    decode: Decode | None,
    drawings: Iterator[int],
) -> Iterator[ShownText | ShownMedium]:
    """Yield texts and media of a segment in the order of their tokens."""
    for item in split_at_media(segment, media):
        if isinstance(item, PlacedMedium):
            if next(drawings, None) is None:
                yield ShownMedium(MediumFacts.of(item), note="not drawn: many before")
            else:
                yield _drawn(item)
        elif decode is not None:
            for run in texts_of(pack, item, decode):
                text = run.text
                if len(text) > _CHARACTERS:
                    text = f"{text[: _CHARACTERS // 2]} … {text[-_CHARACTERS // 4 :]}"
                # Half of a surrogate pair cannot be written.
                yield replace(run, text=text.encode("utf-8", "backslashreplace").decode())


def _drawn(item: PlacedMedium) -> ShownMedium:
    """Return a medium with its thumbnail or waveform, or with the reason why it has none."""
    facts = MediumFacts.of(item)
    if facts.problem:
        return ShownMedium(facts, note=facts.problem)
    try:
        if item.medium.num_bytes > _MAX_BYTES:
            return ShownMedium(facts, note=_TOO_LARGE)
        # The bytes that were packed: an image replaced since then would be shown next to another
        # image's text.
        medium = replace(item.medium, data=item.read())
        if medium.kind is MediaKind.AUDIO:
            header = audio_header(medium)
            if header.num_frames * header.channels > _MAX_PIXELS:
                return ShownMedium(facts, note=_TOO_LARGE)
            waveform = np.abs(load_audio(medium, header.sampling_rate))
            slices = np.array_split(waveform, min(_PEAKS, max(1, len(waveform))))
            peaks = np.array([samples.max(initial=0.0) for samples in slices])
            peaks /= max(float(peaks.max()), 1e-9)
            return ShownMedium(facts, peaks=tuple(round(peak, 3) for peak in peaks.tolist()))
        header_size = image_size(medium) if medium.kind is MediaKind.IMAGE else video_header(medium)
        if header_size.width * header_size.height > _MAX_PIXELS:
            return ShownMedium(facts, note=_TOO_LARGE)
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
