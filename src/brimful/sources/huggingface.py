"""A ``datasets.Dataset``, in memory or as a directory that ``save_to_disk`` wrote."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

from brimful.errors import SourceError, missing_extra
from brimful.fingerprint import fingerprint_bytes, fingerprint_of
from brimful.sources.block import cut
from brimful.sources.rows import Block, Rows
from brimful.typing import Fingerprint

__all__ = ["HuggingFaceRows"]


class HuggingFaceRows(Rows):
    """Rows of a ``datasets.Dataset``."""

    def __init__(self, dataset: Any, title: str | None = None) -> None:
        self._dataset = dataset
        self.title = title or "datasets.Dataset"

    @classmethod
    def from_directory(cls, path: str | os.PathLike[str]) -> HuggingFaceRows:
        """Open what ``Dataset.save_to_disk`` wrote."""
        try:
            import datasets
        except ImportError as error:
            raise missing_extra("datasets", "huggingface", f"reading {os.fspath(path)}") from error
        loaded = datasets.load_from_disk(os.fspath(path))
        if not isinstance(loaded, datasets.Dataset):
            splits = ", ".join(loaded)
            raise SourceError(
                f"{os.fspath(path)} holds several splits ({splits}): name one, such as …/{next(iter(loaded))}"
            )
        return cls(loaded, title=os.fspath(path))

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
        return [Block(start, stop, _table_fingerprint(arrow[start:stop])) for start, stop in cut(0, len(self))]

    @cached_property
    def fingerprint(self) -> Fingerprint:
        return fingerprint_of([block.fingerprint for block in self.blocks])


def _table_fingerprint(table: Any) -> Fingerprint:
    """Of the values of an Arrow table, through the IPC stream of one contiguous batch."""
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    bare = table.combine_chunks().replace_schema_metadata(None)
    with pa.ipc.new_stream(sink, bare.schema) as writer:
        writer.write_table(bare)
    return fingerprint_bytes(memoryview(sink.getvalue()))
