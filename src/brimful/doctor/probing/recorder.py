"""Numbers that a forward leaves by token: hidden states of every layer, and losses.

A model lays tokens out in its own way. ``TokenGrid`` finds them again::

    [B, T, C]   [T, B, C]   [B·T, C]   [1, B·T, C]      tokens of the batch
    [B, T', C]                                          with media in place of their placeholders
    [T/n, B, C]                                         one part of the row: sequence parallelism
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils._pytree import tree_leaves

from brimful.base.typing import IGNORE_INDEX, BoolArray, Float32Array, Int64Array
from brimful.doctor.probing.model_facts import at_least_float32

_MAX_CHANNELS = 64
"""Channels of a hidden state that are kept, spread over all: a leak moves nearly all of them."""

_MAX_BYTES = 64 << 20
"""Bytes of the hidden states that one forward keeps."""

_LOGITS_OF_A_CHUNK = 1 << 24
"""Logits that are converted to float32 at a time."""

STACKS = (torch.nn.ModuleList, torch.nn.ModuleDict, torch.nn.Sequential)
"""Containers of layers."""

_WRAPPER_NAMES = ("module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")
"""Names by which wrappers call the module in them."""

LOGPROB_NAMES = ("log_probs", "logprobs", "per_token_logps")
"""Names of outputs with the log-probability of each target."""


@dataclass(frozen=True)
class TokenGrid:
    """Rows and tokens of a batch.

    Attributes:
        shape: rows B, and tokens T of each.
        is_medium: ``bool[R, T]``: placeholders of media in the rows that are kept, which a model may
            expand; as many in each row that it does expand.
        part, parts: number of this rank's part of each row, and of all parts.
    """

    shape: tuple[int, int]
    is_medium: BoolArray | None = None
    part: int = 0
    parts: int = 1

    def rows_of(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """Return a tensor as ``[B, T', C]``, where T' may exceed T by expanded media; None if it
        has no tokens.

        >>> grid = TokenGrid((2, 3))
        >>> grid.rows_of(torch.zeros(3, 2, 8)).shape, grid.rows_of(torch.zeros(6, 8)).shape
        (torch.Size([2, 3, 8]), torch.Size([2, 3, 8]))
        """
        rows, width = self.shape
        size = tensor.shape
        if len(size) < 2 or not tensor.is_floating_point():
            return None
        if size[0] == rows and (size[1] == width or self._growth(size[1])):
            return tensor.reshape(rows, size[1], -1)
        if size[:2] in ((width, rows), (width // self.parts, rows)):
            return tensor.transpose(0, 1).reshape(rows, size[0], -1)
        if size[0] == rows * width or size[:2] == (1, rows * width):
            return tensor.reshape(rows, width, -1)
        return None

    def by_token(self, values: torch.Tensor) -> Float32Array:
        """Return values of columns ``[R, T']`` by token ``float32[R, T]``: the largest of a
        medium's, 0 in parts of other ranks.

        Args:
            values: of the rows that are kept.
        """
        numbers: Float32Array = values.float().cpu().numpy()
        width = self.shape[1]
        if numbers.shape[1] == width // self.parts:
            # Tokens of other ranks have not moved, as far as this rank can see.
            row = np.zeros((len(numbers), width), dtype=np.float32)
            start = self.part * numbers.shape[1]
            row[:, start : start + numbers.shape[1]] = numbers
            return row
        if self.is_medium is None:
            return numbers
        sizes = 1 + self._growth(numbers.shape[1]) * self.is_medium
        starts = sizes.cumsum(axis=1) - sizes
        return np.array([*map(np.maximum.reduceat, numbers, starts)])

    def _growth(self, columns: int) -> int:
        """Return the columns that each placeholder becomes, less one; 0 if that does not explain
        them.
        """
        if self.is_medium is None or columns <= self.shape[1]:
            return 0
        counts = self.is_medium.sum(axis=1)
        extra = columns - self.shape[1]
        is_even = counts.min() == counts.max() > 0 and extra % int(counts[0]) == 0
        return extra // int(counts[0]) if is_even else 0


class LayerState(NamedTuple):
    """Hidden states of one layer.

    Attributes:
        name: of the layer in the model, such as ``model.layers.3``.
        values: ``float[R, T', C]``: some rows, some channels.
    """

    name: str
    values: torch.Tensor

    def at(self, rows: slice, columns: slice) -> "LayerState":
        """Return some rows and columns."""
        return self._replace(values=self.values[rows, columns])


@dataclass
class Recording:
    """Hidden states of one forward, in the order in which layers ran.

    Attributes:
        states: of each layer whose output has tokens.
        dtypes: precisions that the layers computed in.
        given: what each layer got but hidden states: integers, and masks of pairs.
    """

    states: list[LayerState]
    dtypes: set[torch.dtype]
    given: dict[str, list[torch.Tensor]]


@contextlib.contextmanager
def recording(
    layers: Mapping[str, torch.nn.Module], grid: TokenGrid, rows: Sequence[int]
) -> Iterator[Recording]:
    """Record the hidden states of layers in the forwards of this block.

    Args:
        layers: by name, see ``layers_of``.
        grid: of the batch.
        rows: rows that are kept.
    """
    result = Recording([], set(), {})
    tokens = len(layers) * len(rows) * grid.shape[1]
    num_channels = min(_MAX_CHANNELS, max(1, _MAX_BYTES // (4 * max(1, tokens))))
    index = list(rows)

    def hook_of(name: str) -> Any:
        def keep(module: torch.nn.Module, inputs: Any, words: Any, output: Any) -> None:
            result.given[name] = [
                value
                for value in tree_leaves((inputs, words))
                if isinstance(value, torch.Tensor)
                and (not value.is_floating_point() or value.shape[-2:] == (grid.shape[1],) * 2)
            ]
            tensor = first_tensor(output)
            if tensor is None or (states := grid.rows_of(tensor)) is None:
                return
            step = -(-states.shape[-1] // num_channels)
            values = states.detach()[index][..., ::step]
            # A tensor that ranks share is gathered: each of them runs this line.
            if hasattr(values, "full_tensor"):
                values = values.full_tensor()
            result.states.append(LayerState(name, values.clone()))
            device = tensor.device.type
            result.dtypes.add(tensor.dtype)
            if torch.is_autocast_enabled(device):
                result.dtypes.add(torch.get_autocast_dtype(device))

        return keep

    handles = [
        layer.register_forward_hook(hook_of(name), with_kwargs=True)
        for name, layer in layers.items()
    ]
    try:
        yield result
    finally:
        for handle in handles:
            handle.remove()


def layers_of(model: torch.nn.Module) -> dict[str, torch.nn.Module]:
    """Return the layers of a model by name: children of its outermost lists of modules.

    Parts of layers, such as experts, are not layers. A model without such lists has its children
    for layers.

    >>> from brimful.verify.models import tiny_model
    >>> list(layers_of(tiny_model("qwen2")))
    ['model.layers.0', 'model.layers.1']
    """
    layers: dict[str, torch.nn.Module] = {}

    def visit(module: torch.nn.Module, name: str) -> None:
        for key, child in module.named_children():
            path = name if key in _WRAPPER_NAMES else f"{name}.{key}".removeprefix(".")
            if isinstance(module, STACKS):
                layers[path] = child
            else:
                visit(child, path)

    visit(model, "")
    return layers or dict(model.named_children())


def movement(state: LayerState, other_state: LayerState, grid: TokenGrid) -> Float32Array:
    """Return how far a layer's hidden states moved, ``float32[R, T]``: norm of the difference ÷
    norm.
    """
    values = at_least_float32(state.values)
    other_values = at_least_float32(other_state.values)
    gaps = torch.linalg.vector_norm(values - other_values, dim=-1)
    sizes = torch.linalg.vector_norm(values, dim=-1)
    ratio = gaps / sizes.clamp_min(torch.finfo(torch.float32).tiny)
    # Equal values have not moved, infinite ones too.
    return grid.by_token(ratio.masked_fill((values == other_values).all(dim=-1), 0.0))


@dataclass(frozen=True)
class Outcome:
    """Output of a forward in numbers.

    Attributes:
        losses: ``float32[B, T]``: loss of the target that each token predicts, NaN without a
            target; None if the output has sums only.
        loss: the loss that the model returned; None if it returned none.
        widths: size of the last dimension of each tensor with tokens, by its name in the output.
        extra_losses: other scalars whose names end in ``loss``; None if one is there and empty.
    """

    losses: Float32Array | None
    loss: float | None
    widths: dict[str, int]
    extra_losses: dict[str, float | None]


def outcome_of(output: Any, targets: Int64Array, grid: TokenGrid, vocab: int | None) -> Outcome:
    """Read losses from the output of a model, whatever it returns.

    Args:
        output: a tensor, a tuple, a mapping or an object.
        targets: ``int64[B, T]``: token that each position predicts, ``IGNORE_INDEX`` for none.
        grid: of the batch.
        vocab: tokens of the vocabulary; None if unknown.
    """
    parts = _parts(output)
    tensors = {name: item for name, item in parts.items() if isinstance(item, torch.Tensor)}
    by_token = {
        name: rows for name, item in tensors.items() if (rows := grid.rows_of(item)) is not None
    }
    scalars = [
        (name, float(item))
        for name, item in tensors.items()
        if item.numel() == 1 and item.is_floating_point()
    ]
    losses = _losses(tensors, by_token, targets, vocab)
    return Outcome(
        losses,
        next((value for name, value in scalars if not name.endswith("_loss")), None),
        {name: rows.shape[-1] for name, rows in by_token.items()},
        {
            name: dict(scalars).get(name)
            for name, item in parts.items()
            if name.endswith("_loss") and (item is None or name in dict(scalars))
        },
    )


def _losses(
    tensors: Mapping[str, torch.Tensor],
    by_token: Mapping[str, torch.Tensor],
    targets: Int64Array,
    vocab: int | None,
) -> Float32Array | None:
    is_target = targets != IGNORE_INDEX
    for name in LOGPROB_NAMES:
        if (item := tensors.get(name)) is not None and item.ndim == 2:
            losses = np.full(targets.shape, np.nan, dtype=np.float32)
            # A model that shifts leaves out the last token, which predicts nothing.
            columns = min(item.shape[1], targets.shape[1])
            losses[:, :columns] = -item[:, :columns].float().cpu().numpy()
            return np.where(is_target, losses, np.float32(np.nan))
    for rows in by_token.values():
        # A loss for each token, as Megatron's models return.
        if rows.shape[-1] == 1 and rows.shape[1] == targets.shape[1]:
            values = rows[..., 0].float().cpu().numpy()
            return np.where(is_target, values, np.float32(np.nan))
    highest = int(targets.max(initial=-1))
    for name in sorted(by_token, key=lambda name: name != "logits"):
        rows = by_token[name]
        # Vocabularies may be padded, and ranks of tensor parallelism may have a part each.
        if rows.shape[1] == targets.shape[1] and rows.shape[-1] >= max(vocab or 2, highest + 1):
            return token_losses(rows, targets)
    return None


def token_losses(logits: torch.Tensor, targets: Int64Array) -> Float32Array:
    """Return the cross-entropy of each target, ``float32[B, T]``, NaN without one; in chunks.

    Args:
        logits: ``float[B, T, V]``.
        targets: ``int64[B, T]``.
    """
    if hasattr(logits, "full_tensor"):
        logits = logits.full_tensor()
    rows, width, vocab = logits.shape
    flat = logits.reshape(rows * width, vocab)
    labels = torch.from_numpy(targets.reshape(-1)).to(logits.device)
    size = max(1, _LOGITS_OF_A_CHUNK // vocab)
    parts = [
        torch.nn.functional.cross_entropy(
            flat[start : start + size].float(),
            labels[start : start + size],
            ignore_index=IGNORE_INDEX,
            reduction="none",
        )
        for start in range(0, rows * width, size)
    ]
    losses: Float32Array = torch.cat(parts).cpu().numpy().reshape(rows, width)
    return np.where(targets == IGNORE_INDEX, np.float32(np.nan), losses)


def first_tensor(output: Any) -> torch.Tensor | None:
    """Return the first floating tensor in an output: the hidden states of a layer."""
    if isinstance(output, torch.Tensor):
        return output if output.is_floating_point() else None
    tensors = (first_tensor(item) for item in _parts(output).values())
    return next((tensor for tensor in tensors if tensor is not None), None)


def _parts(output: Any) -> dict[str, Any]:
    """Return the parts of an output by name; of a tuple by number, of a tensor by no name."""
    if isinstance(output, torch.Tensor):
        return {"": output}
    # An output of Transformers is a mapping too, without the parts that are None.
    if is_dataclass(output) and not isinstance(output, type):
        return {field.name: getattr(output, field.name, None) for field in fields(output)}
    if isinstance(output, Mapping):
        return {str(name): item for name, item in output.items()}
    if hasattr(output, "_asdict"):
        return dict(output._asdict())
    if isinstance(output, (list, tuple)):
        return {str(number): item for number, item in enumerate(output)}
    return dict(getattr(output, "__dict__", {}))
