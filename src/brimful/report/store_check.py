"""Full check of a pack store against its log and its plan."""

import os
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from brimful.base.attachment import attachment_store
from brimful.base.blobs import open_blob_store
from brimful.base.progress import Progress
from brimful.base.sharing import wing_of
from brimful.base.typing import AnyPath, SampleIds
from brimful.base.wording import counted
from brimful.errors import CorruptFileError, UnfinishedStoreError
from brimful.plan import Plan
from brimful.store.shards import Pack, ShardReader, StreamLog, checked_file

__all__ = ["StoreCheck", "check_store"]


@dataclass(frozen=True)
class StoreCheck:
    """Totals of a store that was read in full; ``media`` counts the media of packs."""

    shards: int
    packs: int
    tokens: int
    samples: int
    media: int = 0


def check_store(
    directory: AnyPath,
    *,
    plan: Plan | None = None,
    media_root: AnyPath | None = None,
    progress: Progress | None = None,
) -> StoreCheck:
    """Read every byte of a store and check it.

    Hashes, row checksums and running sums are compared with the log, and every segment with the
    plan, if given. Packs whose samples share must be in canonical form, with every sample once.
    Referenced files are compared with the packed fingerprints.

    Args:
        directory: of the packs.
        plan: of the packs.
        media_root: current directory of the media; as recorded if None.
        progress: reports packs.

    Raises:
        CorruptFileError: names the file and row.
        UnfinishedStoreError: the end record is missing.

    >>> import tempfile
    >>> from brimful import pack_dataset
    >>> from brimful.testing.toys import toy_chat_encoder
    >>> chats, packs = [{"prompt": "1+1?", "completion": "2"}], tempfile.mkdtemp() + "/packs"
    >>> summary = pack_dataset(chats, toy_chat_encoder(), packs, capacity=64)
    >>> check_store(packs, plan=summary.plan)
    StoreCheck(shards=1, packs=1, tokens=22, samples=1, media=0)
    """
    progress = progress or Progress()
    store = open_blob_store(directory)
    log = StreamLog(store)
    header = log.header()
    identity = header["identity"]
    records, end = log.records()
    root = None if media_root is None else os.fspath(media_root)
    files = cache(lambda: attachment_store().files_of(store, records, header["notes"], root))
    attached = None
    if any(record.media is not None for record in records):
        attached = attachment_store().check_of(files())
    if end is None:
        raise UnfinishedStoreError(
            f"{store.url} has no end yet: {counted(len(records), 'shard')} so far; run the job "
            "again"
        )
    if plan is not None:
        plan.check_fingerprint()
        if (identity["plan"], identity["capacity"]) != (plan.fingerprint, plan.capacity):
            raise CorruptFileError(
                f"{store.url}: the plan next to the packs is not the one they were written from"
            )
    num_packs = num_tokens = 0
    wing: Any = None  # of what samples share, if any do
    sample_ids: list[SampleIds] = []
    with progress.stage("check", total=end.packs, unit="packs"):
        for record in records:
            if attached is not None:
                attached.check_shard(record)
            if store.size(record.file) is None:
                raise CorruptFileError(
                    f"{store.url}/{record.file} is missing: its packs were committed"
                )
            with checked_file(store, record.file, record.xxh3_128, in_place=True) as path:
                reader = ShardReader(path, size=record.bytes, files=files)
                for row in range(record.packs):
                    pack = reader.pack(row)
                    if len(pack) > identity["capacity"]:
                        raise CorruptFileError(
                            f"{path}: row {row} holds {len(pack):,} tokens, above the capacity"
                        )
                    if plan is not None and not _is_planned(plan, num_packs + row, pack):
                        raise CorruptFileError(
                            f"{path}: row {row} does not hold the segments of pack "
                            f"{num_packs + row} of the plan"
                        )
                    if pack.sharing is not None:
                        wing = wing_of(pack.sharing)
                        if fault := wing.fault(pack):
                            raise CorruptFileError(
                                f"{path}: row {row} holds no {wing.TITLE}: {fault}"
                            )
                    if attached is not None:
                        attached.check(pack, f"{path}: row {row}")
                    num_tokens += len(pack)
                    sample_ids.append(np.unique(pack.sample_ids))
            num_packs += record.packs
            progress.advance(record.packs, tokens=record.tokens)
    if (num_packs, num_tokens) != (end.packs, end.tokens):
        raise CorruptFileError(
            f"{store.url} holds {num_packs:,} packs, its end counts {end.packs:,}"
        )
    # A split sample is in several packs and counts once. Samples that share are whole.
    names, counts = np.unique(np.concatenate([[], *sample_ids]), return_counts=True)
    if wing is not None and (counts > 1).any():
        raise CorruptFileError(
            f"{store.url} holds sample {int(names[counts > 1][0])} in several {wing.TITLE}s"
        )
    num_checked = 0 if attached is None else attached.num_checked
    return StoreCheck(len(records), num_packs, num_tokens, len(names), num_checked)


def _is_planned(plan: Plan, index: int, pack: Pack) -> bool:
    """Return true if a pack has the segments of the plan at this index."""
    rows = slice(int(plan.offsets[index]), int(plan.offsets[index + 1]))
    plan_columns, pack_columns = (
        {} if one.sharing is None else one.sharing.columns for one in (plan, pack)
    )
    return (
        np.array_equal(plan.sample_ids[rows], pack.sample_ids)
        and np.array_equal(plan.starts[rows], pack.starts)
        and np.array_equal(plan.lengths[rows], np.diff(pack.cu_seqlens))
        and bool(plan_columns) == bool(pack_columns)
        and all(
            np.array_equal(values[rows], pack_columns[name])
            for name, values in plan_columns.items()
        )
    )
