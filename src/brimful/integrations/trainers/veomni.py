"""VeOmni: packs by two lines of its YAML file, packs in lists for its own loader, and rows split for
sequence parallelism.

``PackCollator(dialect="veomni")`` is the collator.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from importlib import import_module
from itertools import islice
from typing import Any

import torch

from brimful.base.wording import setting
from brimful.collate.features import Feature
from brimful.collate.padding import Padding
from brimful.collate.torch import PackCollator
from brimful.errors import SettingsError
from brimful.serve import PackedDataset, PackLoader
from brimful.serve.worker_loader import WorkerLoader
from brimful.store.shards import FingerprintedPacks, Pack, PackSequence

__all__ = ["SlicingCollator", "VeomniLoader", "VeomniPacks", "install"]


def install(collator: PackCollator | None = None) -> None:
    """Register ``brimful`` as a data set and a data loader of VeOmni; call it before the trainer is
    made.

    ::

        data:
          train_path: packs            # a pack store
          datasets_type: brimful
          dataloader: {type: brimful}
        train:
          dyn_bsz: false               # packs are full already
          micro_batch_size: 1          # packs
          global_batch_size: 8         # packs of a step on all ranks

    ``train.seed`` is the seed of the order. All ranks have equal steps (``PackLoader``); what does
    not fill a step is left out, as VeOmni counts steps. The collator of the trainer is replaced.
    ``dataloader.num_workers``, ``pin_memory`` and ``prefetch_factor`` apply; VeOmni's checkpoints
    hold the state.

    Args:
        collator: with dialect ``veomni``, for media or padding of your own; rows are cut for
            sequence parallelism as in ``SlicingCollator``. ``PackCollator(dialect="veomni")`` if
            None, with rows that divide among the ranks.

    Raises:
        SettingsError: with the trainer, not here: ``dyn_bsz``, a data set or a collator of another
            kind, or fewer packs than one step.
    """
    datasets = import_module("veomni.data.dataset").DATASET_REGISTRY
    loaders = import_module("veomni.data.data_loader").DATALOADER_REGISTRY
    datasets.register("brimful", _packs_of_rank)
    loaders.register("brimful", partial(_loader, collator))


class VeomniLoader:
    """Data loader of one rank for VeOmni's trainer: each item is a step, a list of its
    micro-batches.

    Args:
        loader: a ``PackLoader``, or a ``WorkerLoader`` of one.
        micro_batches: of a step, as the loader was made with.

    >>> from brimful.testing.toys import toy_packs
    >>> loader = VeomniLoader(PackLoader(toy_packs(5), micro_batches=2, tail="drop"), 2)
    >>> len(loader), [len(step) for step in loader]
    (2, [2, 2])
    """

    def __init__(self, loader: PackLoader | WorkerLoader, micro_batches: int) -> None:
        self._loader, self._micro_batches = loader, micro_batches

    def __iter__(self) -> Iterator[list[Any]]:
        batches = iter(self._loader)
        while step := list(islice(batches, self._micro_batches)):
            yield step

    def __len__(self) -> int:
        """Return the number of steps of an epoch."""
        return len(self._loader) // self._micro_batches

    def set_epoch(self, epoch: int) -> None:
        """Go to the beginning of an epoch, unless it is the current epoch."""
        self._loader.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return the position, between two steps."""
        return self._loader.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to the position of a state.

        Raises:
            StateError: the state does not fit; names the differences.
        """
        self._loader.load_state_dict(state)


class _PacksOfRank:
    """Packs of a store, with the length of one rank's part.

    VeOmni computes the steps of an epoch, and from them the learning rates, from the length of a
    data set; it divides by the ranks only if ``datasets_type`` is ``mapping``.
    """

    def __init__(self, packs: FingerprintedPacks, dp_size: int) -> None:
        self.packs, self._dp_size = packs, dp_size

    def __len__(self) -> int:
        return len(self.packs) // self._dp_size


def _packs_of_rank(train_path: str, **_settings: Any) -> _PacksOfRank:
    return _PacksOfRank(PackedDataset(train_path), _parallel_state().dp_size)


def _loader(
    collator: PackCollator | None, *, dataset: Any, dyn_bsz: bool, seed: int, **sizes: Any
) -> VeomniLoader:
    if dyn_bsz:
        raise SettingsError(
            "dyn_bsz counts the tokens of samples, and packs are full already: set "
            "train.dyn_bsz: false"
        )
    if not isinstance(dataset, _PacksOfRank):
        raise SettingsError(
            "data.dataloader.type is brimful and the data set is not: set "
            "data.datasets_type: brimful"
        )
    state = _parallel_state()
    micro_batches = sizes["global_batch_size"] // (sizes["micro_batch_size"] * state.dp_size)
    collate: Any = collator or PackCollator(
        dialect="veomni", padding=Padding(multiple_of=state.sp_size)
    )
    if state.sp_enabled:
        module = import_module("veomni.data.data_collator")
        collate = SlicingCollator(collate, module.SequenceParallelCollator())
    loader = PackLoader(
        dataset.packs,
        collate,
        dp_rank=state.dp_rank,
        dp_world_size=state.dp_size,
        packs_per_micro_batch=sizes["micro_batch_size"],
        micro_batches=micro_batches,
        seed=seed,
        tail="drop",
    )
    options = {key: sizes[key] for key in ("pin_memory", "prefetch_factor")}
    workers = WorkerLoader(loader, num_workers=sizes["num_workers"], data_loader=options)
    return VeomniLoader(workers, micro_batches)


def _parallel_state() -> Any:
    return import_module("veomni.distributed.parallel_state").get_parallel_state()


class VeomniPacks:
    """Map-style data set for ``build_dataloader`` of VeOmni with ``dyn_bsz=False``: each item is a
    list of one pack.

    VeOmni's transforms may turn one sample into several, so its ``MakeMicroBatchCollator`` takes
    the first of each item.

    >>> from brimful.testing.toys import toy_packs
    >>> packs = VeomniPacks(toy_packs(3))
    >>> len(packs), packs[2][0].sample_ids.tolist()
    (3, [2])
    """

    def __init__(self, packs: PackSequence) -> None:
        self._packs = packs

    def __len__(self) -> int:
        return len(self._packs)

    def __getitem__(self, index: int) -> list[Pack]:
        return [self._packs[int(index)]]

    def __iter__(self) -> Iterator[list[Pack]]:
        return (self[index] for index in range(len(self)))


class SlicingCollator:
    """``PackCollator`` and VeOmni's ``SequenceParallelCollator`` as the one function that
    ``build_dataloader`` takes.

    ::

        row of 8, 2 ranks     a a a b | b . . .
        rank 0                a a a b             labels and loss_weights shifted by one, then cut
        rank 1                          b . . .   boundaries of the uncut row, on both

    VeOmni's collator shifts the labels and cuts tokens and positions. It ignores ``loss_weights``,
    which are shifted and cut here. It finds boundaries at positions of 0, and counts padding that
    it did not make as a sample unless the row is a multiple of the ranks; other rows are refused
    here.

    Args:
        collator: with dialect ``veomni`` and rows that are a multiple of the ranks:
            ``Padding(multiple_of=sp)``.
        slices: VeOmni's ``SequenceParallelCollator()``, made after its parallel state.

    Raises:
        SettingsError: another dialect, or rows that are not a multiple of the ranks.
    """

    def __init__(self, collator: PackCollator, slices: Any) -> None:
        if collator.dialect.name != "veomni":
            raise SettingsError(
                "VeOmni cuts rows of its own kind, and the collator makes "
                f"{collator.dialect.name!r}: choose {setting('dialect', 'veomni')}"
            )
        unit = collator.padding.to or collator.padding.unit
        if unit % slices.sp_size:
            raise SettingsError(
                f"rows are cut for {slices.sp_size} ranks and their tokens are a multiple of "
                f"{unit:,}: choose padding=Padding({setting('multiple_of', slices.sp_size)})"
            )
        self._collator, self._slices = collator, slices

    def __call__(self, features: Sequence[Feature]) -> dict[str, Any]:
        """Return this rank's part of one batch."""
        batch = self._collator(features)
        boundaries = {key: batch[key] for key in _KEYS_OF_THE_UNCUT_ROW if key in batch}
        weights = batch.pop("loss_weights", None)
        own_slice = {**self._slices(batch), **boundaries}
        if weights is not None:
            # The first token of a sample has no label and so no weight: the shift moves no weight
            # into another sample.
            next_weights = torch.nn.functional.pad(weights[:, 1:], (0, 1))
            own_slice["loss_weights"] = next_weights.chunk(self._slices.sp_size, dim=1)[
                self._slices.sp_rank
            ]
        return own_slice


_KEYS_OF_THE_UNCUT_ROW = (
    "cu_seq_lens_q",
    "cu_seq_lens_k",
    "linear_attn_cu_seq_lens_q",
    "max_length_q",
    "max_length_k",
    "tail_padding_length",
)
