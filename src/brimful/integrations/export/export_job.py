"""Export of packs: the table of layouts; the job that writes shard by shard, each whole or not at
all; and its check, in which the other project's reader returns, pack for pack, what the packs hold.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from importlib import import_module
from itertools import zip_longest
from typing import Any

from brimful.base.blobs import LocalBlobStore, crash_points, open_blob_store
from brimful.base.execute import LOCAL, ExecutionLike, Resources, as_execution, run_tasks
from brimful.base.fingerprint import short
from brimful.base.progress import Progress
from brimful.base.typing import AnyPath
from brimful.base.wording import counted, setting
from brimful.errors import (
    CorruptFileError,
    MissingExtraError,
    SettingsError,
    StoreMismatchError,
    UnfinishedStoreError,
)
from brimful.integrations.export.energon import EnergonLayout
from brimful.integrations.export.export_layout import (
    ExportPlan,
    Layout,
    Shard,
    ShardOutcome,
    read_medium,
)
from brimful.integrations.export.megatron import MegatronLayout
from brimful.integrations.export.olmo_core import OlmoCoreLayout
from brimful.integrations.export.packed_messages import MegatronSftLayout
from brimful.integrations.export.packed_pairs import (
    PackedCaptionsLayout,
    PackedChatsLayout,
    comparable,
    source_of_packs,
)
from brimful.integrations.export.record import ExportRecords
from brimful.integrations.export.row_layouts import BridgeLayout, HuggingFaceLayout, JsonLinesLayout
from brimful.integrations.export.webdataset import WebDatasetLayout
from brimful.serve import Pack, PackStore, open_packs
from brimful.sources import Source
from brimful.store.shards.pack import FingerprintedPacks
from brimful.trees.pack_tree import SHARD_COLUMNS

_CLASSES: tuple[type[Layout], ...] = (
    EnergonLayout,
    WebDatasetLayout,
    HuggingFaceLayout,
    MegatronLayout,
    BridgeLayout,
    JsonLinesLayout,
    OlmoCoreLayout,
    MegatronSftLayout,
    PackedCaptionsLayout,
    PackedChatsLayout,
)

LAYOUTS: dict[str, type[Layout]] = {layout.name: layout for layout in _CLASSES}
"""Class of each layout, by the name that ``export_packs`` and the command line take."""


def layout_of(name: str) -> Layout:
    """Return a layout by its name.

    Raises:
        SettingsError: no such layout; lists all.

    >>> layout_of("energon").name
    'energon'
    """
    if name not in LAYOUTS:
        raise SettingsError(f"{setting('to')} {name!r} is unknown: use one of {', '.join(LAYOUTS)}")
    return LAYOUTS[name]()


_SHARD_BYTES = 64 << 20
"""Bytes of the tokens of a shard, at 4 bytes each: as in pack stores."""

_USUAL_CAPACITY = 4096
"""Tokens of a pack if packs do not state them; only used for the size of shards."""

_IN_PROCESS_TOKENS = 30_000_000
"""Tokens below which one process writes an export sooner than several start."""


@dataclass(frozen=True)
class ExportSummary:
    """Totals of a finished export.

    Attributes:
        directory, layout: of the export.
        packs, tokens, segments, media, shards: counts.
        shards_written: by this call; the others existed.
        advice: how to train from it.
    """

    directory: str
    layout: str
    packs: int
    tokens: int
    segments: int
    media: int
    shards: int
    shards_written: int
    advice: str

    def __repr__(self) -> str:
        return f"ExportSummary({self.directory!r}, {counted(self.packs, 'pack')} as {self.layout})"

    def lines(self) -> list[str]:
        """Return the summary as lines of text."""
        media = f", media: {self.media:,}" if self.media else ""
        return [
            f"{self.directory}: {counted(self.packs, 'pack')}, {self.tokens:,} tokens, "
            f"{counted(self.segments, 'segment')}{media}, in {counted(self.shards, 'shard')} as "
            f"{self.layout}; {self.shards_written:,} written now",
            self.advice,
        ]


class _ShardTask(int):
    """The number of a shard, as a task."""

    def __str__(self) -> str:
        return f"shard {int(self)}"


@dataclass(frozen=True)
class _Context:
    """Everything that a task needs except its shard number; sent to worker processes."""

    packs: FingerprintedPacks
    layout: str
    plan: ExportPlan
    directory: str


def export_packs(
    packs: FingerprintedPacks | AnyPath,
    *,
    to: str,
    directory: AnyPath,
    source: Any = None,
    packs_per_shard: int | None = None,
    num_proc: int | None = None,
    execution: ExecutionLike = LOCAL,
    progress: Progress | None = None,
) -> ExportSummary:
    """Write packs in the layout of another project.

    Files appear whole or not at all. Killed at any point, the same call writes missing files; on a
    finished export it does nothing. The same packs give the same bytes. Memory does not grow with
    the number of packs.

    Args:
        packs: a pack store or its path, or packs that are encoded on the fly (``PackedDataset``).
        to: name of the layout, a key of ``LAYOUTS``.
        directory: of the export; a path or a URL.
        source: the samples, or anything that ``open_source`` takes, for the layouts that hold
            texts.
        packs_per_shard: packs in one file; 64 MiB of tokens if None.
        num_proc: processes; all cores if None, one for small exports. Never changes a byte.
        execution: ``ray``, for a cluster, or an ``Execution``, for one share of the shards. Both
            paths must exist where all machines see them.
        progress: reports packs and tokens a second and the time left.

    Raises:
        SettingsError: no such layout, or one that cannot hold these packs.
        StoreMismatchError: the directory holds another export.
        StoreFullError: no space left; the same call continues once space is free.
        UnfinishedSharesError: the share of this call is done, and others are not.
        StoreError: a medium cannot be read; names the sample.

    >>> import tempfile
    >>> from brimful.testing.toys import toy_packs
    >>> with tempfile.TemporaryDirectory() as home:
    ...     summary = export_packs(toy_packs(3), to="jsonl", directory=home)
    >>> summary.packs, summary.tokens
    (3, 12)
    """
    layout = layout_of(to)
    resources = Resources(num_proc, as_execution(execution), progress or Progress())
    execution, progress = resources.execution, resources.progress
    if isinstance(packs, (str, os.PathLike)):
        packs = open_packs(packs)
    plan = _plan(packs, layout, source, packs_per_shard)
    store = open_blob_store(directory)
    with store.used():
        records = ExportRecords(store)
        # What two calls must share to write the same files.
        identity = {
            "layout": layout.name,
            "plan": plan.fingerprint,
            "packs": plan.num_packs,
            "packs_per_shard": plan.packs_per_shard,
        }
        if plan.source is not None:
            identity["source"] = plan.source.fingerprint
        records.claim(identity)
        was_finished = records.is_finished()
        outcomes = records.outcomes(trusts_records=was_finished and layout.joins_shards)
        shards = execution.share([_ShardTask(index) for index in range(plan.num_shards)])
        pending_shards = [shard for shard in shards if shard not in outcomes]
        num_tokens = getattr(
            packs, "num_tokens", plan.num_packs * (plan.capacity or _USUAL_CAPACITY)
        )
        context = _Context(packs, layout.name, plan, str(directory))
        num_packs, num_pending = (
            sum(len(plan.packs_of(shard)) for shard in group) for group in (shards, pending_shards)
        )
        with progress.stage("export", total=num_packs, unit="packs"):
            progress.advance(num_packs - num_pending, resumed=True)
            tasks = run_tasks(
                _write_shard,
                pending_shards,
                context=context,
                resources=resources.for_work(is_small=num_tokens < _IN_PROCESS_TOKENS),
                shared=[store.directory] if isinstance(store, LocalBlobStore) else [],
            )
            with closing(tasks) as results:
                for shard, outcome in results:
                    outcomes[shard] = outcome
                    progress.advance(outcome.packs, tokens=outcome.tokens)
        if execution.is_share and len(outcomes) < plan.num_shards:
            # Other calls may have ended since this call began; the last one removed the parts that
            # it joined.
            outcomes = records.outcomes()
            if layout.joins_shards and records.is_finished():
                outcomes = records.outcomes(trusts_records=True)
            execution.check_all_done(len(outcomes), plan.num_shards, "shards")
        in_order = [outcomes[shard] for shard in range(plan.num_shards)]
        if pending_shards or not was_finished:
            try:
                files = layout.finish(in_order, plan, store)
                crash_points.reach("before-export-end")
                records.end({key: store.size(key) or 0 for key in files})
            except FileNotFoundError:
                # Meanwhile another call joined the same parts and removed them: it wrote this
                # export.
                if not records.is_finished():
                    raise
        layout.clear(in_order, store)
    totals = {
        name: sum(getattr(outcome, name) for outcome in in_order)
        for name in ("packs", "tokens", "segments", "media")
    }
    return ExportSummary(
        directory=str(directory),
        layout=layout.name,
        **totals,
        shards=plan.num_shards,
        shards_written=len(pending_shards),
        advice=layout.advice(str(directory)),
    )


def _plan(
    packs: FingerprintedPacks, layout: Layout, source: Any, packs_per_shard: int | None
) -> ExportPlan:
    """Return the facts of the export; refuse packs that the layout cannot hold."""
    num_packs = len(packs)
    if num_packs == 0:
        raise SettingsError(f"{_title(packs)} has no packs, so nothing can be exported")
    first_pack = packs[0]
    if first_pack.sharing is not None and not layout.takes_trees:
        first = next(name for name, entry in LAYOUTS.items() if entry.takes_trees)
        raise SettingsError(
            f"{_title(packs)} has packs of trees, and readers of {layout.name} would take their "
            f"segments for samples: choose {setting('to', first)}, or pack without "
            f"{setting('share', 'prefixes')}"
        )
    if layout.takes_source:
        if source is None:
            raise SettingsError(
                f"{layout.name} holds the texts of samples, and packs hold tokens: give the data "
                f"that they were packed from as {setting('source')}"
            )
        source = source_of_packs(source, packs)
    elif source is not None:
        raise SettingsError(f"{layout.name} is written from tokens: leave out {setting('source')}")
    # The first pack is checked before the directory is claimed; the others when they are written.
    _refuse_media(packs, layout, 0, first_pack)
    capacity = getattr(packs, "capacity", None)
    if packs_per_shard is None:
        packs_per_shard = max(1, _SHARD_BYTES // (4 * (capacity or _USUAL_CAPACITY)))
    elif packs_per_shard < 1:
        raise SettingsError(
            f"{setting('packs_per_shard')} must be at least 1 and is {packs_per_shard}"
        )
    return ExportPlan(
        packs.fingerprint,
        capacity,
        num_packs,
        min(packs_per_shard, num_packs),
        source,
    )


def _write_shard(context: _Context, shard: int) -> ShardOutcome:
    """Write and commit one shard, in any process."""
    store = open_blob_store(context.directory)
    layout = LAYOUTS[context.layout]()

    def packs() -> Iterator[tuple[int, Pack]]:
        for index in context.plan.packs_of(shard):
            pack = context.packs[index]
            # A layout without a place for media would lose them.
            _refuse_media(context.packs, layout, index, pack)
            yield index, pack

    outcome = layout.write_shard(Shard(shard, context.plan, store, packs()))
    # Killed here, the files have no record, and the next run overwrites them with the same bytes.
    crash_points.reach("after-export-shard")
    ExportRecords(store).commit(shard, outcome)
    return outcome


def _refuse_media(packs: FingerprintedPacks, layout: Layout, index: int, pack: Pack) -> None:
    if pack.attachments and getattr(packs, "attachment_features", None) is not None:
        raise SettingsError(
            f"{_title(packs)}: pack {index} has media as features, and an export needs their "
            f"bytes: pack with {setting('media_storage', 'bytes')} or "
            f"{setting('media_storage', 'references')}"
        )
    if pack.attachments and not layout.takes_media:
        first, *other_items = [
            name for name, other_item in LAYOUTS.items() if other_item.takes_media
        ]
        raise SettingsError(
            f"{_title(packs)}: pack {index} has media, which {layout.name} has no place for: "
            f"choose {setting('to', first)}, or {', '.join(other_items)}"
        )


def _title(packs: FingerprintedPacks) -> str:
    return packs.directory if isinstance(packs, PackStore) else f"packs {short(packs.fingerprint)}"


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
            f"{records.store.url} is not a finished export: run the command that writes it again "
            "to resume"
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
            contents = {
                name: values for name, values in vars(exported_pack).items() if values is not None
            }
            own_values = _values_of(pack, index, list(contents), samples)
            for name, values in contents.items():
                if list(values) != own_values[name]:
                    raise CorruptFileError(
                        f"{records.store.url}: pack {index} has other {name} than the "
                        f"{'source' if samples else 'store'}: delete it and export again"
                    )
            fields = list(contents)
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


def _values_of(
    pack: Pack, index: int, names: Sequence[str], samples: Source | None
) -> dict[str, list[Any]]:
    """Return parts of a pack as lists; of the samples that it was packed from, if they are
    given.
    """
    if samples is not None:
        messages, media = zip(
            *(comparable(samples[sample_id]) for sample_id in pack.sample_ids.tolist()), strict=True
        )
        return {"messages": list(messages), "media": list(media)}
    return {
        name: [read_medium(pack, index, item) for item in pack.attachments]
        if name == "media"
        else getattr(pack.sharing if name in SHARD_COLUMNS else pack, name).tolist()
        for name in names
    }
