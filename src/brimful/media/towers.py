"""FLOPs of the towers of a model, counted from the ``vision_config`` and ``audio_config`` of its
``config.json``.

Towers are transformers without a causal mask. Per layer, with h = hidden size and f = width of the
MLP::

    linear      2·(4·h² + 2·h·f), gated 2·(4·h² + 3·h·f)      per patch or position
    attention   4·h                                           per pair of patches that attend to each other

A layer with windows of w patches has w pairs for each patch, however large the image, so its cost
is linear. The embedding of patches (a convolution over their pixels) and the layers that pass
tokens to the language model are counted too. Class tokens, norms, positions, and windows that the
border of an image cuts short are below one percent.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from brimful.errors import SettingsError
from brimful.plan.schedule.model_config import config_value


def tower_terms(config: Mapping[str, Any], *, width: int) -> dict[str, float]:
    """Return the terms of the towers in a ``CostModel``, by the names of its fields; empty for a
    text model.

    Args:
        config: the parsed ``config.json``; for Qwen2.5-Omni, its ``thinker_config`` is read.
        width: hidden size of the language model, to which towers pass their tokens.

    Raises:
        SettingsError: a number is missing; the message has the config and the accepted names.

    >>> vision = {"num_hidden_layers": 1, "hidden_size": 4, "intermediate_size": 8, "patch_size": 1}
    >>> tower_terms({"vision_config": vision}, width=4)  # 2·(3·4 + 4·4² + 2·4·8 + 4·4 + 4²), 4·4
    {'encoder_linear': 344.0, 'encoder_quadratic': 16.0}
    """
    thinker = config.get("thinker_config")
    if isinstance(thinker, Mapping):
        config = thinker
    terms: dict[str, float] = {}
    for name, read in (("vision_config", _vision_terms), ("audio_config", _audio_terms)):
        tower = config.get(name)
        if not isinstance(tower, Mapping):
            continue
        try:
            terms |= read(tower, config, width)
        except SettingsError as error:
            raise SettingsError(
                f"{name}: {error.message}; without {name} the tower is left out, and its terms can "
                "be given to CostModel"
            ) from error
    return terms


def _vision_terms(
    vision: Mapping[str, Any], config: Mapping[str, Any], width: int
) -> dict[str, float]:
    num_layers = config_value(vision, "depth", "num_hidden_layers")
    # In Qwen2-VL, embed_dim is the width of the tower, and hidden_size the width of the language
    # model.
    hidden = config_value(vision, "embed_dim", "hidden_size")
    ratio = vision.get("mlp_ratio")
    mlp = config_value(
        vision, "intermediate_size", default=None if ratio is None else int(hidden * ratio)
    )
    # Qwen2.5-VL: most layers have windows of pixels, some attend to the whole image, and all have
    # gated MLPs.
    full_layers = vision.get("fullatt_block_indexes")
    is_windowed = full_layers is not None
    num_full = len(full_layers) if full_layers is not None else num_layers
    patch_size = _side(vision, "patch_size")
    channels = config_value(vision, "in_channels", "in_chans", "num_channels", default=3)
    embedding = (
        channels * config_value(vision, "temporal_patch_size", default=1) * patch_size**2 * hidden
    )
    layer = 4 * hidden**2 + (3 if is_windowed else 2) * hidden * mlp
    products = embedding + num_layers * layer + _projector_products(vision, config, hidden, width)
    linear = 2.0 * products
    if is_windowed:
        window = (config_value(vision, "window_size") // patch_size) ** 2
        linear += 4.0 * hidden * window * (num_layers - num_full)
    return {"encoder_linear": linear, "encoder_quadratic": 4.0 * hidden * num_full}


def _projector_products(
    vision: Mapping[str, Any], config: Mapping[str, Any], hidden: int, width: int
) -> float:
    """Return the products per patch in the layers between tower and language model."""
    if vision.get("spatial_merge_size"):
        # Qwen: the concatenated patches of a token pass through two layers; Qwen3-VL repeats this
        # for some layers.
        patches_of_token = config_value(vision, "spatial_merge_size") ** 2
        merged = patches_of_token * hidden
        num_mergers = 1 + len(vision.get("deepstack_visual_indexes") or ())
        out = config_value(vision, "out_hidden_size", default=width)
        return num_mergers * merged * (merged + out) / patches_of_token
    # InternVL concatenates the patches of a token, LLaVA keeps each patch; then both have two
    # layers.
    patches_of_token = round(1 / (config.get("downsample_ratio") or 1) ** 2)
    return (patches_of_token * hidden * width + width**2) / patches_of_token


def _audio_terms(
    audio: Mapping[str, Any], config: Mapping[str, Any], width: int
) -> dict[str, float]:
    num_layers = config_value(audio, "encoder_layers", "num_hidden_layers")
    hidden = config_value(audio, "d_model", "hidden_size")
    mlp = config_value(audio, "encoder_ffn_dim", "intermediate_size")
    mel_bins = config_value(audio, "num_mel_bins")
    # Two convolutions over three columns; the second has stride 2, and pooling halves positions to
    # tokens.
    position = num_layers * (4 * hidden**2 + 2 * hidden * mlp) + 3 * hidden**2
    products_per_frame = 3 * mel_bins * hidden + position / 2 + hidden * width / 4
    window = audio.get("n_window")
    if window is not None:
        # Qwen2.5-Omni: positions of two columns each attend within their window.
        attention = 4.0 * num_layers * hidden * config_value(audio, "n_window") / 2
        return {"audio_linear": 2.0 * products_per_frame + attention}
    # Qwen2-Audio: every audio clip is padded to the maximum length, and the padding is also
    # computed.
    positions = config_value(audio, "max_source_positions")
    return {
        "audio_constant": 2.0 * products_per_frame * 2 * positions
        + 4.0 * num_layers * hidden * float(positions) ** 2
    }


def _side(config: Mapping[str, Any], name: str) -> int:
    """Return the side of a square that is written as one number or as two."""
    value = config.get(name)
    if isinstance(value, (list, tuple)) and len(value) == 2:
        return math.isqrt(int(value[0]) * int(value[1]))
    return config_value(config, name)
