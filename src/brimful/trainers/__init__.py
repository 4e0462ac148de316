"""Packs for each trainer: attention that isolates samples, settings to refuse, loaders that the trainer resumes.

Plain PyTorch, Transformers and VeOmni take ``PackedDataset`` and ``PackCollator`` as they are; anything more for a
trainer is in the file of its name. Pages: ``docs/trainers``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__all__ = [
    "AttentionChoice",
    "SampleLosses",
    "check_arguments",
    "choose_attention",
    "collator_for",
    "evaluate_samples",
    "one_by_one",
]

_HOMES = {
    "attention": ("AttentionChoice", "choose_attention", "collator_for"),
    "evaluation": ("SampleLosses", "evaluate_samples", "one_by_one"),
    "refusals": ("check_arguments",),
}
"""Names by the module that has them; it is imported when a name of it is used, as most need torch."""

if TYPE_CHECKING:
    from brimful.trainers.attention import AttentionChoice, choose_attention, collator_for
    from brimful.trainers.evaluation import SampleLosses, evaluate_samples, one_by_one
    from brimful.trainers.refusals import check_arguments


def __getattr__(name: str) -> Any:
    home = next((module for module, names in _HOMES.items() if name in names), None)
    if home is None:
        raise AttributeError(f"module 'brimful.trainers' has no attribute {name!r}")
    try:
        value = getattr(import_module(f"{__name__}.{home}"), name)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        from brimful.errors import missing_extra

        raise missing_extra("torch", "torch", name) from error
    globals()[name] = value
    return value
