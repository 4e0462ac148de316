"""verl: samples of packs as the rows of its SFT trainer, which divides each step into micro-batches
itself.
"""

import os
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch.utils.data import ConcatDataset, Dataset

from brimful.base.typing import AnyPath
from brimful.errors import SettingsError
from brimful.integrations.trainers.evaluation import one_by_one
from brimful.serve import open_packs
from brimful.store.shards import Pack

__all__ = ["VerlSamples"]


class VerlSamples(Dataset[dict[str, torch.Tensor]]):
    """Samples of pack stores for ``data.custom_cls`` of verl, with the arguments that it passes.

    ::

        input_ids, position_ids, loss_mask    int64[length] of one sample; the mask is not shifted

    A row is a sample and not a pack: verl's engines separate rows, and its ranks need equal numbers
    of rows in a step. Each pack is read once at the beginning, to count its samples.

    Args:
        parquet_files: ``data.train_files``: a pack store, or several, one after the other.
        tokenizer, processor: of verl; not used, because packs hold tokens.
        config: ``data``; only its ``pad_mode`` is used.
        max_samples: only the first samples; all if below 1.

    Raises:
        SettingsError: the packs hold media, or ``pad_mode`` is not ``no_padding``.

    >>> import tempfile
    >>> from brimful.testing.toys import toy_stream
    >>> with tempfile.TemporaryDirectory() as home:
    ...     samples = VerlSamples(toy_stream(home, [2]), None, {"pad_mode": "no_padding"})
    ...     row = samples[0]
    >>> len(samples), {name: tuple(values.shape) for name, values in row.items()}
    (2, {'input_ids': (4,), 'position_ids': (4,), 'loss_mask': (4,)})
    """

    def __init__(
        self,
        parquet_files: AnyPath | Iterable[AnyPath],
        tokenizer: Any,
        config: Mapping[str, Any],
        processor: Any = None,
        max_samples: int = -1,
    ) -> None:
        pad_mode = config.get("pad_mode", "no_padding")
        if pad_mode != "no_padding":
            raise SettingsError(
                f"data.pad_mode={pad_mode} fills samples up to one length, and verl removes that "
                "padding again: set data.pad_mode=no_padding"
            )
        paths = [parquet_files] if isinstance(parquet_files, (str, os.PathLike)) else parquet_files
        stores = [open_packs(path) for path in paths]
        for store in stores:
            if store.has_attachments:
                raise SettingsError(
                    f"{store.directory} has media, and rows of verl hold features of its own "
                    "processor: give the data itself as data.train_files, without data.custom_cls"
                )
        self._samples: ConcatDataset[Pack] = ConcatDataset(map(one_by_one, stores))  # type: ignore[arg-type]
        count = len(self._samples)
        self._count = min(count, max_samples) if max_samples > 0 else count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        pack = self._samples[index]
        return {
            "input_ids": torch.from_numpy(pack.input_ids.astype("int64")),
            "position_ids": torch.arange(len(pack)),
            "loss_mask": torch.from_numpy(pack.loss_mask.astype("int64")),
        }
