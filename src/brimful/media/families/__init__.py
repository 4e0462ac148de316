"""Model families: tokens of images, videos and audio from their headers, as the processor makes
them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from brimful.base.arguments import option
from brimful.base.wording import setting
from brimful.errors import SettingsError
from brimful.media.families.family import (
    Expansion,
    Family,
    Piece,
    read_processor_files,
)
from brimful.media.families.llava import InternVL, Llava
from brimful.media.families.qwen_audio import Qwen2Audio, Qwen25Omni
from brimful.media.families.qwen_vl import Qwen2VL, Qwen3VL, Qwen25VL

__all__ = [
    "FAMILIES",
    "Expansion",
    "Family",
    "MediaSettings",
    "Piece",
    "family_of_processor",
    "family_of_settings",
    "open_family",
]

FAMILIES: dict[str, type[Family]] = {
    family.name: family
    for family in (Qwen2VL, Qwen25VL, Qwen3VL, Qwen2Audio, Qwen25Omni, Llava, InternVL)
}
"""Every family by its name."""


def open_family(name: str, directory: str | Path | None = None, **overrides: Any) -> Family:
    """Return a family with its settings.

    Args:
        name: a name in ``FAMILIES``.
        directory: folder of the model's processor, whose files are read; None uses the settings of
            the published model.
        overrides: settings that override the files, such as ``max_pixels`` or ``fps``; None leaves
            a setting unchanged.

    Raises:
        SettingsError: an unknown family or setting, a missing file, or an impossible value.

    >>> from brimful.media.images import ImageSize
    >>> open_family("qwen2-vl", max_pixels=28 * 28 * 100).image(ImageSize(1000, 500)).num_tokens
    98
    """
    if name not in FAMILIES:
        raise SettingsError(f"no family is called {name!r}: choose one of {', '.join(FAMILIES)}")
    family_class = FAMILIES[name]
    settings = {key: value for key, value in overrides.items() if value is not None}
    if strangers := [
        setting(key) for key in sorted(settings.keys() - set(family_class.known_overrides))
    ]:
        raise SettingsError(
            f"the family {name} has no setting {', '.join(strangers)}: leave it out"
        )
    return family_class.open(directory, settings)


_CHOSEN = {
    *("min_pixels", "max_pixels", "max_patches", "sampling_rate"),
    *("do_sample_frames", "fps", "num_frames", "min_frames", "max_frames", "cap_pixels_per_frame"),
}
"""Settings that a job may choose; all others belong to the model."""


def family_of_settings(settings: Mapping[str, Any], directory: str | Path | None = None) -> Family:
    """Return the family that has these settings: the inverse of ``Family.settings``.

    What a job may choose, such as ``max_pixels``, is taken from the settings; what belongs to the
    model has to equal the processor's files.

    Args:
        settings: as ``Family.settings`` had them, also after JSON.
        directory: folder of the model's processor; None trusts all of the settings.

    Raises:
        SettingsError: no such family or setting, or a processor of another model; names the first
            difference.

    >>> family = open_family("qwen2-vl", max_pixels=28 * 28 * 100)
    >>> family_of_settings(family.settings).settings == family.settings
    True
    """
    name = str(settings.get("family"))
    family = open_family(name, directory)
    components = []
    for component in family.components:
        values = settings.get(component.kind, {})
        own = {field.name: getattr(component, field.name) for field in fields(component)}
        for key, value in values.items():
            if directory is not None and key not in _CHOSEN and value != own[key]:
                raise SettingsError(
                    f"{directory} has {key}={own[key]!r} for {component.kind}s and the packs were made "
                    f"with {value!r}: give the processor that they were made with"
                )
        components.append(replace(component, **values))
    return type(family)(*components)


def family_of_processor(directory: str | Path) -> str:
    """Return the name of the family that a processor declares.

    Raises:
        SettingsError: no processor there, or one of an unknown family.
    """
    files = read_processor_files(directory)
    classes = [
        config.get("processor_class") for config in (files.processor, files.image, files.audio)
    ]
    for name, family in FAMILIES.items():
        if family.processor_class in classes:
            return name
    raise SettingsError(
        f"{directory} does not say which family its processor is of: name it with "
        f"{setting('family')}, one of {', '.join(FAMILIES)}"
    )


@dataclass(frozen=True, kw_only=True)
class MediaSettings:
    """A processor or a family, and what is set instead of the processor's own settings."""

    processor: str | None = option(
        None,
        "Directory of the model's processor (preprocessor_config.json): packs images, videos and "
        "audio too.",
        "DIR",
    )
    family: str | None = option(
        None,
        f"Family of the model: {', '.join(FAMILIES)} (default: as the processor says).",
        "FAMILY",
        "--encoder",
    )
    min_pixels: int | None = option(
        None, "Fewest pixels of an image, instead of the processor's.", "N"
    )
    max_pixels: int | None = option(
        None, "Most pixels of an image, instead of the processor's.", "N"
    )
    fps: float | None = option(None, "Frames taken per second of video.", "RATE")
    num_frames: int | None = option(None, "Frames taken per video, of any duration.", "N")
    min_frames: int | None = option(None, "Fewest frames that --fps takes.", "N")
    max_frames: int | None = option(None, "Most frames that --fps takes.", "N")
    video_min_pixels: int | None = option(
        None, "Fewest pixels of a video frame; for Qwen3-VL, of all frames.", "N"
    )
    video_max_pixels: int | None = option(
        None, "Most pixels of a video frame; for Qwen3-VL, of all frames.", "N"
    )
    sampling_rate: int | None = option(
        None, "Audio samples per second, instead of the processor's.", "HERTZ"
    )

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
                    f"{setting(next(iter(overrides)))} is for images, videos and audio: name the "
                    f"model's {setting('processor')}, or leave it out"
                )
            return None
        return open_family(name or family_of_processor(processor), processor, **overrides)
