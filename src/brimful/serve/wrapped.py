"""Packs of a data set that encodes its own rows: lengths first, then each row when its pack is
requested.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from brimful.base.fingerprint import differing_keys
from brimful.base.typing import AnyPath, Lengths
from brimful.base.wording import setting
from brimful.errors import CacheMismatchError, EncodeError, LengthChangedError, SettingsError
from brimful.lengths.table import LengthTable
from brimful.lengths.targets import as_lengths
from brimful.plan import Overflow, Plan
from brimful.serve.process_group import process_group
from brimful.store.shards import PlainPack

_IN_PROCESS_ROWS = 64
"""Number of rows up to which this process measures alone: starting other processes takes longer."""

_ROWS_AT_ONCE = 16
_NUM_PROBES = 8
"""Number of rows whose lengths are compared with a file before it is used."""


class EncodedRows:
    """Rows of a map-style data set, encoded at access by the data set itself or by a function.

    Args:
        dataset: data set with ``len`` and indexing.
        encode: function from a row to a mapping with ``input_ids``, or an object with such a method
            ``encode``; None for rows that are already encoded.
    """

    def __init__(self, dataset: Any, encode: Any = None) -> None:
        self.dataset, self.title = dataset, type(dataset).__name__
        self._encode: Callable[[Any], Any] | None = getattr(encode, "encode", encode)

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Mapping[str, Any]:
        try:
            row = self.dataset[index]
            row = row if self._encode is None else self._encode(row)
        except Exception as error:  # a data set is arbitrary user code
            raise EncodeError(
                f"sample {index} of {self.title}: {type(error).__name__}: {error}"
            ) from error
        if not isinstance(row, Mapping) or row.get("input_ids") is None:
            keys = sorted(map(str, row)) if isinstance(row, Mapping) else type(row).__name__
            raise EncodeError(
                f"sample {index} of {self.title} has no 'input_ids' (found {keys}): give the "
                "function that encodes a row, such as a template of ms-swift, as encode=…"
            )
        ids = row["input_ids"]
        if np.ndim(ids) != 1 or not len(ids):
            raise EncodeError(
                f"sample {index} of {self.title} has 'input_ids' of shape {tuple(np.shape(ids))}: "
                "they are one row of at least 1 token. If a processor makes a batch of one, take "
                "[0] of the tokens, masks and labels"
            )
        return row

    def offered_lengths(self) -> Lengths | None:
        """Return the attribute or column ``lengths`` or ``length`` of the data set; None without
        one.
        """
        for name in ("lengths", "length"):
            try:
                column = (
                    getattr(self.dataset, name)
                    if hasattr(self.dataset, name)
                    else self.dataset[name]
                )
                lengths = [int(np.sum(length)) for length in column]
            except Exception:  # a method, or an index that the data set refuses
                continue
            if len(lengths) == len(self):
                return as_lengths(lengths)
        return None

    def lengths(self, path: AnyPath | None, num_proc: int | None) -> Lengths:
        """Return the lengths in a file, or measure them by encoding every row once and write them
        to the file.

        With several ranks only the first measures, because rows with random lengths differ between
        processes.
        """
        distributed = process_group()
        if distributed is None:
            return self._own_lengths(path, num_proc)
        import torch

        device = "cuda" if "nccl" in str(distributed.get_backend()) else "cpu"
        totals = torch.zeros(len(self), dtype=torch.int64, device=device)
        if distributed.get_rank() == 0:
            totals += torch.tensor(self._own_lengths(path, num_proc).tolist(), device=device)
        distributed.broadcast(totals, 0)
        return as_lengths(totals.cpu().numpy())

    def _own_lengths(self, path: AnyPath | None, num_proc: int | None) -> Lengths:
        """Return the lengths in a file, after comparing the identity of its data set and some rows;
        or measure them.
        """
        content = getattr(self.dataset, "fingerprint", getattr(self.dataset, "_fingerprint", None))
        identity = {"data set": self.title, "fingerprint": str(content), "samples": len(self)}
        if path is None or not os.path.exists(path):
            table = LengthTable.from_lengths(self._measured(num_proc))
            table.provenance = identity
            if path is not None:
                table.save(path)
            return table.tokens
        table = LengthTable.open(path)
        probes = np.unique(np.linspace(0, len(self) - 1, _NUM_PROBES).astype(int)).tolist()
        differences = differing_keys(table.provenance, identity) or [
            f"sample {index}" for index in probes if length_of(self[index]) != table.tokens[index]
        ]
        if differences:
            raise CacheMismatchError(
                f"{os.fspath(path)} has the lengths of another data set; these parts differ: "
                f"{', '.join(differences)}. Remove it to measure again, or choose another "
                f"{setting('path')}"
            )
        return table.tokens

    def _measured(self, num_proc: int | None) -> list[int]:
        if num_proc == 1 or (num_proc is None and len(self) <= _IN_PROCESS_ROWS):
            return [length_of(self[index]) for index in range(len(self))]
        from torch.utils.data import DataLoader

        # As in training: forked workers can use any data set, also one defined in a script.
        num_workers = num_proc or (
            len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
        )
        rows: Any = self
        loader: Any = DataLoader(
            rows, batch_size=_ROWS_AT_ONCE, num_workers=num_workers, collate_fn=_lengths_of
        )
        return [length for batch in loader for length in batch]


def length_of(row: Mapping[str, Any]) -> int:
    """Return the tokens of a row, without padding."""
    mask = row.get("attention_mask")
    return len(row["input_ids"]) if mask is None else int(np.count_nonzero(np.asarray(mask)))


def _lengths_of(rows: Sequence[Mapping[str, Any]]) -> list[int]:
    return [*map(length_of, rows)]


class WrappedPacks:
    """Packs of encoded rows. Picklable if the data set is, for the workers of a loader."""

    attachment_settings: dict[str, Any] | None = None

    def __init__(self, rows: EncodedRows, plan: Plan) -> None:
        settings = plan.settings
        policy = settings.overflow_policy
        for name, value, is_cut in (
            (
                "share",
                plan.sharing and plan.sharing.kind.value,
                plan.sharing is not None,
            ),
            ("algorithm", "concat_split", settings.algorithm == "concat_split"),
            ("overflow", policy.value, policy not in (Overflow.ERROR, Overflow.DROP)),
        ):
            if is_cut:
                raise SettingsError(
                    f"{setting(name, value)}: rows that a data set encodes are packed whole: plan "
                    f"without it ({setting('overflow', 'drop')} leaves longer ones out), or cut "
                    "them where they are encoded"
                )
        self._rows, self._plan = rows, plan
        self.fingerprint, self.alignment = plan.fingerprint, plan.alignment
        self.facts = {"data": rows.title, "packs": plan.num_packs, **plan.settings.as_dict()}

    def __len__(self) -> int:
        return self._plan.num_packs

    def __getitem__(self, index: int) -> PlainPack:
        segments, first = self._plan.pack(index), int(self._plan.offsets[index])
        ids = [segment.sample_id for segment in segments]
        rows = [self._rows[sample_id] for sample_id in ids]
        try:
            self._plan.check_sample_lengths(
                slice(first, first + len(ids)),
                np.array(_lengths_of(rows)),
                lambda _: self._rows.title,
            )
        except LengthChangedError as error:
            raise LengthChangedError(
                f"{error.message.split(': the data', 1)[0]}: its encoding differs at each access, "
                "or it has changed since. Let its augmentation keep lengths or depend only on the "
                "index of the row, or wrap it again for each epoch"
            ) from error
        return PlainPack(rows, ids)
