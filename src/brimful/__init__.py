"""Pack training samples of any length into full sequences: plan once, prove it is right, use it in any trainer.

::

    sources ─► encode ─► measure ─► plan ─► materialize ─► serve ─► collate ─► trainers
     Sample    Encoded   LengthTable  Plan    pack store    Pack     PackedBatch
               Sample

Public names, in the order of the flow. Importing this package loads nothing; each name loads what it needs when it
is first used.

>>> from brimful import plan_packs
>>> plan_packs([3, 3, 5, 6, 1, 1], capacity=7).num_packs
3
"""

from __future__ import annotations

TYPE_CHECKING = False
"""Type checkers take it for true. That of ``typing`` would cost the program milliseconds in which it cannot be stopped."""

__version__ = "0.1.0"

_HOMES = {
    "open_source": "brimful.sources",
    "Source": "brimful.sources",
    "Sample": "brimful.sources",
    "ChatEncoder": "brimful.encode",
    "TextEncoder": "brimful.encode",
    "CompletionEncoder": "brimful.encode",
    "TokenEncoder": "brimful.encode",
    "encoder_for": "brimful.encode",
    "EncodedSample": "brimful.encode",
    "Encoder": "brimful.encode",
    "TrainOn": "brimful.encode",
    "measure_lengths": "brimful.measure",
    "LengthTable": "brimful.measure",
    "plan_packs": "brimful.plan",
    "Plan": "brimful.plan",
    "Overflow": "brimful.plan",
    "CostModel": "brimful.plan",
    "schedule_packs": "brimful.plan",
    "Lookahead": "brimful.plan",
    "write_packs": "brimful.materialize",
    "pack_dataset": "brimful.materialize",
    "PackSummary": "brimful.materialize",
    "check_store": "brimful.materialize",
    "open_packs": "brimful.serve",
    "Pack": "brimful.serve",
    "PackStore": "brimful.serve",
    "PackedDataset": "brimful.serve",
    "PackLoader": "brimful.serve",
    "TokenBudgetBatches": "brimful.serve",
    "TokenBudget": "brimful.serve",
    "SampleCount": "brimful.serve",
    "Warmup": "brimful.serve",
    "PackedBatch": "brimful.collate",
    "Padding": "brimful.collate",
    "PackCollator": "brimful.collate.torch",
    "Normaliser": "brimful.collate",
    "per_sample_loss": "brimful.collate.loss_torch",
    "collator_for": "brimful.trainers",
    "choose_attention": "brimful.trainers",
    "evaluate_samples": "brimful.trainers",
    "one_by_one": "brimful.trainers",
    "verify_packing": "brimful.verify",
    "VerifyReport": "brimful.verify",
    "BrimfulError": "brimful.errors",
}

__all__ = [
    "open_source",
    "Source",
    "Sample",
    "ChatEncoder",
    "TextEncoder",
    "CompletionEncoder",
    "TokenEncoder",
    "encoder_for",
    "EncodedSample",
    "Encoder",
    "TrainOn",
    "measure_lengths",
    "LengthTable",
    "plan_packs",
    "Plan",
    "Overflow",
    "CostModel",
    "schedule_packs",
    "Lookahead",
    "write_packs",
    "pack_dataset",
    "PackSummary",
    "check_store",
    "open_packs",
    "Pack",
    "PackStore",
    "PackedDataset",
    "PackLoader",
    "TokenBudgetBatches",
    "TokenBudget",
    "SampleCount",
    "Warmup",
    "PackedBatch",
    "Padding",
    "PackCollator",
    "Normaliser",
    "per_sample_loss",
    "collator_for",
    "choose_attention",
    "evaluate_samples",
    "one_by_one",
    "verify_packing",
    "VerifyReport",
    "BrimfulError",
    "__version__",
]

if TYPE_CHECKING:
    from typing import Any

    from brimful.collate import Normaliser, PackedBatch, Padding
    from brimful.collate.loss_torch import per_sample_loss
    from brimful.collate.torch import PackCollator
    from brimful.encode import (
        ChatEncoder,
        CompletionEncoder,
        EncodedSample,
        Encoder,
        TextEncoder,
        TokenEncoder,
        TrainOn,
        encoder_for,
    )
    from brimful.errors import BrimfulError
    from brimful.materialize import PackSummary, check_store, pack_dataset, write_packs
    from brimful.measure import LengthTable, measure_lengths
    from brimful.plan import CostModel, Lookahead, Overflow, Plan, plan_packs, schedule_packs
    from brimful.serve import (
        Pack,
        PackedDataset,
        PackLoader,
        PackStore,
        SampleCount,
        TokenBudget,
        TokenBudgetBatches,
        Warmup,
        open_packs,
    )
    from brimful.sources import Sample, Source, open_source
    from brimful.trainers import choose_attention, collator_for, evaluate_samples, one_by_one
    from brimful.verify import VerifyReport, verify_packing


def __getattr__(name: str) -> Any:
    from importlib import import_module

    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'brimful' has no attribute {name!r}")
    try:
        value = getattr(import_module(home), name)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        from brimful.errors import missing_extra

        raise missing_extra("torch", "torch", name) from error
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
