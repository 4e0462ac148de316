"""Costs of packs and samples according to a model of the computation (``cost_model``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from brimful.base.ragged import sums_of
from brimful.base.typing import PAIRS_PER_BLOCK, AnyIntArray, Float64Array, Int64Array, Offsets
from brimful.errors import SettingsError
from brimful.plan.schedule.cost_model import (
    AnyRealArray,
    Component,
    CostModel,
    check_tiling,
    real_array,
)


class TowerSize(NamedTuple):
    """A size of media that a tower's cost grows with."""

    component: Component
    """The tower."""
    term: str
    """Coefficient of the ``CostModel``."""
    column: str
    """Column of a length table that measures it."""
    factor: int = 1
    """Units of the size in a unit of the column."""


TOWER_SIZES = {
    "patches": TowerSize(Component.VISION_TOWER, "encoder_linear", "patches"),
    "patch_squares": TowerSize(
        Component.VISION_TOWER, "encoder_quadratic", "patch_blocks", PAIRS_PER_BLOCK
    ),
    "audio_frames": TowerSize(Component.AUDIO_TOWER, "audio_linear", "audio_frames"),
    "sounds": TowerSize(Component.AUDIO_TOWER, "audio_constant", "sounds"),
}
"""Sizes of media by name."""


def pack_squares(
    plan_offsets: Offsets,
    plan_lengths: AnyIntArray,
    *,
    tile: int = 1,
    window: int | None = None,
    depths: AnyIntArray | None = None,
) -> Int64Array:
    """Return the sum of squared segment lengths of each pack: attention is proportional to it.

    Pure: no I/O. Uses whole numbers, so that the sum is the same on every platform.

    ::

        offsets 0   1         5
        lengths | 8 | 2 2 2 2 |     tile 1            64, 16
                                    tile 4            8·8, 4 × (4·2) = 64, 32
                                    window 4          64 − (8 − 4)², 16 = 48, 16

    Args:
        plan_offsets: ``int64[num_packs + 1]``, like ``Plan.offsets``.
        plan_lengths: ``int[num_segments]``, tokens, like ``Plan.lengths``.
        tile: tokens; the square of a length is the length times the length rounded up to whole
            tiles.
        window: tokens; subtracts (length - window)² for each longer segment; None subtracts
            nothing.
        depths: ``int[num_segments]``, tokens before each segment that its tokens attend to as well,
            like ``Plan.starts`` in a plan of trees; None for none. A segment then counts as what
            it adds to the square of its path: (depth + length)² - depth².

    Returns:
        ``int64[num_packs]``, tokens². A pack without segments has 0.

    Raises:
        SettingsError: offsets that do not divide the lengths, negative lengths, an impossible tile
            or window.

    >>> pack_squares(np.array([0, 1, 5]), np.array([8, 2, 2, 2, 2]), tile=4).tolist()
    [64, 32]
    """
    check_tiling(tile, window)
    _check_plan(plan_offsets, plan_lengths)
    lengths = plan_lengths.astype(np.int64)
    before = np.zeros_like(lengths) if depths is None else depths.astype(np.int64)
    areas = -(-lengths // tile) * tile * (lengths + 2 * before)
    if window is not None:
        areas -= np.maximum(before + lengths - window, 0) ** 2 - np.maximum(before - window, 0) ** 2
    return sums_of(areas, plan_offsets)


def pack_costs(
    plan_offsets: Offsets,
    plan_lengths: AnyIntArray,
    model: CostModel,
    *,
    patches: AnyRealArray | None = None,
    patch_squares: AnyRealArray | None = None,
    audio_frames: AnyRealArray | None = None,
    sounds: AnyRealArray | None = None,
    depths: AnyIntArray | None = None,
) -> Float64Array:
    """Return the cost of each pack.

    Pure: no I/O. Sums are of whole numbers, and the coefficients are applied once per pack: the
    same bits everywhere.

    Args:
        plan_offsets: ``int64[num_packs + 1]``, like ``Plan.offsets``.
        plan_lengths: ``int[num_segments]``, tokens, like ``Plan.lengths``.
        model: the coefficients.
        patches: ``[num_packs]``, patches of all images and video frames of each pack, before any
            merging.
        patch_squares: ``[num_packs]``, sum of patches² over the images of each pack, squared before
            summing, since patches attend only within their image.
        audio_frames: ``[num_packs]``, columns of the spectrograms of all audio clips of each pack.
        sounds: ``[num_packs]``, number of audio clips of each pack.
        depths: see ``pack_squares``.

    Returns:
        ``float64[num_packs]``, in the model's unit.

    Raises:
        SettingsError: offsets that do not divide the lengths; sizes of media that are not one per
            pack, negative or not finite, or without a term in the model.

    >>> model = CostModel(linear=2, quadratic=1, tile=1, encoder_linear=1, encoder_quadratic=0.5)
    >>> pack_costs(np.array([0, 1, 2]), np.array([3, 4]), model, patches=np.array([4, 0]),
    ...            patch_squares=np.array([8, 0])).tolist()  # 2·3 + 9 + 4 + 0.5·8, and 2·4 + 16
    [23.0, 24.0]
    """
    sizes = {
        "patches": patches,
        "patch_squares": patch_squares,
        "audio_frames": audio_frames,
        "sounds": sounds,
    }
    costs = _language_costs(plan_offsets, plan_lengths, model, depths)
    for name, values in sizes.items():
        term = TOWER_SIZES[name].term
        if values is not None and not getattr(model, term):
            raise SettingsError(
                f"{name} are given and the cost model has {term} = 0: set it, or leave {name} out"
            )
        if values is not None:
            costs = costs + getattr(model, term) * real_array(name, values, len(costs))
    return costs


def sample_costs(lengths: AnyIntArray, model: CostModel) -> Float64Array:
    """Return the cost of each sample in a pack of its own: ``pack_costs`` without media and without
    sums.

    Pure: no I/O.

    Args:
        lengths: ``int[num_samples]``, tokens, each at least 0.
        model: the coefficients.

    Returns:
        ``float64[num_samples]``, in the model's unit.

    >>> sample_costs(np.array([3, 4]), CostModel(linear=2, quadratic=1, tile=1)).tolist()  # 2·3 + 9, and 2·4 + 16
    [15.0, 24.0]
    """
    return _language_costs(np.arange(len(lengths) + 1), np.asarray(lengths), model)


def pack_component_costs(
    plan_offsets: Offsets,
    plan_lengths: AnyIntArray,
    model: CostModel,
    sizes: Mapping[str, AnyRealArray],
    *,
    depths: AnyIntArray | None = None,
) -> Float64Array:
    """Return the cost of each pack in each part of the model.

    Pure: no I/O.

    Args:
        plan_offsets, plan_lengths, model: see ``pack_costs``.
        sizes: ``[num_packs]`` by name, like the arguments of ``pack_costs``; a missing size is 0
            everywhere.
        depths: see ``pack_squares``.

    Returns:
        ``float64[num_packs, num_components]``, a column for each of ``model.components``. The sum of a row is
        ``pack_costs``, except for rounding.

    Raises:
        SettingsError: see ``pack_costs``, except that sizes without a term in the model cost
            nothing.

    >>> model = CostModel(linear=2, quadratic=1, tile=1, encoder_linear=1, encoder_quadratic=0.5)
    >>> sizes = {"patches": np.array([4, 0]), "patch_squares": np.array([8, 0])}
    >>> pack_component_costs(np.array([0, 1, 2]), np.array([3, 4]), model, sizes).tolist()
    [[15.0, 8.0], [24.0, 0.0]]
    """
    language = _language_costs(plan_offsets, plan_lengths, model, depths)
    costs = {component: np.zeros(len(language)) for component in Component} | {
        Component.LANGUAGE_MODEL: language
    }
    for name, values in sizes.items():
        component, term, *_ = TOWER_SIZES[name]
        costs[component] = costs[component] + getattr(model, term) * real_array(
            name, values, len(language)
        )
    return np.stack([costs[component] for component in model.components], axis=1)


def _language_costs(
    plan_offsets: Offsets,
    plan_lengths: AnyIntArray,
    model: CostModel,
    depths: AnyIntArray | None = None,
) -> Float64Array:
    def squares_of(window: int | None) -> Int64Array:
        return pack_squares(
            plan_offsets, plan_lengths, tile=model.tile, window=window, depths=depths
        )

    squares = squares_of(None).astype(np.float64)
    if model.window is not None and model.windowed_share:
        windowed = model.windowed_share * squares_of(model.window)
        squares = (1.0 - model.windowed_share) * squares + windowed
    tokens = sums_of(plan_lengths, plan_offsets)
    costs: Float64Array = model.linear * tokens + model.quadratic * squares
    return costs


def _check_plan(offsets: Offsets, lengths: AnyIntArray) -> None:
    if offsets.ndim != 1 or len(offsets) == 0 or lengths.ndim != 1:
        raise SettingsError(
            "plan_offsets and plan_lengths must be flat arrays, the offsets with at least one entry"
        )
    if (
        int(offsets[0]) != 0
        or int(offsets[-1]) != len(lengths)
        or bool((offsets[1:] < offsets[:-1]).any())
    ):
        raise SettingsError(
            f"plan_offsets must rise from 0 to the number of plan_lengths ({len(lengths):,}); they "
            f"go from {int(offsets[0]):,} to {int(offsets[-1]):,}"
        )
    if len(lengths) and int(lengths.min()) < 0:
        raise SettingsError(f"plan_lengths holds {int(lengths.min())}; a length is at least 0")
