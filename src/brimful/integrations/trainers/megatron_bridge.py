"""Megatron-Bridge: packs with images for its step of vision-language models."""

from collections.abc import Sequence
from typing import Any

from brimful.collate.torch import PackCollator
from brimful.errors import CollateError, MissingExtraError, SettingsError

__all__ = ["BridgeCollator"]

_VISUAL = (
    "pixel_values",
    "pixel_values_videos",
    "image_grid_thw",
    "video_grid_thw",
    "second_per_grid_ts",
    "image_sizes",
    "mm_token_type_ids",
)
"""Fields of ``GenericVisualInputs`` that come from media of packs."""


class BridgeCollator:
    """Collator for ``vlm_step``: the batch of dialect ``megatron_bridge``, its media in one object.

    Bridge's step takes no tensors of images, but ``visual_inputs``: a ``GenericVisualInputs``, or
    None for a batch of texts. It stands where Bridge calls collators: as ``collate_fn``, or in its
    registry of collators by processor, which passes a processor and settings of its own packing.
    Both are ignored: packs are packed.

    ==========================================  =====================================================
    ``pixel_values``, ``pixel_values_videos``   ``float32[patches, …]``, as the processor makes them
    ``image_grid_thw``, ``video_grid_thw``      ``int64[media, 3]``, in patches
    ``second_per_grid_ts``                      ``float32[videos]``, seconds
    ``image_sizes``                             ``int64[images, 2]``, in pixels
    ``mm_token_type_ids``                       ``int64[1, T]``
    ==========================================  =====================================================

    Source: ``training/vlm_step.py`` and ``data/collators/registry.py`` of August 2026.

    Args:
        collator: a ``PackCollator`` of dialect ``megatron_bridge``, with ``media`` for images.

    Raises:
        SettingsError: a collator of another dialect.
        CollateError: when called, a medium that the object has no field for, such as audio.
        MissingExtraError: when called, without Megatron-Bridge.

    >>> from brimful.testing.toys import toy_pack
    >>> collate = BridgeCollator(PackCollator(dialect="megatron_bridge"))
    >>> collate([toy_pack([3, 2])], None, sequence_length=4096)["visual_inputs"] is None
    True
    """

    def __init__(self, collator: PackCollator) -> None:
        if collator.dialect.name != "megatron_bridge":
            raise SettingsError(
                f"the collator has dialect {collator.dialect.name}: Megatron-Bridge reads "
                "PackCollator(dialect='megatron_bridge')"
            )
        self._collator = collator

    def __repr__(self) -> str:
        return f"BridgeCollator({self._collator!r})"

    def __call__(self, packs: Sequence[Any], processor: Any = None, **_: Any) -> dict[str, Any]:
        batch = dict(self._collator(packs))
        if "input_features" in batch:
            raise CollateError(
                "packs have audio, which Bridge's visual_inputs has no field for: pack it apart, for "
                "its audio_lm_step"
            )
        visual = {name: batch.pop(name) for name in _VISUAL if name in batch}
        batch["visual_inputs"] = _visual_inputs(visual) if visual else None
        return batch


def _visual_inputs(visual: dict[str, Any]) -> Any:
    try:
        from megatron.bridge.training.utils.visual_inputs import GenericVisualInputs
    except ImportError as error:
        raise MissingExtraError(
            f"BridgeCollator needs Megatron-Bridge ({error}): pip install megatron-bridge"
        ) from error
    return GenericVisualInputs(**visual)
