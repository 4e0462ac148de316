"""Packs for each trainer: attention that isolates samples, settings to refuse, loaders that the
trainer resumes.

Plain PyTorch, Transformers and VeOmni take ``PackedDataset`` and ``PackCollator`` unchanged;
everything else for a trainer is in the file named after it. Pages: ``docs/trainers``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from brimful.base.optional import at_first_use

__all__ = [
    "AttentionChoice",
    "SampleLosses",
    "check_arguments",
    "choose_attention",
    "collator_for",
    "evaluate_samples",
    "one_by_one",
    "packed_for_lightning",
    "packed_for_transformers",
    "packed_for_trl",
    "use_loss_weights",
    "use_tree_attention",
]

if TYPE_CHECKING:
    from brimful.integrations.trainers.attention import (
        AttentionChoice,
        choose_attention,
        collator_for,
    )
    from brimful.integrations.trainers.evaluation import SampleLosses, evaluate_samples, one_by_one
    from brimful.integrations.trainers.lightning import packed_for_lightning
    from brimful.integrations.trainers.loss_weights import use_loss_weights
    from brimful.integrations.trainers.refused_settings import check_arguments
    from brimful.integrations.trainers.transformers import packed_for_transformers
    from brimful.integrations.trainers.trl import packed_for_trl
    from brimful.trees.attention import use_tree_attention

__getattr__ = at_first_use(
    __name__,
    {
        "attention": ("AttentionChoice", "choose_attention", "collator_for"),
        "evaluation": ("SampleLosses", "evaluate_samples", "one_by_one"),
        "lightning": ("packed_for_lightning",),
        "loss_weights": ("use_loss_weights",),
        "refused_settings": ("check_arguments",),
        "transformers": ("packed_for_transformers",),
        "brimful.trees.attention": ("use_tree_attention",),
        "trl": ("packed_for_trl",),
    },
)
