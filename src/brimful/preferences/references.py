"""Log probabilities of samples under a reference model: computed once in a pass over packs, looked
up by content.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import torch

from brimful.base.checks import setting_number
from brimful.base.fingerprint import (
    fingerprint_array,
    fingerprint_of,
    fingerprint_stream,
    short_digest,
)
from brimful.base.progress import Progress
from brimful.base.tables import open_table, write_table
from brimful.base.typing import AnyIntArray, AnyPath, Fingerprint, Float32Array, Int64Array
from brimful.base.wording import setting
from brimful.collate.torch import PackCollator
from brimful.errors import CorruptFileError, PlanMismatchError, SettingsError, SourceNotFoundError
from brimful.integrations.trainers.evaluation import evaluate_samples
from brimful.store.shards import Pack, PackSequence

__all__ = ["ReferenceLogps", "compute_references", "model_fingerprint"]

_IDENTITY = {"kind": "reference_logps", "version": 1}
"""Facts of a file that holds log probabilities in this form."""

_PACKS_PER_FILE = 256
"""Packs per file: a kill loses the forward passes of at most this many packs."""


class ReferenceLogps:
    """Log probabilities of segments, by sample and content; from a directory of
    ``compute_references`` or from arrays.

    A number belongs to the tokens and targets it was computed from: another tokenizer, template or
    truncation gives other tokens, and looking them up is an error. Another plan, epoch or number of
    ranks only moves segments, which are still found. Picklable, for the workers of a loader.

    Args:
        sample_ids: ``int64[n]``.
        logps: ``float32[n]``, Σ log p of the targets of each segment.
        contents: ``int64[n]``, from ``contents_of``.
        title: name for messages.

    >>> from brimful.testing.toys import toy_pack
    >>> pack = toy_pack([4, 2])
    >>> references = ReferenceLogps(pack.sample_ids, np.array([-5.0, -1.5], np.float32), contents_of(pack))
    >>> references.of(pack).tolist()
    [-5.0, -1.5]
    """

    def __init__(
        self,
        sample_ids: AnyIntArray,
        logps: Float32Array,
        contents: Int64Array,
        title: str = "the references",
    ) -> None:
        # Sorted by sample, then content: a search takes O(log n).
        order = np.lexsort((contents, sample_ids))
        self._sample_ids = np.asarray(sample_ids, dtype=np.int64)[order]
        self._contents = np.asarray(contents, dtype=np.int64)[order]
        self._logps = np.asarray(logps, dtype=np.float32)[order]
        self.title = title

    @classmethod
    def open(cls, directory: AnyPath, model: Fingerprint | None = None) -> ReferenceLogps:
        """Read the output of ``compute_references``: 20 bytes of memory for each segment.

        Args:
            directory: the directory passed to ``compute_references``.
            model: fingerprint of the reference model; None if the directory has only one model.

        Raises:
            SourceNotFoundError: the directory is empty, or has nothing for that model.
            SettingsError: several models, and ``model`` is None.
            CorruptFileError: a damaged file, or parts of an unfinished pass.
        """
        folders = sorted(folder for folder in Path(directory).glob("*") if folder.is_dir())
        if model is not None:
            folders = [folder for folder in folders if folder.name.startswith(model[:16])]
        if not folders:
            raise SourceNotFoundError(
                f"{directory}: no reference log probabilities{' of that model' if model else ''}"
            )
        if len({folder.name.split("-")[0] for folder in folders}) > 1:
            raise SettingsError(
                f"{directory} has references of {len(folders)} models: name one by "
                f"{setting('model')}"
            )
        tables = []
        for folder in folders:
            files = [open_table(path) for path in sorted(folder.glob("*.arrow"))]
            for file in files:
                if not _IDENTITY.items() <= file.description.items():
                    raise CorruptFileError(
                        f"{file.path} holds no reference log probabilities of this version"
                    )
            if not files or len(files) != files[0].description["num_files"]:
                raise CorruptFileError(
                    f"{folder} has {len(files)} files: run compute_references to its end on every "
                    "rank"
                )
            tables += files
        sample_ids, logps, contents = (
            np.concatenate([table.flat(name) for table in tables])
            for name in ("sample_ids", "logps", "contents")
        )
        return cls(sample_ids, logps, contents, os.fspath(directory))

    def __len__(self) -> int:
        return len(self._logps)

    def of(self, pack: Pack) -> Float32Array:
        """Return the log probability of each segment of a pack, or of each sample of trees:
        ``float32[num_samples]``.

        Raises:
            PlanMismatchError: a sample without a log probability, or with other tokens or targets;
                names it.
        """
        samples = zip(pack.flat().sample_ids.tolist(), contents_of(pack).tolist(), strict=True)
        return np.array(
            [self._logp(sample_id, content) for sample_id, content in samples], dtype=np.float32
        )

    def _logp(self, sample_id: int, content: int) -> float:
        first, end = np.searchsorted(self._sample_ids, [sample_id, sample_id + 1]).tolist()
        # A sample has several rows if it was packed with different cuts.
        row = first + int(np.searchsorted(self._contents[first:end], content))
        if row < end and int(self._contents[row]) == content:
            return float(self._logps[row])
        is_known = first < end
        reason = "had other tokens or targets" if is_known else "has no log probability"
        raise PlanMismatchError(
            f"sample {sample_id} {reason} in {self.title}: run compute_references on these packs"
        )


def contents_of(pack: Pack) -> Int64Array:
    """Return 63 bits of a hash of the tokens and targets of each segment, or of each sample of
    trees: ``int64[num_samples]``. Both are equal for a sample that is a segment.
    """
    pack = pack.flat()
    return np.array(
        [
            short_digest(
                pack.input_ids[start:stop].astype("<i4").tobytes()
                + pack.loss_mask[start:stop].tobytes()
            )
            for start, stop in zip(
                pack.cu_seqlens[:-1].tolist(), pack.cu_seqlens[1:].tolist(), strict=True
            )
        ],
        dtype=np.int64,
    )


def model_fingerprint(model: torch.nn.Module) -> Fingerprint:
    """Return the fingerprint of all weights of a model and their names; every byte is read once."""
    return fingerprint_stream(
        piece
        for name, weights in sorted(model.state_dict().items())
        for piece in (
            name.encode(),
            weights.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes(),
        )
    )


def compute_references(
    model: torch.nn.Module,
    packs: PackSequence,
    collator: PackCollator,
    directory: AnyPath,
    *,
    model_id: str | None = None,
    packs_per_batch: int = 1,
    dp_rank: int = 0,
    dp_world_size: int = 1,
    progress: Progress | None = None,
) -> Fingerprint:
    """Compute the log probability of every segment of packs in one pass without gradients, and
    write them to files.

    Files of 256 packs appear complete or not at all, each computed by one rank. A killed pass can
    be continued on any number of ranks; a finished pass computes nothing. It uses no collective.

    Args:
        model, packs, collator, packs_per_batch: see ``evaluate_samples``; batches go to the model's
            device.
        directory: directory of the files, which all ranks must see.
        model_id: name of the reference model that changes with its weights, such as a revision; the
            fingerprint of all weights if None.
        dp_rank, dp_world_size: this rank computes files ``dp_rank``, ``dp_rank + dp_world_size``,
            ….
        progress: prints packs per second.

    Returns:
        The fingerprint of the model, for ``ReferenceLogps.open``.
    """
    setting_number("dp_rank", dp_rank, minimum=0, maximum=dp_world_size - 1)
    identity = model_fingerprint(model) if model_id is None else fingerprint_of(["model", model_id])
    known = getattr(packs, "fingerprint", None)
    if known is None:
        known = fingerprint_of(
            [fingerprint_array(contents_of(packs[index])) for index in range(len(packs))]
        )
    folder = Path(directory) / f"{identity[:16]}-{str(known)[:16]}"
    folder.mkdir(parents=True, exist_ok=True)
    num_files = -(-len(packs) // _PACKS_PER_FILE)
    progress = progress or Progress()
    file_indices = range(dp_rank, num_files, dp_world_size)
    with progress.stage("reference", total=len(file_indices) * _PACKS_PER_FILE, unit="packs"):
        for file_index in file_indices:
            path = folder / f"{file_index:08d}.arrow"
            if not path.exists():
                some = [
                    packs[i]
                    for i in range(
                        file_index * _PACKS_PER_FILE,
                        min((file_index + 1) * _PACKS_PER_FILE, len(packs)),
                    )
                ]
                losses = evaluate_samples(model, some, collator, packs_per_batch=packs_per_batch)
                columns: dict[str, Any] = {
                    "sample_ids": losses.sample_ids.astype(np.int64),
                    "logps": (-losses.nll_sum).astype(np.float32),
                    "contents": np.concatenate([contents_of(pack) for pack in some]),
                }
                write_table(
                    path,
                    columns,
                    {**_IDENTITY, "num_files": num_files, "model": identity},
                )
            progress.advance(_PACKS_PER_FILE)
    return identity
