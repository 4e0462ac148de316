"""Computation cost of a pack: packs with the same number of tokens may differ by a factor of
several.

Everything but attention grows with the tokens; attention grows with the square of each segment,
since tokens attend only within their segment::

    pack A   |aaaaaaaa|          8 tokens, squares 64
    pack B   |bb|cc|dd|ee|       8 tokens, squares 4 + 4 + 4 + 4 = 16

    cost = linear · tokens + quadratic · squares

With ``linear = 2, quadratic = 1``, A costs 80 and B costs 32. A rank that has B waits for the rank
that has A; ``schedule.balance`` gives ranks packs of equal cost at the same time.

The cost of vision and audio towers depends on their input. Patches attend only within their image,
so patches are squared image by image and never as a sum; a video's frames are images too::

    vision  =  encoder_linear · patches  +  encoder_quadratic · Σ patches² of each image
    audio   =  audio_linear · audio frames  +  audio_constant · audio clips

If audio clips are padded to one length, each costs the same; if they are cut into windows, the cost
depends on the frames. The parts of a model run one after the other, so their costs are also kept
separately (``pack_costs.pack_component_costs``).

The formulas count multiplications and additions of matrix products in the forward pass, as in
FlexSP, Skrull and WLB-LLM (2025). Real kernels run short attention below the speed of matrix
products, so attention costs more than the formulas say: if timings exist, ``CostModel.fit`` is
better.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from brimful.base.arguments import understands
from brimful.base.checks import check_share, is_number, whole_number
from brimful.base.typing import AnyIntArray, Float64Array
from brimful.base.wings import TOWER_TERMS, loaded
from brimful.errors import SettingsError
from brimful.plan.schedule.model_config import ModelSizes, sizes_of_config

AnyRealArray: TypeAlias = AnyIntArray | npt.NDArray[np.floating[Any]]

DEFAULT_TILE = 128
"""Queries that a FlashAttention kernel processes at once; a shorter segment costs as much as one of
this length.
"""

_MIN_TIMINGS = 3
_MIN_SINGULAR_VALUE_RATIO = 1e-6
"""Smallest ÷ largest singular value of the scaled timings, below which the two terms cannot be told
apart.
"""


class Component(str, Enum):
    """The parts of a model that run one after the other."""

    LANGUAGE_MODEL = "language_model"
    """Decoder layers and head; cost by tokens."""
    VISION_TOWER = "vision_tower"
    """Encoder of images and video frames; cost by patches."""
    AUDIO_TOWER = "audio_tower"
    """Encoder of audio; cost by columns of the spectrograms."""


@dataclass(frozen=True)
class CostModel:
    """Cost of a pack from the lengths of its segments.

    ::

        cost = linear · Σ l  +  quadratic · Σ s(l)
             + encoder_linear · Σ P  +  encoder_quadratic · Σ P²  +  audio_linear · Σ F  +  audio_constant · sounds
        s(l) = ceil(l ÷ tile) · tile · l                   without a window
             = the same − (l − window)²  if l > window     in the layers that have one

    Attributes:
        linear: FLOPs per token (or seconds per token, from ``fit``).
        quadratic: FLOPs per token².
        tile: tokens. The kernel works on whole tiles of queries; 1 for the exact square.
        window: maximum tokens that a token attends to, including itself (sliding window attention);
            None for all. The square of a segment is reduced to l² − (l − window)², which is twice
            the band below the diagonal. For attention to both sides it is the reach to one side.
        windowed_share: share of the layers with the window, from 0 to 1.
        encoder_linear: FLOPs per patch of an image in the vision tower, including attention within
            windows of fixed size.
        encoder_quadratic: FLOPs per patch², for full attention within an image or a video frame.
        audio_linear: FLOPs per frame of a spectrogram, for a tower without padding.
        audio_constant: FLOPs per audio clip, for a tower that pads each clip to one length.
        r_squared: share of the variance of the timings that a fitted model explains; None if not
            fitted.
        unit: unit of a cost, for display.

    Raises:
        SettingsError: a negative or infinite coefficient, all zero, or an impossible tile, window
            or share.

    >>> model = CostModel(linear=2, quadratic=1, tile=1)
    >>> model.crossover_length
    2.0
    >>> from brimful.plan.schedule import pack_costs
    >>> pack_costs(np.array([0, 1, 5]), np.array([8, 2, 2, 2, 2]), model).tolist()
    [80.0, 32.0]
    """

    linear: float
    quadratic: float
    tile: int = DEFAULT_TILE
    window: int | None = None
    windowed_share: float = 1.0
    encoder_linear: float = 0.0
    encoder_quadratic: float = 0.0
    audio_linear: float = 0.0
    audio_constant: float = 0.0
    r_squared: float | None = None
    unit: str = "FLOPs"

    def __post_init__(self) -> None:
        coefficients = (
            "linear",
            "quadratic",
            "encoder_linear",
            "encoder_quadratic",
            "audio_linear",
            "audio_constant",
        )
        for name in coefficients:
            value = getattr(self, name)
            if not is_number(value) or not 0 <= value < float("inf"):
                raise SettingsError(
                    f"{name} must be a finite number of at least 0 and is {value!r}"
                )
        if not any(getattr(self, name) for name in coefficients):
            raise SettingsError("linear and quadratic are both 0: every pack would cost nothing")
        check_tiling(self.tile, self.window)
        check_share("windowed_share", self.windowed_share)

    @property
    def components(self) -> tuple[Component, ...]:
        """Parts of the model that run one after the other, without parts of cost 0."""
        is_there = {
            Component.LANGUAGE_MODEL: self.linear or self.quadratic,
            Component.VISION_TOWER: self.encoder_linear or self.encoder_quadratic,
            Component.AUDIO_TOWER: self.audio_linear or self.audio_constant,
        }
        return tuple(component for component, cost in is_there.items() if cost)

    @property
    def crossover_length(self) -> float:
        """Tokens of a segment at which attention costs as much as everything else: linear ÷
        quadratic.

        It follows only from the coefficients, without tile and window; infinite without attention.
        Below about a tenth of it, full packs have equal costs and balancing gains nothing.
        """
        return self.linear / self.quadratic if self.quadratic else float("inf")

    @classmethod
    @understands(None, ModelSizes)
    def from_config(
        cls, *, causal: bool = True, tile: int = DEFAULT_TILE, **sizes: Any
    ) -> CostModel:
        """Count the FLOPs of one forward pass of a decoder with grouped queries and a gated MLP.

        ::

            per layer   linear    = 2·(h·n·d + 2·h·k·d + n·d·h + 3·h·f·e)       q, k and v, o, gate + up + down
                        quadratic = 2·n·d causal, 4·n·d if not causal       q·k and its product with v
            the head    linear   += 2·h·V

        with h = hidden_size, n = num_attention_heads, k = num_key_value_heads, d = head_dim, f =
        intermediate_size, e = experts_per_token, V = vocab_size. A causal layer computes half of
        the square, so its coefficient of l² is half. Norms, rotary positions, biases and the router
        of experts are below one percent. The backward pass takes twice the linear term and, with
        recomputation in the kernel, two and a half times the quadratic term; checkpointing adds
        another forward pass: the ratio hardly changes.

        Args:
            intermediate_size: width of the MLP, or of one expert; a mean if layers differ.
            vocab_size: 0 leaves out the head, as tables of crossover lengths do.
            experts_per_token: active experts of one token, including shared experts; 1 for a dense
                model.
            causal: whether a token attends only to itself and earlier tokens.
            tile, window, windowed_share: see the attributes.

        Raises:
            SettingsError: a number below 1 (``vocab_size``: below 0).

        >>> base = CostModel.from_config(hidden_size=1024, num_layers=28, num_attention_heads=16,
        ...     num_key_value_heads=8, head_dim=128, intermediate_size=3072, vocab_size=151936)
        >>> round(base.crossover_length)
        10393
        """
        model = ModelSizes(**sizes)
        query_width = model.num_attention_heads * model.head_dim
        key_width = model.num_key_value_heads * model.head_dim
        projections = 2 * model.hidden_size * query_width + 2 * model.hidden_size * key_width
        mlp = 3 * model.hidden_size * model.intermediate_size * model.experts_per_token
        return cls(
            linear=float(
                model.num_layers * 2 * (projections + mlp)
                + 2 * model.hidden_size * model.vocab_size
            ),
            quadratic=float(model.num_layers * query_width * (2 if causal else 4)),
            tile=tile,
            window=model.window,
            windowed_share=model.windowed_share,
        )

    @classmethod
    def of_model(
        cls, config: Mapping[str, Any], *, causal: bool = True, tile: int = DEFAULT_TILE
    ) -> CostModel:
        """Read these numbers from a Hugging Face ``config.json`` of Qwen, Llama, Mistral or models
        with the same names.

        In a model with images or audio, ``text_config`` is the language model, and
        ``vision_config`` and ``audio_config`` are its towers (``media.towers``: Qwen2-VL,
        Qwen2.5-VL, Qwen3-VL, Qwen2-Audio, Qwen2.5-Omni, LLaVA, InternVL). Mixtures of experts count
        the experts of one token, including shared experts, and dense layers. ``sliding_window``
        bounds attention in the layers that use it (``layer_types``, ``max_window_layers``,
        ``sliding_window_pattern``; without these, in all layers).

        Args:
            config: the parsed file.
            causal, tile: as in ``from_config``.

        Raises:
            SettingsError: a number is missing (the message has the accepted names), or these
                formulas do not describe the kind of attention (compressed keys, linear attention).

        >>> config = {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 128,
        ...           "vocab_size": 0}
        >>> CostModel.of_model(config).crossover_length  # (4·64·64 + 3·64·128) ÷ 64
        640.0
        """
        sizes = sizes_of_config(config)
        model = cls.from_config(**sizes, causal=causal, tile=tile)
        return replace(model, **loaded(TOWER_TERMS)(config, width=sizes["hidden_size"]))

    @classmethod
    def fit(
        cls,
        tokens: AnyRealArray,
        squares: AnyRealArray,
        seconds: AnyRealArray,
        *,
        tile: int = 1,
        window: int | None = None,
    ) -> CostModel:
        """Fit timings by least squares with coefficients of at least 0.

        ::

            seconds ≈ linear · tokens + quadratic · squares

        If an unconstrained fit makes one coefficient negative, the best fit lies on an edge where a
        coefficient is 0: of the two edges, the one with less error is taken (Lawson and Hanson,
        "Solving least squares problems", 1974, for two unknowns). The model has no constant term:
        packs of a plan are equally full, so a constant cannot be distinguished from the linear
        term, which includes it.

        Fit once and pass the two numbers to all ranks: linear algebra libraries differ in the last
        digit, so with a fit on each rank, schedules could differ.

        ::

            tokens   squares   seconds
            1000     1000000   3.0
            1000     4000000   6.0         three million squares more, 3 s more: quadratic 1e-6
            2000     4000000   8.0         1,000 tokens more, 2 s more: linear 2e-3

        Args:
            tokens: ``[num_timings]``, tokens of each timed pack.
            squares: ``[num_timings]``, from ``pack_costs.pack_squares`` with the same ``tile`` and
                ``window``.
            seconds: ``[num_timings]``, time of forward and backward, on one device.
            tile, window: the values with which the squares were made; they become the model's.

        Returns:
            A model whose unit is seconds, with ``r_squared``: 1 − squared error ÷ squared distance
                from the mean.

        Raises:
            SettingsError: fewer than three timings, arrays of different sizes, a value that is
                negative or not finite, or timings that cannot separate the two terms (all packs
                alike).

        >>> CostModel.fit(np.array([1000, 1000, 2000]), np.array([1e6, 4e6, 4e6]), np.array([3.0, 6.0, 8.0]))
        ... # doctest: +ELLIPSIS
        CostModel(linear=0.002..., quadratic=1...e-06, tile=1, ..., r_squared=1.0, unit='seconds')
        """
        size = np.shape(tokens)[0] if np.ndim(tokens) == 1 else None
        arrays = {"tokens": tokens, "squares": squares, "seconds": seconds}
        columns = {name: real_array(name, values, size) for name, values in arrays.items()}
        num_timings = len(columns["tokens"])
        if num_timings < _MIN_TIMINGS:
            raise SettingsError(
                f"{num_timings} timings are too few to fit two coefficients: give at least "
                f"{_MIN_TIMINGS}"
            )

        # Squares are thousands of times larger than tokens: both columns are scaled to a maximum of
        # 1.
        points = np.stack([columns["tokens"], columns["squares"]], axis=1)
        scale = points.max(axis=0)
        if not scale.all():
            name = "tokens" if not scale[0] else "squares"
            raise SettingsError(f"{name} are all 0: nothing to fit")
        points, targets = points / scale, columns["seconds"]
        singular_values = np.linalg.svd(points, compute_uv=False)
        if singular_values[1] < _MIN_SINGULAR_VALUE_RATIO * singular_values[0]:
            raise SettingsError(
                "the timings cannot tell tokens from squares: squares ÷ tokens is the same in all "
                "of them; time packs of one long segment and packs of many short ones"
            )

        def squared_error(coefficients: Float64Array) -> float:
            return float(((points @ coefficients - targets) ** 2).sum())

        coefficients = np.linalg.lstsq(points, targets, rcond=None)[0]
        if coefficients.min() < 0:
            on_edges = [
                max(0.0, float(column @ targets) / float(column @ column)) for column in points.T
            ]
            coefficients = min(np.diag(on_edges), key=squared_error)
        if not coefficients.any():
            raise SettingsError("seconds are all 0: nothing to fit")
        error = squared_error(coefficients)
        spread = float(((targets - targets.mean()) ** 2).sum())
        r_squared = 1.0 - error / spread if spread else float(error == 0.0)
        linear, quadratic = (coefficients / scale).tolist()
        return cls(
            linear=linear,
            quadratic=quadratic,
            tile=tile,
            window=window,
            r_squared=round(r_squared, 6),
            unit="seconds",
        )


def check_tiling(tile: int, window: int | None) -> None:
    """Refuse a tile or a window of less than one token."""
    whole_number("tile", tile, minimum=1)
    if window is not None:
        whole_number("window", window, minimum=1)


def real_array(name: str, values: AnyRealArray, size: int | None) -> Float64Array:
    """Return the values as ``float64[size]``, each checked to be finite and at least 0."""
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or (size is not None and len(array) != size):
        shape = "flat" if size is None else f"flat with {size:,} entries"
        raise SettingsError(f"{name} must be {shape} and has shape {array.shape}")
    check_finite(name, array, "entry")
    return array


def check_finite(name: str, array: Float64Array, noun: str, column: str = "") -> None:
    """Refuse an array with a negative, infinite or NaN value; the message has the first of them.

    Args:
        name, array, noun: the numbers, their name, and the noun for one of them.
        column: rest of the index, for a column of a table.
    """
    bad_positions = np.flatnonzero(~(np.isfinite(array) & (array >= 0)))
    if len(bad_positions):
        position = int(bad_positions[0])
        raise SettingsError(
            f"{name}[{position}{column}] is {array[position]}: every {noun} must be finite and at "
            "least 0"
        )
