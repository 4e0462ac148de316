"""Dialects of a ``PackedBatch``: the trainers' batch formats, each loaded when it is used.

``docs/dialects.md`` lists all names, dtypes and shapes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from brimful.base.checks import check_type
from brimful.base.optional import optional
from brimful.errors import SettingsError

__all__ = ["DIALECTS", "Dialect", "dialect_of"]


@dataclass(frozen=True, slots=True)
class Dialect:
    """Properties of a dialect that decide how a batch is laid out for it.

    Attributes:
        name: its function is ``to_<name>``.
        module: file in this folder that has the function, or a module of another package.
        labels_shifted: labels are shifted left by one inside each segment, so the model must not
            shift them.
        row_per_pack: each pack is its own row, ``(B, S)``; otherwise all packs are in one row.
        row_per_sample: each sample is its own row. The function then takes one batch without
            padding, and ``length`` and ``pad_token_id`` of the rows.
        spare_tokens: padding tokens of each row beyond ``pad_to``.
        any_start: positions may begin at a number other than 0; trainers of the other dialects find
            boundaries by zeros.
        takes_sharing: it has words for rows whose samples share, which the wing of what they share
            converts (``wing_of``).
    """

    name: str
    module: str
    labels_shifted: bool = False
    row_per_pack: bool = False
    row_per_sample: bool = False
    spare_tokens: int = 0
    any_start: bool = False
    takes_sharing: bool = False

    def load(self, module: str = "") -> Callable[..., dict[str, Any]]:
        """Import the function ``to_<name>``, of another module if it is given; it takes a list of
        batches if each pack is a row, otherwise one batch.

        Raises:
            MissingExtraError: torch is not installed.
        """
        with optional("torch", "torch", f"the dialect {self.name}"):
            name = module or self.module
            functions = import_module(name if "." in name else f"{__name__}.{name}")
        function: Callable[..., dict[str, Any]] = getattr(functions, f"to_{self.name}")
        return function


_SHARED = "brimful.trees.dialects"
"""Module of the dialects that exist only for rows whose samples share."""

DIALECTS: dict[str, Dialect] = {
    entry.name: entry
    for entry in (
        Dialect("transformers", "one_row", any_start=True),
        Dialect("trl", "one_row"),
        Dialect("ms_swift", "one_row"),
        Dialect("unsloth", "one_row"),
        Dialect("megatron", "megatron", labels_shifted=True),
        Dialect("megatron_bridge", "megatron", labels_shifted=True),
        Dialect("megatron_bridge_legacy", "megatron", labels_shifted=True),
        Dialect("transformer_engine", "one_row", any_start=True),
        Dialect("nemo_automodel", "several_rows", labels_shifted=True, row_per_pack=True),
        Dialect("olmo_core", "several_rows", row_per_pack=True),
        Dialect("torchtitan", "one_row", labels_shifted=True),
        Dialect("veomni", "one_row"),
        Dialect("verl", "one_row"),
        Dialect("llama_factory", "several_rows", row_per_pack=True, spare_tokens=1),
        Dialect("axolotl", "several_rows", row_per_pack=True),
        Dialect("flex_attention", "flex_attention", any_start=True, takes_sharing=True),
        Dialect("dense_mask", "masks", any_start=True, takes_sharing=True),
        Dialect("dense_mask_additive", "masks", any_start=True, takes_sharing=True),
        Dialect("plain", "several_rows", row_per_sample=True, any_start=True),
        Dialect("transformers_tree", _SHARED, any_start=True, takes_sharing=True),
        Dialect("trl_tree", _SHARED, labels_shifted=True, any_start=True, takes_sharing=True),
        Dialect("art", _SHARED, row_per_pack=True, any_start=True, takes_sharing=True),
        Dialect(
            "nemo_automodel_tree",
            _SHARED,
            labels_shifted=True,
            any_start=True,
            takes_sharing=True,
        ),
        Dialect("magi_attention", _SHARED, any_start=True, takes_sharing=True),
    )
}
"""Dialects by name."""


def dialect_of(name: str) -> Dialect:
    """Return a dialect by name; hyphens and capitals are accepted.

    >>> dialect_of("ms-swift").name, dialect_of("megatron").labels_shifted
    ('ms_swift', True)

    Raises:
        SettingsError: no such dialect; lists all dialects.
    """
    check_type("dialect", name, str, "a name")
    entry = DIALECTS.get(name.lower().replace("-", "_"))
    if entry is None:
        raise SettingsError(f"no dialect {name!r}: dialect must be one of {', '.join(DIALECTS)}")
    return entry
