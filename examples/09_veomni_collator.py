"""VeOmni: packs in the place of its collator, cut into the micro-batches of a step as its data loader does.

    python examples/09_veomni_collator.py

Needs no VeOmni: ``micro_batches`` below does what its ``MakeMicroBatchCollator`` does. With VeOmni, the data set and the
collator go into ``build_dataloader`` as ``docs/trainers/veomni.md`` shows.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import DataLoader
from transformers import AutoTokenizer, Qwen2Config, Qwen2ForCausalLM

from brimful import (
    ChatEncoder,
    PackCollator,
    PackedDataset,
    measure_lengths,
    open_source,
    plan_packs,
)
from brimful.cli.demo.docstring_chats import make_chats
from brimful.cli.demo.toy_model import train_tokenizer
from brimful.integrations.trainers import evaluate_samples, one_by_one
from brimful.integrations.trainers.veomni import VeomniPacks
from brimful.serve import Pack

PACKS_A_STEP, MICRO_BATCHES = 4, 2


def micro_batches(collate: Callable[[list[Pack]], Any]) -> Callable[[list[list[Pack]]], list[Any]]:
    """As VeOmni: the first of each item, then equal parts."""

    def cut(items: list[list[Pack]]) -> list[Any]:
        packs = [item[0] for item in items]
        each = len(packs) // MICRO_BATCHES
        return [collate(packs[begin : begin + each]) for begin in range(0, len(packs), each)]

    return cut


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        chats = make_chats(limit=400)
        train_tokenizer(
            (turn["content"] for chat in chats for turn in chat["messages"]),
            folder,
            vocab_size=2000,
        )
        source, encoder = open_source(chats), ChatEncoder(AutoTokenizer.from_pretrained(folder))
        plan = plan_packs(
            measure_lengths(source, encoder, cache_dir=folder), capacity=512, overflow="drop"
        )
        packs = PackedDataset.from_plan(source, encoder, plan)

        torch.manual_seed(0)
        config = Qwen2Config(
            vocab_size=2048,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
        )
        model = Qwen2ForCausalLM(config)

        collator = PackCollator(dialect="veomni")
        loader = DataLoader(
            VeomniPacks(packs), batch_size=PACKS_A_STEP, collate_fn=micro_batches(collator)
        )
        step = next(iter(loader))
        for number, batch in enumerate(step):
            segments = len(batch["cu_seq_lens_q"]) - 1
            print(
                f"micro-batch {number}: {tuple(batch['input_ids'].shape)} tokens, {segments} samples"
            )

        # VeOmni divides the sum of a step by its targets on all ranks. Its models take no heed of the mask of ones, which
        # a model of Transformers would.
        targets = sum(int((batch["labels"] != -100).sum()) for batch in step)
        total = 0.0
        for batch in step:
            batch.pop("attention_mask")
            with torch.no_grad():
                total += float(model(**batch, use_cache=False, num_items_in_batch=targets).loss)
        first = [packs[number] for number in range(PACKS_A_STEP)]
        alone = evaluate_samples(model, one_by_one(first), PackCollator()).loss
        print(f"loss of the step {total:.4f}, of its samples one by one {alone:.4f}")


if __name__ == "__main__":
    main()
