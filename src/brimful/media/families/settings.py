"""Settings of a family of models with media, with their help."""

from __future__ import annotations

from dataclasses import dataclass

from brimful.errors import SettingsError
from brimful.media.families import FAMILIES, Family, family_of_processor, open_family
from brimful.messages import setting
from brimful.settings import option


@dataclass(frozen=True, kw_only=True)
class MediaSettings:
    """A processor or a family, and what is set instead of the processor's own settings."""

    processor: str | None = option(
        None,
        "Directory of the model's processor (preprocessor_config.json): packs images, videos and audio too.",
        "DIR",
    )
    family: str | None = option(
        None,
        f"Family of the model: {', '.join(FAMILIES)} (default: as the processor says).",
        "FAMILY",
        "--encoder",
    )
    min_pixels: int | None = option(None, "Fewest pixels of an image, instead of the processor's.", "N")
    max_pixels: int | None = option(None, "Most pixels of an image, instead of the processor's.", "N")
    fps: float | None = option(None, "Frames taken per second of video.", "RATE")
    num_frames: int | None = option(None, "Frames taken per video, of any duration.", "N")
    min_frames: int | None = option(None, "Fewest frames that --fps takes.", "N")
    max_frames: int | None = option(None, "Most frames that --fps takes.", "N")
    video_min_pixels: int | None = option(None, "Fewest pixels of a video frame; for Qwen3-VL, of all frames.", "N")
    video_max_pixels: int | None = option(None, "Most pixels of a video frame; for Qwen3-VL, of all frames.", "N")
    sampling_rate: int | None = option(None, "Audio samples per second, instead of the processor's.", "HERTZ")

    def open(self) -> Family | None:
        """Open the family; None if no media are requested.

        Raises:
            SettingsError: a setting of media without a processor or a family.
        """
        overrides = {name: value for name, value in vars(self).items() if value is not None}
        name, processor = overrides.pop("family", None), overrides.pop("processor", None)
        if name is None and processor is None:
            if overrides:
                raise SettingsError(
                    f"{setting(next(iter(overrides)))} is for images, videos and audio: name the model's "
                    f"{setting('processor')}, or leave it out"
                )
            return None
        return open_family(name or family_of_processor(processor), processor, **overrides)
