"""Prefixes that the samples of a source share, found at any size.

While a block is measured, each of its rows has hashes of its first 16 tokens, of as many as a trunk
must have, and of its first 512. Equal hashes propose samples that share; then the tokens of these
alone are read, some ten million at a time (a *window*), and compared. A window holds whole trees as
long as they fit. Samples of a larger one are divided by their longer hashes, and at last in their
order; they share nothing with samples of another window.

What is compared are *keys*: ids of tokens and, in their place, numbers of images, videos and audio.
Each window writes a file, as each block does, and a killed job continues after the last one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from brimful.base.execute import Resources, run_tasks
from brimful.base.fingerprint import (
    fingerprint_array,
    fingerprint_bytes,
    fingerprint_of,
)
from brimful.base.locks import cached
from brimful.base.ragged import offsets_of, starts_of
from brimful.base.tables import Ragged, open_table, write_table
from brimful.base.typing import AnyIntArray, Int32Array, Int64Array, Lengths, Offsets, TokenIds
from brimful.base.wording import setting
from brimful.encode.encoded import StoredSamples, joined_rows
from brimful.encode.encoder import Encoder
from brimful.errors import BadSampleError, BrimfulError, SettingsError
from brimful.measure.block_task import BlockContext, BlockTask, batches_of, in_halves
from brimful.sources.source import Source
from brimful.trees.prefixes import HEAD_TOKENS, Prefixes, by_first_sample, find_prefixes

HEAD_COLUMNS = ("prefix_heads", "prefix_trunk_heads", "prefix_long_heads")
"""Columns of a block's file: hashes of the first keys of each row, 0 for a shorter row."""

MEDIA_KEYS = "prefix_numbers"
"""Column of a block's file: the two numbers of each medium of a row."""

_LONG = 512
"""Keys of the longest hash, by which samples are divided that are more than a window."""

_FACTOR = np.int64(0x5851F42D4C957F2D)
"""Factor of the hash of keys: the sum of each key times a power of it, modulo 2**64."""

_WINDOW_TOKENS = 1 << 25
"""Tokens that are compared at a time: some hundred megabytes."""

_FEW_WINDOWS = 4
"""Windows of stored tokens that one process compares before others would have started."""


def _keys_of_media(media: Sequence[Any]) -> Int64Array:
    """Return two numbers for each medium, which are the keys of its tokens in turn: below 0, where
    no id of a token is, and equal for media that a model reads as equal.
    """
    digests = [int(fingerprint_bytes(item.identity), 16) for item in media]
    return np.array([~(half >> 1) for d in digests for half in divmod(d, 1 << 64)], dtype=np.int64)


def _with_media_keys(
    ids: TokenIds,
    offsets: Offsets,
    media: Mapping[int, Sequence[Any]],
    media_keys: Sequence[Int64Array],
) -> Int64Array:
    """Return ids with the numbers of media in the place of their tokens, ``int64[len(ids)]``."""
    keys = ids.astype(np.int64)
    for row, items in media.items():
        pairs = media_keys[row].reshape(-1, 2)
        for item, pair in zip(items, pairs, strict=True):
            start = int(offsets[row]) + item.start
            keys[start : start + item.length] = np.resize(pair, item.length)
    return keys


@dataclass(frozen=True)
class _Window:
    """Samples whose keys are compared together.

    Attributes:
        sample_ids: ``int64``, ascending.
        groups: ``int64``, their groups; None if all may share.
        media_keys: of the media of each, as they were measured: bytes that come with rows are not kept
            with tokens. None for texts.
        path: of the file of its result.
    """

    sample_ids: Int64Array
    groups: Int64Array | None
    media_keys: Ragged | None
    path: str

    def __len__(self) -> int:
        return len(self.sample_ids)

    def __str__(self) -> str:
        first, last = int(self.sample_ids[0]), int(self.sample_ids[-1])
        return f"prefixes of {len(self):,} samples from {first:,} to {last:,}"


