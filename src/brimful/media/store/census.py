"""Census of the media in packs, from the log alone: counts by kind, distinct ones, the largest, and
stored bytes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from brimful.base.wording import counted, size_of
from brimful.media import MediaKind, PlacedMedium
from brimful.store.shards.shard_record import ShardRecord

_NOUNS = {MediaKind.IMAGE: "image", MediaKind.VIDEO: "video", MediaKind.AUDIO: "audio clip"}

_NAME_CHARACTERS = 200
"""Maximum characters of a name in a record: a name may be a whole data URL."""


_SUMS = ("count", "bytes", "distinct", "tokens", "patches", "frames", "mel_frames")
"""Counts of ``KindCount`` that are sums, in its order."""


@dataclass(frozen=True)
class LargestMedium:
    """Medium with the largest number of tokens.

    Attributes:
        name: its name, abridged; bytes that are not Unicode are escaped.
        sample: id of its sample.
        tokens, patches: of the medium.
    """

    name: str
    sample: int
    tokens: int
    patches: int


@dataclass
class KindCount:
    """Counts of the media of one kind in a shard, or in a store; a writer of a shard adds to them.

    Attributes:
        count, bytes: of media; repeated media count each time.
        distinct: different contents among them; of a shard, contents that no earlier pack of the
            store has.
        tokens, patches, frames, mel_frames: sums over them.
        largest: the first with the largest number of tokens.
    """

    count: int = 0
    bytes: int = 0
    distinct: int = 0
    tokens: int = 0
    patches: int = 0
    frames: int = 0
    mel_frames: int = 0
    largest: LargestMedium | None = None

    def add(self, item: PlacedMedium, sample_id: int, num_bytes: int, *, is_first: bool) -> None:
        """Count a medium.

        Args:
            item: the medium.
            sample_id: its sample.
            num_bytes: its bytes, in its file or row.
            is_first: true if no earlier pack of the store has the same content, as the same kind.
        """
        self.count += 1
        self.bytes += num_bytes
        self.distinct += is_first
        self.tokens += item.num_tokens
        self.patches += item.num_patches
        self.frames += item.num_frames
        self.mel_frames += item.num_mel_frames
        if self.largest is None or item.num_tokens > self.largest.tokens:
            name = item.medium.name[:_NAME_CHARACTERS].encode("utf-8", "backslashreplace").decode()
            self.largest = LargestMedium(name, sample_id, item.num_tokens, item.num_patches)

    def __add__(self, later: KindCount) -> KindCount:
        """Return the counts of two parts of a store."""
        sums = {name: getattr(self, name) + getattr(later, name) for name in _SUMS}
        largest = max(
            self.largest, later.largest, key=lambda medium: -1 if medium is None else medium.tokens
        )
        return KindCount(**sums, largest=largest)


@dataclass(frozen=True)
class MediaCensus:
    """Media of a store by kind, and the part that the store holds itself. Kinds without media are
    left out.

    Attributes:
        kinds: counts by kind.
        num_stored: distinct media whose bytes the store holds.
        containers: files that hold them.
        stored_bytes: size of these files.
        holds_features: true if they hold features, not encoded bytes.
        directory: of the packs.
        root: directory that references are relative to; empty without references.

    >>> pictures = KindCount(2, 180, 1, tokens=8, patches=32, largest=LargestMedium("a.png", 0, 4, 16))
    >>> facts = {"items": {"image": asdict(pictures)}}
    >>> record = ShardRecord(0, "shards/0.arrow", 1, "", 1, 8, 1, 8, "host-1", media=facts)
    >>> print("\\n".join(MediaCensus.of([record], root="/data").lines()))
    media          2 images (1 distinct), 32 patches, 180 bytes
    largest        image 'a.png' of sample 0: 4 tokens, 16 patches
    media in       files in /data
    """

    kinds: dict[str, KindCount] = field(default_factory=dict)
    num_stored: int = 0
    containers: int = 0
    stored_bytes: int = 0
    directory: str = ""
    root: str = ""
    holds_features: bool = False

    @classmethod
    def of(
        cls, records: Iterable[ShardRecord], *, directory: str = "", root: str = ""
    ) -> MediaCensus:
        """Sum the records of all shards, without reading packs.

        Args:
            records: the log.
            directory, root: as above.
        """
        kinds: dict[str, KindCount] = {}
        stored_text: list[dict[str, Any]] = []
        for facts in (record.media for record in records if record.media is not None):
            for kind, values in facts["items"].items():
                largest = values["largest"] and LargestMedium(**values["largest"])
                count = KindCount(**{**values, "largest": largest})
                kinds[kind] = kinds.get(kind, KindCount()) + count
            if facts.get("file") is not None:
                stored_text.append(facts)
        return cls(
            {kind.value: kinds[kind.value] for kind in MediaKind if kind.value in kinds},
            sum(facts["stored"] for facts in stored_text),
            len(stored_text),
            sum(facts["bytes"] for facts in stored_text),
            directory,
            root,
            any(facts.get("features") for facts in stored_text),
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the census for JSON."""
        return {
            "kinds": {kind: asdict(count) for kind, count in self.kinds.items()},
            "stored": {
                "distinct": self.num_stored,
                "containers": self.containers,
                "bytes": self.stored_bytes,
                **({"features": True} if self.holds_features else {}),
            },
            "root": self.root,
        }

    def lines(self) -> list[str]:
        """Return the census as lines; empty without media."""
        if not self.kinds:
            return []
        counts = {_NOUNS[MediaKind(kind)]: count for kind, count in self.kinds.items()}
        figures = [
            f"{counted(count.count, noun)} ({count.distinct:,} distinct)"
            for noun, count in counts.items()
        ]
        video = self.kinds.get(MediaKind.VIDEO.value, KindCount())
        sums = {
            "patches": sum(count.patches for count in counts.values()),
            "frames": video.frames,  # not of images, which are one each
            "columns of spectrograms": sum(count.mel_frames for count in counts.values()),
        }
        phrases = [*figures, *(f"{total:,} {name}" for name, total in sums.items() if total)]
        phrases.append(size_of(sum(count.bytes for count in counts.values())))
        largest = [
            f"largest        {noun} {medium.name!r} of sample {medium.sample}: {medium.tokens:,} "
            "tokens" + (f", {medium.patches:,} patches" if medium.patches else "")
            for noun, medium in ((noun, count.largest) for noun, count in counts.items())
            if medium is not None
        ]
        return [
            f"media          {', '.join(phrases)}",
            *largest,
            f"media in       {'; '.join(self.places())}",
        ]

    def places(self) -> list[str]:
        """Return descriptions of the places of the bytes."""
        phrases = []
        if self.num_stored:
            stored_text = (
                f"{self.num_stored:,} distinct "
                f"{'as features ' if self.holds_features else ''}in "
                f"{counted(self.containers, 'file')} of {self.directory}/media"
            )
            phrases.append(f"{stored_text} ({size_of(self.stored_bytes)})")
        if self.root:
            phrases.append(f"files in {self.root}")
        return phrases or ["files by absolute paths"]
