"""Command line equal to a call of ``measure_lengths``: printed for pasting when training finds no lengths."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from brimful.encode.choose import encoder_for
from brimful.encode.encoder import Encoder
from brimful.errors import BrimfulError
from brimful.sources.augmented import Transform
from brimful.sources.opening import open_source
from brimful.sources.source import Source


def writing_command(
    source: Source,
    encoder: Encoder,
    path: str,
    options: Mapping[str, Sequence[Any]],
    augmentation: Mapping[str, str],
) -> str:
    """Return the command that writes the lengths of a source; the Python call if no command measures the same.

    The command is verified: the source and encoder that it would make are made here, and must have the same settings.

    Args:
        source, encoder: as for ``measure_lengths``.
        path: of the table.
        options: further flags by their names, each with its texts.
        augmentation: settings as texts.
    """
    paths = [title for title, _ in source.rows.members]
    try:
        flags = _flags_of(source, encoder, paths)
    except BrimfulError:
        flags = None
    transforms = () if source.augmentation is None else source.augmentation.transforms
    further = {**options, "transform": [*map(_importable, transforms)]}
    texts = [text for values in further.values() for text in values]
    if flags is None or not all(isinstance(text, str) for text in texts):
        record = f", augmentation={dict(augmentation)!r}" if augmentation else ""
        return f"measure_lengths(source, encoder, path={path!r}{record}, on_mismatch='rebuild', …)"
    further["augmentation"] = [f"{name}={text}" for name, text in augmentation.items()]
    words = [
        f"--{name.replace('_', '-')}{'' if value is True else ' ' + shlex.quote(value)}"
        for name, values in {**flags, **further}.items()
        for value in values
    ]
    return " ".join(
        [
            "brimful measure",
            shlex.join(paths),
            *words,
            "-o",
            shlex.quote(path),
            "--on-mismatch rebuild",
        ]
    )


def _flags_of(
    source: Source, encoder: Encoder, paths: Sequence[str]
) -> dict[str, list[Any]] | None:
    """Return the flags that open these paths and make this encoder; None if no flags do."""
    draws = source.augmentation
    if not all(map(os.path.exists, paths)) or (draws is not None and (draws.seed or draws.epoch)):
        return None  # the command draws with 0 for both
    place = getattr(getattr(encoder, "tokenizer", None), "place", None)
    family = getattr(encoder, "family", None)
    processor = None if family is None or family.directory is None else os.fspath(family.directory)
    directories = source.media_directories
    is_near = directories == list(
        dict.fromkeys(os.path.dirname(os.path.abspath(path)) for path in paths)
    )
    opening: dict[str, Any] = {
        "format": None if source.detected or len(source.formats) > 1 else source.format_name,
        "media_dir": None if is_near or not directories else directories[0],
        "media_outside": source.has_media_outside,
    }
    train_on = getattr(getattr(encoder, "train_on", None), "value", None)
    encoding: dict[str, Any] = {
        "mode": "completion" if encoder.length_settings.get("encoder") == "completion" else None,
        "train_on": None if train_on in ("assistant", "completion") else train_on,
        "system": getattr(encoder, "_system", None),
        "chat_template": getattr(encoder, "_template", None),
    }
    encoding = {name: value for name, value in encoding.items() if value}
    alike = open_source(paths[0] if len(paths) == 1 else paths, media=bool(directories), **opening)
    encoder_again = encoder_for(
        alike, place, media=family and family.open(processor, {}), **encoding
    )
    ours, theirs = (
        {**item.length_settings, **item.label_settings} for item in (encoder, encoder_again)
    )
    plain = {name: value for name, value in source.row_settings.items() if name != "transforms"}
    if ours != theirs or alike.row_settings != plain or alike.media_directories != directories:
        return None
    models = {"tokenizer": None if place == processor else place, "processor": processor}
    names = {**models, "encoder": None if family is None else family.name, **opening, **encoding}
    return {name: [value] for name, value in names.items() if value}


def _importable(transform: Transform) -> str | None:
    """Return the ``module:name`` by which a command imports a transform; None without one."""
    for module_name, module in list(sys.modules.items()):
        if module_name != "__main__" and not module_name.startswith("brimful"):
            for name, value in list(getattr(module, "__dict__", {}).items()):
                if value is transform:
                    return f"{module_name}:{name}"
    return None
