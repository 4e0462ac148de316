"""Map-style data set of packs, from a pack store or from source and plan."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from brimful.base.arguments import CAPACITY_NAMES, understands
from brimful.base.checks import check_type
from brimful.base.fingerprint import short
from brimful.base.sharing import wing_of
from brimful.base.typing import AnyPath, IntArrayLike
from brimful.base.wording import counted, setting
from brimful.encode.encoded import EncodedSample
from brimful.encode.encoded_samples import EncodedSamples
from brimful.encode.encoder import Encoder
from brimful.errors import (
    AugmentationError,
    LengthChangedError,
    OversizedSampleError,
    PlanMismatchError,
    SettingsError,
)
from brimful.lengths.table import LengthTable
from brimful.plan import Plan, plan_packs
from brimful.plan.policies.groups import check_beginnings_stay
from brimful.plan.saved.planned_packs import Segment
from brimful.serve.pack_store import IndexedPacks, PackStore, open_packs
from brimful.serve.wrapped import EncodedRows, WrappedPacks
from brimful.sources.augmented import Transform, names_of
from brimful.sources.source import Source
from brimful.store.shards import Pack, assemble_pack


class _PlannedPacks:
    """Packs that are encoded at each access. Picklable, for the workers of a loader."""

    def __init__(self, samples: EncodedSamples, plan: Plan) -> None:
        source = samples.source
        if plan.ledger.samples_in != len(source):
            raise PlanMismatchError(
                f"the plan is for {plan.ledger.samples_in:,} samples and {source.title} has "
                f"{len(source):,}: plan again"
            )
        if source.joins_rows:
            check_beginnings_stay(plan.settings.overflow_policy)
        # Segments of a damaged plan would be served twice, or never.
        plan.check_fingerprint()
        self._samples, self._plan = samples, plan
        self.fingerprint, self.alignment = plan.fingerprint, plan.alignment
        data = {
            "source": os.path.basename(source.title),
            "samples": len(source),
            "tokens": plan.ledger.tokens_in,
        }
        self.facts = {**data, "packs": plan.num_packs, **plan.settings.as_dict()}
        self.attachment_settings: dict[str, Any] | None = samples.encoder.length_settings.get(
            "media"
        )

    def __len__(self) -> int:
        return self._plan.num_packs

    def __getitem__(self, index: int) -> Pack:
        return self.packs([index])[0]

    def packs(self, indices: Sequence[int]) -> list[Pack]:
        """Return several packs; their samples are encoded together."""
        segment_lists = [self._plan.pack(index) for index in indices]
        # A sample that was split into several of these segments is encoded once.
        sample_ids = list(
            dict.fromkeys(segment.sample_id for segments in segment_lists for segment in segments)
        )
        samples = dict(zip(sample_ids, self._samples.read(sample_ids), strict=True))
        return [
            self._assembled(index, segments, [samples[segment.sample_id] for segment in segments])
            for index, segments in zip(indices, segment_lists, strict=True)
        ]

    def _assembled(
        self, index: int, segments: Sequence[Segment], samples: Sequence[EncodedSample]
    ) -> Pack:
        """Return the pack of these segments, given the sample of each segment."""
        plan = self._plan
        first = int(plan.offsets[index % plan.num_packs])
        # A sample that changed since it was measured would be cut in the wrong place, or overfill
        # the pack.
        sample_lengths = np.array([len(sample) for sample in samples])
        try:
            plan.check_sample_lengths(
                slice(first, first + len(segments)), sample_lengths, self._samples.source.where
            )
        except LengthChangedError as error:
            if not self._samples.transforms:
                raise
            raise AugmentationError(
                f"{error.message.split(': the data', 1)[0]}: {names_of(self._samples.transforms)} "
                "changed its length, or the data changed since. Measure with the same transforms; "
                "if their lengths are drawn again each time, measure, plan and serve "
                "source.augmented(transforms, epoch=…), whose draws stay"
            ) from error
        sample_ids = [segment.sample_id for segment in segments]
        attachments = [sample.attachments for sample in samples]
        items = attachments if any(attachments) else None
        if plan.sharing is not None:
            pack: Pack = wing_of(plan.sharing).assemble(
                [sample.input_ids for sample in samples],
                [sample.loss_mask for sample in samples],
                sample_ids,
                [segment.length for segment in segments],
                plan.sharing,
                slice(first, first + len(segments)),
                items,
            )
            return pack
        slices = [slice(segment.start, segment.start + segment.length) for segment in segments]
        return assemble_pack(
            [sample.input_ids[tokens] for sample, tokens in zip(samples, slices, strict=True)],
            [sample.loss_mask[tokens] for sample, tokens in zip(samples, slices, strict=True)],
            sample_ids,
            [segment.start for segment in segments],
            items,
        )


class PackedDataset(IndexedPacks):
    """Map-style data set of packs, for ``torch.utils.data.DataLoader`` and every trainer.

    Use a ``PackCollator`` as ``collate_fn`` (or ``data_collator``); the batch size counts packs.

    Attributes:
        fingerprint: fingerprint of the plan.
        facts: facts about the packs, for the state of a loader.
        alignment: alignment that the plan reserved room for:
            ``PackCollator(padding=Padding.of_alignment(…))``.
        attachment_settings: settings that media were encoded with, for ``MediaFeatures.of_packs``; None
            for packs of text.
        attachment_features: settings of the features that the packs hold instead of media; None if they
            hold none.

    Args:
        directory: path or URL of a pack store, or the store itself.
        media_root, cache_dir, cache_bytes: see ``open_packs``.

    >>> from brimful import PackedDataset, open_source, plan_packs, measure_lengths
    >>> from brimful.testing.toys import toy_chat_encoder
    >>> source, encoder = open_source([{"prompt": "1+1?", "completion": "2"}]), toy_chat_encoder()
    >>> plan = plan_packs(measure_lengths(source, encoder), capacity=64)
    >>> PackedDataset.from_plan(source, encoder, plan)[0]
    Pack(22 tokens, 1 segments, 2 loss tokens)
    """

    @understands(
        {
            **dict.fromkeys(
                ("dataset", "template", *CAPACITY_NAMES),
                "use PackedDataset.wrap(dataset, packing_length=…)",
            ),
            **dict.fromkeys(
                ("dp_rank", "dp_world_size"),
                "packs are divided by PackLoader(dataset, dp_rank=…, dp_world_size=…)",
            ),
            "data_dir": "name the pack store by the first argument, directory",
        }
    )
    def __init__(
        self,
        directory: AnyPath | PackStore,
        *,
        media_root: AnyPath | None = None,
        cache_dir: AnyPath | None = None,
        cache_bytes: int | None = None,
    ) -> None:
        if not isinstance(directory, PackStore):
            hint = (
                "use from_plan for a plan, and PackedDataset.wrap(dataset, packing_length=…) for "
                "a data set that encodes its rows"
            )
            check_type("directory", directory, (str, os.PathLike), "the path of a pack store", hint)
            directory = open_packs(
                directory, media_root=media_root, cache_dir=cache_dir, cache_bytes=cache_bytes
            )
        elif media_root is not None:
            raise SettingsError(
                f"{setting('media_root')} belongs to a directory: give it to open_packs for an "
                "open store"
            )
        self._serve(directory)

    def _serve(self, packs: PackStore | _PlannedPacks | WrappedPacks) -> PackedDataset:
        self._packs = packs
        self.fingerprint, self.facts, self.alignment = (
            packs.fingerprint,
            packs.facts,
            packs.alignment,
        )
        self.attachment_settings = packs.attachment_settings
        self.attachment_features: dict[str, Any] | None = getattr(
            packs, "attachment_features", None
        )
        return self

    @classmethod
    def from_plan(
        cls,
        source: Source | Any,
        encoder: Encoder | AnyPath | Any,
        plan: Plan,
        *,
        transforms: Sequence[Transform] = (),
    ) -> PackedDataset:
        """Return a data set that encodes each pack at access. Its packs equal the packs of the pack
        store.

        Args:
            source: the samples, or anything that ``open_source`` takes.
            encoder: the encoder that measured the samples; or a tokenizer, or its name.
            plan: plan over the lengths of this source.
            transforms: augmentation, drawn again for each sample at each access. The resulting
                lengths must equal the measured lengths, with or without these transforms: they are
                checked against the plan at each access. If lengths are random, give the source that
                was measured, ``source.augmented(…)``, and no transforms.

        Raises:
            AugmentationError: at access; a transform changed the length of a sample.
            PlanMismatchError: the plan is for another number of samples.
            CorruptFileError: the plan was damaged since it was saved.
        """
        check_type("plan", plan, Plan, "a Plan", "open a file by Plan.open")
        samples = EncodedSamples(source, encoder, transforms=transforms)
        return cls.__new__(cls)._serve(_PlannedPacks(samples, plan))

    @classmethod
    @understands(capacity=CAPACITY_NAMES, encode=("template",))
    def wrap(
        cls,
        dataset: Any,
        capacity: int,
        *,
        encode: Any = None,
        lengths: LengthTable | IntArrayLike | None = None,
        path: AnyPath | None = None,
        num_proc: int | None = None,
        **options: Any,
    ) -> PackedDataset:
        """Return the packs of a data set that encodes its own rows at access, such as a torch
        ``Dataset``.

        Each pack is a list of its rows (``shards.PlainPack``), with everything that their encoder
        made: labels, pixels, grids. ``PackCollator`` joins them. A row is read each time its pack
        is requested, with the augmentation of its data set; its length must equal the planned
        length.

        Args:
            dataset: data set with ``len`` and indexing; its rows are mappings with ``input_ids``
                (``PackCollator`` lists the keys).
            capacity: maximum tokens of a pack; ``packing_length`` is accepted too.
            encode: function from a row of the data set to such a mapping, or an object with a
                method ``encode``, like the templates of ms-swift; None for rows that are already
                encoded.
            lengths: tokens of each row, if known. If None, the attribute or column ``lengths`` or
                ``length`` of the data set is used; without it every row is encoded once.
            path: file that keeps the lengths measured here. It is used for a data set of the same
                class, number of rows and ``fingerprint`` (if it has one), if a few probed rows
                still have these lengths.
            num_proc: number of measuring processes, which are workers of a ``DataLoader``; all
                cores if None, one process for few rows.
            options: additional options of ``plan_packs``, such as ``overflow="drop"``.

        Raises:
            EncodeError: a row cannot be encoded, or has no ``input_ids`` of one axis; names it.
            OversizedSampleError: a row is longer than the capacity, and the option ``overflow`` is
                not ``drop``.
            LengthChangedError: at access; a row has another length than was planned.
            CacheMismatchError: ``path`` has lengths of another data set.

        >>> rows = [{"input_ids": [5, 6, 7]}, {"input_ids": [8, 9]}, {"input_ids": [4]}]
        >>> packs = PackedDataset.wrap(rows, packing_length=4, seed=None)
        >>> [pack.sample_ids for pack in packs]
        [[0, 2], [1]]
        """
        if not (hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")):
            check_type(
                "dataset",
                dataset,
                (),
                "a data set with an index",
                "a stream goes to WindowBatches, which packs it",
            )
        rows = EncodedRows(dataset, encode)
        if lengths is None:
            lengths = rows.offered_lengths()
        if lengths is None:
            lengths = rows.lengths(path, num_proc)
        if len(lengths) != len(rows):
            raise SettingsError(
                f"{len(lengths):,} lengths are given for {len(rows):,} rows of {rows.title}: "
                "measure again"
            )
        try:
            plan = plan_packs(lengths, capacity=capacity, **options)
        except OversizedSampleError as error:  # rows are packed whole: no other policy applies
            raise OversizedSampleError(
                error.message.replace(", truncate, truncate_left or split", "")
            ) from error
        return cls.__new__(cls)._serve(WrappedPacks(rows, plan))

    def __len__(self) -> int:
        return len(self._packs)

    def _pack(self, index: int) -> Pack:
        return self._packs[index]  # type: ignore[return-value]  # of ``wrap``, a PlainPack

    def __getitems__(self, indices: Sequence[int]) -> list[Pack]:
        pack_indices = [int(index) for index in indices]
        if isinstance(self._packs, _PlannedPacks):
            return self._packs.packs(pack_indices)
        return [self._pack(index) for index in pack_indices]

    def __repr__(self) -> str:
        return f"PackedDataset({counted(len(self), 'pack')}, {short(self.fingerprint)})"