@dataclass(frozen=True)
class _WindowContext:
    """Samples of all windows and their encoder, tokens that are kept, and the least shared."""

    source: Source
    encoder: Encoder
    stored: StoredSamples | None
    least: int

    def read(self, sample_ids: Int64Array) -> tuple[Ragged, list[tuple[Any, ...]]]:
        """Return the tokens of samples, and the media of each if any has; encoded again if they are
        not kept.

        Raises:
            BadSampleError: a row that was measured cannot be read or encoded now.
        """
        if self.stored is not None:
            ids = self.stored.tokens(sample_ids)
            if not self.encoder.takes_attachments:
                return ids, []
            return ids, [item.attachments for item in self.stored.read(sample_ids.tolist())]
        errors: list[BadSampleError] = []
        rows, sizes = [np.empty(0, dtype=np.int32)], [np.empty(0, dtype=np.int64)]
        media: list[tuple[Any, ...]] = []
        batches = batches_of(self.source.read_many(sample_ids.tolist()), errors)
        for _, batch in in_halves(partial(self.encoder.begin_encoding, targets=False), batches):
            errors += batch.errors.values()
            rows.append(batch.ids.values)
            sizes.append(batch.lengths)
            media += [batch.attachments.get(row, ()) for row in range(len(batch))]
        for error in errors:
            raise error if error.where else error.located(self.source.where(error.sample_id))
        return Ragged(np.concatenate(rows), offsets_of(np.concatenate(sizes))), media


@dataclass(frozen=True)
class Search:
    """Search for prefixes that samples share, while they are measured.

    Attributes:
        least: shorter prefixes count as none.
    """

    least: int
    columns: ClassVar[tuple[str, ...]] = HEAD_COLUMNS

    @property
    def identity(self) -> list[Any]:
        """Part of the fingerprint of the settings that blocks are measured with."""
        return ["prefixes", self.least]

    def groups_of(self, within: str | AnyIntArray, source: Source) -> Int64Array | None:
        """Return the groups of samples that may share, ``int64[num_samples]``; None if all may.

        Raises:
            SettingsError: other numbers than one for each sample.
        """
        if isinstance(within, str):
            if within == "all":
                return None
            counts = source.rows.samples_by_row
            return np.repeat(np.arange(len(counts)), counts)
        if within.shape != (len(source),) or within.dtype.kind not in "iu":
            raise SettingsError(
                f"{setting('share_within')} must be all, row, or a whole number for each of the "
                f"{len(source):,} samples, and is {within.dtype} of shape {within.shape}"
            )
        return within.astype(np.int64)

    def columns_of(
        self, ids: TokenIds, offsets: Offsets, media: Mapping[int, Sequence[Any]], encoder: Encoder
    ) -> dict[str, Any]:
        """Return the columns of a block's file from which candidates are found.

        Args:
            ids, offsets: tokens of all rows.
            media: media of each row that has any.
            encoder: of the rows.
        """
        count, least = len(offsets) - 1, self.least
        columns: dict[str, Any] = {}
        keys: AnyIntArray = ids
        if encoder.takes_attachments:
            media_keys = [_keys_of_media(media.get(row, ())) for row in range(count)]
            columns[MEDIA_KEYS] = joined_rows(media_keys, np.int64)
            # In every block, also without media: a row has the same bytes in all.
            keys = _with_media_keys(ids, offsets, media, media_keys)
        sizes = (min(least, HEAD_TOKENS), least, max(least, _LONG))
        for name, size in zip(HEAD_COLUMNS, sizes, strict=True):
            column = columns[name] = np.zeros(count, dtype=np.int64)
            rows = np.flatnonzero(np.diff(offsets) >= size)
            if len(rows):
                first_keys = sliding_window_view(keys, size)[offsets[rows]]
                hashes = first_keys.astype(np.int64) @ np.cumprod(np.full(size, _FACTOR))
                # 0 is for a row without a hash.
                column[rows] = np.where(hashes == 0, 1, hashes)
        return columns

    def find(
        self,
        context: BlockContext,
        tasks: Sequence[BlockTask],
        stored: StoredSamples | None,
        groups: Int64Array | None,
        folder: Path,
        resources: Resources,
    ) -> Prefixes:
        """Find the prefixes that all samples of a source share.

        Args:
            context, tasks: of the job; all blocks are measured.
            stored: tokens that measuring kept; None to encode candidates again.
            groups: as for ``find_prefixes``.
            folder: of the job, for the files of windows.
            resources: means of the job.
        """
        source, encoder = context.source, context.encoder
        folder = folder / "prefixes"
        count = len(source)
        tokens = np.empty(count, dtype=np.int32)
        heads = {name: np.empty(count, dtype=np.int64) for name in HEAD_COLUMNS}
        rows_of_media_keys: list[Int64Array] = []
        for task in tasks:
            block_table = open_table(task.lengths_path)
            tokens[task.start : task.stop] = block_table.flat("tokens")
            for name, hashes in heads.items():
                hashes[task.start : task.stop] = block_table.flat(name)
            if encoder.takes_attachments:
                column = block_table.ragged(MEDIA_KEYS)
                rows_of_media_keys += [column.row(row).copy() for row in range(len(task))]
        origin = [source.fingerprint, encoder.fingerprint]
        windows = []
        candidates = np.flatnonzero(heads[HEAD_COLUMNS[0]])
        if groups is not None:
            candidates = candidates[groups[candidates] >= 0]
            # Samples of two groups have no head in common.
            for hashes in heads.values():
                hashes[candidates] = _numbered(hashes[candidates], groups[candidates])
        _, head_ids, counts = np.unique(
            heads[HEAD_COLUMNS[0]][candidates], return_inverse=True, return_counts=True
        )
        candidates = candidates[counts[head_ids] > 1]
        for sample_ids in _windows(candidates, [*heads.values()], tokens):
            group_ids = None if groups is None else groups[sample_ids]
            of_media = None
            if encoder.takes_attachments:
                of_media = joined_rows(
                    [rows_of_media_keys[index] for index in sample_ids], np.int64
                )
            arrays = [sample_ids, group_ids, None if of_media is None else of_media.values]
            name = fingerprint_of(
                [
                    *origin,
                    *(None if array is None else fingerprint_array(array) for array in arrays),
                ]
            )
            path = str(cached(folder / name[:2] / f"{name}.arrow"))
            windows.append(_Window(sample_ids, group_ids, of_media, path))
        _run(
            _WindowContext(source, encoder, stored, self.least),
            windows,
            resources.for_work(is_small=stored is not None and len(windows) <= _FEW_WINDOWS),
            folder,
        )
        return _joined(windows, len(tokens), encoder, self.least)


