"""Settings of a source, with their help, and the reading of rows that they describe."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Literal, TypeAlias

from brimful.base.arguments import option
from brimful.base.checks import MalformedRowError, check_type
from brimful.base.typing import AnyPath
from brimful.base.wings import PLACING, loaded
from brimful.base.wording import setting
from brimful.errors import SettingsError, UnknownFormatError
from brimful.sources.formats import FORMATS, RowFormat, detect, format_named
from brimful.sources.reading import Reading

TextUnit: TypeAlias = Literal["file", "line"]
"""One document of a text file: the whole file, or each line."""

_ROWS_FOR_DETECTION = 16
"""Number of rows at the beginning of each file from which its format is detected."""


@dataclass(frozen=True, kw_only=True)
class RowSettings:
    """Settings of rows, complete or arriving; ``open_source`` explains each field."""

    format: str | None = option(
        None, f"What rows look like: {', '.join(FORMATS)}. Detected if not given.", "NAME"
    )
    fields: Mapping[str, str] | None = option(
        None,
        "A field of the format under another key, e.g. messages=dialogue.",
        "NAME=KEY",
        "--field",
        example="messages=dialogue",
    )
    ignore: Sequence[str] = option(
        (),
        "A column to leave out although it changes the meaning of a sample "
        "(images, label, rejected), or a mark such as <image> that is plain text.",
        "NAME",
    )
    prompt: str | None = option(
        None,
        "The user's turn for captions, boxes and transcripts, whose rows do not contain it.",
        "TEXT",
    )
    # Empty for the directory of the rows; None refuses rows with media.
    media_dir: AnyPath | None = option(
        None, "Directory of the media that rows name (default: the rows' directory).", "DIR"
    )
    media_outside: bool = option(False, "Rows may name media outside that directory.")

    def __post_init__(self) -> None:
        check_type(
            "fields",
            self.fields,
            (Mapping, type(None)),
            "a mapping such as {'messages': 'dialogue'}",
        )
        if isinstance(self.ignore, str):
            vars(self)["ignore"] = (self.ignore,)

    def format_of(self, rows: Iterable[Any], title: str) -> RowFormat | None:
        """Return the format of rows by the first of them; None if none of them can be read.

        Raises:
            UnknownFormatError: they have no format that brimful knows; names the file.
        """
        if self.format is not None:
            return format_named(self.format, self.fields, self.prompt)
        first_rows = [
            row
            for row in islice(rows, _ROWS_FOR_DETECTION)
            if not isinstance(row, MalformedRowError)
        ]
        if self.ignore:
            # Without attachments, text with them is not a transcript.
            first_rows = [
                {name: value for name, value in row.items() if name not in self.ignore}
                if isinstance(row, Mapping)
                else row
                for row in first_rows
            ]
        try:
            return detect(first_rows, self.fields, self.prompt) if first_rows else None
        except UnknownFormatError as error:
            raise UnknownFormatError(f"{title}: {error.message}") from error

    def reading(self, row_format: RowFormat, directory: str) -> Reading:
        """Return the reading of the rows of a file in a directory, which has their media unless
        another is named.
        """
        placing = None
        if self.media_dir is not None:
            placing = loaded(PLACING)(os.fspath(self.media_dir) or directory, self.media_outside)
        return Reading(row_format, frozenset(self.ignore), placing)


@dataclass(frozen=True, kw_only=True)
class SourceSettings(RowSettings):
    """Settings of a data set that is complete."""

    text_unit: TextUnit = option("file", "What one document of a text file is.")
    split: str | None = option(None, "Split of the data (all: every one in a directory).", "NAME")
    config: str | None = option(
        None, "Configuration (subset) of a data set with several.", "NAME", "--subset"
    )
    max_samples: int | None = option(None, "Take the first N samples: a trial run.", "N")
    per_turn: bool = option(False, "Each answer of a chat is a sample, trained alone.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.text_unit not in ("file", "line"):
            raise SettingsError(
                f"{setting('text_unit')} {self.text_unit!r} is unknown: use file or line"
            )
        if self.max_samples is not None and self.max_samples < 1:
            raise SettingsError(
                f"{setting('max_samples')} must be at least 1 and is {self.max_samples}"
            )

    def reading(self, row_format: RowFormat, directory: str) -> Reading:
        reading = super().reading(row_format, directory)
        if not self.per_turn:
            return reading
        if row_format.view is not None:
            raise SettingsError(
                f"{setting('per_turn')} is for conversations, and rows of format "
                f"{row_format.name} are already several samples each: leave it out"
            )
        return replace(reading, per_turn=row_format.has_turns)
