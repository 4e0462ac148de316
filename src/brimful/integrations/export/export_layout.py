"""The interface of a layout, and its inputs: one shard at a time, then all of them."""

import abc
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from brimful.base.blobs import BlobStore
from brimful.base.typing import AnyPath, Fingerprint
from brimful.errors import StoreError
from brimful.media import BadMediumError, PlacedMedium
from brimful.store.shards import Pack

_CHUNK = 1 << 22
"""Bytes copied at a time."""


@dataclass(frozen=True)
class ExportPlan:
    """Facts of the whole export that every shard needs.

    Attributes:
        fingerprint: of the packs.
        capacity: largest number of tokens in a pack; None if the packs do not say.
        num_packs: in the export.
        packs_per_shard: in every shard but the last.
        source: of the samples, for layouts that hold texts; otherwise None.
    """

    fingerprint: Fingerprint
    capacity: int | None
    num_packs: int
    packs_per_shard: int
    source: Any = None

    @property
    def num_shards(self) -> int:
        """Number of shards."""
        return -(-self.num_packs // self.packs_per_shard)

    def packs_of(self, shard: int) -> range:
        """Return the packs of a shard."""
        first = shard * self.packs_per_shard
        return range(first, min(first + self.packs_per_shard, self.num_packs))

    def key(self, index: int) -> str:
        """Return the key of a pack: no other pack has it, even in another export.

        >>> ExportPlan("0123456789abcdef" * 2, 64, 5, 2).key(3)
        '01234567-000000003'
        """
        return f"{self.fingerprint[:8]}-{index:09d}"


@dataclass(frozen=True)
class ShardOutcome:
    """Files of a finished shard, and facts for the end of the export.

    Attributes:
        files: key of each file, with its size in bytes.
        packs, tokens, segments, media: counts.
        facts: of the layout; JSON.
    """

    files: Mapping[str, int]
    packs: int
    tokens: int
    segments: int
    media: int = 0
    facts: Mapping[str, Any] = field(default_factory=dict)


class Shard:
    """One shard that is being written. Iterating it gives index and pack, and counts the packs.

    Attributes:
        index: of the shard.
        plan: of the export.
        store: the directory.
        counts: packs, tokens, segments and media so far; a layout that holds other media than the
            packs corrects these.
    """

    def __init__(
        self, index: int, plan: ExportPlan, store: BlobStore, packs: Iterable[tuple[int, Pack]]
    ) -> None:
        self.index, self.plan, self.store = index, plan, store
        self._packs = packs
        self.counts: Counter[str] = Counter()

    def __iter__(self) -> Iterator[tuple[int, Pack]]:
        for index, pack in self._packs:
            self.counts.update(
                packs=1, tokens=len(pack), segments=pack.num_segments, media=len(pack.attachments)
            )
            yield index, pack

    def outcome(
        self, files: Mapping[str, int], facts: Mapping[str, Any] | None = None
    ) -> ShardOutcome:
        """Return the outcome of the finished shard."""
        return ShardOutcome(files, **self.counts, facts=facts or {})


def write_blob(store: BlobStore, key: str, chunks: Iterable[bytes]) -> int:
    """Write one file, whole or not at all; return its bytes."""
    with store.blob(key) as blob:
        for chunk in chunks:
            blob.write(chunk)
        blob.publish(key)
    return blob.size


def chunks_of_file(path: AnyPath) -> Iterator[bytes]:
    """Yield the bytes of a file, a few megabytes at a time."""
    with open(path, "rb") as file:
        while chunk := file.read(_CHUNK):
            yield chunk


@dataclass(frozen=True)
class ReadPack:
    """One pack as the reader of another project gives it; None for parts that its layout does not
    hold.

    Attributes:
        input_ids, loss_mask, cu_seqlens, sample_ids, starts: see ``Pack``.
        parents, spans, span_sizes: see ``PackTree``.
        media: bytes of each medium; of a layout of texts, a list for each sample.
        messages: roles and texts of each sample, of a layout of texts.
    """

    input_ids: Sequence[int] | None = None
    loss_mask: Sequence[bool] | None = None
    cu_seqlens: Sequence[int] | None = None
    sample_ids: Sequence[int] | None = None
    starts: Sequence[int] | None = None
    parents: Sequence[int] | None = None
    spans: Sequence[int] | None = None
    span_sizes: Sequence[int] | None = None
    media: Sequence[Any] | None = None
    messages: Sequence[Any] | None = None


class Layout(abc.ABC):
    """One layout: a writer of shards and of the files next to them, and the reader of its
    project.
    """

    name: ClassVar[str]
    takes_media: ClassVar[bool] = False
    takes_trees: ClassVar[bool] = False
    """True if the layout holds the parents of segments; other readers would take each segment for a
    sample.
    """
    takes_source: ClassVar[bool] = False
    """True if the layout holds texts of samples, which packs do not."""
    joins_shards: ClassVar[bool] = False
    """True if shards are parts that are joined into one file at the end, and then removed."""
    reader: ClassVar[tuple[str, str]]
    """Module whose reader checks the export, and the name of the package that has it."""

    @abc.abstractmethod
    def write_shard(self, shard: Shard) -> ShardOutcome:
        """Write one shard; safe to run twice."""

    def finish(
        self, outcomes: Sequence[ShardOutcome], plan: ExportPlan, store: BlobStore
    ) -> list[str]:
        """Write the files next to the shards, after the last shard; return their keys. Safe to run
        twice.
        """
        return []

    def clear(self, outcomes: Sequence[ShardOutcome], store: BlobStore) -> None:
        """Remove the files that a finished export no longer needs."""
        return

    @abc.abstractmethod
    def read(self, directory: str, num_shards: int) -> Iterator[ReadPack]:
        """Yield the packs in order, read by the project that the layout is for."""

    @abc.abstractmethod
    def advice(self, directory: str) -> str:
        """Return a line on how to train from the export."""


_SUFFIX = re.compile(r"\.([A-Za-z0-9]{1,5})$")


def read_medium(pack: Pack, index: int, item: PlacedMedium) -> bytes:
    """Return the bytes of a medium of a pack.

    Args:
        pack: that holds it.
        index: of the pack, for the message.
        item: the medium.

    Raises:
        StoreError: the medium is gone or was changed; names pack, sample and medium.
    """
    try:
        return item.read()
    except BadMediumError as error:
        sample_id = int(pack.sample_ids[item.segment])
        raise StoreError(f"pack {index}, sample {sample_id}: {item.title} {error}") from error


def suffix_of(name: str, default: str) -> str:
    """Return the ending of a name in lowercase, without its dot.

    >>> suffix_of("a b.c.JPG", "image"), suffix_of("a.b c", "image")
    ('jpg', 'image')
    """
    match = _SUFFIX.search(name)
    return match[1].lower() if match else default


def tree_as_lists(pack: Pack) -> dict[str, list[int]]:
    """Return the columns of the tree of a pack; empty for a flat pack.

    A reader gets ``Pack.sharing`` back as ``PackTree(parents, ends_of(parents, sample_ids, lengths),
    spans, span_sizes)``.
    """
    return {
        name: values.tolist()
        for name, values in ({} if pack.sharing is None else pack.sharing.columns).items()
    }


def location_as_json(item: PlacedMedium, member: str | int) -> dict[str, Any]:
    """Return the place of a medium among the tokens of its pack.

    Args:
        item: the medium.
        member: the member of the pack that has its bytes, or their index.
    """
    facts = {name: value for name, value in vars(item).items() if name != "medium"}
    return {"part": member, "kind": item.medium.kind.value, "name": item.medium.name, **facts}
