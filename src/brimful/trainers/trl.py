"""``SFTTrainer`` of TRL: packs as its data set, and its settings corrected for packs."""

from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import numpy as np

from brimful.errors import SettingsError
from brimful.optional import optional
from brimful.shards import Pack, PackSequence
from brimful.trainers.refusals import check_arguments

with optional("datasets", "trl", "SFTPacks"):
    import datasets

__all__ = ["SFTPacks", "for_packs"]

_Arguments = TypeVar("_Arguments")


class SFTPacks(datasets.Dataset):  # type: ignore[misc]  # datasets is not typed here
    """Data set of packs for ``SFTTrainer``: a ``datasets.Dataset`` that holds no tokens itself.

    TRL takes no other kind, and reads the keys of the first sample to tell conversations and images from tokens.
    Iterating gives the rows of TRL's own packed data set, with ``seq_lengths``; indexing, as in training, gives the
    packs. ``PackCollator`` takes both. The results of ``select``, ``map`` or ``shuffle`` are no data sets of packs,
    and ``PackCollator`` refuses them.

    Args:
        packs: a ``PackedDataset``, a ``PackStore``, or ``one_by_one`` of them.

    >>> from brimful.testing.toys import toy_packs
    >>> packs = SFTPacks(toy_packs(3))
    >>> "prompt" in next(iter(packs)), packs[2].sample_ids.tolist(), len(packs)
    (False, [2], 3)
    """

    def __init__(self, packs: PackSequence) -> None:
        if not len(packs):
            raise SettingsError("SFTTrainer needs at least one pack, and there is none")
        # A table of one cell satisfies the base class; length and items come from the packs.
        super().__init__(datasets.Dataset.from_dict({"pack": [0]}).data)
        self._packs = packs

    def __len__(self) -> int:
        return len(self._packs)

    def __getitem__(self, key: Any) -> Pack:
        return self._packs[int(key)]

    def __getitems__(self, keys: Sequence[int]) -> list[Pack]:
        # Packs that are encoded on the fly are encoded together.
        get_items = getattr(self._packs, "__getitems__", None)
        return [self[key] for key in keys] if get_items is None else list(get_items([int(key) for key in keys]))

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for index in range(len(self)):
            pack = self[index]
            yield {
                "input_ids": pack.input_ids.tolist(),
                "labels": pack.labels.tolist(),
                "seq_lengths": np.diff(pack.cu_seqlens).tolist(),
            }

    def __repr__(self) -> str:
        return f"SFTPacks({self._packs!r})"


def for_packs(args: _Arguments) -> _Arguments:
    """Change an ``SFTConfig`` so that TRL does not change packs, and return it.

    Sets ``dataset_kwargs["skip_prepare_dataset"]`` and ``remove_unused_columns=False``; ``max_length`` then has no
    effect, because the capacity of the packs is the length of a row. ``per_device_train_batch_size`` counts packs.

    Raises:
        SettingsError: a setting that is wrong with packs (``check_arguments``).
    """
    check_arguments(args, trainer="trl")
    options: Any = args
    options.dataset_kwargs = {**(options.dataset_kwargs or {}), "skip_prepare_dataset": True}
    options.remove_unused_columns = False
    return args
