"""Packs in a plain PyTorch loop: a map-style data set, a collator, and a Transformers model.

    python examples/03_plain_pytorch.py

The batch size counts packs; one pack is one full sequence. Here packs are made on the fly from source, encoder and
plan, so nothing is written; ``PackedDataset("packs")`` takes them from a pack store instead. All else is the same.
"""

from __future__ import annotations

import tempfile

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


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        chats = make_chats(limit=400)
        train_tokenizer(
            (turn["content"] for chat in chats for turn in chat["messages"]),
            folder,
            vocab_size=2000,
        )
        tokenizer = AutoTokenizer.from_pretrained(folder)

        source, encoder = open_source(chats), ChatEncoder(tokenizer)
        plan = plan_packs(
            measure_lengths(source, encoder, cache_dir=folder), capacity=512, overflow="drop"
        )
        dataset = PackedDataset.from_plan(source, encoder, plan)
        print(
            dataset,
            f"fill {100 * plan.fill_ratio:.1f} %, {plan.ledger.samples_dropped} samples dropped",
        )

        torch.manual_seed(0)
        loader = DataLoader(dataset, batch_size=1, shuffle=True, collate_fn=PackCollator())
        model = Qwen2ForCausalLM(tiny_config(len(tokenizer))).train()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        for step, batch in zip(range(12), loader, strict=False):
            loss = model(**batch).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            tokens, samples = batch["input_ids"].numel(), len(batch["cu_seq_lens_q"]) - 1
            print(f"step {step:>2}: {tokens} tokens of {samples} samples, loss {loss.item():.3f}")


def tiny_config(vocab_size: int) -> Qwen2Config:
    return Qwen2Config(
        vocab_size=vocab_size, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, tie_word_embeddings=True, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip


if __name__ == "__main__":
    main()
