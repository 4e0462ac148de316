"""Settings of a source, with their help."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from brimful.base.arguments import option
from brimful.sources.formats import FORMATS
from brimful.sources.opening import TextUnit


@dataclass(frozen=True, kw_only=True)
class RowSettings:
    """Settings of rows, complete or arriving; ``open_source`` explains each field."""

    format: str | None = option(None, f"What rows look like: {', '.join(FORMATS)}. Detected if not given.", "NAME")
    fields: Mapping[str, str] | None = option(
        None,
        "A field of the format under another key, e.g. messages=dialogue.",
        "NAME=KEY",
        "--field",
        example="messages=dialogue",
    )
    ignore: Sequence[str] = option(
        (),
        "A column to leave out although it changes the meaning of a sample (images, label, rejected), or a mark "
        "such as <image> that is plain text.",
        "NAME",
    )
    prompt: str | None = option(
        None, "The user's turn for captions, boxes and transcripts, whose rows do not contain it.", "TEXT"
    )
    media_dir: str | os.PathLike[str] | None = option(
        None, "Directory of the media that rows name (default: the rows' directory).", "DIR"
    )
    media_outside: bool = option(False, "Rows may name media outside that directory.")


@dataclass(frozen=True, kw_only=True)
class SourceSettings(RowSettings):
    """Settings of a data set that is complete."""

    text_unit: TextUnit = option("file", "What one document of a text file is.")
    split: str | None = option(None, "Split of a data set with several (all: every split in a directory).", "NAME")
    config: str | None = option(None, "Configuration (subset) of a data set with several.", "NAME", "--subset")
    max_samples: int | None = option(None, "Take the first N samples: a trial run.", "N")
