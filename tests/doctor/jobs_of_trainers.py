"""Three steps of real trainers on real chats, packed as their users pack, right and each with a fault that a user can have.

A job is a function of the folder of a model and its tokenizer, of chats, and of the name of its fault, or None for the job
as it should be. It returns the trainer that has everything and has not begun.
"""

from __future__ import annotations

import gzip
import itertools
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

CAPACITY = 512
STEPS = 3

SETTINGS: dict[str, Any] = {
    "max_steps": STEPS,
    "learning_rate": 1e-3,
    "logging_steps": 1,
    "save_strategy": "no",
    "report_to": "none",
    "use_cpu": True,
    "bf16": False,
    "disable_tqdm": True,
    "seed": 0,
}
"""Arguments of every job on ``Trainer`` of Transformers."""


def write_model(folder: Path, tokenizer: Path) -> None:
    """Write a tiny Qwen2 of three layers, and a real tokenizer, into a folder as ``from_pretrained`` reads it."""
    import torch
    from transformers import AutoTokenizer, Qwen2Config, Qwen2ForCausalLM

    words = AutoTokenizer.from_pretrained(tokenizer)
    words.save_pretrained(folder)
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=len(words),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        bos_token_id=None,
        eos_token_id=words.eos_token_id,
        pad_token_id=words.pad_token_id,
    )
    Qwen2ForCausalLM(config).save_pretrained(folder)


def real_chats(data_dir: Path, count: int) -> list[dict[str, Any]]:
    """Return dialogues of two speakers that take turns, each of at most twelve messages."""
    path = data_dir / "text" / "sgd_train_dialogues.jsonl.gz"
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        return list(itertools.islice(_chats(lines), count))


