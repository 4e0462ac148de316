"""Maker of the features of media of any kind, by the model's own processor."""

from __future__ import annotations

import os
from functools import cached_property
from typing import Any, Protocol

from brimful.errors import SettingsError
from brimful.fingerprint import fingerprint_of
from brimful.media.families import Family
from brimful.media.families.processor_files import read_processor_files
from brimful.media.features.block import Features, block_bytes, to_block
from brimful.media.features.image import ImageFeatures
from brimful.media.features.sound import SoundFeatures
from brimful.media.features.stored import metadata_of, restored, trimmed
from brimful.media.features.video import VideoFeatures
from brimful.media.placed import PlacedMedium
from brimful.media.reference import MediaKind, Medium
from brimful.messages import setting
from brimful.typing import Fingerprint


class FeatureMaker:
    """Maker of features as the towers of a model take them. Picklable: each process loads the processors at first use.

    Args:
        directory: of the model's processor.
        family: with the settings that the packs are encoded with.
    """

    def __init__(self, directory: str | os.PathLike[str], family: Family) -> None:
        self.directory, self.family = os.fspath(directory), family
        self._sizes: dict[Any, int] = {}

    def of(self, medium: Medium, item: PlacedMedium) -> Features:
        """Return the features of a medium; raises the errors of the maker of its kind."""
        return self._makers[item.medium.kind].of(medium, item)

    def blank(self, item: PlacedMedium) -> Features:
        """Return zeros in the shapes and dtypes of a medium's features."""
        return self._makers[item.medium.kind].blank(item)

    def block(self, medium: Medium, item: PlacedMedium, fingerprint: Fingerprint) -> bytes:
        """Return the features of a medium as a block.

        Raises:
            BadMediumError: it cannot be decoded.
            SettingsError: the processor makes shapes or dtypes that its settings do not predict.
        """
        features = self.of(medium, item)
        stored = trimmed(features, item)
        if stored is not features and not _are_same(restored(stored, item), features):
            raise SettingsError(
                "its spectrogram is not constant after its end, as when the feature extractor adds noise "
                f"(dither): choose {setting('media_storage', 'bytes')}"
            )
        block = to_block(stored, metadata_of(item, fingerprint, self.fingerprint))
        if len(block) != self.block_bytes(item):
            raise SettingsError(
                f"its features take {len(block):,} bytes and {self.block_bytes(item):,} were counted: the processor "
                f"makes other shapes or dtypes than its settings say"
            )
        return block

    def block_bytes(self, item: PlacedMedium) -> int:
        """Return the size of the block of a medium, from its header alone."""
        key: tuple[Any, ...] = (item.medium.kind, item.num_tokens, item.num_patches, item.grid, item.num_mel_frames)
        key = (*key, item.seconds_per_grid is None)
        if key not in self._sizes:
            stored = trimmed(self.blank(item), item)
            self._sizes[key] = block_bytes(stored, metadata_of(item, "0" * 32, self.fingerprint))
        return self._sizes[key]

    @cached_property
    def fingerprint(self) -> Fingerprint:
        """Fingerprint of all settings that decide features: the family's, and the processor files'."""
        files = read_processor_files(self.directory)
        return fingerprint_of([self.family.settings, dict(files.image), dict(files.video), dict(files.audio)])

    @cached_property
    def _makers(self) -> dict[MediaKind, _Maker]:
        return {
            MediaKind.IMAGE: ImageFeatures(self.directory, self.family),
            MediaKind.VIDEO: VideoFeatures(self.directory, self.family),
            MediaKind.AUDIO: SoundFeatures(self.directory, self.family),
        }

    def __reduce__(self) -> tuple[object, ...]:
        # Each process loads the processors from their files: they may not be picklable.
        return FeatureMaker, (self.directory, self.family)


def _are_same(one: Features, other: Features) -> bool:
    """Return true for the same arrays, bit for bit."""
    return one.keys() == other.keys() and all(
        array.dtype == other[name].dtype and array.tobytes() == other[name].tobytes() for name, array in one.items()
    )


class _Maker(Protocol):
    """Maker of the features of one kind of media."""

    def of(self, medium: Medium, item: PlacedMedium) -> Features: ...

    def blank(self, item: PlacedMedium) -> Features: ...
