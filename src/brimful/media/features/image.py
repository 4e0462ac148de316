"""Pixels of one image, by the image processor of Transformers."""

from functools import cached_property
from typing import Any

import numpy as np

from brimful.errors import SettingsError
from brimful.media.families import Family
from brimful.media.features.block import Features
from brimful.media.images import load_image
from brimful.media.placed import PlacedMedium
from brimful.media.reference import Medium
from brimful.optional import optional

_LIMITS = ("min_pixels", "max_pixels", "max_patches")
"""Settings of the family that its image processor has by the same name."""


class ImageFeatures:
    """Pixels as the vision tower of a model takes them.

    Args:
        directory: of the model's processor.
        family: with the settings that the packs were encoded with.
    """

    def __init__(self, directory: str, family: Family) -> None:
        self._directory, self._family = directory, family

    @cached_property
    def processor(self) -> Any:
        """Image processor of the model, with the limits of the family."""
        with optional("transformers", "text", "pixels of images"):
            from transformers import AutoImageProcessor
        settings = self._family.settings["image"]
        options = {name: settings[name] for name in _LIMITS if name in settings}
        if "max_patches" in settings:
            options["crop_to_patches"] = True  # the processor of the whole model asks for it, its file need not
        # Pillow's resampling, not torch's, which gives other pixels: the same on every machine.
        return AutoImageProcessor.from_pretrained(self._directory, backend="pil", **options)

    def of(self, medium: Medium, item: PlacedMedium) -> Features:
        """Return the pixels of an image.

        Raises:
            BadMediumError: it cannot be decoded.
            SettingsError: the processor makes a different number of patches than was packed.
        """
        features = self._process(load_image(medium))
        grid = features.get("image_grid_thw")
        if grid is not None and tuple(grid[0].tolist()) != item.grid:
            raise SettingsError(
                f"the processor makes the grid {tuple(grid[0].tolist())} and {item.grid} was packed: "
                f"its settings differ from the job's"
            )
        rows, due = len(features["pixel_values"]), self._num_rows(features, item)
        if rows != due:
            raise SettingsError(
                f"the processor makes {rows} tiles and {due} were packed: its settings differ from the job's"
            )
        return features

    def blank(self, item: PlacedMedium) -> Features:
        """Return zeros in the shape of an image's pixels."""
        probe = self._probe
        rows = self._num_rows(probe, item)
        pixels = probe["pixel_values"]
        features: Features = {"pixel_values": np.zeros((rows, *pixels.shape[1:]), dtype=pixels.dtype)}
        if "image_grid_thw" in probe:
            features["image_grid_thw"] = np.array([item.grid], dtype=np.int64)
        return features

    @cached_property
    def _probe(self) -> Features:
        with optional("PIL", "media", "an image"):
            from PIL import Image
        return self._process(Image.new("RGB", (64, 64)))

    def _process(self, picture: Any) -> Features:
        features = self.processor(images=[picture], return_tensors="np")
        # The number of tiles is for the text; it is not an argument of the model.
        return {name: np.asarray(values) for name, values in features.items() if name != "num_patches"}

    def _num_rows(self, features: Features, item: PlacedMedium) -> int:
        """Return the rows that an image has in ``pixel_values``: patches, or tiles, or one."""
        if "image_grid_thw" in features:
            return item.num_patches
        tokens_of_tile = self._family.settings["image"].get("image_seq_length")
        return 1 if tokens_of_tile is None else item.num_tokens // int(tokens_of_tile)
