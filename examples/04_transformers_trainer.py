"""Packs in ``transformers.Trainer``: a PackedDataset, a PackCollator, and no other setting.

    python examples/04_transformers_trainer.py

``per_device_train_batch_size`` counts packs. The batches have no ``attention_mask``: boundaries travel as
``position_ids`` and ``cu_seq_lens_*``. With gradient accumulation, Trainer averages the loss over all targets of a
step, so a pack with few targets does not weigh more than one with many.
"""

from __future__ import annotations

import tempfile

from transformers import (
    AutoTokenizer,
    Qwen2Config,
    Qwen2ForCausalLM,
    Trainer,
    TrainingArguments,
    set_seed,
)

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

        set_seed(0)
        arguments = TrainingArguments(
            output_dir=folder, max_steps=6, per_device_train_batch_size=1, gradient_accumulation_steps=4,
            learning_rate=1e-2, logging_steps=1, save_strategy="no", report_to="none", use_cpu=True, disable_tqdm=True,
        )  # fmt: skip
        trainer = Trainer(
            model=Qwen2ForCausalLM(tiny_config(len(tokenizer))),
            args=arguments,
            train_dataset=PackedDataset.from_plan(
                source, encoder, plan
            ),  # or PackedDataset("packs")
            data_collator=PackCollator(),
        )
        trainer.train()
        losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
        print("loss", " ".join(f"{float(loss):.3f}" for loss in losses))


def tiny_config(vocab_size: int) -> Qwen2Config:
    return Qwen2Config(
        vocab_size=vocab_size, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, tie_word_embeddings=True, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip


if __name__ == "__main__":
    main()
