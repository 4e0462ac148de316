"""What a pack costs to compute: two packs with equally many tokens may differ several times.

Everything but attention grows with the tokens; attention grows with the square of each segment, since no segment
looks into another::

    pack A   |aaaaaaaa|          8 tokens, squares 64
    pack B   |bb|cc|dd|ee|       8 tokens, squares 4 + 4 + 4 + 4 = 16

    cost = linear · tokens + quadratic · squares

With ``linear = 2, quadratic = 1``, A costs 80 and B costs 32. A rank that has B waits for the rank that has A;
``balance`` puts equals beside each other.

The formulae count multiplications and additions of matrix products in the forward pass, as in FlexSP, Skrull and
WLB-LLM (2025). Real kernels run short attention below the speed of matrix products, so attention weighs more
than they say: where timings exist, ``CostModel.fit`` is better.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from brimful.errors import SettingsError
from brimful.plan.model_config import require_whole, sizes_of_config
from brimful.typing import AnyIntArray, Int64Array, Offsets

__all__ = ["DEFAULT_TILE", "CostModel", "Float64Array", "pack_costs", "pack_squares"]

Float64Array: TypeAlias = npt.NDArray[np.float64]
AnyRealArray: TypeAlias = npt.NDArray[np.integer[Any]] | npt.NDArray[np.floating[Any]]

DEFAULT_TILE = 128
"""Queries that a FlashAttention kernel takes at once; a shorter segment costs as much as one of this length."""

_LEAST_POINTS = 3
_LEAST_INDEPENDENCE = 1e-6
"""Least ratio of the singular values of the scaled points; below it the two terms cannot be told apart."""


@dataclass(frozen=True)
class CostModel:
    """Cost of a pack from the lengths of its segments.

    ::

        cost = linear · Σ l  +  quadratic · Σ s(l)  +  encoder_linear · Σ P  +  encoder_quadratic · Σ P²
        s(l) = ceil(l ÷ tile) · tile · l                   without a window
             = the same − (l − window)²  where l > window  in the layers that have one

    Attributes:
        linear: FLOPs per token (or seconds per token, from ``fit``).
        quadratic: FLOPs per token².
        tile: tokens. The kernel works on whole tiles of queries; 1 for the bare square.
        window: most tokens that a token attends to, itself included (sliding window attention); None for all. Of
            the square of a segment remains l² − (l − window)², which is twice the band below the diagonal. For
            attention to both sides it is the reach to one side.
        windowed_share: of the layers, those that have the window, from 0 to 1.
        encoder_linear: FLOPs per patch of an image, or frame of a clip, in its encoder.
        encoder_quadratic: FLOPs per patch², for full attention within an image or clip.
        r_squared: how much of the variance of the timings a fitted model explains; None if not fitted.
        unit: of a cost, for people.

    Raises:
        SettingsError: a negative or infinite coefficient, all zero, or an impossible tile, window or share.

    >>> model = CostModel(linear=2, quadratic=1, tile=1)
    >>> model.crossover_length
    2.0
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
    r_squared: float | None = None
    unit: str = "FLOPs"

    def __post_init__(self) -> None:
        coefficients = ("linear", "quadratic", "encoder_linear", "encoder_quadratic")
        for name in coefficients:
            value = getattr(self, name)
            if not _is_number(value) or not 0 <= value < float("inf"):
                raise SettingsError(f"{name} must be a finite number of at least 0 and is {value!r}")
        if not any(getattr(self, name) for name in coefficients):
            raise SettingsError("linear and quadratic are both 0: every pack would cost nothing")
        require_whole("tile", self.tile)
        if self.window is not None:
            require_whole("window", self.window)
        if not _is_number(self.windowed_share) or not 0 <= self.windowed_share <= 1:
            raise SettingsError(f"windowed_share must be from 0 to 1 and is {self.windowed_share!r}")

    @property
    def crossover_length(self) -> float:
        """Tokens at which attention costs as much as everything else: linear ÷ quadratic.

        Of the model, without tile and window; infinite without attention. Below about a tenth of it, packs full
        of tokens are equal in cost and balancing gains nothing.
        """
        return self.linear / self.quadratic if self.quadratic else float("inf")

    @classmethod
    def from_config(
        cls,
        *,
        hidden_size: int,
        num_layers: int,
        num_attention_heads: int,
        num_key_value_heads: int,
        head_dim: int,
        intermediate_size: float,
        vocab_size: int,
        experts_per_token: int = 1,
        causal: bool = True,
        tile: int = DEFAULT_TILE,
        window: int | None = None,
        windowed_share: float = 1.0,
    ) -> CostModel:
        """Count the FLOPs of one forward pass of a decoder with grouped queries and a gated MLP.

        ::

            per layer   linear    = 2·(h·n·d + 2·h·k·d + n·d·h + 3·h·f·e)       q, k and v, o, gate + up + down
                        quadratic = 2·n·d causal, 4·n·d where all see all       q·k and its product with v
            the head    linear   += 2·h·V

        with h = hidden_size, n = num_attention_heads, k = num_key_value_heads, d = head_dim,
        f = intermediate_size, e = experts_per_token, V = vocab_size. A causal layer computes half of the square,
        so its coefficient of l² is half. Norms, rotary positions, biases and the router of experts are below a
        hundredth. The backward pass takes twice the linear term and, recomputing in the kernel, two and a half
        times the quadratic one; checkpointing adds another forward pass: the ratio hardly changes.

        Args:
            intermediate_size: of the MLP, or of one expert; a mean where layers differ.
            vocab_size: 0 leaves out the head, as tables of crossover lengths do.
            experts_per_token: active experts of one token, shared ones included; 1 for a dense model.
            causal: whether a token sees only those before it.
            tile, window, windowed_share: as the attributes.

        Raises:
            SettingsError: a number below 1 (``vocab_size``: below 0).

        >>> base = CostModel.from_config(hidden_size=1024, num_layers=28, num_attention_heads=16,
        ...     num_key_value_heads=8, head_dim=128, intermediate_size=3072, vocab_size=151936)
        >>> round(base.crossover_length)
        10393
        """
        for name, value in (
            ("hidden_size", hidden_size),
            ("num_layers", num_layers),
            ("num_attention_heads", num_attention_heads),
            ("num_key_value_heads", num_key_value_heads),
            ("head_dim", head_dim),
            ("experts_per_token", experts_per_token),
        ):
            require_whole(name, value)
        require_whole("vocab_size", vocab_size, least=0)
        if not _is_number(intermediate_size) or not 0 < intermediate_size < float("inf"):
            raise SettingsError(f"intermediate_size must be a number above 0 and is {intermediate_size!r}")
        queries = num_attention_heads * head_dim
        keys = num_key_value_heads * head_dim
        projections = 2 * hidden_size * queries + 2 * hidden_size * keys
        layer = 2 * (projections + 3 * hidden_size * intermediate_size * experts_per_token)
        return cls(
            linear=float(num_layers * layer + 2 * hidden_size * vocab_size),
            quadratic=float(num_layers * queries * (2 if causal else 4)),
            tile=tile,
            window=window,
            windowed_share=windowed_share,
        )

    @classmethod
    def of_model(cls, config: Mapping[str, Any], *, causal: bool = True, tile: int = DEFAULT_TILE) -> CostModel:
        """Read the same numbers from a Hugging Face ``config.json``: Qwen, Llama, Mistral and models named like them.

        Of a model with images or audio, ``text_config`` is read; the encoder's terms are given with
        ``dataclasses.replace(model, encoder_linear=…, encoder_quadratic=…)``. Mixtures of experts count the
        experts of one token, shared ones too, and layers that are dense. ``sliding_window`` bounds attention in
        the layers that use it (``layer_types``, ``max_window_layers``, ``sliding_window_pattern``; else in all).

        Args:
            config: the parsed file.
            causal, tile: as in ``from_config``.

        Raises:
            SettingsError: a number is missing (named, with the names looked for), or the attention is of a kind
                that these formulae do not describe (compressed keys, linear attention).

        >>> config = {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 128,
        ...           "vocab_size": 0}
        >>> CostModel.of_model(config).crossover_length  # (4·64·64 + 3·64·128) ÷ 64
        640.0
        """
        return cls.from_config(**sizes_of_config(config), causal=causal, tile=tile)

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
        """Least squares with coefficients of at least 0: seconds ≈ linear · tokens + quadratic · squares.

        Where a free fit makes one coefficient negative, the best fit lies on the edge where it is 0: of the two
        edges, the one with less error is taken (Lawson and Hanson, "Solving least squares problems", 1974, for two
        unknowns). There is no constant term: packs of a plan are equally full, and among them a constant cannot be
        told from the linear term, which takes it in.

        Fit once and hand the two numbers to all ranks: linear algebra libraries differ in the last digit, and ranks
        that each fit for themselves could schedule differently.

        ::

            tokens   squares   seconds
            1000     1000000   3.0
            1000     4000000   6.0         three million squares more, 3 s more: quadratic 1e-6
            2000     4000000   8.0         1,000 tokens more, 2 s more: linear 2e-3

        Args:
            tokens: ``[num_timings]``, tokens of each timed pack.
            squares: ``[num_timings]``, of ``pack_squares`` with the same ``tile`` and ``window``.
            seconds: ``[num_timings]``, of forward and backward, on one device.
            tile, window: those the squares were made with; they become the model's.

        Returns:
            A model whose unit is seconds, with ``r_squared``: 1 − squared error ÷ squared distance from the mean.

        Raises:
            SettingsError: fewer than three timings, arrays of different sizes, a value that is negative or not
                finite, or timings from which the two terms cannot be told apart (all packs alike).

        >>> CostModel.fit(np.array([1000, 1000, 2000]), np.array([1e6, 4e6, 4e6]), np.array([3.0, 6.0, 8.0]))
        ... # doctest: +ELLIPSIS
        CostModel(linear=0.002..., quadratic=1...e-06, tile=1, ..., r_squared=1.0, unit='seconds')
        """
        columns = {}
        for name, values in (("tokens", tokens), ("squares", squares), ("seconds", seconds)):
            columns[name] = _checked_reals(name, values, np.shape(tokens)[0] if np.ndim(tokens) == 1 else None)
        number = len(columns["tokens"])
        if number < _LEAST_POINTS:
            raise SettingsError(f"{number} timings are too few to fit two coefficients: give at least {_LEAST_POINTS}")
        points = np.stack([columns["tokens"], columns["squares"]], axis=1)
        scale = points.max(axis=0)
        if not scale.all():
            name = "tokens" if not scale[0] else "squares"
            raise SettingsError(f"{name} are all 0: nothing to fit")
        scaled, measured = points / scale, columns["seconds"]
        values = np.linalg.svd(scaled, compute_uv=False)
        if values[1] < _LEAST_INDEPENDENCE * values[0]:
            raise SettingsError(
                "the timings cannot tell tokens from squares: squares ÷ tokens is the same in all of them; time packs "
                "of one long segment and packs of many short ones"
            )
        solution = np.linalg.lstsq(scaled, measured, rcond=None)[0]
        if solution.min() < 0:
            edges = [np.zeros(2), np.zeros(2)]
            for axis, edge in enumerate(edges):
                column = scaled[:, axis]
                edge[axis] = max(0.0, float(column @ measured) / float(column @ column))
            solution = min(edges, key=lambda edge: float(((scaled @ edge - measured) ** 2).sum()))
        if not solution.any():
            raise SettingsError("seconds are all 0: nothing to fit")
        error = float(((scaled @ solution - measured) ** 2).sum())
        spread = float(((measured - measured.mean()) ** 2).sum())
        explained = 1.0 - error / spread if spread else float(error == 0.0)
        linear, quadratic = (solution / scale).tolist()
        return cls(
            linear=linear,
            quadratic=quadratic,
            tile=tile,
            window=window,
            r_squared=round(explained, 6),
            unit="seconds",
        )


