"""Records of an export in its folder ``.brimful``: whose packs, and which shards are finished.

::

    .brimful/export.json      the header: layout and packs; written once
    .brimful/00000000.json    one record a shard, written after its files: THE commit point
    .brimful/finished.json    nothing is missing
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any, TypeVar

from brimful.base.blobs import BlobStore
from brimful.base.fingerprint import differing_keys
from brimful.base.wording import setting
from brimful.errors import (
    CorruptFileError,
    NotAPackStoreError,
    StoreMismatchError,
)
from brimful.integrations.export.export_layout import ShardOutcome

Value = TypeVar("Value")

_FOLDER = ".brimful"
_HEADER = f"{_FOLDER}/export.json"
_END = f"{_FOLDER}/finished.json"
_RECORD = re.compile(rf"{re.escape(_FOLDER)}/(\d{{8}})\.json")
_FORMAT, _VERSION = "brimful.export", 1


class ExportRecords:
    """Header and records of one export, for reading and writing."""

    def __init__(self, store: BlobStore) -> None:
        self.store = store

    def claim(self, identity: dict[str, Any]) -> None:
        """Claim the directory for this export, or check that it already is this one.

        Raises:
            StoreMismatchError: the directory holds another export; names the differences.
        """
        header = {"format": _FORMAT, "version": _VERSION, "identity": identity}
        if self.store.put_if_absent(_HEADER, _json(header)):
            return
        known_identity = self.identity()
        keys = differing_keys(known_identity, identity)
        if keys:
            text = ", ".join(
                f"{key} ({known_identity.get(key)!r} there, {identity.get(key)!r} now)"
                for key in keys
            )
            raise StoreMismatchError(
                f"{self.store.url} already holds another export: {text}. Choose another "
                f"{setting('directory')}, or delete that one"
            )

    def identity(self) -> dict[str, Any]:
        """Return the settings of the export.

        Raises:
            NotAPackStoreError: the directory holds none.
            CorruptFileError: the header cannot be read.
        """

        def parse(header: dict[str, Any]) -> dict[str, Any]:
            if (header["format"], header["version"]) != (_FORMAT, _VERSION):
                raise ValueError(f"format {header['format']!r} version {header['version']!r}")
            return dict(header["identity"])

        try:
            return self._read(_HEADER, parse)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise NotAPackStoreError(
                f"{self.store.url} holds no export of brimful: {_HEADER} is missing"
            ) from error

    def _read(self, key: str, parse: Callable[[dict[str, Any]], Value]) -> Value:
        try:
            return parse(json.loads(self.store.get(key)))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CorruptFileError(
                f"{self.store.url}/{key} cannot be read: delete it ({error})"
            ) from error

    def commit(self, shard: int, outcome: ShardOutcome) -> None:
        """Record a shard whose files are published."""
        self.store.put_atomic(_key(shard), _json(asdict(outcome)))

    def outcomes(self, *, trusts_records: bool = False) -> dict[int, ShardOutcome]:
        """Return the finished shards: all whose files still have their recorded sizes, or all with
        a record.
        """
        outcomes = {}
        for key in self.store.list(f"{_FOLDER}/"):
            if match := _RECORD.fullmatch(key):
                outcome = self._read(key, lambda record: ShardOutcome(**record))
                if trusts_records or self._are_there(outcome.files):
                    outcomes[int(match[1])] = outcome
        return outcomes

    def _are_there(self, files: Mapping[str, int]) -> bool:
        return all(self.store.size(file) == size for file, size in files.items())

    def is_finished(self) -> bool:
        """Return true if the files next to the shards were written and still exist."""
        if self.store.size(_END) is None:
            return False
        return self._read(_END, lambda end: self._are_there(end["files"]))

    def end(self, files: Mapping[str, int]) -> None:
        """Mark the export as finished; ``files`` are next to its shards."""
        self.store.put_atomic(_END, _json({"files": dict(files)}))


def _key(shard: int) -> str:
    return f"{_FOLDER}/{shard:08d}.json"


def _json(value: Any) -> bytes:
    return json.dumps(value, indent=1, sort_keys=True).encode() + b"\n"
