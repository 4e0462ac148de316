"""xtuner v1: plans as its preset packs, which it reads with ``pack_level="preset"``.

xtuner encodes the samples itself; the plan says which of them share a row, and in which order rows
are trained.
"""

import json
import os
from collections.abc import Sequence
from functools import partialmethod
from importlib import import_module
from typing import Any

import numpy as np
import numpy.typing as npt

from brimful.base.atomic_file import atomic_file
from brimful.base.ragged import offsets_of
from brimful.base.typing import AnyPath
from brimful.base.wording import setting
from brimful.errors import PlanMismatchError, SettingsError
from brimful.lengths import LengthTable
from brimful.plan import Plan
from brimful.plan.schedule import Tail, schedule_packs

__all__ = ["install", "preset_lengths", "write_preset"]


def preset_lengths(datasets: Sequence[Any]) -> LengthTable:
    """Return the lengths that xtuner counted, of all samples of its data sets in their order.

    Args:
        datasets: what ``build_datasets`` of xtuner returns, ``JsonlDataset``; with
            ``disable_filter=True``, so that a sample is a line. A damaged line, which xtuner counts
            as 0 tokens, is a rejected sample.

    Raises:
        SettingsError: a data set that filters or repeats lines, or cuts them into chunks, or a file
            that two of them read.

    >>> from types import SimpleNamespace
    >>> chats = SimpleNamespace(path="a.jsonl", num_tokens=np.array([3, 5]), disable_filter=True)
    >>> preset_lengths([chats])
    LengthTable(2 samples, 8 tokens, 33d7379)
    """
    paths = [dataset.path for dataset in datasets]
    for dataset in datasets:
        if not dataset.disable_filter or getattr(dataset, "_has_chunk", False):
            raise SettingsError(
                f"{dataset.path}: its samples are not its lines, and a preset names lines: set "
                "disable_filter=True, sample_ratio=1.0 and enable_sequential_sampler=True, and no "
                "long-text tokenization"
            )
        if paths.count(dataset.path) > 1:
            raise SettingsError(
                f"{dataset.path} is in two data sets, and a preset names samples by file and line: "
                "copy the file"
            )
    counts = np.concatenate([np.asarray(dataset.num_tokens) for dataset in datasets])
    return LengthTable({"tokens": np.where(counts > 0, counts, -1)})


def write_preset(
    plan: Plan,
    datasets: Sequence[Any],
    directory: AnyPath,
    *,
    dp_world_size: int = 1,
    epochs: int = 1,
    seed: int | None = 0,
    costs: npt.ArrayLike | None = None,
) -> None:
    """Write a plan as xtuner's ``pack_config_path``, and ``order.npy`` in it as its
    ``sampler_config_path``.

    ==================  ==========================  ==============================================
    ``boundaries.npy``  ``int64[packs + 1]``        first row of each pack in ``samples.npy``
    ``samples.npy``     ``int64[segments, 6]``      file, line, -1, -1, first token, end
    ``paths.json``      strings                     files, as the data sets name them
    ``order.npy``       ``int64[packs × epochs]``   packs as they are trained, rank after rank
    ==================  ==========================  ==============================================

    Each file appears whole or not at all.

    Args:
        plan: of ``preset_lengths(datasets)``, or of the same samples with the same lengths.
        datasets: as in ``preset_lengths``.
        directory: of the preset; it is made.
        dp_world_size: ranks that see different data. xtuner gives each rank every n-th pack; what
            does not fill the ranks at the end of an epoch is left out.
        epochs: passes over the packs, each in another order. xtuner repeats one order: set its
            ``total_epoch`` to 1.
        seed: of the orders; None keeps the order of the plan.
        costs: from ``plan.costs(model)``: packs that ranks train at the same time then have nearly
            equal work.

    Raises:
        LengthChangedError: xtuner counts other tokens in a sample than the plan; names file and
            line.
        PlanMismatchError: the plan is of another number of samples.
        SettingsError: a plan with samples in several parts, or with shared beginnings; or see
            ``preset_lengths`` and ``schedule_packs``.
    """
    lengths = preset_lengths(datasets)
    if plan.ledger.samples_in != len(lengths):
        raise PlanMismatchError(
            f"the plan is of {plan.ledger.samples_in:,} samples and the data sets have "
            f"{len(lengths):,}"
        )
    # xtuner trains the first token of a segment from the last of the segment before it, unless the
    # tokenization has masked it: samples begin with a prompt, and later parts do not.
    if plan.sharing is not None or plan.starts.any():
        raise SettingsError(
            "xtuner takes each segment for a whole sample: plan with "
            f"{setting('overflow', 'drop')} or {setting('overflow', 'truncate')}, and without "
            f"{setting('share', 'prefixes')}"
        )
    first_samples = offsets_of([len(dataset.num_tokens) for dataset in datasets])

    def where(sample_id: int) -> str:
        index = int(np.searchsorted(first_samples, sample_id, side="right")) - 1
        return f"{datasets[index].path}:{sample_id - int(first_samples[index]) + 1}"

    sample_ids = np.asarray(plan.sample_ids, dtype=np.int64)
    plan.check_sample_lengths(slice(None), lengths.tokens[sample_ids], where)
    samples = np.full((len(sample_ids), 6), -1, dtype=np.int64)
    files = np.searchsorted(first_samples, sample_ids, side="right") - 1
    samples[:, 0], samples[:, 1] = files, sample_ids - first_samples[files]
    samples[:, 4], samples[:, 5] = 0, plan.lengths
    orders = [
        schedule_packs(
            plan.num_packs,
            dp_world_size=dp_world_size,
            micro_batches=1,
            packs_per_micro_batch=1,
            epoch=epoch,
            seed=seed,
            tail=Tail.DROP,
            costs=costs,
        ).ravel()
        for epoch in range(epochs)
    ]
    arrays = {"boundaries": plan.offsets, "samples": samples, "order": np.concatenate(orders)}
    folder = os.fspath(directory)
    os.makedirs(folder, exist_ok=True)
    for name, array in arrays.items():
        with atomic_file(os.path.join(folder, f"{name}.npy")) as file:
            np.save(file, np.asarray(array, dtype=np.int64))
    with atomic_file(os.path.join(folder, "paths.json")) as file:
        file.write(json.dumps([dataset.path for dataset in datasets]).encode())


def install() -> None:
    """Let xtuner take preset packs that are not full to the last token; call it in the file of the
    configuration.

    Its ``PresetPackDataset`` can pad such packs, but ``DataloaderConfig`` has no setting for it and
    refuses them. Its sampler and its checkpoints stay as they are.
    """
    packs = import_module("xtuner.v1.datasets.preset_pack").PresetPackDataset
    packs.__init__ = partialmethod(packs.__init__, short_pack_strategy="padding")