def pack_squares(
    plan_offsets: Offsets, plan_lengths: AnyIntArray, *, tile: int = 1, window: int | None = None
) -> Int64Array:
    """Squares of the lengths of the segments, summed by pack; what attention is proportional to.

    Pure: no I/O. Whole numbers, so that the sum is the same on every platform.

    ::

        offsets 0   1         5
        lengths | 8 | 2 2 2 2 |     tile 1            64, 16
                                    tile 4            8·8, 4 × (4·2) = 64, 32
                                    window 4          64 − (8 − 4)², 16 = 48, 16

    Args:
        plan_offsets: ``int64[num_packs + 1]``, as ``Plan.offsets``.
        plan_lengths: ``int[num_segments]``, tokens, as ``Plan.lengths``.
        tile: tokens; each length is multiplied by itself rounded up to whole tiles.
        window: tokens; takes off the square of what a segment is longer; None takes off nothing.

    Returns:
        ``int64[num_packs]``, tokens². A pack without segments has 0.

    Raises:
        SettingsError: offsets that do not divide the lengths, negative lengths, an impossible tile or window.

    >>> pack_squares(np.array([0, 1, 5]), np.array([8, 2, 2, 2, 2]), tile=4).tolist()
    [64, 32]
    """
    require_whole("tile", tile)
    if window is not None:
        require_whole("window", window)
    _check_plan(plan_offsets, plan_lengths)
    lengths = plan_lengths.astype(np.int64)
    areas = lengths * lengths if tile == 1 else -(-lengths // tile) * tile * lengths
    if window is not None:
        areas -= np.maximum(lengths - window, 0) ** 2
    return _sum_by_pack(plan_offsets, areas)


def pack_costs(
    plan_offsets: Offsets,
    plan_lengths: AnyIntArray,
    model: CostModel,
    *,
    patches: AnyRealArray | None = None,
    patch_squares: AnyRealArray | None = None,
) -> Float64Array:
    """What each pack costs.

    Pure: no I/O. Sums are of whole numbers, and the coefficients are applied once a pack: the same bits everywhere.

    Args:
        plan_offsets: ``int64[num_packs + 1]``, as ``Plan.offsets``.
        plan_lengths: ``int[num_segments]``, tokens, as ``Plan.lengths``.
        model: the coefficients.
        patches: ``[num_packs]``, patches (or frames) of all images (or clips) of each pack, before any merging.
        patch_squares: ``[num_packs]``, sum over the images of each pack of patches², squared before summing, since no
            image looks into another; patches · window where the encoder has windows.

    Returns:
        ``float64[num_packs]``, in the model's unit.

    Raises:
        SettingsError: offsets that do not divide the lengths; patches of another size, negative or not finite; patches
            for a model without terms for an encoder.

    >>> model = CostModel(linear=2, quadratic=1, tile=1, encoder_linear=1, encoder_quadratic=0.5)
    >>> pack_costs(np.array([0, 1, 2]), np.array([3, 4]), model, patches=np.array([4, 0]),
    ...            patch_squares=np.array([8, 0])).tolist()  # 2·3 + 9 + 4 + 0.5·8, and 2·4 + 16
    [23.0, 24.0]
    """
    _check_plan(plan_offsets, plan_lengths)
    tokens = _sum_by_pack(plan_offsets, plan_lengths.astype(np.int64))
    squares = pack_squares(plan_offsets, plan_lengths, tile=model.tile).astype(np.float64)
    if model.window is not None and model.windowed_share:
        inside = pack_squares(plan_offsets, plan_lengths, tile=model.tile, window=model.window)
        squares = (1.0 - model.windowed_share) * squares + model.windowed_share * inside
    costs: Float64Array = model.linear * tokens + model.quadratic * squares
    for name, given, coefficient in (
        ("patches", patches, model.encoder_linear),
        ("patch_squares", patch_squares, model.encoder_quadratic),
    ):
        if given is None:
            continue
        if not coefficient:
            term = "encoder_linear" if name == "patches" else "encoder_quadratic"
            raise SettingsError(f"{name} are given and the cost model has {term} = 0: set it, or leave {name} out")
        costs = costs + coefficient * _checked_reals(name, given, len(tokens))
    return costs


def _sum_by_pack(offsets: Offsets, values: Int64Array) -> Int64Array:
    """``reduceat`` gives an empty group the value that follows it, so empty packs are left out of it."""
    sums = np.zeros(len(offsets) - 1, dtype=np.int64)
    starts = np.asarray(offsets[:-1], dtype=np.int64)
    filled = np.flatnonzero(offsets[1:] > offsets[:-1])
    if len(filled):
        sums[filled] = np.add.reduceat(values, starts[filled])
    return sums


def _check_plan(offsets: Offsets, lengths: AnyIntArray) -> None:
    if offsets.ndim != 1 or len(offsets) == 0 or lengths.ndim != 1:
        raise SettingsError("plan_offsets and plan_lengths must be flat arrays, the offsets with at least one entry")
    if int(offsets[0]) != 0 or int(offsets[-1]) != len(lengths) or bool((offsets[1:] < offsets[:-1]).any()):
        raise SettingsError(
            f"plan_offsets must rise from 0 to the number of plan_lengths ({len(lengths):,}); they go from "
            f"{int(offsets[0]):,} to {int(offsets[-1]):,}"
        )
    if len(lengths) and int(lengths.min()) < 0:
        raise SettingsError(f"plan_lengths holds {int(lengths.min())}; a length is at least 0")


def _checked_reals(name: str, values: AnyRealArray, size: int | None) -> Float64Array:
    """As ``float64[size]``, each finite and at least 0."""
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or (size is not None and len(array) != size):
        shape = "flat" if size is None else f"flat with {size:,} entries"
        raise SettingsError(f"{name} must be {shape} and has shape {array.shape}")
    wrong = np.flatnonzero(~(np.isfinite(array) & (array >= 0)))
    if len(wrong):
        at = int(wrong[0])
        raise SettingsError(f"{name}[{at}] is {array[at]}: every entry must be finite and at least 0")
    return array


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)