def _chats(lines: Iterator[str]) -> Iterator[dict[str, Any]]:
    for line in lines:
        turns = [
            {"role": turn["role"], "content": turn["content"]}
            for turn in json.loads(line)["messages"]
            if turn["role"] in ("user", "assistant") and turn["content"]
        ]
        roles = [turn["role"] for turn in turns]
        if len(turns) <= 12 and roles == ["user", "assistant"] * (len(turns) // 2):
            yield {"messages": turns}


def trl_job(model: Path, chats: list[dict[str, Any]], folder: Path, fault: str | None = None) -> Any:
    """Return TRL's ``SFTTrainer`` with ``packing=True``.

    Faults:
        attention: a kernel of one's own, for which Transformers makes no mask, and which reads no boundaries either.
        wrapped: ``packing_strategy="wrapped"``, which cuts the stream of tokens and keeps nothing apart.
        seq_lengths: rows packed before, by a script that did not keep the lengths of the samples.
    """
    import datasets
    import trl
    from transformers import AutoModelForCausalLM, AutoTokenizer

    attention = "sdpa"
    if fault == "attention":
        attention = attention_without_boundaries()
    arguments = trl.SFTConfig(
        str(folder),
        packing=True,
        packing_strategy="wrapped" if fault == "wrapped" else "bfd",
        max_length=CAPACITY,
        per_device_train_batch_size=1,
        gradient_accumulation_steps=2,
        gradient_checkpointing=False,
        **SETTINGS,
    )
    tokenizer = AutoTokenizer.from_pretrained(model)
    data = datasets.Dataset.from_list(chats)
    trainer = trl.SFTTrainer(
        AutoModelForCausalLM.from_pretrained(model, attn_implementation=attention, dtype="float32"),
        arguments,
        train_dataset=data,
        processing_class=tokenizer,
    )
    if fault == "seq_lengths":
        trainer.train_dataset = trainer.train_dataset.remove_columns("seq_lengths")
    return trainer


def transformers_job(model: Path, chats: list[dict[str, Any]], folder: Path, fault: str | None = None) -> Any:
    """Return ``Trainer`` with ``DataCollatorWithFlattening``.

    Faults:
        mask: a collator of one's own removes positions and adds a mask of ones, as tokenizers do.
        divisor: ``compute_loss`` divides the mean of the tokens by their number once more.
    """
    from transformers import (
        AutoModelForCausalLM,
        AutoTokenizer,
        DataCollatorWithFlattening,
        Trainer,
        TrainingArguments,
    )

    class DividesTwice(Trainer):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            loss = super().compute_loss(model, inputs, False, num_items_in_batch)
            return loss / self.args.gradient_accumulation_steps

    flatten = DataCollatorWithFlattening()
    kind = DividesTwice if fault == "divisor" else Trainer
    return kind(
        AutoModelForCausalLM.from_pretrained(model, attn_implementation="sdpa", dtype="float32"),
        TrainingArguments(str(folder), per_device_train_batch_size=4, gradient_accumulation_steps=2, **SETTINGS),
        train_dataset=encoded(AutoTokenizer.from_pretrained(model), chats),
        data_collator=(lambda rows: with_mask_of_ones(flatten(rows))) if fault == "mask" else flatten,
    )


def encoded(tokenizer: Any, chats: list[dict[str, Any]]) -> list[dict[str, list[int]]]:
    """Return the tokens of each chat; every token is a target."""
    rows = [tokenizer.apply_chat_template(chat["messages"], return_dict=True)["input_ids"] for chat in chats]
    return [{"input_ids": row, "labels": row} for row in rows]


def with_mask_of_ones(batch: dict[str, Any]) -> dict[str, Any]:
    """Return a flattened batch as a tokenizer would have made it."""
    ones = batch["input_ids"].new_ones(batch["input_ids"].shape)
    return {"input_ids": batch["input_ids"], "labels": batch["labels"], "attention_mask": ones}


def attention_without_boundaries() -> str:
    """Register an attention that is causal alone, and return its name: without a function for its mask it gets none."""
    import torch
    from transformers import AttentionInterface

    def forward(module, query, key, value, attention_mask, scaling=None, dropout=0.0, **kwargs):
        output = torch.nn.functional.scaled_dot_product_attention(
            query, key, value, is_causal=True, scale=scaling, enable_gqa=True
        )
        return output.transpose(1, 2), None

    AttentionInterface.register("team_attention", forward)
    return "team_attention"


def lightning_job(
    model: Path, chats: list[dict[str, Any]], folder: Path, fault: str | None = None
) -> tuple[Any, Any, Any]:
    """Return a ``LightningModule``, its loader and the arguments of ``Trainer``.

    Faults:
        cache: the model is called without ``use_cache=False``, and a model with a cache looks for no packs.
        ramp: the collator of the loop writes positions of the row.
    """
    import lightning.pytorch as pl
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = AutoModelForCausalLM.from_pretrained(model, attn_implementation="sdpa", dtype="float32")
            self.options = {} if fault == "cache" else {"use_cache": False}

        def training_step(self, batch, index):
            return self.model(**batch, **self.options).loss

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=1e-3)

    rows = encoded(AutoTokenizer.from_pretrained(model), chats)
    loader = torch.utils.data.DataLoader(
        rows,  # type: ignore[arg-type]
        batch_size=4,
        collate_fn=one_ramp if fault == "ramp" else flattened,
    )
    return Module(), loader, {"max_steps": STEPS, "accelerator": "cpu", "default_root_dir": folder}


def flattened(rows: list[dict[str, list[int]]]) -> dict[str, Any]:
    """Return samples in one row, the first token of each without a loss."""
    import torch

    labels = [[-100, *row["labels"][1:]] for row in rows]
    return {
        "input_ids": torch.tensor([sum((row["input_ids"] for row in rows), [])]),
        "labels": torch.tensor([sum(labels, [])]),
        "position_ids": torch.cat([torch.arange(len(row["input_ids"])) for row in rows])[None],
    }


def one_ramp(rows: list[dict[str, list[int]]]) -> dict[str, Any]:
    """Return the same with positions that run on."""
    import torch

    batch = flattened(rows)
    return batch | {"position_ids": torch.arange(batch["input_ids"].shape[1])[None]}


class Recorded:
    """Losses of the training steps of a ``Trainer``, bit by bit, and their seconds."""

    def __init__(self, trainer: Any) -> None:
        self.losses: list[float] = []
        self.seconds: list[float] = []
        step: Callable[..., Any] = trainer.training_step

        def training_step(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            loss = step(*args, **kwargs)
            self.seconds.append(time.perf_counter() - start)
            self.losses.append(loss.item())
            return loss

        trainer.training_step = training_step
