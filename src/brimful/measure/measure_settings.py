"""Settings of jobs that measure, with their help, and the provenance of lengths: all that they
depend on.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np

from brimful.base.arguments import option
from brimful.base.checks import choice_of, whole_number
from brimful.base.execute import LOCAL, ExecutionLike, Resources, as_execution
from brimful.base.fingerprint import differing_keys, fingerprint_array, short
from brimful.base.progress import Progress
from brimful.base.sharing import LEAST_SHARED, ShareMode, wing_of
from brimful.base.typing import AnyIntArray, AnyPath
from brimful.base.wording import setting
from brimful.encode.encoder import Encoder
from brimful.errors import BrimfulError, SettingsError
from brimful.lengths.table import LengthTable
from brimful.sources.augmented import Transform
from brimful.sources.source import Source

OnBadSample: TypeAlias = Literal["error", "skip"]
"""Treatment of a row that cannot be read or encoded: stop and name it, or count and list it."""

OnMismatch: TypeAlias = Literal["error", "rebuild"]
"""Treatment of a table of other lengths under the given name: refuse it, or measure again."""

BUDGETS = ("tokens", "loss_tokens")
"""Budgets that can be measured for texts: all tokens, and the targets of the loss."""


ShareWithin: TypeAlias = Literal["all", "row"] | AnyIntArray
"""Samples that may share: all, the samples of one row, or the ones of equal numbers."""

_COMPARED = ("settings", "labels", "augmentation", "sharing")
"""Parts of a provenance that are compared by their keys."""


@dataclass(frozen=True, kw_only=True)
class SampleSettings:
    """Settings of a job over all samples, of measuring and of packing."""

    on_bad_sample: OnBadSample = option(
        "error", "A malformed row stops the job, or is counted and written to a reject file."
    )
    num_proc: int | None = option(
        None,
        "Processes (default: all cores, one for small data). Never changes the result.",
        minimum=1,
    )
    cache_dir: AnyPath | None = option(
        None,
        "Directory for indexes and measured lengths, but not for notes on tokenizers (default: "
        "$BRIMFUL_CACHE or ~/.cache/brimful).",
    )
    least_shared: int = option(
        LEAST_SHARED,
        "Shorter common beginnings of samples are not shared.",
        "TOKENS",
        minimum=1,
    )
    share_within: ShareWithin = option(
        "all", "Samples that may share: all, or the ones of one row (a preference, a conversation)."
    )
    execution: ExecutionLike = LOCAL
    progress: Progress | None = None

    def __post_init__(self) -> None:
        whole_number(setting("least_shared"), self.least_shared, minimum=1)
        if isinstance(self.share_within, str) and self.share_within not in ("all", "row"):
            raise SettingsError(
                f"{setting('share_within', self.share_within)} is unknown: use all, row, or in "
                "Python a number for each sample"
            )
        if not isinstance(self.share_within, str):
            object.__setattr__(self, "share_within", np.asarray(self.share_within))
        if self.on_bad_sample not in ("error", "skip"):
            raise SettingsError(
                f"{setting('on_bad_sample', self.on_bad_sample)} is unknown: use error or skip"
            )

    @cached_property
    def resources(self) -> Resources:
        """Means of the job."""
        return Resources(self.num_proc, as_execution(self.execution), self.progress or Progress())


@dataclass(frozen=True, kw_only=True)
class MeasureSettings(SampleSettings):
    """Settings of ``measure_lengths``, which explains them."""

    share: ShareMode | str = option(
        ShareMode.NONE, "Find the prefixes that samples share, so that plans can share them."
    )
    budgets: Sequence[str] = ("tokens",)
    targets: bool = True
    path: AnyPath | None = None
    rejects_path: AnyPath | None = None
    augmentation: Mapping[str, Any] | None = None
    transforms: Sequence[Transform] = ()
    on_mismatch: OnMismatch = "error"

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "share", choice_of(ShareMode, self.share, argument="share"))
        if self.on_mismatch not in ("error", "rebuild"):
            raise SettingsError(
                f"{setting('on_mismatch', self.on_mismatch)} is unknown: use error or rebuild"
            )
        for name in self.budgets:
            if name not in BUDGETS:
                value = setting("budgets", name, python=f"budgets {name!r}")
                raise SettingsError(f"{value} cannot be measured here: use {', '.join(BUDGETS)}")

    @property
    def shares(self) -> bool:
        """True if what samples share is looked for."""
        return self.share is not ShareMode.NONE

    @property
    def search(self) -> Any:
        """Search for what samples share (``base.sharing.wing_of``); None if they share nothing."""
        return wing_of(self.share).Search(self.least_shared) if self.shares else None

    def budgets_of(self, encoder: Encoder) -> tuple[str, ...]:
        """Return the budgets of a table: tokens first, then the requested ones, then the encoder's
        budgets of media.
        """
        return ("tokens", *(name for name in BUDGETS[1:] if name in self.budgets), *encoder.budgets)


def provenance_of(
    source: Source,
    encoder: Encoder,
    measuring: MeasureSettings,
) -> dict[str, Any]:
    """Return the fingerprints and settings that lengths depend on; ``labels`` decide only targets.

    Augmentation changes no length, so blocks are found for any; a table records the one it was made
    for.
    """
    budgets = measuring.budgets_of(encoder)
    settings = {f"encoder {name}": value for name, value in encoder.length_settings.items()}
    if "loss_tokens" in budgets:
        settings |= {f"encoder {name}": value for name, value in encoder.label_settings.items()}
    return {
        "settings": {
            **settings,
            "budgets": list(budgets),
            **{f"row {k}": v for k, v in source.row_settings.items()},
        },
        **(
            {"labels": {f"encoder {k}": v for k, v in encoder.label_settings.items()}}
            if measuring.targets
            else {}
        ),
        **(
            {}
            if measuring.augmentation is None
            else {"augmentation": augmentation_settings(measuring.augmentation)}
        ),
        **({"sharing": _sharing_settings(source, measuring)} if measuring.shares else {}),
        "source_fingerprint": source.fingerprint,
        "source": source.title,
        "parts": [list(member) for member in source.rows.members],
        "num_samples": len(source),
        **({"group_size": source.group_size} if source.group_size > 1 else {}),
        **({"num_rows": source.rows.num_rows} if source.per_turn else {}),
        **({"has_mismatches": True} if source.joins_rows else {}),
    }


def _sharing_settings(source: Source, measuring: MeasureSettings) -> dict[str, Any]:
    within, directories = measuring.share_within, source.attachment_directories
    return {
        "share": ShareMode(measuring.share).value,
        "least_shared": measuring.least_shared,
        "share_within": within if isinstance(within, str) else fingerprint_array(within),
        # Rows tell which media are one file, unless they name files in several directories.
        **({"media_directories": directories} if len(directories) > 1 else {}),
    }


def differing_settings(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[str]:
    """Return the names of the settings, labels and settings of augmentation in which two
    provenances differ.
    """
    return [
        f"augmentation {name}" if section == "augmentation" else name
        for section in _COMPARED
        for name in differing_keys(first.get(section, {}), second.get(section, {}))
    ]


def open_earlier(
    target: Path, provenance: dict[str, Any], source: Source, encoder: Encoder
) -> tuple[LengthTable | None, str]:
    """Open the table at the target if it covers a beginning of the source with the same settings.

    Returns:
        The table, or None; and the reason why an existing table is unusable.
    """
    try:
        table = LengthTable.open(target)
    except FileNotFoundError:
        return None, ""
    except BrimfulError as error:
        return None, f"is there and cannot be used ({error.message})"
    # The content is compared last: the fingerprint of a file's first rows may require reading the
    # file.
    earlier = table.provenance
    # Targets count if both have them, and a job without augmentation accepts any.
    names = [
        name for name in _COMPARED if name in provenance and (name != "labels" or name in earlier)
    ]
    # Prefixes are in the fingerprint, so a job without them takes no table that has them.
    names += ["sharing"] if "sharing" in earlier and "sharing" not in names else []
    differences = differing_settings(
        *({n: of.get(n, {}) for n in names} for of in (earlier, provenance))
    )
    if not all(map(encoder.engine.trusts, earlier.get("engines", ()))):
        differences.append(
            "libraries that encoded it, which were later found to give other tokens than the "
            "reference"
        )
    if not differences and len(table) > len(source):
        differences = [f"source ({len(table):,} samples there, {len(source):,} here)"]
    if not differences and not source.begins_with(len(table), earlier["source_fingerprint"]):
        fingerprint = earlier["source_fingerprint"]
        differences = [
            f"source content ({short(fingerprint)} there, {short(source.fingerprint)} here)"
        ]
    if not differences:
        return table, ""
    return (
        None,
        "was measured with other settings or data; these parts differ: "
        f"{', '.join(dict.fromkeys(differences))}",
    )


def augmentation_settings(augmentation: Mapping[str, Any]) -> dict[str, str]:
    """Return settings of augmentation as texts, so that Python, YAML and the command line compare
    equal.

    Raises:
        SettingsError: a value that JSON has no text for, such as a function.

    >>> augmentation_settings({"crop": 224, "flip": True, "policy": "v3", "scale": [0.8, 1.0]})
    {'crop': '224', 'flip': 'true', 'policy': 'v3', 'scale': '[0.8, 1.0]'}
    """
    texts = {}
    for name, value in augmentation.items():
        try:
            texts[str(name)] = (
                value
                if isinstance(value, str)
                else json.dumps(value, sort_keys=True, ensure_ascii=False)
            )
        except (TypeError, ValueError) as error:
            raise SettingsError(
                f"{setting('augmentation')}: {name} is {value!r}, which cannot be recorded: give "
                "names, numbers and texts, such as a version of the code"
            ) from error
    return texts
