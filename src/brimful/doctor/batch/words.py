"""Words of loaders: the names under which trainers put tokens, labels, positions and boundaries.

A name is read together with its array, because trainers share names and not meanings: an
``attention_mask`` may hold ones, numbers of samples, pairs of tokens, or boundaries.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from typing import Any, TypeAlias

import numpy as np

from brimful.base.typing import AnyArray

Path: TypeAlias = tuple[str | int, ...]
"""Keys, attributes and places that lead from a batch to one of its values."""

_DEEPEST = 4
"""Containers inside of containers that are opened."""


class Role(str, Enum):
    """Meaning of a word."""

    IDS = "ids"
    LABELS = "labels"
    SHIFTED_LABELS = "shifted labels"
    LOSS_MASK = "loss mask"
    POSITIONS = "positions"
    NUMBERS = "numbers of samples"
    MASK = "mask"
    PADDING_MASK = "mask of padding"
    BOUNDARIES = "boundaries"
    END_MARK = "place of the end mark"
    LENGTHS = "lengths"
    LONGEST = "longest segment"
    TAIL = "padding at the end"
    DIVISOR = "divisor"
    VALUES = "values of tokens"
    TREE = "shared prefixes"


_NAMES: dict[Role, tuple[str, ...]] = {
    Role.IDS: (
        *("input_ids", "tokens", "input", "inputs", "token_ids", "ids", "input_tokens"),
        "decoder_input_tokens",
    ),
    Role.LABELS: ("labels", "targets", "target_ids", "label_ids", "decoder_target_tokens"),
    Role.SHIFTED_LABELS: ("shift_labels", "shifted_labels"),
    Role.LOSS_MASK: (
        *("loss_mask", "label_mask", "labels_mask", "completion_mask", "assistant_masks"),
        *("targets_loss_mask", "targets_segmentation", "decoder_loss_weights", "assistant_mask"),
    ),
    Role.POSITIONS: (
        *("text_position_ids", "position_ids", "positions", "inputs_position", "input_pos"),
        *("decoder_positions", "mrope_positions"),
    ),
    Role.NUMBERS: (
        *("seq_idx", "segment_ids", "document_ids", "doc_ids", "sequence_id", "sequence_ids"),
        *("inputs_segmentation", "decoder_segment_ids", "segmentation", "sample_idx"),
    ),
    Role.MASK: (
        *("attention_mask", "attn_mask", "attention_masks", "mask", "block_mask", "document_mask"),
        *("block_causal_mask", "packed_attention_mask", "attention_bias"),
    ),
    Role.PADDING_MASK: ("padding_mask",),
    Role.LENGTHS: (
        *("seq_lengths", "packed_seq_lengths", "sequence_lengths", "doc_lens", "seq_lens"),
        *("seqlens", "segment_lengths", "document_lengths", "sub_seq_lens", "seq_lens_padded"),
    ),
    Role.TAIL: ("tail_padding_length", "right_padding_length"),
    Role.DIVISOR: ("num_items_in_batch", "batch_num_tokens", "num_loss_tokens"),
    Role.TREE: (
        *("tree_out", "tree_in", "parents", "parent_ids", "tree_kv_index", "prev_map"),
        "node_of_token",
    ),
}
"""Names by meaning, the commonest first. A prefix such as ``chosen_`` is taken off before."""

_ROLES = {name: role for role, names in _NAMES.items() for name in names}

_LENGTH_WORD = r"(?:seq_?lens?|seq_?lengths?|seqs?|lens|lengths|doc_lens|doc_lengths)"
_SIDE = r"(?:_(?:q|k|kv))?(?:_(?:padded|unpadded|host))*"
_BOUNDARIES = re.compile(
    rf"(?:linear_attn_)?cu_{_LENGTH_WORD}{_SIDE}|sequence_boundaries|seq_boundaries"
)
_END_MARK = re.compile(rf"cu_{_LENGTH_WORD}{_SIDE}_argmin")
_LONGEST = re.compile(rf"max_(?:{_LENGTH_WORD}|seqlens?|length|doc_lens?)(?:_(?:q|k|kv))?|max_[qk]")

_ROLES_WITHOUT_NAME: dict[Path, Role] = {(): Role.IDS, (0,): Role.IDS, (1,): Role.LABELS}
"""Roles of a batch that is an array of tokens, and of the parts of a pair ``(inputs, labels)``."""

PREFIXES = ("chosen_", "rejected_", "concatenated_")
"""Prefixes of batches that hold several batches, such as pairs of answers."""

MEDIA_NAMES = ("pixel_values", "image_grid_thw", "video_grid_thw", "input_features")
"""Names that begin the arrays of images, videos and audio."""


@dataclass(frozen=True, eq=False)
class BatchWord:
    """A value of a batch whose name is known.

    Attributes:
        path: keys that lead to it; a list of mappings, one for each row, adds no key.
        role: meaning of its name.
        value: as the batch has it, or a list of the values of each row.
        array: the same in host memory; None for an object, such as a block mask.
    """

    path: Path
    role: Role
    value: Any
    array: AnyArray | None

    @property
    def name(self) -> str:
        """Last key without a prefix, such as ``input_ids``."""
        return name_of(self.path)

    @property
    def rank(self) -> tuple[int, int]:
        """Order among the words of its role: the commonest name first, then the shortest path."""
        names = _NAMES.get(self.role, ())
        rank = names.index(self.name) if self.name in names else len(names)
        return rank, len(self.path)

    def __str__(self) -> str:
        return text_of(self.path)


def text_of(path: Path) -> str:
    """Return a path in words.

    >>> text_of(("inputs", "tokens")), text_of((1,)), text_of(())
    ('inputs.tokens', 'item 1', 'tokens')
    """
    text = ".".join(map(str, path))
    return (
        text if any(isinstance(key, str) for key in path) else f"item {text}" if path else "tokens"
    )


def name_of(path: Path) -> str:
    """Return the last key of a path that is a name, without a prefix, in lower case.

    >>> name_of(("inputs", "chosen_input_ids")), name_of((0, "tokens"))
    ('input_ids', 'tokens')
    """
    return name_and_prefix_of(path)[0]


def name_and_prefix_of(path: Path) -> tuple[str, str]:
    """Return the last key of a path that is a name, in lower case, and the prefix taken off it.

    >>> name_and_prefix_of(("chosen_input_ids",))
    ('input_ids', 'chosen_')
    """
    key = next((key for key in reversed(path) if isinstance(key, str)), "").lower()
    prefix = next((prefix for prefix in PREFIXES if key.startswith(prefix)), "")
    return key.removeprefix(prefix), prefix


def role_of(name: str) -> Role | None:
    """Return the meaning of a name; None if it has none that doctor knows.

    >>> role_of("cu_seqlens_q_padded").value, role_of("doc_lens").value, role_of("pixel_values")
    ('boundaries', 'lengths', None)
    """
    if role := _ROLES.get(name):
        return role
    for pattern, role in (
        (_END_MARK, Role.END_MARK),
        (_BOUNDARIES, Role.BOUNDARIES),
        (_LONGEST, Role.LONGEST),
    ):
        if pattern.fullmatch(name):
            return role
    return None


def words_of(batch: Any, prefix: str = "") -> list[BatchWord]:
    """Return the values of a batch whose names are known, each with its path.

    Args:
        batch: a mapping, an object with attributes, or a tuple of inputs and labels; nested.
        prefix: read only names with this prefix, such as ``chosen_``; without it, only names
            without one.
    """
    words = []
    for path, value in leaves_of(batch):
        name, prefix_of_name = name_and_prefix_of(path)
        role = _ROLES_WITHOUT_NAME.get(path) or role_of(name)
        if role is not None and prefix_of_name == prefix:
            words.append(BatchWord(path, role, value, as_array(value)))
    return sorted(words, key=lambda word: word.rank)


def as_array(value: Any) -> AnyArray | None:
    """Return a tensor, an array, a number or a list of numbers in host memory; None for others.

    Nested tensors and lists of rows of several lengths become object arrays of rows.

    >>> as_array([[1, 2], [3, 4]]).shape, as_array([[1, 2], [3]]).shape, as_array("text")
    ((2, 2), (2,), None)
    """
    if hasattr(value, "detach"):
        if getattr(value, "is_nested", False):
            return _ragged([row.detach().cpu().numpy() for row in value.unbind()])
        tensor = value.detach()
        # NumPy has no bfloat16.
        if tensor.is_floating_point() and tensor.element_size() < 4:
            tensor = tensor.float()
        array: AnyArray = tensor.cpu().numpy()
        return array
    if isinstance(value, (list, tuple)):
        return _array_of_list(value)
    if isinstance(value, (str, bytes, Mapping)) or value is None:
        return None
    if isinstance(value, (bool, int, float, np.generic, np.ndarray)) or hasattr(value, "__array__"):
        array = np.asarray(value)
        return array if array.dtype.kind in "biuf" else None
    return None


def _array_of_list(values: list[Any] | tuple[Any, ...]) -> AnyArray | None:
    if not values:
        return None
    if all(isinstance(item, (bool, int, float, np.number)) for item in values):
        return np.asarray(values)
    rows = [row for item in values if (row := as_array(item)) is not None]
    if len(rows) < len(values):
        return None
    return np.stack(rows) if len({row.shape for row in rows}) == 1 else _ragged(rows)


def _ragged(rows: list[AnyArray]) -> AnyArray:
    """Return rows of any lengths as an array of objects."""
    table = np.empty(len(rows), dtype=object)
    for index, row in enumerate(rows):
        table[index] = row
    return table


def items_of(value: Any) -> Iterator[tuple[str | int, Any]]:
    """Yield the keys and values of a container; nothing for a value.

    A container is a mapping, an object with attributes, or a list or tuple that holds any of these.
    """
    if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
        # A list of numbers, or of rows of numbers, is a value.
        if any(is_container(item) for item in value):
            yield from enumerate(value)
    elif not is_container(value):
        return
    elif hasattr(value, "keys"):
        for key in value.keys():  # noqa: SIM118, a TensorDict iterates over its rows
            if isinstance(key, str):
                yield key, value[key]
    elif hasattr(value, "_fields"):
        yield from zip(value._fields, value, strict=True)
    else:
        names = [field.name for field in fields(value)] if is_dataclass(value) else vars(value)
        for name in names:
            if not name.startswith("_"):
                yield name, getattr(value, name)


def is_container(value: Any) -> bool:
    """Return whether a value holds others under names.

    >>> is_container({"input_ids": [1]}), is_container([1, 2]), is_container(np.ones(2))
    (True, False, False)
    """
    if isinstance(value, type) or callable(value) or hasattr(value, "__array__"):
        return False
    if hasattr(value, "mask_mod"):
        return False  # a block mask of FlexAttention is a value
    has_keys = hasattr(value, "keys") and hasattr(value, "__getitem__")
    return (
        has_keys or hasattr(value, "_fields") or hasattr(value, "__dict__") or is_dataclass(value)
    )


def leaves_of(value: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Yield the path and the value of everything in a batch but containers.

    >>> list(leaves_of({"inputs": {"tokens": [1, 2]}, "labels": [2, 3]}))
    [(('inputs', 'tokens'), [1, 2]), (('labels',), [2, 3])]
    """
    items = list(items_of(value)) if len(path) < _DEEPEST else []
    if not path and not items and isinstance(value, (list, tuple)) and not _is_table(value):
        items = list(enumerate(value))  # a pair without names
    if not items:
        if value is not None:
            yield path, value
    elif path and isinstance(value, list):
        # One mapping for each row of the batch: the values of all rows are one word.
        rows: dict[Path, list[Any]] = {}
        for _, item in items:
            for inner_path, leaf in leaves_of(item, path):
                rows.setdefault(inner_path, []).append(leaf)
        yield from rows.items()
    else:
        for key, item in items:
            yield from leaves_of(item, (*path, key))


def _is_table(value: list[Any] | tuple[Any, ...]) -> bool:
    """Return whether a list has one or two dimensions of numbers."""
    array = _array_of_list(value)
    is_of_tensors = any(hasattr(item, "__array__") for item in value)
    return array is not None and array.ndim < 3 and not is_of_tensors
