"""Census of the media in packs: how many of each kind, how many distinct, and the largest."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from brimful.media import MediaKind, PlacedMedium
from brimful.messages import counted
from brimful.shards.pack import Pack

_NOUNS = {MediaKind.IMAGE: "picture", MediaKind.VIDEO: "video", MediaKind.AUDIO: "sound"}
_BUFFER = 1 << 16
"""Fingerprints that are kept as Python's numbers; more are sorted into an array, of 8 bytes for each distinct medium."""


@dataclass(frozen=True)
class KindCount:
    """The media of one kind in some packs.

    Attributes:
        number: media, each as often as it is packed.
        distinct: different contents among them.
        tokens, patches, frames, mel_frames: sums over them.
        largest: name of the one with most tokens, its sample, and its tokens and patches.
    """

    number: int
    distinct: int
    tokens: int
    patches: int
    frames: int
    mel_frames: int
    largest: str
    largest_sample: int
    largest_tokens: int
    largest_patches: int


@dataclass(frozen=True)
class MediaCensus:
    """The media in some packs, by kind; a kind that none is of is left out.

    >>> from brimful.media import Medium
    >>> from brimful.testing.toys import toy_pack
    >>> from dataclasses import replace
    >>> picture = PlacedMedium(Medium(MediaKind.IMAGE, "a.png"), 0, 4, num_tokens=4, num_patches=16, fingerprint="0a")
    >>> census = MediaCensus.of([replace(toy_pack([5]), media=(picture,)), replace(toy_pack([5]), media=(picture,))])
    >>> print("\\n".join(census.lines()))
    media          2 pictures (1 distinct), 32 patches
    largest        picture 'a.png' of sample 0: 4 tokens, 16 patches
    """

    kinds: dict[str, KindCount]

    @classmethod
    def of(cls, packs: Iterable[Pack]) -> MediaCensus:
        """Count the media of packs, which are read one after the other.

        Raises:
            CorruptFileError: as reading the packs does.
        """
        counters: dict[MediaKind, _Counter] = {}
        for pack in packs:
            for item in pack.media:
                counters.setdefault(item.medium.kind, _Counter()).add(item, int(pack.sample_ids[item.segment]))
        return cls({kind.value: counters[kind].count() for kind in MediaKind if kind in counters})

    @classmethod
    def from_dict(cls, kinds: dict[str, Any]) -> MediaCensus:
        """Return the census that ``as_dict`` gave."""
        return cls({kind: KindCount(**count) for kind, count in kinds.items()})

    def as_dict(self) -> dict[str, Any]:
        """Return the counts for JSON, by kind."""
        return {kind: asdict(count) for kind, count in self.kinds.items()}

    def lines(self) -> list[str]:
        """Return the census as lines; none without media."""
        if not self.kinds:
            return []
        names = {kind: _NOUNS[MediaKind(kind)] for kind in self.kinds}
        numbers = [
            f"{counted(count.number, names[kind])} ({count.distinct:,} distinct)" for kind, count in self.kinds.items()
        ]
        sums = {
            "patches": sum(count.patches for count in self.kinds.values()),
            "frames": sum(count.frames for kind, count in self.kinds.items() if kind == MediaKind.VIDEO.value),
            "columns of spectrograms": sum(count.mel_frames for count in self.kinds.values()),
        }
        parts = [*numbers, *(f"{total:,} {name}" for name, total in sums.items() if total)]
        largest = [
            f"largest        {names[kind]} {count.largest!r} of sample {count.largest_sample}: "
            f"{count.largest_tokens:,} tokens"
            + (f", {count.largest_patches:,} patches" if count.largest_patches else "")
            for kind, count in self.kinds.items()
        ]
        return [f"media          {', '.join(parts)}", *largest]


class _Counter:
    """Counts of one kind while packs go by."""

    def __init__(self) -> None:
        self._sums = np.zeros(5, dtype=np.int64)
        self._largest: tuple[PlacedMedium, int] | None = None
        self._recent: set[int] = set()
        self._distinct = np.empty(0, dtype=np.uint64)

    def add(self, item: PlacedMedium, sample_id: int) -> None:
        """Count one medium of a sample."""
        self._sums += (1, item.num_tokens, item.num_patches, item.num_frames, item.num_mel_frames)
        if self._largest is None or item.num_tokens > self._largest[0].num_tokens:
            self._largest = item, sample_id
        # 64 of the 128 bits: of a billion media about 0.03 would be counted too few.
        self._recent.add(int(item.fingerprint[:16] or "0", 16))
        if len(self._recent) >= _BUFFER:
            self._sort_in()

    def _sort_in(self) -> None:
        recent = np.fromiter(self._recent, dtype=np.uint64, count=len(self._recent))
        self._distinct = np.union1d(self._distinct, recent)
        self._recent.clear()

    def count(self) -> KindCount:
        """Return the counts."""
        self._sort_in()
        assert self._largest is not None
        item, sample_id = self._largest
        number, tokens, patches, frames, mel_frames = self._sums.tolist()
        return KindCount(
            number, len(self._distinct), tokens, patches, frames, mel_frames,
            item.medium.name[:200].encode("utf-8", "backslashreplace").decode(), sample_id, item.num_tokens, item.num_patches,
        )  # fmt: skip
