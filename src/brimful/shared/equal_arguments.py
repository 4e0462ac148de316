"""Arguments that must be equal on all ranks: rank 0 sends its own with the plan, and every other rank compares."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TypeAlias

from brimful.base.atomic_file import atomic_file
from brimful.base.cache import cache_dir, exclusive
from brimful.base.fingerprint import canonical_json, differing_keys, fingerprint_of, short
from brimful.base.typing import Fingerprint
from brimful.encode.encoder import Encoder
from brimful.errors import PlanMismatchError
from brimful.plan import PlanSettings
from brimful.sources.source import Source
from brimful.sources.stamp import Stamp

Arguments: TypeAlias = Mapping[str, str]
"""Named strings that decide the tokens of packs, long ones as fingerprints; and ``title``, which may differ."""

_LONGEST_SHOWN = 40


def arguments_of(
    source: Source, encoder: Encoder, settings: PlanSettings | None = None, cache: str | os.PathLike[str] | None = None
) -> Arguments:
    """Return the arguments of this rank.

    >>> from brimful import open_source
    >>> from brimful.testing.toys import toy_chat_encoder
    >>> source = open_source([{"prompt": "1+1?", "completion": "2"}])
    >>> arguments_of(source, toy_chat_encoder(), PlanSettings(capacity=64))["capacity"]
    '64'
    """
    values = {f"encoder {name}": value for name, value in (encoder.length_settings | encoder.label_settings).items()}
    if settings is not None:
        values |= settings.as_dict()
    arguments = {"title": source.title, "source": kept_fingerprint(source, cache)}
    for name, value in values.items():
        text = value if isinstance(value, str) else canonical_json(value).decode()
        arguments[name] = text if len(text) <= _LONGEST_SHOWN else fingerprint_of(text)
    return arguments


def kept_fingerprint(source: Source, cache: str | os.PathLike[str] | None = None) -> Fingerprint:
    """Return the fingerprint of a source; only one of the processes that share a cache reads the bytes of its files.

    It is kept until the files change. Rows outside files, such as rows in memory, are read by each process.
    """
    members = source.rows.members
    if not source.rows.lies_in_files or not all(map(os.path.exists, dict(members))):
        return source.fingerprint
    stamps = []
    for title, _ in members:
        files = [os.path.join(folder, name) for folder, _, names in os.walk(title) for name in sorted(names)]
        # Taken before the bytes are read; the reader refuses a file that changes in the meantime.
        stamps += [[os.path.abspath(path), repr(Stamp.of(path))] for path in files or [title]]
    path = cache_dir(cache) / "fingerprints" / fingerprint_of([members, source.unit, source.row_settings, stamps])
    with exclusive(path):
        if not path.exists():
            with atomic_file(path) as file:
                file.write(source.fingerprint.encode())
        return path.read_text()


def check_arguments(theirs: Arguments, own: Arguments, rank: int, their_rank: int = 0) -> None:
    """Refuse a rank whose tokens would differ from the planned tokens.

    Raises:
        PlanMismatchError: names each argument that differs, with both values.
    """
    differences = [
        f"{name} ({_shown(theirs, name)} on rank {their_rank}, {_shown(own, name)} here)"
        for name in differing_keys(theirs, own)
        if name != "title"
    ]
    if differences:
        raise PlanMismatchError(
            f"rank {rank} has different arguments from rank {their_rank}, which made the plan: {', '.join(differences)}"
        )


def _shown(arguments: Arguments, name: str) -> str:
    value = arguments.get(name, "not given")
    return f"{arguments['title']} {short(value)}" if name == "source" else value
