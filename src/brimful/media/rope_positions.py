"""Multimodal rotary positions (mRoPE): time, height and width of each token of one sample."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from brimful.base.typing import Int64Array
from brimful.media.families import Family
from brimful.media.families.family import read_json_object
from brimful.media.medium import BadMediumError, MediaKind


@dataclass(frozen=True, slots=True)
class RopeRule:
    """Position rule of one generation of models.

    Source: ``get_rope_index`` of Transformers 5.23. Take numbers that belong to a model's
    configuration
    from there: ``replace(QWEN2_5_VL, tokens_per_second=config.vision_config.tokens_per_second)``.

    Text after a video begins elsewhere in other versions: up to Transformers 5.2,
    ``get_rope_index`` of Qwen2-VL and Qwen2.5-VL followed ``is_after_time``, and truncated
    ``seconds_per_grid`` to whole seconds.

    Attributes:
        merge_size: patches per token, along height and along width; ``spatial_merge_size`` of the
            vision configuration.
        tokens_per_second: positions in one second of a video; None for one position in each grid.
            ``tokens_per_second`` of Qwen2.5-VL's vision configuration, ``position_id_per_seconds``
            of Qwen2.5-Omni's.
        is_rate_first: seconds per grid times positions per second is computed first, then times the
            number of the grid. The order decides the ``float32`` result.
        has_frames_apart: each grid in time of a video is a separate run, between timestamps, whose
            time starts at 0.
        is_after_time: text after a medium begins after its last position in time, too; otherwise
            only after its height and width, which is within the time of a long video.
    """

    merge_size: int = 2
    tokens_per_second: float | None = None
    is_rate_first: bool = False
    has_frames_apart: bool = False
    is_after_time: bool = False


QWEN2_VL = RopeRule()
"""Rule of Qwen2-VL: one position in each grid of a video."""

QWEN2_5_VL = RopeRule(tokens_per_second=2, is_rate_first=True)
"""Rule of Qwen2.5-VL: positions of a video are seconds times a rate, 2 in the released models."""

QWEN3_VL = RopeRule(has_frames_apart=True)
"""Rule of Qwen3-VL: timestamps in the text separate the frames of a video."""

QWEN2_5_OMNI = RopeRule(tokens_per_second=25, is_after_time=True)
"""Rule of Qwen2.5-Omni's thinker for videos whose audio is not between their frames
(``use_audio_in_video=False``).
"""


RULES: Mapping[str, RopeRule] = {
    "qwen2-vl": QWEN2_VL,
    "qwen2.5-vl": QWEN2_5_VL,
    "qwen3-vl": QWEN3_VL,
    "qwen2.5-omni": QWEN2_5_OMNI,
}
"""Rules by family name (``media.families``); other families have text positions."""


@dataclass(frozen=True, slots=True)
class RopeMedium:
    """One image or video with the places of its placeholder tokens in a sample.

    Audio has no grid and is left out: its tokens count like text.

    Attributes:
        kind: image or video.
        starts: first token of each run of placeholders: one, or one for each grid in time of a
            video whose frames are separate (``RopeRule.has_frames_apart``).
        grid: grids in time, patches in height, patches in width: its row of ``image_grid_thw`` or
            ``video_grid_thw``.
        seconds_per_grid: seconds from one grid of a video to the next, as ``second_per_grid_ts``
            has it; read by rules with ``tokens_per_second``.
    """

    kind: MediaKind
    starts: Sequence[int]
    grid: tuple[int, int, int]
    seconds_per_grid: float = 1.0


def rope_positions(num_tokens: int, media: Sequence[RopeMedium], rule: RopeRule) -> Int64Array:
    """Return the time, height and width of each token of one sample, without loading its model.

    ::

        tokens      a b < # # # # # # > c     an image of 2 · 3 tokens between < and >
        time        0 1 2 3 3 3 3 3 3 6 7
        height      0 1 2 3 3 3 4 4 4 6 7     text continues after the larger of height and width
        width       0 1 2 3 4 5 3 4 5 6 7

    A pack carries the positions of its samples one after another (``PackExtras.rope_positions``):
    they begin at 0 in each sample, so they are never computed for a whole pack.

    Args:
        num_tokens: tokens of the sample, placeholders included.
        media: images and videos in the order of their tokens.
        rule: rule of the model.

    Returns:
        ``int64[3, num_tokens]``, equal to ``get_rope_index`` of the model. Text has the same
        position three times.

    Raises:
        BadMediumError: a grid does not match the rule, or the places of its tokens.

    >>> picture = RopeMedium(MediaKind.IMAGE, [3], (1, 4, 6))
    >>> rope_positions(11, [picture], QWEN2_VL).tolist()
    [[0, 1, 2, 3, 3, 3, 3, 3, 3, 6, 7], [0, 1, 2, 3, 3, 3, 4, 4, 4, 6, 7], [0, 1, 2, 3, 4, 5, 3, 4, 5, 6, 7]]
    """
    positions: Int64Array = np.empty((3, num_tokens), dtype=np.int64)
    # Tokens before ``end`` have their positions; ``position`` is the position of the next text
    # token.
    end = position = 0
    for medium in media:
        times, height, width = _token_grid(medium, rule)
        size = len(times) * height * width
        extent = max(height, width, int(times[-1]) + 1 if rule.is_after_time else 0)
        for start in medium.starts:
            if start < end or start + size > num_tokens:
                raise BadMediumError(
                    f"has {size:,} tokens at token {start:,}, where tokens {end:,} … "
                    f"{num_tokens:,} of its sample are free: its grid {medium.grid} does not match "
                    "its placeholders"
                )
            positions[:, end:start] = np.arange(position, position + start - end)
            position += start - end
            end = start + size
            # Each row of a run is contiguous, so these are views in the shape of the grid.
            time, row, column = (
                axis.reshape(len(times), height, width) for axis in positions[:, start:end]
            )
            time[:] = (times + position)[:, None, None]
            row[:] = np.arange(position, position + height)[:, None]
            column[:] = np.arange(position, position + width)
            position += extent
    positions[:, end:] = np.arange(position, position + num_tokens - end)
    return positions


def _token_grid(medium: RopeMedium, rule: RopeRule) -> tuple[Int64Array, int, int]:
    """Return the time of each grid of one run, ``int64[grids]``, and the run's tokens in height and
    in width.
    """
    grids, *patches = medium.grid
    height, width = (count // rule.merge_size for count in patches)
    if grids < 1 or min(height, width) < 1 or any(count % rule.merge_size for count in patches):
        raise BadMediumError(
            f"has the grid {medium.grid}, which tokens of {rule.merge_size} · {rule.merge_size} do "
            "not fill"
        )
    if medium.kind is MediaKind.AUDIO:
        raise BadMediumError(
            "is audio, which has no grid: leave it out, because its tokens count like text"
        )
    is_video = medium.kind is MediaKind.VIDEO
    if grids != 1 and not is_video:
        raise BadMediumError(f"has the grid {medium.grid}: only videos have several grids in time")
    is_apart = is_video and rule.has_frames_apart
    num_runs = grids if is_apart else 1
    if len(medium.starts) != num_runs:
        raise BadMediumError(
            f"has {len(medium.starts)} runs of tokens, and {num_runs} are expected for the grid "
            f"{medium.grid}"
        )
    if is_apart:
        grids = 1
    if rule.tokens_per_second is None or not is_video:
        return np.arange(grids, dtype=np.int64), height, width
    # The arithmetic of models is float32, and a time just below a whole number is truncated to the
    # one before.
    indices = np.arange(grids, dtype=np.float32)
    seconds, rate = np.float32(medium.seconds_per_grid), np.float32(rule.tokens_per_second)
    times = indices * (seconds * rate) if rule.is_rate_first else indices * seconds * rate
    return times.astype(np.int64), height, width


def rope_rule(
    family: Family, directory: str | None, tokens_per_second: float | None = None
) -> RopeRule | None:
    """Return the position rule of a family; None for text positions.

    Args:
        family: with its settings.
        directory: of the model's processor, whose ``config.json`` is read if it exists; None
            without a processor.
        tokens_per_second: overrides the number in the file.
    """
    rule = RULES.get(family.name)
    if rule is None:
        return None
    kinds = ("image", "video")
    merge_size = next(
        (family.settings[kind]["merge_size"] for kind in kinds if kind in family.settings), None
    )
    if merge_size is not None:
        rule = replace(rule, merge_size=merge_size)
    if rule.tokens_per_second is None:
        return rule
    if tokens_per_second is None and directory is not None:
        config = read_json_object(Path(directory) / "config.json") or {}
        vision = config.get("vision_config")
        rate = vision.get("tokens_per_second") if isinstance(vision, dict) else None
        rate = config.get("position_id_per_seconds") if rate is None else rate
        tokens_per_second = None if rate is None else float(rate)
    return rule if tokens_per_second is None else replace(rule, tokens_per_second=tokens_per_second)