def _numbered(heads: Int64Array, groups: Int64Array) -> Int64Array:
    """Return numbers of pairs of a head and a group, from 1; 0 where the head is 0."""
    order = np.lexsort((groups, heads))
    is_new = np.append(True, (np.diff(heads[order]) != 0) | (np.diff(groups[order]) != 0))
    pair_ids = np.empty(len(heads), dtype=np.int64)
    pair_ids[order] = np.cumsum(is_new)
    return np.where(heads == 0, 0, pair_ids)


def _windows(
    sample_ids: Int64Array, heads: Sequence[Int64Array], tokens: Lengths
) -> Iterable[Int64Array]:
    """Yield the samples of each window, ascending: samples with a common head next to each other, in
    the order of the first of them. Related samples are mostly near each other in their source.

    Args:
        sample_ids: samples to divide, ascending.
        heads: hashes of all samples, of few tokens first.
        tokens: lengths of all samples.
    """
    column = heads[0][sample_ids]
    _, firsts, head_ids = np.unique(column, return_index=True, return_inverse=True)
    # A sample without a head is alone. Stable: samples with one head stay in their order.
    first = np.where(column == 0, np.arange(len(column)), firsts[head_ids])
    order = np.argsort(first, kind="stable")
    sample_ids, first = sample_ids[order], first[order]
    starts = np.flatnonzero(np.append(True, np.diff(first) != 0)) if len(first) else first
    sizes = np.diff(np.append(starts, len(sample_ids)))
    tree_ends = starts + sizes
    tokens_before = offsets_of(tokens[sample_ids])
    token_ends = tokens_before[tree_ends]
    tree = 0
    while tree < len(sizes):
        start = int(starts[tree])
        end = int(np.searchsorted(token_ends, tokens_before[start] + _WINDOW_TOKENS, side="right"))
        if end > tree:
            yield np.sort(sample_ids[start : tree_ends[end - 1]])
        elif len(heads) > 1 and sizes[tree] > 1:
            yield from _windows(sample_ids[start : tree_ends[tree]], heads[1:], tokens)
        else:
            yield from _pieces(sample_ids[start : tree_ends[tree]], tokens)
        tree = max(end, tree + 1)


