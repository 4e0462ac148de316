"""Pack training samples of any length into full sequences: plan once, prove it is right, use it in any trainer.

::

    sources ─► encode ─► measure ─► plan ─► store ─► serve ─► collate ─► trainers
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
"""Constant that type checkers take for true. Importing ``typing`` for it takes milliseconds without Ctrl-C."""

__version__ = "0.1.0"

_MODULE_OF = {
    "open_source": "brimful.sources",
    "Source": "brimful.sources",
    "Sample": "brimful.sources",
    "ChatEncoder": "brimful.encode",
    "TextEncoder": "brimful.encode",
    "CompletionEncoder": "brimful.encode",
    "TokenEncoder": "brimful.encode",
    "encoder_for": "brimful.encode",
    "EncodedSample": "brimful.encode",
    "EncodedSamples": "brimful.encode",
    "Encoder": "brimful.encode",
    "TrainOn": "brimful.encode",
    "measure_lengths": "brimful.measure",
    "LengthTable": "brimful.measure",
    "LengthCache": "brimful.measure",
    "plan_packs": "brimful.plan",
    "plan_with": "brimful.plan",
    "PlanSettings": "brimful.plan",
    "Plan": "brimful.plan",
    "Overflow": "brimful.plan",
    "CostModel": "brimful.plan",
    "schedule_packs": "brimful.plan",
    "plan_step": "brimful.rl",
    "StepPlan": "brimful.rl",
    "plan_context_parallel": "brimful.rl",
    "ContextParallelPlan": "brimful.rl",
    "warm_up": "brimful.rl",
    "Lookahead": "brimful.plan",
    "write_packs": "brimful.store",
    "pack_dataset": "brimful.store",
    "PackSummary": "brimful.store",
    "check_store": "brimful.store",
    "PackingProducer": "brimful.stream.producer",
    "open_packs": "brimful.serve",
    "Pack": "brimful.serve",
    "PackStore": "brimful.serve",
    "PackedDataset": "brimful.serve",
    "PackLoader": "brimful.serve",
    "StreamLoader": "brimful.stream",
    "LazyShardedDataset": "brimful.stream",
    "StreamDataset": "brimful.stream.stream_dataset",
    "TokenBudgetBatches": "brimful.serve",
    "TokenBudget": "brimful.serve",
    "SampleCount": "brimful.serve",
    "Warmup": "brimful.serve",
    "shared_plan": "brimful.shared",
    "SharedPlan": "brimful.shared",
    "SharedPackedDataset": "brimful.shared",
    "broadcast_plan": "brimful.shared",
    "PackedBatch": "brimful.collate",
    "Padding": "brimful.collate",
    "PackCollator": "brimful.collate.torch",
    "SampleColumn": "brimful.rl",
    "pack_step": "brimful.rl",
    "restore_tokens": "brimful.rl",
    "split_for_context_parallel": "brimful.rl",
    "Normaliser": "brimful.collate",
    "per_sample_loss": "brimful.collate.loss_torch",
    "collator_for": "brimful.integrations.trainers",
    "choose_attention": "brimful.integrations.trainers",
    "evaluate_samples": "brimful.integrations.trainers",
    "one_by_one": "brimful.integrations.trainers",
    "export_packs": "brimful.integrations.export",
    "check_export": "brimful.integrations.export",
    "verify_packing": "brimful.verify",
    "verify_context_parallel": "brimful.verify",
    "VerifyReport": "brimful.verify",
    "BrimfulError": "brimful.errors",
}
"""Module of each public name, in the order of the flow."""

if TYPE_CHECKING:
    from typing import Any

    from brimful.collate import Normaliser as Normaliser
    from brimful.collate import PackedBatch as PackedBatch
    from brimful.collate import Padding as Padding
    from brimful.collate.loss_torch import per_sample_loss as per_sample_loss
    from brimful.collate.torch import PackCollator as PackCollator
    from brimful.encode import ChatEncoder as ChatEncoder
    from brimful.encode import CompletionEncoder as CompletionEncoder
    from brimful.encode import EncodedSample as EncodedSample
    from brimful.encode import EncodedSamples as EncodedSamples
    from brimful.encode import Encoder as Encoder
    from brimful.encode import TextEncoder as TextEncoder
    from brimful.encode import TokenEncoder as TokenEncoder
    from brimful.encode import TrainOn as TrainOn
    from brimful.encode import encoder_for as encoder_for
    from brimful.errors import BrimfulError as BrimfulError
    from brimful.integrations.export import check_export as check_export
    from brimful.integrations.export import export_packs as export_packs
    from brimful.integrations.trainers import choose_attention as choose_attention
    from brimful.integrations.trainers import collator_for as collator_for
    from brimful.integrations.trainers import evaluate_samples as evaluate_samples
    from brimful.integrations.trainers import one_by_one as one_by_one
    from brimful.measure import LengthCache as LengthCache
    from brimful.measure import LengthTable as LengthTable
    from brimful.measure import measure_lengths as measure_lengths
    from brimful.plan import CostModel as CostModel
    from brimful.plan import Lookahead as Lookahead
    from brimful.plan import Overflow as Overflow
    from brimful.plan import Plan as Plan
    from brimful.plan import PlanSettings as PlanSettings
    from brimful.plan import plan_packs as plan_packs
    from brimful.plan import plan_with as plan_with
    from brimful.plan import schedule_packs as schedule_packs
    from brimful.rl import ContextParallelPlan as ContextParallelPlan
    from brimful.rl import SampleColumn as SampleColumn
    from brimful.rl import StepPlan as StepPlan
    from brimful.rl import pack_step as pack_step
    from brimful.rl import plan_context_parallel as plan_context_parallel
    from brimful.rl import plan_step as plan_step
    from brimful.rl import restore_tokens as restore_tokens
    from brimful.rl import split_for_context_parallel as split_for_context_parallel
    from brimful.rl import warm_up as warm_up
    from brimful.serve import Pack as Pack
    from brimful.serve import PackedDataset as PackedDataset
    from brimful.serve import PackLoader as PackLoader
    from brimful.serve import PackStore as PackStore
    from brimful.serve import SampleCount as SampleCount
    from brimful.serve import TokenBudget as TokenBudget
    from brimful.serve import TokenBudgetBatches as TokenBudgetBatches
    from brimful.serve import Warmup as Warmup
    from brimful.serve import open_packs as open_packs
    from brimful.shared import SharedPackedDataset as SharedPackedDataset
    from brimful.shared import SharedPlan as SharedPlan
    from brimful.shared import broadcast_plan as broadcast_plan
    from brimful.shared import shared_plan as shared_plan
    from brimful.sources import Sample as Sample
    from brimful.sources import Source as Source
    from brimful.sources import open_source as open_source
    from brimful.store import PackSummary as PackSummary
    from brimful.store import check_store as check_store
    from brimful.store import pack_dataset as pack_dataset
    from brimful.store import write_packs as write_packs
    from brimful.stream import LazyShardedDataset as LazyShardedDataset
    from brimful.stream import StreamLoader as StreamLoader
    from brimful.stream.producer import PackingProducer as PackingProducer
    from brimful.stream.stream_dataset import StreamDataset as StreamDataset
    from brimful.verify import VerifyReport as VerifyReport
    from brimful.verify import verify_context_parallel as verify_context_parallel
    from brimful.verify import verify_packing as verify_packing
else:
    # Type checkers read only literal lists; to them the aliases above say what is public.
    __all__ = [*_MODULE_OF, "__version__"]


def __getattr__(name: str) -> Any:
    from brimful.base.optional import public_name

    return public_name(__name__, _MODULE_OF.get(name), name)


def __dir__() -> list[str]:
    return sorted([*_MODULE_OF, "__version__"])
