"""Measurement of exact lengths: parallel, cached by content, resumable, and only for new rows."""

import os
from contextlib import closing
from pathlib import Path
from typing import Any

from brimful.base.arguments import as_settings, understands
from brimful.base.fingerprint import fingerprint_of
from brimful.base.locks import cache_dir as default_cache_dir
from brimful.base.locks import cached, locked
from brimful.base.typing import AnyPath
from brimful.base.wording import setting
from brimful.encode.choose import as_encoder
from brimful.encode.encoded import StoredSamples
from brimful.encode.encoder import Encoder
from brimful.errors import CacheMismatchError
from brimful.lengths.table import LengthTable
from brimful.measure.assembly import (
    assembled_table,
    rejects_of,
    write_rejects,
)
from brimful.measure.block_task import BlockContext, BlockTask, attachment_measures
from brimful.measure.measure_settings import MeasureSettings, open_earlier, provenance_of
from brimful.measure.pending import forget_shares, measure_share, run_pending, task_for
from brimful.sources.opening import open_source
from brimful.sources.source import Source

_BLOCKS_VERSION = 2

_REMEDY = (
    f"Choose another {setting('path')}, or measure again with {setting('on_mismatch', 'rebuild')}"
)


@understands({}, MeasureSettings)
def measure_lengths(
    source: Source | Any,
    encoder: Encoder | AnyPath | Any,
    **options: Any,
) -> LengthTable:
    """Measure the exact lengths of all samples: ``len(encoder.encode(sample).input_ids)``, always.

    Rows are measured in blocks, and each block is cached under the fingerprint of its content and
    of the encoder: a killed job resumes, only appended rows are measured, an edited row costs one
    block, and a copy of the data elsewhere costs nothing.

    Args:
        source: the samples, or anything that ``open_source`` takes.
        encoder: encoder of the samples; or a tokenizer, or its name, for the encoder that the
            source needs.
        targets: measure the places of the loss's targets too, so that samples without targets are
            known before packing. Without it, chats are measured faster.
        budgets: lengths to measure: ``tokens``, and ``loss_tokens`` for the targets of the loss.
        path: file of the table; inside the cache if None.
        cache_dir: directory of finished blocks.
        num_proc: processes; all cores if None, one for small data sets. Never changes the result.
        on_bad_sample: ``error`` stops at the first malformed row; ``skip`` counts it, writes it to
            ``rejects_path`` and gives it length -1.
        rejects_path: JSON lines of the skipped rows.
        augmentation: settings of the augmentation in training, which changes no length
            (``check_augmentation``): recorded in the table, and compared when another training
            opens it (``LengthCache``).
        transforms: functions from a sample to a sample, run before measuring: short for
            ``source.augmented(transforms)``.
        share: ``prefixes`` finds the beginnings that samples share (``LengthTable.sharing``), so
            that a plan can have them once. Samples that may share are encoded twice, unless their
            tokens are kept.
        least_shared: shorter beginnings count as none.
        share_within: samples that may share: ``all``, the samples of one ``row``, or the ones with
            equal numbers, ``int[num_samples]``; -1 shares with none.
        on_mismatch: action if ``path`` has lengths of other data or another encoder: ``error``
            names the parts that differ, ``rebuild`` replaces the table.
        execution: ``ray``, for a cluster, or an ``Execution``, for one share of the job. All
            machines must see the source and ``cache_dir``.
        progress: reports rows and tokens per second and the remaining time.

    Raises:
        BadSampleError: names file, line and reason.
        CacheMismatchError: see ``on_mismatch``.
        UnfinishedSharesError: the share of this call is done, but others are not.

    >>> from brimful.sources import open_source
    >>> from brimful.testing.toys import toy_chat_encoder
    >>> source = open_source([{"question": "1+1?", "answer": "2"}])
    >>> table = measure_lengths(source, toy_chat_encoder())
    >>> table.tokens.tolist(), table.targets.counts.tolist()
    ([22], [2])
    """
    settings = as_settings(MeasureSettings, None, options)
    source = open_source(source, cache_dir=settings.cache_dir)
    if settings.transforms:
        source = source.augmented(settings.transforms)
    return measure_and_keep(source, as_encoder(source, encoder), settings)[0]


