"""Check of an export: the other project's reader returns, pack for pack, what the packs hold."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import zip_longest
from typing import Any

from brimful.base.blobs import open_blob_store
from brimful.base.progress import Progress
from brimful.base.typing import AnyPath
from brimful.errors import (
    CorruptFileError,
    MissingExtraError,
    StoreMismatchError,
    UnfinishedStoreError,
)
from brimful.integrations.export.export_job import layout_of
from brimful.integrations.export.export_layout import read_medium
from brimful.integrations.export.packed_pairs import comparable, source_of_packs
from brimful.integrations.export.record import ExportRecords
from brimful.serve import Pack, open_packs
from brimful.sources import Source
from brimful.store.shards.format import TREE_COLUMNS
from brimful.store.shards.pack import FingerprintedPacks


@dataclass(frozen=True)
class ExportCheck:
    """Outcome of a check: everything matched.

    Attributes:
        layout: of the export.
        packs: that were compared.
        fields: parts of a pack that the layout holds, and that were compared.
        reader: package that read them.
    """

    layout: str
    packs: int
    fields: tuple[str, ...]
    reader: str

    def __str__(self) -> str:
        return (
            f"{self.packs:,} packs read by {self.reader} equal the store's: "
            f"{', '.join(self.fields)}"
        )


def check_export(
    directory: AnyPath,
    packs: FingerprintedPacks | AnyPath,
    *,
    source: Any = None,
    progress: Progress | None = None,
) -> ExportCheck:
    """Read an export with the reader of the project that it is for, and compare every pack.

    Args:
        directory: of a finished export.
        packs: packs that it was written from, or their path.
        source: the samples, for layouts that hold texts.
        progress: reports packs a second and the time left.

    Raises:
        MissingExtraError: the reader is not installed; names the package.
        CorruptFileError: a pack differs; names the pack and the part.
        StoreMismatchError: the export was written from other packs.
        UnfinishedStoreError: the export is not finished.
    """
    if isinstance(packs, (str, os.PathLike)):
        packs = open_packs(packs)
    progress = progress or Progress()
    records = ExportRecords(open_blob_store(directory))
    identity = records.identity()
    if identity["plan"] != packs.fingerprint:
        raise StoreMismatchError(f"{records.store.url} was exported from other packs: export again")
    layout = layout_of(identity["layout"])
    num_shards = -(-identity["packs"] // identity["packs_per_shard"])
    is_finished = records.is_finished()
    if not is_finished or len(records.outcomes(trusts_records=layout.joins_shards)) != num_shards:
        raise UnfinishedStoreError(
            f"{records.store.url} is not a finished export: run the command that writes it "
            "again to "
            "resume"
        )
    check_reader(layout.name)
    samples = source_of_packs(source, packs) if layout.takes_source else None
    fields: list[str] = []
    with progress.stage("check", total=len(packs), unit="packs"):
        for index, exported_pack in zip_longest(
            range(len(packs)), layout.read(str(directory), num_shards)
        ):
            if index is None or exported_pack is None:
                raise CorruptFileError(
                    f"{records.store.url}: {len(packs):,} packs are due, but it has a different "
                    "number"
                )
            pack = packs[index]
            parts = {
                name: values for name, values in vars(exported_pack).items() if values is not None
            }
            own_parts = _parts_of(pack, index, list(parts), samples)
            for name, values in parts.items():
                if list(values) != own_parts[name]:
                    raise CorruptFileError(
                        f"{records.store.url}: pack {index} has other {name} than the "
                        f"{'source' if samples else 'store'}: delete it and export again"
                    )
            fields = list(parts)
            progress.advance(1, tokens=len(pack))
    return ExportCheck(layout.name, len(packs), tuple(fields), layout.reader[1])


def check_reader(to: str) -> None:
    """Refuse a check that could not run; asked before an export is written that is to be checked.

    Args:
        to: name of the layout.

    Raises:
        SettingsError: no such layout.
        MissingExtraError: its reader is not installed; names the package.
    """
    layout = layout_of(to)
    module, package = layout.reader
    try:
        import_module(module)
    except ImportError as error:
        raise MissingExtraError(
            f"the check of an export to {layout.name} reads it by {package}, which cannot be "
            f"imported ({error}): pip install {package}"
        ) from error


def _parts_of(
    pack: Pack, index: int, names: Sequence[str], samples: Source | None
) -> dict[str, list[Any]]:
    """Return parts of a pack as lists; of the samples that it was packed from, if they are
    given.
    """
    if samples is not None:
        messages, media = zip(
            *(comparable(samples[number]) for number in pack.sample_ids.tolist()), strict=True
        )
        return {"messages": list(messages), "media": list(media)}
    return {
        name: [read_medium(pack, index, item) for item in pack.media]
        if name == "media"
        else getattr(pack.tree if name in TREE_COLUMNS else pack, name).tolist()
        for name in names
    }
