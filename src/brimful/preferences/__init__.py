"""Preference training on packs: DPO and related losses on pairs, and KTO on single answers.

A row is two samples that stay in one pack: chosen and rejected, or an answer and a KL completion.
``formats`` reads such rows as views of the line's ``Rows``; ``dpo`` and ``kto`` make batches and
steps of their packs, with log probabilities of a reference model from ``references``. The line
imports nothing from this room (``brimful.base.wings``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import brimful.sources  # noqa: F401  (first: it loads the formats of this room, which import the others)
from brimful.base.optional import at_first_use

__all__ = [
    "KtoCollator",
    "KtoLosses",
    "PAIR_LOSSES",
    "PreferenceCollator",
    "PreferenceLosses",
    "ReferenceLogps",
    "UNPAIRED_LOSSES",
    "compute_references",
    "kl_sums",
    "kto_loss",
    "model_fingerprint",
    "packed_kto_loss",
    "packed_preference_loss",
    "pair_segments",
    "preference_loss",
    "train_on_kto",
    "train_on_preferences",
    "with_mismatch_targets",
]

if TYPE_CHECKING:
    from brimful.preferences.dpo import (
        PreferenceCollator,
        packed_preference_loss,
        pair_segments,
        train_on_preferences,
    )
    from brimful.preferences.kto import (
        KtoCollator,
        kl_sums,
        packed_kto_loss,
        train_on_kto,
        with_mismatch_targets,
    )
    from brimful.preferences.losses import (
        PAIR_LOSSES,
        UNPAIRED_LOSSES,
        KtoLosses,
        PreferenceLosses,
        kto_loss,
        preference_loss,
    )
    from brimful.preferences.references import ReferenceLogps, compute_references, model_fingerprint

__getattr__ = at_first_use(
    __name__,
    {
        "dpo": (
            "pair_segments",
            "PreferenceCollator",
            "packed_preference_loss",
            "train_on_preferences",
        ),
        "kto": (
            "KtoCollator",
            "kl_sums",
            "packed_kto_loss",
            "train_on_kto",
            "with_mismatch_targets",
        ),
        "losses": (
            "PAIR_LOSSES",
            "UNPAIRED_LOSSES",
            "KtoLosses",
            "PreferenceLosses",
            "kto_loss",
            "preference_loss",
        ),
        "references": ("ReferenceLogps", "compute_references", "model_fingerprint"),
    },
)
