"""Families of models by name: tokens of pictures, videos and sounds from their headers, as the processor makes them."""

from pathlib import Path
from typing import Any

from brimful.errors import SettingsError
from brimful.media.families.family import Expansion, Family, Piece, Placeholder
from brimful.media.families.internvl import InternVL
from brimful.media.families.llava import Llava
from brimful.media.families.processor_files import read_processor_files
from brimful.media.families.qwen2_5_omni import Qwen25Omni
from brimful.media.families.qwen2_5_vl import Qwen25VL
from brimful.media.families.qwen2_audio import Qwen2Audio
from brimful.media.families.qwen2_vl import Qwen2VL
from brimful.media.families.qwen3_vl import Qwen3VL
from brimful.messages import setting

__all__ = ["FAMILIES", "Expansion", "Family", "Piece", "Placeholder", "family_of_processor", "open_family"]

FAMILIES: dict[str, type[Family]] = {
    family.name: family for family in (Qwen2VL, Qwen25VL, Qwen3VL, Qwen2Audio, Qwen25Omni, Llava, InternVL)
}
"""Every family by its name."""


def open_family(name: str, directory: str | Path | None = None, **overrides: Any) -> Family:
    """Return a family with its settings.

    Args:
        name: a name in ``FAMILIES``.
        directory: folder of the model's processor, whose files are read; None for the settings of the published model.
        overrides: settings that go before those of the files, such as ``max_pixels`` or ``fps``; None leaves one alone.

    Raises:
        SettingsError: there is no such family, no such setting, no file, or an impossible value.

    >>> from brimful.media.images import ImageSize
    >>> open_family("qwen2-vl", max_pixels=28 * 28 * 100).image(ImageSize(1000, 500)).num_tokens
    98
    """
    if name not in FAMILIES:
        raise SettingsError(f"no family is called {name!r}: choose one of {', '.join(FAMILIES)}")
    files = None if directory is None else read_processor_files(directory)
    family = FAMILIES[name].from_files(files, {key: value for key, value in overrides.items() if value is not None})
    family.directory = None if directory is None else Path(directory)
    return family


_FAMILY_OF_CLASS = {family.processor_class: name for name, family in FAMILIES.items()}


def family_of_processor(directory: str | Path) -> str:
    """Return the name of the family that a processor says it is of.

    Raises:
        SettingsError: no processor there, or of no family that is known.
    """
    files = read_processor_files(directory)
    for part in (files.processor, files.image, files.audio):
        name = _FAMILY_OF_CLASS.get(str(part.get("processor_class")))
        if name in FAMILIES:
            return name
    raise SettingsError(
        f"{directory} does not say which family its processor is of: name it with {setting('family')}, one of "
        f"{', '.join(FAMILIES)}"
    )
