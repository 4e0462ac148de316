"""Packs as a map-style data set: from a pack store, or made on the fly from source and plan."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any, Protocol, overload

import numpy as np

from brimful.checks import check_type, position, positions
from brimful.encode.choose import as_encoder
from brimful.encode.encoder import Encoder
from brimful.errors import PlanMismatchError
from brimful.fingerprint import short
from brimful.messages import counted
from brimful.plan import Alignment, Plan
from brimful.serve.packs import PackStore, open_packs
from brimful.shards import Pack, assemble_pack
from brimful.sources.open import open_source
from brimful.sources.source import Source
from brimful.typing import Fingerprint

__all__ = ["PackedDataset"]


class _Packs(Protocol):
    @property
    def fingerprint(self) -> Fingerprint: ...

    @property
    def alignment(self) -> Alignment: ...

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Pack: ...


class _PlannedPacks:
    """Packs encoded when they are asked for. Picklable, for the workers of a loader."""

    def __init__(self, source: Source, encoder: Encoder, plan: Plan) -> None:
        check_type("plan", plan, Plan, "a Plan", "open a file by Plan.open")
        if plan.ledger.samples_in != len(source):
            raise PlanMismatchError(
                f"the plan is for {plan.ledger.samples_in:,} samples and {source.title} has {len(source):,}: plan again"
            )
        plan.check_fingerprint()  # segments of a damaged plan would be served twice, or never
        self._source, self._encoder, self._plan = source, encoder, plan

    @property
    def fingerprint(self) -> Fingerprint:
        return self._plan.fingerprint

    @property
    def alignment(self) -> Alignment:
        return self._plan.alignment

    def __len__(self) -> int:
        return self._plan.num_packs

    def __getitem__(self, index: int) -> Pack:
        plan, segments = self._plan, self._plan.pack(index)
        samples = [self._encoder.encode(self._source[segment.sample_id]) for segment in segments]
        first = int(plan.offsets[index % plan.num_packs])
        found = np.array([len(sample) for sample in samples])
        plan.check_sample_lengths(slice(first, first + len(segments)), found, self._source.where)
        parts = [slice(segment.start, segment.start + segment.length) for segment in segments]
        return assemble_pack(
            [sample.input_ids[part] for sample, part in zip(samples, parts, strict=True)],
            [sample.loss_mask[part] for sample, part in zip(samples, parts, strict=True)],
            [segment.sample_id for segment in segments],
            [segment.start for segment in segments],
        )


class PackedDataset:
    """A map-style data set of packs; what ``torch.utils.data.DataLoader`` and every trainer take.

    Give it a ``PackCollator`` as ``collate_fn`` (or ``data_collator``); batch size counts packs.

    Args:
        directory: of a pack store.

    >>> from brimful import PackedDataset, open_source, plan_packs, measure_lengths
    >>> from brimful.testing.toys import toy_chat_encoder
    >>> source, encoder = open_source([{"prompt": "1+1?", "completion": "2"}]), toy_chat_encoder()
    >>> plan = plan_packs(measure_lengths(source, encoder), capacity=64)
    >>> PackedDataset.from_plan(source, encoder, plan)[0]
    Pack(22 tokens, 1 segments, 2 loss tokens)
    """

    def __init__(self, directory: str | os.PathLike[str] | PackStore) -> None:
        if isinstance(directory, Plan):
            check_type("directory", directory, (), "the path of a pack store", "a plan goes with from_plan")
        self._packs: _Packs = directory if isinstance(directory, PackStore) else open_packs(directory)

    @classmethod
    def from_plan(
        cls, source: Source | Any, encoder: Encoder | str | os.PathLike[str] | Any, plan: Plan
    ) -> PackedDataset:
        """Packs that are encoded when they are asked for: no pack store, the same packs.

        Args:
            source: the samples, or anything that ``open_source`` takes.
            encoder: the one that measured them; or a tokenizer, or its name.
            plan: over the lengths of this source.

        Raises:
            PlanMismatchError: the plan is for another number of samples.
            CorruptFileError: the plan was damaged since it was saved.
        """
        check_type("plan", plan, Plan, "a Plan", "open a file by Plan.open")
        source = open_source(source)
        encoder = as_encoder(source, encoder)
        self = cls.__new__(cls)
        self._packs = _PlannedPacks(source, encoder, plan)
        return self

    @property
    def fingerprint(self) -> Fingerprint:
        """Of the plan."""
        return self._packs.fingerprint

    @property
    def alignment(self) -> Alignment:
        """What segments and rows were planned to be padded to: ``PackCollator(padding=Padding.of_alignment(…))``."""
        return self._packs.alignment

    def __len__(self) -> int:
        return len(self._packs)

    @overload
    def __getitem__(self, index: int) -> Pack: ...

    @overload
    def __getitem__(self, index: slice) -> list[Pack]: ...

    def __getitem__(self, index: int | slice) -> Pack | list[Pack]:
        """One pack, or those of a slice; as of a list."""
        if isinstance(index, slice):
            return [self._packs[at] for at in positions(index, len(self))]
        return self._packs[position(index, len(self), "pack")]

    def __getitems__(self, indices: Sequence[int]) -> list[Pack]:
        return [self._packs[int(index)] for index in indices]

    def __iter__(self) -> Iterator[Pack]:
        return (self[index] for index in range(len(self)))

    def __repr__(self) -> str:
        return f"PackedDataset({counted(len(self), 'pack')}, {short(self.fingerprint)})"