def _pieces(sample_ids: Int64Array, tokens: Lengths) -> Iterable[Int64Array]:
    """Yield samples in their order, as many as a window holds."""
    pieces = starts_of(tokens[sample_ids].astype(np.int64)) // _WINDOW_TOKENS
    yield from np.split(sample_ids, np.flatnonzero(np.diff(pieces)) + 1)


def _run(
    context: _WindowContext, windows: Sequence[_Window], resources: Resources, folder: Path
) -> None:
    """Compare the windows that have no file yet."""
    progress = resources.progress
    with progress.stage("prefixes", total=sum(map(len, windows)), unit="samples"):
        pending = [window for window in windows if not _is_found(window)]
        progress.advance(sum(map(len, windows)) - sum(map(len, pending)), resumed=True)
        preload = {**context.encoder.engine.preload, _find_in_window.__module__: {}}
        tasks = run_tasks(
            _find_in_window,
            pending,
            context=context,
            resources=resources,
            preload=preload,
            shared=[folder],
        )
        with closing(tasks) as results:
            for window, num_tokens in results:
                progress.advance(len(window), tokens=num_tokens)


def _is_found(window: _Window) -> bool:
    """Return true if the file of a window is there and undamaged."""
    try:
        table = open_table(window.path)
        for name in table.names:
            table.flat(name)
    except (FileNotFoundError, BrimfulError):
        return False
    return True


def _find_in_window(context: _WindowContext, window: _Window) -> int:
    """Compare the keys of one window, write its file and return the number of its tokens; runs in
    any process.
    """
    ids, media = context.read(window.sample_ids)
    keys: AnyIntArray = ids.values
    if window.media_keys is not None:
        media_keys = [window.media_keys.row(row) for row in range(len(window))]
        keys = _with_media_keys(ids.values, ids.offsets, dict(enumerate(media)), media_keys)
    found = find_prefixes(keys, ids.offsets, groups=window.groups, least=context.least)
    amounts = {name: np.zeros(len(window), dtype=np.int32) for name in context.encoder.budgets}
    for index in np.flatnonzero(found.shared).tolist() if amounts else ():
        items, length = media[found.order[index]], found.shared[index]
        shared = [item for item in items if item.start + item.length <= length]
        sizes = context.encoder.attachment_sizes(shared)
        for name, column in amounts.items():
            column[index] = sizes[name]
    order = window.sample_ids[found.order]
    columns = Prefixes(order, found.shared, context.least, amounts).columns
    write_table(window.path, columns, {"kind": "prefixes"})
    return len(ids.values)


def _joined(windows: Sequence[_Window], num_samples: int, encoder: Encoder, least: int) -> Prefixes:
    """Join the results of all windows and the samples of none, trees in the order of their first
    samples.
    """
    description = {"least": least, "amounts": encoder.budgets}
    found = [Prefixes.of_columns(open_table(window.path), description) for window in windows]
    is_alone = np.ones(num_samples, dtype=bool)
    for window in windows:
        is_alone[window.sample_ids] = False
    ids = np.flatnonzero(is_alone)

    def column(arrays: Iterable[Int32Array | Int64Array], end: AnyIntArray) -> Any:
        return np.concatenate([*arrays, end])

    zeros = np.zeros(len(ids), dtype=np.int32)
    order = column([prefixes.order for prefixes in found], ids)
    shared = column([prefixes.shared for prefixes in found], zeros)
    indices = by_first_sample(order, shared)
    amounts = {
        name: column([prefixes.amounts[name] for prefixes in found], zeros)[indices]
        for name in encoder.budgets
    }
    return Prefixes(order[indices], shared[indices], least, amounts)
