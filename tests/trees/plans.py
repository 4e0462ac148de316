"""Plans of trees for tests, without a planner: packs that say which samples share."""

import numpy as np

from brimful import LengthTable, open_source, write_packs
from brimful.base.ragged import offsets_of
from brimful.plan import Plan, PlanSettings
from brimful.plan.ledger import Ledger
from brimful.plan.packing import PlanOutcome
from brimful.plan.policies.overflow import Truncated
from brimful.testing.toys import toy_chat_encoder, toy_tree
from brimful.trees.pack_tree import tree_of
from brimful.trees.plan.plan_trees import PlanTrees
from brimful.trees.prefixes import find_prefixes


def plan_of_trees(samples, packs, *, capacity=64):
    """The plan whose packs hold the samples with these numbers, as ``toy_tree`` lays them out."""
    trees = [toy_tree([samples[sample] for sample in pack]) for pack in packs]
    owners = [np.array(pack)[tree.sample_ids] for pack, tree in zip(packs, trees, strict=True)]
    lengths = np.concatenate([np.diff(tree.cu_seqlens) for tree in trees])
    num_tokens = int(lengths.sum())
    num_shared = sum(len(samples[sample]) for pack in packs for sample in pack) - num_tokens
    return Plan(
        capacity=capacity,
        offsets=offsets_of([tree.num_segments for tree in trees]),
        sample_ids=np.concatenate(owners).astype(np.int32),
        starts=np.concatenate([tree.starts for tree in trees]),
        sharing=PlanTrees(np.concatenate([tree_of(tree).parents for tree in trees])),
        find_lengths=lambda: lengths,
        dropped_ids=np.setdiff1d(np.arange(len(samples)), np.concatenate(packs)),
        truncated=Truncated.none(),
        ledger=Ledger(
            samples_in=len(samples),
            samples_packed=sum(map(len, packs)),
            samples_dropped=len(samples) - sum(map(len, packs)),
            tokens_in=num_tokens + num_shared,
            tokens_packed=num_tokens,
            tokens_shared=num_shared,
            segments=len(lengths),
        ),
        settings=PlanSettings(capacity=capacity, share="prefixes"),
        outcome=PlanOutcome(),
        bound=len(packs),
        find_length_fingerprint=lambda: "",
    )


def table_with_prefixes(samples, least=1):
    """The lengths of samples, and the prefixes that they share."""
    keys, offsets = np.concatenate(samples), offsets_of(list(map(len, samples)))
    table = LengthTable.from_lengths(list(map(len, samples)))
    return LengthTable(table.budgets, sharing=find_prefixes(keys, offsets, least=least))


def written_trees(directory, texts, packs, *, capacity=64, packs_per_shard=2):
    """Texts written as the packs of a plan of trees, which is returned."""
    source, encoder = open_source([{"text": text} for text in texts]), toy_chat_encoder()
    plan = plan_of_trees([list(map(ord, text)) for text in texts], packs, capacity=capacity)
    write_packs(plan, source, encoder, directory, shard_bytes=4 * capacity * packs_per_shard, num_proc=1)
    return plan
