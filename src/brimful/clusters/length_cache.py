"""Lengths for training with augmentation: measured beforehand, opened when packs are built.

When training finds no lengths, the message has the command that writes them, for pasting.
"""

from __future__ import annotations

import os
import shlex
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

from brimful.base.checks import check_type
from brimful.base.sharing import ShareMode
from brimful.base.typing import AnyPath
from brimful.base.wording import setting
from brimful.encode.choose import as_encoder, encoder_for
from brimful.encode.encoder import Encoder
from brimful.encode.tokenizer import Tokenizer
from brimful.errors import BrimfulError, CacheMismatchError, SettingsError
from brimful.lengths.table import LengthTable
from brimful.measure.job import measure_and_keep
from brimful.measure.measure_settings import (
    MeasureSettings,
    OnMismatch,
    augmentation_settings,
    open_earlier,
    provenance_of,
)
from brimful.sources.augmented import Transform
from brimful.sources.opening import open_source
from brimful.sources.source import Source

OnCacheMismatch: TypeAlias = Literal["error", "rebuild", "fallback"]
"""Treatment of a file that does not fit: refuse it, measure again and replace it, or without it."""


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
        if settings.transforms:
            source = source.augmented(settings.transforms)
        encoder = as_encoder(source, encoder)
        provenance = provenance_of(source, encoder, settings)
        table, misfit = open_earlier(Path(self.path), provenance, source, encoder)
        if table is None:
            misfit = misfit or "is not there"
        elif settings.targets and table.targets is None:
            misfit = (
                "holds no targets of the loss, which planning looks at "
                f"({setting('targets', True)})"
            )
        if not misfit or self.on_mismatch == "rebuild":
            try:
                return measure_and_keep(source, encoder, settings)[0]
            except CacheMismatchError as error:
                # Media files, which are checked last, and once.
                misfit = error.message.removeprefix(f"{os.fspath(self.path)} ").partition(
                    ". Choose "
                )[0]
        if self.on_mismatch == "error":
            command = writing_command(source, encoder, os.fspath(self.path), settings)
            raise CacheMismatchError(
                f"{os.fspath(self.path)} {misfit}. Write it with {command}, or choose "
                f"{setting('on_mismatch', 'rebuild')} or {setting('on_mismatch', 'fallback')}"
            )
        warnings.warn(
            f"{os.fspath(self.path)} {misfit}: lengths are measured without it", stacklevel=2
        )
        return measure_and_keep(source, encoder, replace(settings, path=None, augmentation=None))[0]


def writing_command(source: Source, encoder: Encoder, path: str, settings: MeasureSettings) -> str:
    """Return the command that writes the lengths of a source, between backticks; lines of Python if no command measures the same.

    The command is verified: the source and encoder that it would make are made here, and must have the same settings.

    Args:
        source, encoder: as for ``measure_lengths``.
        path: of the table.
        settings: of measuring.
    """
    augmentation = augmentation_settings(settings.augmentation or {})
    is_in_python = settings.shares and not isinstance(settings.share_within, str)
    paths = [title for title, _ in source.rows.members]
    try:
        flags = _flags_of(source, encoder, paths)
    except BrimfulError:
        flags = None
    transforms = () if source.augmentation is None else source.augmentation.transforms
    names = [*map(_importable, transforms)]
    if flags is None or None in names or is_in_python:
        values = {
            "path": path,
            "augmentation": augmentation,
            "budgets": [*settings.budgets],
            "on_bad_sample": settings.on_bad_sample,
            "on_mismatch": "rebuild",
        }
        texts = [f"{name}={value!r}" for name, value in values.items()]
        if settings.shares:
            within = "share_within" if is_in_python else repr(settings.share_within)
            least = settings.least_shared
            share = f"share={ShareMode(settings.share).value!r}"
            texts.append(f"{share}, least_shared={least}, share_within={within}")
        call = f"measure_lengths(source, encoder, {', '.join(texts)})"
        return f"`from brimful import measure_lengths; {call}`, with source and encoder as here"
    flags |= {
        "budget": [name for name in settings.budgets if name != "tokens"],
        "transform": names,
        "on_bad_sample": [settings.on_bad_sample] * (settings.on_bad_sample != "error"),
    }
    if settings.shares:
        flags |= {
            "share": [ShareMode(settings.share).value],
            "least_shared": [str(settings.least_shared)],
            "share_within": [settings.share_within],
        }
    flags["augmentation"] = [f"{name}={text}" for name, text in augmentation.items()]
    options = [
        f"--{name.replace('_', '-')}{'' if value is True else ' ' + shlex.quote(value)}"
        for name, values in flags.items()
        for value in values
    ]
    files = shlex.join(paths)
    return f"`brimful measure {files} {' '.join(options)} -o {shlex.quote(path)} --on-mismatch rebuild`"


def _flags_of(
    source: Source, encoder: Encoder, paths: Sequence[str]
) -> dict[str, list[Any]] | None:
    """Return the flags that open these paths and make this encoder; None if no flags do."""
    draws = source.augmentation
    family = getattr(encoder, "family", None)
    if not all(map(os.path.exists, paths)) or (draws is not None and (draws.seed or draws.epoch)):
        return None  # the command draws with 0 for both
    tokenizer = getattr(encoder, "tokenizer", None)
    # A tokenizer that the caller loaded remembers from where; what is there is compared below.
    name = getattr(tokenizer, "place", None) or getattr(
        getattr(tokenizer, "hf", None), "name_or_path", None
    )
    tokenizer = Tokenizer(name, ask_hub=False) if name else None
    processor = None if family is None or family.directory is None else os.fspath(family.directory)
    directories = source.attachment_directories
    is_near = directories == list(
        dict.fromkeys(os.path.dirname(os.path.abspath(path)) for path in paths)
    )
    opening: dict[str, Any] = {
        "format": None if source.detected or len(source.formats) > 1 else source.format_name,
        "media_dir": None if is_near or not directories else directories[0],
        "media_outside": source.has_attachments_outside,
        "per_turn": source.per_turn,
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
        alike, tokenizer, media=family and family.open(processor, {}), **encoding
    )
    ours, theirs = (
        {**item.length_settings, **item.label_settings} for item in (encoder, encoder_again)
    )
    plain = {name: value for name, value in source.row_settings.items() if name != "transforms"}
    if ours != theirs or alike.row_settings != plain or alike.attachment_directories != directories:
        return None
    path = tokenizer and tokenizer.place
    models = {"tokenizer": None if path == processor else path, "processor": processor}
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
