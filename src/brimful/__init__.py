"""Pack training samples of any length into full sequences: plan once, prove it is right, use it in
any trainer.

::

    sources ─► encode ─► measure ─► plan ─► store ─► serve ─► collate ─► trainers
     Sample    Encoded   LengthTable  Plan    pack store    Pack     PackedBatch
               Sample

Public names, in the order of the flow. Importing this package loads nothing; each name loads what
it needs when it is first used.

>>> from brimful import plan_packs
>>> plan_packs([3, 3, 5, 6, 1, 1], capacity=7).num_packs
3
"""

from __future__ import annotations

TYPE_CHECKING = False
"""Constant that type checkers take for true. Importing ``typing`` for it takes milliseconds without
Ctrl-C.
"""

__version__ = "0.1.0"

_MODULE_OF = {
    "open_source": "brimful.sources",
    "ChatEncoder": "brimful.encode",
    "TextEncoder": "brimful.encode",
    "CompletionEncoder": "brimful.encode",
    "TokenEncoder": "brimful.encode",
    "encoder_for": "brimful.encode",
    "measure_lengths": "brimful.measure",
    "LengthTable": "brimful.measure",
    "plan_packs": "brimful.plan",
    "PlanSettings": "brimful.plan",
    "Plan": "brimful.plan",
    "CostModel": "brimful.plan",
    "write_packs": "brimful.store",
    "pack_dataset": "brimful.store",
    "open_packs": "brimful.serve",
    "PackedDataset": "brimful.serve",
    "PackLoader": "brimful.serve",
    "TokenBudgetBatches": "brimful.dynamic",
    "Padding": "brimful.collate",
    "PackCollator": "brimful.collate.torch",
    "collator_for": "brimful.integrations.trainers",
    "export_packs": "brimful.integrations.export",
    "verify_packing": "brimful.verify",
    "BrimfulError": "brimful.errors",
}
"""Module of each public name, in the order of the flow."""

if TYPE_CHECKING:
    from typing import Any

    from brimful.collate import Padding as Padding
    from brimful.collate.torch import PackCollator as PackCollator
    from brimful.dynamic import TokenBudgetBatches as TokenBudgetBatches
    from brimful.encode import ChatEncoder as ChatEncoder
    from brimful.encode import CompletionEncoder as CompletionEncoder
    from brimful.encode import TextEncoder as TextEncoder
    from brimful.encode import TokenEncoder as TokenEncoder
    from brimful.encode import encoder_for as encoder_for
    from brimful.errors import BrimfulError as BrimfulError
    from brimful.integrations.export import export_packs as export_packs
    from brimful.integrations.trainers import collator_for as collator_for
    from brimful.measure import LengthTable as LengthTable
    from brimful.measure import measure_lengths as measure_lengths
    from brimful.plan import CostModel as CostModel
    from brimful.plan import Plan as Plan
    from brimful.plan import PlanSettings as PlanSettings
    from brimful.plan import plan_packs as plan_packs
    from brimful.serve import PackedDataset as PackedDataset
    from brimful.serve import PackLoader as PackLoader
    from brimful.serve import open_packs as open_packs
    from brimful.sources import open_source as open_source
    from brimful.store import pack_dataset as pack_dataset
    from brimful.store import write_packs as write_packs
    from brimful.verify import verify_packing as verify_packing
else:
    # Type checkers read only literal lists; to them the aliases above say what is public.
    __all__ = [*_MODULE_OF, "__version__"]


def __getattr__(name: str) -> Any:
    from brimful.base.optional import public_name

    return public_name(__name__, _MODULE_OF.get(name), name)


def __dir__() -> list[str]:
    return sorted([*_MODULE_OF, "__version__"])