def measure_and_keep(
    source: Source,
    encoder: Encoder,
    settings: MeasureSettings,
    encoded_dir: AnyPath | None = None,
    *,
    looks_at_files: bool = True,
) -> tuple[LengthTable, StoredSamples | None]:
    """Measure lengths and keep the tokens in ``encoded_dir``, so that writing need not encode
    again; None without a directory.

    With ``looks_at_files`` false, lengths are reused even if files of attachments changed since:
    for packs that are already written.
    """
    path, targets, rejects_path = settings.path, settings.targets, settings.rejects_path
    resources = settings.resources
    provenance = provenance_of(source, encoder, settings)
    search = settings.search
    groups = search and search.groups_of(settings.share_within, source)
    key = fingerprint_of(
        [
            *(_BLOCKS_VERSION, provenance["settings"], provenance["labels"] if targets else None),
            *([] if search is None else search.identity),
        ]
    )
    folder = default_cache_dir(settings.cache_dir) / "lengths" / key[:16]
    target = Path(path) if path is not None else cached(folder / f"{source.fingerprint}.arrow")
    # A table in the cache is named by the fingerprint of its source: it differs only if it is
    # damaged, and is remade.
    is_kept = path is not None and settings.on_mismatch == "error"

    def earlier() -> LengthTable | None:
        table, misfit = open_earlier(target, provenance, source, encoder)
        if misfit and is_kept:
            raise CacheMismatchError(f"{target} {misfit}. {_REMEDY}")
        return table

    earlier_table = earlier()
    # It is useless to a job that keeps the tokens of all rows, or needs targets or errors that it
    # does not have.
    if earlier_table is not None and (
        encoded_dir is not None
        or (targets and earlier_table.targets is None)
        # Appended rows may share with any, and a table has no hashes.
        or (settings.shares and len(earlier_table) < len(source))
        or (settings.on_bad_sample == "error" and len(earlier_table.rejected_ids))
        # A table names the first rejects alone; the files of its blocks name all.
        or (
            rejects_path is not None
            and len(earlier_table.rejected_ids) > len(earlier_table.rejects)
        )
    ):
        earlier_table = None
    looks_at_files = looks_at_files and encoder.takes_attachments
    if earlier_table is not None and looks_at_files and earlier_table.states is not None:
        runs = [(0, earlier_table.states)]
        with closing(attachment_measures().changed_samples(source, runs, resources)) as changes:
            for _, sample_id in changes:
                if is_kept:
                    raise CacheMismatchError(
                        f"{target} was measured with other media: files of "
                        f"{source.where(sample_id)} (sample {sample_id}) were changed since. "
                        f"{_REMEDY}"
                    )
                earlier_table = None
                break

    samples = None
    tasks: list[BlockTask] = []
    if earlier_table is not None and len(earlier_table) == len(source):
        table = earlier_table
        # Equal rows may be in a file of another name now.
        table.rejects = [
            [sample_id, source.where(sample_id), reason] for sample_id, _, reason in table.rejects
        ]
    else:
        first_new = len(earlier_table) if earlier_table is not None else 0
        # Kept attachments are identified by their paths, which the rows do not determine.
        directories = source.attachment_directories if encoder.takes_attachments else []
        encoded_key = fingerprint_of([key, encoder.fingerprint, *directories])[:16]
        tasks = [
            task_for(block, max(block.start, first_new), folder / "parts", encoded_dir, encoded_key)
            for block in source.blocks
            if block.stop > first_new
        ]
        context = BlockContext(
            source,
            encoder,
            settings.budgets_of(encoder),
            settings.on_bad_sample == "skip",
            encoded_dir is not None,
            targets,
            looks_at_files,
            search,
        )
        if resources.execution.is_share:
            measure_share(context, tasks, folder / "shares" / source.fingerprint, resources, path)
        shared = [folder / "parts", *([] if encoded_dir is None else [encoded_dir])]
        run_pending(context, tasks, resources, num_earlier=first_new, shared=shared)
        if encoded_dir is not None:
            paths = [
                (task.start, task.encoded_path) for task in tasks if task.encoded_path is not None
            ]
            samples = StoredSamples(paths)
        sharing = None
        if search is not None:
            sharing = search.find(context, tasks, samples, groups, folder, resources)
        table = assembled_table(earlier_table, tasks, context, provenance, sharing)
        target.parent.mkdir(parents=True, exist_ok=True)
        with locked(target.parent):
            earlier()  # another job may have measured other data into the file in the meantime
            table.save(target)
        forget_shares(target)
    if rejects_path is not None and (len(table.rejected_ids) or os.path.exists(rejects_path)):
        write_rejects(source, rejects_path, rejects_of(earlier_table, tasks))
    return table, samples
