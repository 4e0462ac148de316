"""Log probabilities of samples under a reference model: computed once in a pass over packs, looked up by content."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import torch

from brimful.checks import setting_number
from brimful.collate.torch import PackCollator
from brimful.errors import PlanMismatchError, SettingsError, SourceNotFoundError
from brimful.fingerprint import fingerprint_array, fingerprint_of, fingerprint_stream, short_digest
from brimful.messages import setting
from brimful.progress import Progress
from brimful.shards import Pack, PackSequence
from brimful.tables import write_table
from brimful.trainers.evaluation import evaluate_samples
from brimful.trainers.reference_index import INDEX_NAME, SortedLogps, is_complete, make_index, open_index
from brimful.typing import AnyIntArray, Fingerprint, Float32Array, Int64Array

__all__ = ["ReferenceLogps", "compute_references", "model_fingerprint"]

_KIND, _VERSION = "reference_logps", 1
_PACKS_PER_FILE = 256
"""Packs per file: a kill loses the forward passes of at most this many packs."""


class ReferenceLogps:
    """Log probabilities of segments, by sample and content; from a directory of ``compute_references`` or from arrays.

    A number belongs to the tokens and targets it was computed from: another tokenizer, template or truncation gives
    other tokens, and looking them up is an error. Another plan, epoch or number of ranks only moves segments, which are
    still found. Picklable, for the workers of a loader.

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
        self, sample_ids: AnyIntArray, logps: Float32Array, contents: Int64Array, title: str = "the references"
    ) -> None:
        self._parts = [SortedLogps.of(sample_ids, contents, logps)]
        self.title = title

    @classmethod
    def open(cls, directory: str | os.PathLike[str], model: Fingerprint | None = None) -> ReferenceLogps:
        """Map the output of ``compute_references``; nothing is copied into memory.

        Every rank maps the same sorted index.

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
            folders = [folder for folder in folders if folder.name.startswith(_folder_of(model))]
        if not folders:
            raise SourceNotFoundError(f"{directory}: no reference log probabilities{' of that model' if model else ''}")
        if len({folder.name.split("-")[0] for folder in folders}) > 1:
            raise SettingsError(f"{directory} has references of {len(folders)} models: name one by {setting('model')}")
        references = cls.__new__(cls)
        references._parts = [open_index(folder / INDEX_NAME) for folder in folders]
        references.title = os.fspath(directory)
        return references

    def __len__(self) -> int:
        return sum(map(len, self._parts))

    def of(self, pack: Pack) -> Float32Array:
        """Return the log probability of each segment of a pack: ``float32[num_segments]``.

        Raises:
            PlanMismatchError: a sample without a log probability, or with other tokens or targets; names it.
        """
        result = np.empty(pack.num_segments, dtype=np.float32)
        contents = contents_of(pack).tolist()
        for segment, (sample_id, content) in enumerate(zip(pack.sample_ids.tolist(), contents, strict=True)):
            results = [part.find(sample_id, content) for part in self._parts]
            logps = [logp for _, logp in results if logp is not None]
            if not logps:
                is_known = any(is_here for is_here, _ in results)
                reason = "had other tokens or targets" if is_known else "has no log probability"
                raise PlanMismatchError(
                    f"sample {sample_id} {reason} in {self.title}: run compute_references on these packs"
                )
            result[segment] = logps[0]
        return result

    def __repr__(self) -> str:
        return f"ReferenceLogps({len(self):,} segments, {self.title!r})"


def contents_of(pack: Pack) -> Int64Array:
    """Return 63 bits of a hash of the tokens and targets of each segment: ``int64[num_segments]``."""
    return np.array(
        [
            short_digest(pack.input_ids[start:stop].astype("<i4").tobytes() + pack.loss_mask[start:stop].tobytes())
            for start, stop in zip(pack.cu_seqlens[:-1].tolist(), pack.cu_seqlens[1:].tolist(), strict=True)
        ],
        dtype=np.int64,
    )


def model_fingerprint(model: torch.nn.Module) -> Fingerprint:
    """Return the fingerprint of all weights of a model and their names; every byte is read once."""
    return fingerprint_stream(
        piece
        for name, weights in sorted(model.state_dict().items())
        for piece in (name.encode(), weights.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    )


def compute_references(
    model: torch.nn.Module,
    packs: PackSequence,
    collator: PackCollator,
    directory: str | os.PathLike[str],
    *,
    model_id: str | None = None,
    packs_per_batch: int = 1,
    dp_rank: int = 0,
    dp_world_size: int = 1,
    device: Any = None,
    progress: Progress | None = None,
) -> Fingerprint:
    """Compute the log probability of every segment of packs in one pass without gradients, and write them to files.

    Files of 256 packs appear complete or not at all, each computed by one rank. A killed pass can be continued on any
    number of ranks; a finished pass computes nothing. The rank that ends last sorts all numbers into one file, which
    takes 44 bytes of memory per segment. It uses no collective.

    Args:
        model, packs, collator, packs_per_batch, device: see ``evaluate_samples``.
        directory: directory of the files, which all ranks must see.
        model_id: name of the reference model that changes with its weights, such as a revision; the fingerprint of all
            weights if None.
        dp_rank, dp_world_size: this rank computes files ``dp_rank``, ``dp_rank + dp_world_size``, ….
        progress: prints packs per second.

    Returns:
        The fingerprint of the model, for ``ReferenceLogps.open``.
    """
    setting_number("dp_rank", dp_rank, minimum=0, maximum=dp_world_size - 1)
    identity = model_fingerprint(model) if model_id is None else fingerprint_of(["model", model_id])
    folder = Path(directory) / f"{_folder_of(identity)}-{_packs_fingerprint(packs)[:16]}"
    folder.mkdir(parents=True, exist_ok=True)
    num_files = -(-len(packs) // _PACKS_PER_FILE)
    progress = progress or Progress()
    numbers = range(dp_rank, num_files, dp_world_size)
    with progress.stage("reference", total=len(numbers) * _PACKS_PER_FILE, unit="packs"):
        for number in numbers:
            path = folder / f"{number:08d}.arrow"
            if not path.exists():
                some = [
                    packs[i] for i in range(number * _PACKS_PER_FILE, min((number + 1) * _PACKS_PER_FILE, len(packs)))
                ]
                losses = evaluate_samples(model, some, collator, packs_per_batch=packs_per_batch, device=device)
                columns: dict[str, Any] = {
                    "sample_ids": losses.sample_ids.astype(np.int64),
                    "logps": (-losses.nll_sum).astype(np.float32),
                    "contents": np.concatenate([contents_of(pack) for pack in some]),
                }
                write_table(
                    path, columns, {"kind": _KIND, "version": _VERSION, "num_files": num_files, "model": identity}
                )
            progress.advance(_PACKS_PER_FILE)
    if num_files and is_complete(folder, num_files):
        make_index(folder, part_kind=_KIND)
    return identity


def _folder_of(model: Fingerprint) -> str:
    return model[:16]


def _packs_fingerprint(packs: PackSequence) -> Fingerprint:
    """Return the fingerprint of packs; of their samples' contents if they have no fingerprint of their own."""
    known = getattr(packs, "fingerprint", None)
    if known is not None:
        return str(known)
    return fingerprint_of([fingerprint_array(contents_of(packs[index])) for index in range(len(packs))])
