"""A model family: what its processor, of which the files are read, makes of the placeholder of a
medium.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from brimful.base.checks import is_whole_number
from brimful.base.wording import counted, setting
from brimful.errors import SettingsError
from brimful.media.audio import AudioHeader, audio_header
from brimful.media.images import ImageSize, image_size
from brimful.media.medium import BadMediumError, MediaKind, Medium
from brimful.media.videos import VideoHeader, video_header


@dataclass(frozen=True)
class ProcessorFiles:
    """Settings of one processor and its parts, each as the dictionary that Transformers would
    choose.

    Attributes:
        processor: of the processor itself: ``processor_config.json``.
        image, video, audio: of its parts.
    """

    processor: Mapping[str, Any]
    image: Mapping[str, Any]
    video: Mapping[str, Any]
    audio: Mapping[str, Any]


def read_processor_files(directory: str | Path) -> ProcessorFiles:
    """Return the settings of a processor: nested in ``processor_config.json``, or in separate
    files.

    A video processor without a file uses the image processor's, and so does a feature extractor, as
    in Transformers.

    Raises:
        SettingsError: none of the files exists, or one is not a JSON object.
    """
    directory = Path(directory)
    if not directory.is_dir():
        what = "is a file: name its directory" if directory.exists() else "is not a directory"
        raise SettingsError(f"{setting('processor', str(directory))}: {directory} {what}")
    processor = read_json_object(directory / "processor_config.json")
    image = read_json_object(directory / "preprocessor_config.json")
    video = read_json_object(directory / "video_preprocessor_config.json")
    if processor is None and image is None and video is None:
        raise SettingsError(
            f"{setting('processor', str(directory))}: {directory} has no preprocessor_config.json "
            "and no processor_config.json, which come with a model"
        )
    processor, image = processor or {}, image or {}
    return ProcessorFiles(
        processor=processor,
        image=processor.get("image_processor", image),
        video=processor.get("video_processor", image if video is None else video),
        audio=processor.get("feature_extractor", processor.get("audio_processor", image)),
    )


def read_json_object(path: Path) -> dict[str, Any] | None:
    """Return the JSON object in a file, None if there is no file; ``SettingsError`` for anything
    else.
    """
    try:
        value = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise SettingsError(f"{path} cannot be read: {error}") from error
    if not isinstance(value, dict):
        raise SettingsError(f"{path} is not a JSON object")
    return value


def check_positive(component: Any, *names: str) -> None:
    """Reject settings of a kind of media that are not positive whole numbers; None is no
    setting.
    """
    for name in names:
        value = getattr(component, name)
        if value is not None and (not is_whole_number(value) or value < 1):
            title = name
            if not name.endswith(("_size", "_length")):  # which only a processor's file has
                is_of_frame = component.kind == "video" and name.endswith("_pixels")
                title = setting(f"video_{name}" if is_of_frame else name)
            raise SettingsError(
                f"{title} of {component.kind} has to be a positive whole number and is {value!r}"
            )


class Piece(NamedTuple):
    """A token that is repeated, or a text that the tokenizer has to cut.

    Attributes:
        text: of one token, or of several.
        repetitions: how often it is repeated.
        is_token: ``text`` is one token of the vocabulary; otherwise it is encoded like any text.
    """

    text: str
    repetitions: int = 1
    is_token: bool = True


@dataclass(frozen=True)
class Expansion:
    """Tokens of one medium, and the input of its encoder.

    Attributes:
        pieces: texts and tokens that replace the placeholder's token, in order.
        num_tokens: tokens whose embeddings come from the encoder.
        num_patches: patches of the vision encoder, of tiles or of a grid; 0 for an audio clip.
        grid: patches along time, height and width, if the family has such a grid.
        num_frames: frames that are taken from a video; 1 for an image.
        num_mel_frames: columns of the spectrogram of an audio clip, without padding.
        seconds_per_grid: seconds from one grid of a video to the next, if the model's positions
            follow them.
    """

    pieces: tuple[Piece, ...]
    num_tokens: int
    num_patches: int = 0
    grid: tuple[int, int, int] | None = None
    num_frames: int = 0
    num_mel_frames: int = 0
    seconds_per_grid: float | None = None


class Family(ABC):
    """Sizes of media to tokens, patches and texts, as the processor of a family of models makes
    them.

    An instance has its settings, which are read from the processor's own files: ``open_family``.
    """

    name: ClassVar[str]
    processor_class: ClassVar[str] = ""
    """Name of its processor in Transformers, with which jobs compare a share of their samples;
    empty without one.
    """

    directory: Path | None = None
    """Folder of the processor whose files it was read from; not part of its settings."""

    placeholders: ClassVar[Mapping[MediaKind, str]]
    """Token of a chat template that the processor replaces by the pieces of an ``Expansion``."""

    remedies: ClassVar[Mapping[MediaKind, tuple[str, ...]]] = {}
    """Settings that make fewer tokens of a medium; empty for a kind whose number of tokens is
    fixed.
    """

    needs_full_spectrograms: ClassVar[bool] = True
    """True for an audio tower that takes only spectrograms of the longest length; false for one
    that reads only the columns that ``feature_attention_mask`` names.
    """

    known_overrides: ClassVar[tuple[str, ...]] = ()
    """Settings of a processor that a job may override."""

    def __init__(self, *components: Any) -> None:
        self.components = components
        """Frozen dataclasses that decide everything, one for each kind of media."""
        for component in components:
            setattr(self, f"_{component.kind}", component)

    @classmethod
    def open(cls, directory: str | Path | None, overrides: Mapping[str, Any]) -> Family:
        """Return the family with the settings of a processor's folder; see ``open_family``."""
        files = None if directory is None else read_processor_files(directory)
        family = cls.from_files(files, overrides)
        family.directory = None if directory is None else Path(directory)
        return family

    @classmethod
    @abstractmethod
    def from_files(cls, files: ProcessorFiles | None, overrides: Mapping[str, Any]) -> Family:
        """Return the family with the settings of a processor, or of the published model if
        ``files`` is None.

        Args:
            files: of the processor.
            overrides: by ``known_overrides``; None is left out.

        Raises:
            SettingsError: a setting that the family cannot have.
        """

    @property
    def settings(self) -> dict[str, Any]:
        """All that decides tokens, as JSON, for fingerprints."""
        return {
            "family": self.name,
            **{component.kind: asdict(component) for component in self.components},
        }

    def expand(self, medium: Medium) -> Expansion:
        """Return the expansion of a medium, from its header alone.

        Raises:
            BadMediumError: the medium cannot be used.
            SettingsError: the family does not know this kind of media.
            MissingExtraError: the library that reads the header is not installed.
        """
        if medium.kind not in self.placeholders:
            kinds = ", ".join(known.value for known in self.placeholders)
            raise SettingsError(
                f"the family {self.name} has no placeholder for {medium.kind.value}: it knows "
                f"{kinds}"
            )
        if medium.kind is MediaKind.IMAGE:
            return self.image(image_size(medium))
        if medium.kind is MediaKind.VIDEO:
            return self.video(video_header(medium))
        header = audio_header(medium)
        expansion = self.audio(header)
        # The processor makes no token of it.
        if expansion.num_tokens < 1:
            raise BadMediumError(
                f"is too short for a token: {counted(header.num_frames, 'sample')}"
            )
        return expansion

    def image(self, size: ImageSize) -> Expansion:
        """Return the expansion of an image of this size; ``BadMediumError`` if the processor
        rejects it.
        """
        raise NotImplementedError

    def video(self, header: VideoHeader) -> Expansion:
        """Return the expansion of a video of this header; ``BadMediumError`` if the processor
        rejects it.
        """
        raise NotImplementedError

    def frame_indices(self, header: VideoHeader) -> list[int]:
        """Return the numbers of the frames that the processor takes from a video, ascending."""
        raise NotImplementedError

    def audio(self, header: AudioHeader) -> Expansion:
        """Return the expansion of an audio clip of this header; ``BadMediumError`` if the processor
        rejects it.
        """
        raise NotImplementedError

    def attention_groups(
        self, num_patches: int, grid: tuple[int, int, int] | None
    ) -> tuple[int, int]:
        """Return the number and the size of the groups of patches of a medium that attend to each
        other.

        Each image and each frame, or pair of frames, is a group; in ``InternVL`` each tile is one.
        """
        return (1, num_patches) if grid is None else (grid[0], grid[1] * grid[2])
