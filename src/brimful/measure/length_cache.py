"""Lengths for training with augmentation: measured beforehand, opened when packs are built.

When training finds no lengths, the message has the command that writes them, for pasting.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

from brimful.base.checks import check_type
from brimful.base.typing import AnyPath
from brimful.base.wording import setting
from brimful.encode.choose import as_encoder
from brimful.encode.encoder import Encoder
from brimful.errors import CacheMismatchError, SettingsError
from brimful.lengths.table import LengthTable
from brimful.measure.job import measure_and_keep
from brimful.measure.measure_settings import (
    MeasureSettings,
    OnMismatch,
    augmentation_settings,
    open_earlier,
    provenance_of,
)
from brimful.measure.writing_command import writing_command
from brimful.sources.opening import open_source
from brimful.sources.source import Source

OnCacheMismatch: TypeAlias = Literal["error", "rebuild", "fallback"]


@dataclass(frozen=True)
class LengthCache:
    """File of exact lengths for a training data set with augmentation, and the policy if it does
    not match.

    Packs are then built from the file alone: no image is opened, nothing is encoded or augmented.
    Training augments each sample when it is served (``PackedDataset.from_plan(…, transforms=…)``),
    and rejects a sample whose length changes.

    The file matches if it has the fingerprints of the rows and of all that decides lengths
    (tokenizer, chat template, processor), and the settings of the augmentation, and if the
    media files still have their sizes and times, which opens no image. Only rows that were appended
    since are measured.

    Args:
        path: of the table, as ``brimful measure DATA --config train.yaml -o PATH`` writes it.
        augmentation: settings of the augmentation in training, such as
            ``{"crop": 224, "version": 3}``; compared as texts.
        on_mismatch: action if the file is missing or does not match: ``error`` names what differs
            and the command that writes it; ``rebuild`` measures and replaces it; ``fallback``
            leaves it, warns, and measures without it.

    Raises:
        SettingsError: an unknown policy, or augmentation that cannot be recorded.

    >>> import tempfile
    >>> from brimful import measure_lengths
    >>> from brimful.testing.toys import toy_chat_encoder
    >>> chats, encoder = [{"prompt": "1+1?", "completion": "2"}], toy_chat_encoder()
    >>> cache = LengthCache(tempfile.mkdtemp() + "/lengths.arrow", augmentation={"crop": 224}, on_mismatch="rebuild")
    >>> cache.lengths(chats, encoder).tokens.tolist()
    [22]
    """

    path: AnyPath
    augmentation: Mapping[str, Any] = field(default_factory=dict)
    on_mismatch: OnCacheMismatch = "error"

    def __post_init__(self) -> None:
        check_type("path", self.path, (str, os.PathLike), "a path")
        check_type("augmentation", self.augmentation, Mapping, "a mapping such as {'crop': 224}")
        augmentation_settings(self.augmentation)
        if self.on_mismatch not in ("error", "rebuild", "fallback"):
            raise SettingsError(
                f"{setting('on_mismatch', self.on_mismatch)} is unknown: use error, rebuild or "
                "fallback"
            )

    def lengths(
        self,
        source: Source | Any,
        encoder: Encoder | AnyPath | Any,
        **options: Any,
    ) -> LengthTable:
        """Return the exact lengths of a source, from the file if it matches.

        Args:
            source, encoder: as for ``measure_lengths``.
            options: its other settings, but for ``path``, ``augmentation`` and ``on_mismatch``.

        Raises:
            CacheMismatchError: the policy is ``error``; names what differs, and the command that
                writes the file.
            BrimfulError: as for ``measure_lengths``, for appended rows.
        """
        on_mismatch: OnMismatch = "rebuild" if self.on_mismatch == "rebuild" else "error"
        settings = MeasureSettings(
            path=self.path, augmentation=self.augmentation, on_mismatch=on_mismatch, **options
        )
        source = open_source(source, cache_dir=settings.cache_dir)
        encoder = as_encoder(source, encoder)
        misfit = self._misfit(source, encoder, settings)
        if not misfit or self.on_mismatch == "rebuild":
            try:
                return measure_and_keep(source, encoder, settings).table
            except CacheMismatchError as error:
                # Media files, which are checked last, and once.
                misfit = error.message.removeprefix(f"{os.fspath(self.path)} ").partition(
                    ". Choose "
                )[0]
        if self.on_mismatch == "error":
            command = _writing_command(source, encoder, settings)
            raise CacheMismatchError(
                f"{os.fspath(self.path)} {misfit}. Write it with {command}, or choose "
                f"{setting('on_mismatch', 'rebuild')} or {setting('on_mismatch', 'fallback')}"
            )
        warnings.warn(
            f"{os.fspath(self.path)} {misfit}: lengths are measured without it", stacklevel=2
        )
        return measure_and_keep(
            source, encoder, replace(settings, path=None, augmentation=None)
        ).table

    def _misfit(self, source: Source, encoder: Encoder, settings: MeasureSettings) -> str:
        """Return why the file is unusable; empty if it has the lengths of the source, or of a
        beginning of it.
        """
        provenance = provenance_of(source, encoder, settings)
        table, misfit = open_earlier(Path(self.path), provenance, source, encoder)
        if misfit:
            return misfit
        if table is None:
            return "is not there"
        if settings.targets and table.targets is None:
            return f"holds no targets of the loss, which planning looks at ({setting('targets', True)})"
        return ""


def _writing_command(source: Source, encoder: Encoder, settings: MeasureSettings) -> str:
    """Return the command that writes the lengths of a source, or the call in Python."""
    options: dict[str, list[Any]] = {
        "budget": [name for name in settings.budgets if name != "tokens"],
    }
    augmentation = augmentation_settings(settings.augmentation or {})
    path = os.fspath(settings.path or "")
    return f"`{writing_command(source, encoder, path, options, augmentation)}`"
