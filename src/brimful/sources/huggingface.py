"""A ``datasets.Dataset``, in memory or as a directory that ``save_to_disk`` wrote."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from brimful.errors import SettingsError, SourceNotFoundError, missing_extra
from brimful.fingerprint import fingerprint_bytes, fingerprint_of
from brimful.hub import offline_if_unreachable
from brimful.sources.block import cut
from brimful.sources.rows import Block, Rows
from brimful.typing import Fingerprint
from brimful.words import setting

__all__ = ["HuggingFaceRows", "table_fingerprint"]


class HuggingFaceRows(Rows):
    """Rows of a ``datasets.Dataset``."""

    def __init__(self, dataset: Any, title: str | None = None) -> None:
        self._dataset = dataset
        self.title = title or "datasets.Dataset"

    @classmethod
    def from_directory(cls, path: str | os.PathLike[str], *, split: str | None = None) -> HuggingFaceRows:
        """Open what ``save_to_disk`` wrote."""
        name = os.fspath(path)
        loaded = _library(f"reading {name}").load_from_disk(name)
        if not isinstance(loaded, Mapping):
            return cls(loaded, title=name)
        splits = ", ".join(map(str, loaded))
        if split is None:
            first = "train" if "train" in loaded else next(iter(loaded))
            raise SettingsError(f"{name} holds several splits ({splits}): name one with {setting('split', first)}")
        if split not in loaded:
            raise SourceNotFoundError(f"{setting('split', split)}: {name} has no such split (it has {splits})")
        return cls(loaded[split], title=f"{name} ({split})")

    @classmethod
    def from_hub(cls, name: str, *, split: str, config: str | None = None) -> HuggingFaceRows:
        """Open a data set of the hub, from the cache of ``datasets`` where the hub cannot be reached.

        Raises:
            SourceNotFoundError: it is not there, or neither reachable nor in the cache; one line, at once.
        """
        datasets = _library(f"opening {name} of the hub")
        with offline_if_unreachable() as reachable:
            try:
                loaded = datasets.load_dataset(name, config, split=split)
            except Exception as error:  # the hub's libraries raise errors of many kinds
                said = (str(error).strip() or repr(error)).splitlines()[0]
                why = said if reachable else "the hub cannot be reached, and it is not in the cache of datasets"
                raise SourceNotFoundError(
                    f"{name} (split {split}): no such file or directory here, and {why}"
                ) from error
        return cls(loaded, title=f"{name} ({split})")

    def __len__(self) -> int:
        return len(self._dataset)

    def read(self, start: int, stop: int) -> Iterator[Any]:
        plain = self._dataset.with_format(None)
        for begin in range(start, stop, 1024):
            columns = plain[begin : min(begin + 1024, stop)]
            names = list(columns)
            for values in zip(*columns.values(), strict=False):
                yield dict(zip(names, values, strict=False))

    def get(self, index: int) -> Any:
        return self._dataset.with_format(None)[index]

    def where(self, index: int) -> str:
        return f"{self.title}: row {index}"

    @cached_property
    def blocks(self) -> Sequence[Block]:
        arrow = self._dataset.with_format("arrow")
        return [Block(start, stop, table_fingerprint(arrow[start:stop])) for start, stop in cut(0, len(self))]

    @cached_property
    def fingerprint(self) -> Fingerprint:
        return fingerprint_of([block.fingerprint for block in self.blocks])


def _library(purpose: str) -> Any:
    try:
        import datasets
    except ImportError as error:
        raise missing_extra("datasets", "huggingface", purpose) from error
    return datasets


def table_fingerprint(table: Any) -> Fingerprint:
    """Of the values of an Arrow table, through the IPC stream of one contiguous batch."""
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    bare = table.combine_chunks().replace_schema_metadata(None)
    with pa.ipc.new_stream(sink, bare.schema) as writer:
        writer.write_table(bare)
    return fingerprint_bytes(memoryview(sink.getvalue()))
