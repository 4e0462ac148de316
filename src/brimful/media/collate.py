"""Features of a pack's media for the towers of a model: pixels from the model's own processor, and
positions.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from brimful.base.attachment import AttachedInputs
from brimful.base.checks import check_type
from brimful.base.typing import AnyPath, Int64Array
from brimful.base.wording import setting
from brimful.collate.extras import PackExtras
from brimful.errors import CollateError, SettingsError
from brimful.media import BadMediumError, MediaKind, PlacedMedium
from brimful.media.families import Family, family_of_settings, open_family
from brimful.media.families.qwen_audio import sound_tokens
from brimful.media.feature_block import Features, read_features, shortened
from brimful.media.feature_maker import FeatureMaker
from brimful.media.rope_positions import RopeMedium, rope_positions, rope_rule
from brimful.media.tokenized import (
    MEDIA_KEYS,
    TOKEN_TYPES,
    placeholders_of,
    read_media,
    tokens_of_grids,
)
from brimful.serve.tokenized import TokenizedSample
from brimful.store.shards import Pack

__all__ = ["MediaFeatures"]

OnBadMedium = Literal["error", "no_loss"]
"""Policy for a medium that cannot be decoded: an error that names it, or training of its sample
without loss.
"""


class MediaFeatures:
    """Features of the media of a pack, made with the batch, in the workers of a data loader.

    Pixels equal the output of the Transformers processor, one medium after the other in the order
    of their tokens; decoded media are not kept. Positions equal the positions of the model (mRoPE),
    made sample by sample. Picklable: each process loads its processor at the first use.

    Args:
        processor: directory of the model's processor (``preprocessor_config.json``); None for packs
            that already hold features.
        family: name of the model family (``media.families``) that the packs were encoded with; or a
            family.
        on_bad_medium: treatment of a medium that is missing, was changed, or cannot be decoded.
            ``"error"`` stops and names it; ``"no_loss"`` replaces it with zeros of the same shape
            and ignores the labels of its sample, so that no pack is lost and ranks stay in step.
            The first such medium gives a warning; each is counted in ``num_bad_media`` and
            ``PackedBatch.no_loss``, and written to ``bad_media_log``.
        bad_media_log: file to which each such medium is appended, as a line of JSON with
            ``sample_id``, ``medium`` and ``reason``; processes may share it.
        tokens_per_second: positions in one second of a video (Qwen2.5-VL); if None, the value in
            ``config.json`` next to the processor, or without it the value of the published models.
        overrides: settings that the packs were encoded with, such as ``max_pixels``; ``of_packs``
            reads them from the packs.

    Attributes:
        family: the family of models, with its settings.
        num_bad_media: media that could not be decoded.

    Raises:
        SettingsError: no such family, setting or file.

    ==========================  ================================================================
    ``pixel_values``            ``float32``, as the image processor makes them: for Qwen-VL
                                ``[num_patches, 3 · temporal_patch_size · patch_size²]``
    ``image_grid_thw``          ``int64[num_images, 3]``, patches in time, height, width (Qwen-VL)
    ``pixel_values_videos``     as ``pixel_values`` of Qwen-VL
    ``video_grid_thw``          ``int64[num_videos, 3]``
    ``second_per_grid_ts``      ``float32[num_videos]`` (Qwen2.5-VL)
    ``input_features``          ``float32[num_sounds, mel bins, columns of 10 ms]``, as many as the longest clip of
                                the batch has (Qwen2.5-Omni), or a clip of 30 seconds (Qwen2-Audio)
    ``feature_attention_mask``  ``int32[num_sounds, columns]``
    ``rope_positions``          ``int64[3, num_tokens]`` (Qwen-VL)
    ==========================  ================================================================

    >>> import pathlib, tempfile
    >>> from brimful.testing.toys import toy_pack
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> _ = (folder / "preprocessor_config.json").write_text("{}")
    >>> MediaFeatures(folder, "qwen2-vl")(toy_pack([2, 1])).rope_positions.tolist()
    [[0, 1, 0], [0, 1, 0], [0, 1, 0]]
    """

    def __init__(
        self,
        processor: AnyPath | None,
        family: str | Family,
        *,
        on_bad_medium: OnBadMedium = "error",
        bad_media_log: AnyPath | None = None,
        tokens_per_second: float | None = None,
        **overrides: Any,
    ) -> None:
        policies = get_args(OnBadMedium)
        if on_bad_medium not in policies:
            raise SettingsError(
                f"{setting('on_bad_medium', on_bad_medium)} is none of {', '.join(policies)}"
            )
        if processor is None and on_bad_medium == "no_loss":
            raise SettingsError(
                f"{setting('on_bad_medium', on_bad_medium)} needs {setting('processor')}, which "
                "knows the shape of what is missing"
            )
        self._directory = None if processor is None else os.fspath(processor)
        self.family = (
            family
            if isinstance(family, Family)
            else open_family(family, self._directory, **overrides)
        )
        if isinstance(family, Family) and overrides:
            raise SettingsError(f"{', '.join(overrides)}: a family has its settings already")
        self._maker = (
            None if self._directory is None else FeatureMaker(self._directory, self.family)
        )
        self._settings = None if self._maker is None else self._maker.fingerprint
        self._rule = rope_rule(self.family, self._directory, tokens_per_second)
        self._on_bad_medium = on_bad_medium
        self._bad_media_log = None if bad_media_log is None else os.path.abspath(bad_media_log)
        self.num_bad_media = 0

    @classmethod
    def of_packs(
        cls,
        packs: Any,
        processor: AnyPath | None = None,
        *,
        on_bad_medium: OnBadMedium = "error",
        bad_media_log: AnyPath | None = None,
        tokens_per_second: float | None = None,
    ) -> MediaFeatures:
        """Return the features of packs that record how their media were encoded.

        Args:
            packs: a ``PackedDataset``, a ``PackStore`` (``open_packs``) or a
                ``LazyShardedDataset``.
            processor, on_bad_medium, bad_media_log, tokens_per_second: see the class. Packs that
                hold features need no processor; if one is given, it must be the processor that made
                them.

        Raises:
            SettingsError: packs without media, or a processor of another model; names the first
                setting that differs.
        """
        if not hasattr(packs, "attachment_settings"):
            check_type(
                "packs", packs, (), "a PackedDataset or a PackStore", "open_packs opens a directory"
            )
        settings = packs.attachment_settings
        if settings is None:
            raise SettingsError(
                "the packs do not say how media were encoded: they hold text; name the family in "
                "MediaFeatures(processor, family)"
            )
        stored = getattr(packs, "attachment_features", None)
        if stored is None and processor is None:
            raise SettingsError(
                f"these packs hold no features: give {setting('processor')}, the directory of the "
                "model's processor"
            )
        if stored is not None and tokens_per_second is None:
            tokens_per_second = stored["tokens_per_second"]
        features = cls(
            processor,
            family_of_settings(settings, None if processor is None else os.fspath(processor)),
            on_bad_medium=on_bad_medium,
            bad_media_log=bad_media_log,
            tokens_per_second=tokens_per_second,
        )
        if stored is not None:
            if features._maker is not None and features._maker.fingerprint != stored["settings"]:
                raise SettingsError(
                    f"{setting('processor', features._directory)} has other settings than the one "
                    "that made the features in these packs: give that one, or none"
                )
            features._settings = stored["settings"]
        return features

    @property
    def tokens_per_second(self) -> float | None:
        """Positions in one second of a video; None for models whose positions do not depend on
        seconds.
        """
        return None if self._rule is None else self._rule.tokens_per_second

    def __call__(self, pack: Pack) -> PackExtras:
        """Return the features of a pack, and mRoPE positions if the model has them.

        Raises:
            CollateError: a medium that cannot be decoded, or was changed since it was packed (with
                ``"error"``); or settings that differ from the job; names sample and medium.
        """
        media = []
        no_loss = set()
        for kind in MediaKind:
            items = [item for item in pack.attachments if item.medium.kind is kind]
            num_columns = max((item.num_mel_frames for item in items), default=0)
            features = []
            for item in items:
                result = self._made(pack, item)
                if result is None:
                    if pack.sample_ids[item.segment] >= 0:
                        no_loss.add(item.segment)
                    assert self._maker is not None, (
                        "without a processor every bad medium is an error"
                    )
                    result = self._maker.blank(item)
                # A copy, so that full-length spectrograms are not held until all features are made.
                features.append(
                    result
                    if self.family.needs_full_spectrograms
                    else shortened(result, num_columns)
                )
            if items:
                arrays = {
                    name: np.concatenate([one[name] for one in features]) for name in features[0]
                }
                media.append(
                    AttachedInputs(
                        kind.value,
                        np.array([item.segment for item in items], dtype=np.int32),
                        arrays,
                    )
                )
        positions = None if self._rule is None else self._positions(pack)
        untrained = np.array(sorted(no_loss), dtype=np.int32) if no_loss else None
        return PackExtras(rope_positions=positions, attached=tuple(media), no_loss=untrained)

    def _made(self, pack: Pack, item: PlacedMedium) -> Features | None:
        """Return the features of a medium; None if it cannot be decoded and its sample is trained
        without loss.
        """
        try:
            container = item.medium.container
            if container is not None and container.holds_features:
                if self._settings is None:
                    raise SettingsError(
                        "the required settings of its features are unknown: use "
                        "MediaFeatures.of_packs"
                    )
                return read_features(item, self._settings)
            if self._maker is None:
                raise SettingsError(
                    "is not stored as features: give the collator the model's processor"
                )
            return self._maker.of(replace(item.medium, data=item.read()), item)
        except SettingsError as error:
            raise CollateError(f"{_title_of(pack, item)}: {error}") from error
        except BadMediumError as error:
            if self._on_bad_medium == "error":
                raise CollateError(
                    f"{_title_of(pack, item)}: {error}; {setting('on_bad_medium', 'no_loss')} "
                    "continues without its loss"
                ) from error
            # A pack that fills an empty place repeats media, which count where they are trained.
            if pack.sample_ids[item.segment] >= 0:
                self._count(pack, item, str(error))
            return None

    def _count(self, pack: Pack, item: PlacedMedium, reason: str) -> None:
        """Count a medium that cannot be decoded, warn about the first, and write each to the
        log.
        """
        self.num_bad_media += 1
        if self.num_bad_media == 1:
            num_more = f"; all are in {self._bad_media_log}" if self._bad_media_log else ""
            warnings.warn(
                f"{_title_of(pack, item)}: {reason}: it is trained without loss, and so is the sample "
                f"of each further medium that cannot be decoded{num_more}",
                RuntimeWarning,
                stacklevel=4,
            )
        if self._bad_media_log is not None:
            row = {
                "sample_id": int(pack.sample_ids[item.segment]),
                "medium": item.title,
                "reason": reason,
            }
            # One short append is atomic, even if other processes append to the same file.
            with open(self._bad_media_log, "ab", buffering=0) as file:
                file.write(json.dumps(row).encode() + b"\n")

    @cached_property
    def token_ids(self) -> Mapping[str, int]:
        """Placeholder token of each kind of media, from ``tokenizer.json`` next to the processor;
        empty without it.
        """
        path = Path(self._directory or "") / "tokenizer.json"
        has_file = self._directory is not None and path.is_file()
        added = json.loads(path.read_bytes()).get("added_tokens", ()) if has_file else ()
        ids = {entry["content"]: int(entry["id"]) for entry in added}
        return {
            kind.value: ids[token]
            for kind, token in self.family.placeholders.items()
            if token in ids
        }

    def of_sample(self, sample: TokenizedSample, name: str) -> TokenizedSample:
        """Return a plain sample with mRoPE positions if the model has them and the sample does not.

        Raises:
            CollateError: the number of placeholders differs from the number that this family has
                for the features of a medium; or positions are needed and the placeholder tokens are
                unknown. Names the sample and the key.
        """
        if self.token_ids and sample.attached:
            # A loader may have read it, which does not know the model's placeholder tokens.
            placeholders = placeholders_of(sample.input_ids, sample.marks, self.token_ids)
            arrays = {key: array for item in sample.attached for key, array in item.arrays.items()}
            inputs = read_media(arrays, placeholders, sample.cu_seqlens, name)
            sample = replace(sample, placeholders=placeholders, attached=inputs)
        media: list[list[RopeMedium]] = [[] for _ in range(sample.num_segments)]
        has_positions = self._rule is None or sample.rope_positions is not None
        for item in sample.attached:
            keys, kind = MEDIA_KEYS[item.kind], MediaKind(item.kind)
            tokens, counts = sample.placeholders.get(item.kind), self._token_counts(item)
            if tokens is not None and counts is not None and len(tokens) != counts.sum():
                raise CollateError(
                    f"{name} has {len(tokens):,} placeholders for {keys.features!r}, and "
                    f"{self.family.name} has {int(counts.sum()):,} for these {len(counts):,} "
                    "items: these are not the features of its tokens, or the sample was cut"
                )
            if has_positions or keys.grid not in item.arrays:
                continue
            if tokens is None or counts is None or kind not in self.family.placeholders:
                raise CollateError(
                    f"{name} has {keys.grid!r} and no 'position_ids', and the placeholder tokens "
                    f"are unknown: give the positions, or {TOKEN_TYPES!r}, or save the tokenizer "
                    "next to the processor"
                )
            assert self._rule is not None
            seconds = item.arrays.get("second_per_grid_ts", np.ones(len(counts)))
            ends = np.cumsum(counts)
            for index, (segment, grid) in enumerate(
                zip(item.segments.tolist(), item.arrays[keys.grid].tolist(), strict=True)
            ):
                own = tokens[ends[index] - counts[index] : ends[index]] - sample.cu_seqlens[segment]
                num_runs = grid[0] if kind is MediaKind.VIDEO and self._rule.has_frames_apart else 1
                size = max(len(own) // num_runs, 1)
                starts = own[::size].tolist()
                if (
                    len(own) != num_runs * size
                    or (own[size - 1 :: size] - starts != size - 1).any()
                ):
                    raise CollateError(
                        f"{name}: the placeholders for {keys.features!r} of item {index} are not "
                        "contiguous"
                    )
                media[segment].append(RopeMedium(kind, starts, tuple(grid), float(seconds[index])))
        if has_positions:
            return sample
        columns = []
        for length, own_media in zip(np.diff(sample.cu_seqlens).tolist(), media, strict=True):
            try:
                own_media.sort(key=lambda medium: medium.starts[0])
                assert self._rule is not None
                columns.append(rope_positions(length, own_media, self._rule))
            except BadMediumError as error:
                raise CollateError(f"{name}: a medium {error}") from error
        return replace(sample, positions=np.concatenate(columns, axis=1))

    def _token_counts(self, item: AttachedInputs) -> Int64Array | None:
        """Return the number of placeholders of the family for each item; None if the features do
        not determine it.
        """
        keys = MEDIA_KEYS[item.kind]
        if keys.grid in item.arrays and self._rule is not None:
            return tokens_of_grids(item.arrays[keys.grid], self._rule.merge_size)
        mask = item.arrays.get("feature_attention_mask")
        return (
            None
            if mask is None
            else np.array([sound_tokens(columns) for columns in mask.sum(axis=-1).tolist()])
        )

    def _positions(self, pack: Pack) -> Int64Array:
        """Return time, height and width of all tokens of a pack, ``int64[3, num_tokens]``."""
        assert self._rule is not None
        result: Int64Array = np.empty((3, len(pack)), dtype=np.int64)
        if pack.sharing is not None:
            # A branch goes on where its trunk ends, after the media of the trunk.
            result[:, pack.sharing.positions(pack.cu_seqlens).values] = self._positions(pack.flat())
            return result
        edges = pack.cu_seqlens.tolist()
        media: list[list[RopeMedium]] = [[] for _ in range(pack.num_segments)]
        for item in pack.attachments:
            if item.grid is None:
                continue
            start = item.start - edges[item.segment]
            runs = [start + run for run in item.runs]
            medium = RopeMedium(item.medium.kind, runs, item.grid, item.seconds_per_grid or 1.0)
            media[item.segment].append(medium)
        for segment, (first, end) in enumerate(pairwise(edges)):
            try:
                result[:, first:end] = rope_positions(end - first, media[segment], self._rule)
            except BadMediumError as error:
                raise CollateError(
                    f"sample {int(pack.sample_ids[segment])}: a medium {error}"
                ) from error
        return result


def _title_of(pack: Pack, item: PlacedMedium) -> str:
    return f"sample {int(pack.sample_ids[item.segment])}, {item.title}"
