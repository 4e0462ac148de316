"""A medium and the tokens that stand for it, in a sample or in a pack."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace

from brimful.fingerprint import fingerprint_bytes
from brimful.media.reference import BadMediumError, Medium
from brimful.messages import setting
from brimful.typing import Fingerprint

CHANGED = "was changed since it was packed: restore it, or pack the data again"
"""Reason for bytes that differ from the packed ones."""


@dataclass(frozen=True)
class PlacedMedium:
    """One image, video or audio clip of an encoded sample, or of a pack.

    Attributes:
        medium: where its bytes are.
        start: first of its tokens, counted in the sample or in the pack.
        length: number of its tokens: all that replace its placeholder.
        num_tokens: number of these whose embeddings come from a tower.
        num_patches: patches of the vision tower.
        grid: patches along time, height and width; None for audio, and for models without a grid.
        num_frames: frames taken from a video; 1 for an image.
        num_mel_frames: columns of the spectrogram of an audio clip.
        runs: first token of each run of tokens from a tower, counted from ``start``: several in a video whose frames
            are between timestamps.
        seconds_per_grid: seconds from one grid of a video to the next, for models whose positions follow them.
        segment: number of the segment that it belongs to; 0 in a sample.
        fingerprint: of its bytes when it was packed; empty before packing.
        stamp: state of its file before its header was read (``Medium.stamp``); 0 for bytes that came with the row.
        shard: while packs are written, the shard whose container holds its bytes, at the offset of ``medium``;
            -1 for a reference to a file.
    """

    medium: Medium
    start: int
    length: int
    num_tokens: int
    num_patches: int = 0
    grid: tuple[int, int, int] | None = None
    num_frames: int = 0
    num_mel_frames: int = 0
    runs: tuple[int, ...] = (0,)
    seconds_per_grid: float | None = None
    segment: int = 0
    fingerprint: Fingerprint = ""
    stamp: int = field(default=0, repr=False, compare=False)
    shard: int = field(default=-1, repr=False, compare=False)

    def __eq__(self, other: object) -> bool:
        # Media of a shard have their own class, and are equal to others with the same fields.
        if not isinstance(other, PlacedMedium):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in _COMPARED)

    @property
    def title(self) -> str:
        """Kind and name, for messages."""
        return f"{self.medium.kind.value} {self.medium.name[:200]!r}"

    @property
    def is_unchanged(self) -> bool:
        """True if its file is in the state in which its header was read; ``BadMediumError`` if it is gone."""
        return self.medium.stamp() == self.stamp

    def in_container(self, shard: int, offset: int, size: int) -> PlacedMedium:
        """Return the medium with its bytes in the container of a shard, for a pack to write."""
        medium = replace(self.medium, path="", offset=offset, size=size, data=None)
        return replace(self, medium=medium, shard=shard)

    def read(self) -> bytes:
        """Return the medium's bytes, which must equal the packed ones.

        Raises:
            BadMediumError: it is gone, was changed after packing, or is stored as features.
        """
        source = self.medium.container
        if source is not None and source.holds_features:
            raise BadMediumError(
                f"is in the store as features, and its bytes are not: pack with {setting('media_storage', 'bytes')} or "
                f"{setting('media_storage', 'references')}"
            )
        content = self.medium.read()
        if self.fingerprint and fingerprint_bytes(content) != self.fingerprint:
            container = self.medium.container
            raise BadMediumError(CHANGED if container is None else container.damage(self.medium))
        return content


_COMPARED = tuple(one.name for one in fields(PlacedMedium) if one.compare)
"""Fields of two equal media."""
