"""Features of a pack's media for the towers of a model: pixels by the model's own processor, and positions."""

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property, partial
from itertools import pairwise
from typing import Any

import numpy as np

from brimful.collate.media import Media, PackExtras
from brimful.errors import CollateError
from brimful.media import BadMediumError, MediaKind, Medium, PlacedMedium
from brimful.media.audio import load_audio
from brimful.media.families import open_family
from brimful.media.images import load_image
from brimful.media.rope_positions import RULES, RopeMedium, rope_positions
from brimful.optional import optional
from brimful.shards import Pack
from brimful.typing import Int64Array


class MediaFeatures:
    """Features of the media of a pack, made where the batch is made: in the workers of a data loader.

    Pixels are those of the processor of Transformers, one picture after the other in the order of their tokens.
    Positions are those of the model (mRoPE), made sample by sample.

    Args:
        processor: directory of the model's processor (``preprocessor_config.json``).
        family: name of the family of models (``media.families``), as the packs were encoded with.
        overrides: settings that the packs were encoded with, such as ``max_pixels``.

    Raises:
        SettingsError: no such family, setting or file.

    ==========================  ================================================================
    ``pixel_values``            ``float32``, as the image processor makes them: of Qwen-VL
                                ``[num_patches, 3 · temporal_patch_size · patch_size²]``
    ``image_grid_thw``          ``int64[num_images, 3]``, patches in time, height, width (Qwen-VL)
    ``input_features``          ``float32[num_sounds, mel bins, columns of 10 ms]``
    ``feature_attention_mask``  ``int[num_sounds, columns]``
    ``rope_positions``          ``int64[3, num_tokens]`` (Qwen-VL)
    ==========================  ================================================================

    >>> import pathlib, tempfile
    >>> from brimful.testing.toys import toy_pack
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> _ = (folder / "preprocessor_config.json").write_text("{}")
    >>> MediaFeatures(folder, "qwen2-vl")(toy_pack([2, 1])).rope_positions.tolist()
    [[0, 1, 0], [0, 1, 0], [0, 1, 0]]
    """

    def __init__(self, processor: str | os.PathLike[str], family: str, **overrides: Any) -> None:
        self._directory = os.fspath(processor)
        self._family = open_family(family, self._directory, **overrides)
        self._rule = RULES.get(family)

    def __call__(self, pack: Pack) -> PackExtras:
        """Return the features of a pack, and positions for models that have them in space.

        Raises:
            CollateError: a medium that cannot be decoded, or was changed since it was packed; names sample and medium.
        """
        makers = {MediaKind.IMAGE: self._images, MediaKind.AUDIO: self._sounds}
        media = []
        for kind in MediaKind:
            items = [item for item in pack.media if item.medium.kind is kind]
            if items and kind not in makers:
                raise CollateError(f"{_place(pack, items[0])}: videos cannot be decoded for training so far")
            if items:
                media.append(makers[kind](pack, items))
        positions = None if self._rule is None else self._positions(pack)
        return PackExtras(rope_positions=positions, media=tuple(media))

    def _positions(self, pack: Pack) -> Int64Array:
        """Return time, height and width of all tokens of a pack, ``int64[3, num_tokens]``."""
        assert self._rule is not None
        result: Int64Array = np.empty((3, len(pack)), dtype=np.int64)
        edges = pack.cu_seqlens.tolist()
        media: list[list[RopeMedium]] = [[] for _ in range(pack.num_segments)]
        for item in pack.media:
            if item.grid is not None:
                start = item.start - edges[item.segment]
                media[item.segment].append(RopeMedium(item.medium.kind, [start], item.grid))
        for segment, (begin, end) in enumerate(pairwise(edges)):
            result[:, begin:end] = rope_positions(end - begin, media[segment], self._rule)
        return result

    @cached_property
    def _image_processor(self) -> Any:
        with optional("transformers", "text", "pixels of pictures"):
            from transformers import AutoImageProcessor
        settings = self._family.settings["image"]
        limits = {name: settings[name] for name in ("min_pixels", "max_pixels") if name in settings}
        # Pillow's resampling and not torch's, which gives other pixels: the same wherever the batch is made.
        return AutoImageProcessor.from_pretrained(self._directory, backend="pil", **limits)

    def _images(self, pack: Pack, items: Sequence[PlacedMedium]) -> Media:
        pictures = _decoded(pack, items, load_image)
        features = self._image_processor(images=pictures, return_tensors="np")
        arrays = {name: np.asarray(values) for name, values in features.items()}
        if "image_grid_thw" in arrays:
            for item, grid in zip(items, arrays["image_grid_thw"].tolist(), strict=True):
                if tuple(grid) != item.grid:
                    raise CollateError(
                        f"{_place(pack, item)}: the processor makes the grid {tuple(grid)} and {item.grid} was packed: "
                        f"its settings are not those of the job"
                    )
        return Media("image", np.array([item.segment for item in items], dtype=np.int32), arrays)

    @cached_property
    def _feature_extractor(self) -> Any:
        with optional("transformers", "text", "spectrograms of sounds"):
            from transformers import AutoFeatureExtractor
        settings = self._family.settings["audio"]
        return AutoFeatureExtractor.from_pretrained(self._directory, **settings)

    def _sounds(self, pack: Pack, items: Sequence[PlacedMedium]) -> Media:
        rate = self._feature_extractor.sampling_rate
        sounds = _decoded(pack, items, partial(load_audio, sampling_rate=rate))
        features = self._feature_extractor(
            sounds, sampling_rate=rate, padding="max_length", return_attention_mask=True, return_tensors="np"
        )
        mask = np.asarray(features["attention_mask"])
        for item, num_frames in zip(items, mask.sum(axis=-1).tolist(), strict=True):
            if num_frames != item.num_mel_frames:
                raise CollateError(
                    f"{_place(pack, item)}: its spectrogram has {num_frames} columns and {item.num_mel_frames} were "
                    f"counted: the settings are not those of the job"
                )
        arrays = {"input_features": np.asarray(features["input_features"]), "feature_attention_mask": mask}
        return Media("audio", np.array([item.segment for item in items], dtype=np.int32), arrays)


def _decoded(pack: Pack, items: Sequence[PlacedMedium], decode: Callable[[Medium], Any]) -> list[Any]:
    """Decode media one by one, from the bytes that were packed; name the first that cannot be."""
    results = []
    for item in items:
        try:
            results.append(decode(replace(item.medium, data=item.read())))
        except BadMediumError as error:
            raise CollateError(f"{_place(pack, item)}: {error}") from error
    return results


def _place(pack: Pack, item: PlacedMedium) -> str:
    return f"sample {int(pack.sample_ids[item.segment])}, {item.title}"
