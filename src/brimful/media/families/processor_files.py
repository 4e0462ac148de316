"""Settings files that a processor of Transformers is loaded from."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from brimful.errors import SettingsError
from brimful.messages import setting


@dataclass(frozen=True)
class ProcessorFiles:
    """Settings of one processor and its parts, each as the dictionary that Transformers would choose.

    Attributes:
        processor: of the processor itself: ``processor_config.json``.
        image, video, audio: of its parts.
    """

    processor: Mapping[str, Any]
    image: Mapping[str, Any]
    video: Mapping[str, Any]
    audio: Mapping[str, Any]


def read_processor_files(directory: str | Path) -> ProcessorFiles:
    """Return the settings of a processor: nested in ``processor_config.json``, or in separate files.

    A video processor without a file uses the image processor's, and so does a feature extractor, as in Transformers.

    Raises:
        SettingsError: none of the files exists, or one is not a JSON object.
    """
    directory = Path(directory)
    if not directory.is_dir():
        what = "is a file: name its directory" if directory.exists() else "is not a directory"
        raise SettingsError(f"{setting('processor', str(directory))}: {directory} {what}")
    processor = _read_json(directory / "processor_config.json")
    image = _read_json(directory / "preprocessor_config.json")
    video = _read_json(directory / "video_preprocessor_config.json")
    if processor is None and image is None and video is None:
        raise SettingsError(
            f"{setting('processor', str(directory))}: {directory} has no preprocessor_config.json and no "
            f"processor_config.json, which come with a model"
        )
    processor, image = processor or {}, image or {}
    return ProcessorFiles(
        processor=processor,
        image=processor.get("image_processor", image),
        video=processor.get("video_processor", image if video is None else video),
        audio=processor.get("feature_extractor", processor.get("audio_processor", image)),
    )


def _read_json(path: Path) -> dict[str, Any] | None:
    try:
        value = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise SettingsError(f"{path} cannot be read: {error}") from error
    if not isinstance(value, dict):
        raise SettingsError(f"{path} is not a JSON object")
    return value
