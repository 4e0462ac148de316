"""Packs in Lightning: a data module, stopped in the middle of an epoch and continued with the batch that comes next.

python examples/06_lightning.py
"""

from __future__ import annotations

import logging
import sys
import tempfile
import warnings

import torch
from transformers import AutoTokenizer, Qwen2Config, Qwen2ForCausalLM

from brimful import ChatEncoder, PackedDataset, measure_lengths, open_source, plan_packs
from brimful.cli.demo.docstring_chats import make_chats
from brimful.cli.demo.toy_model import train_tokenizer
from brimful.errors import MissingExtraError
from brimful.integrations.trainers import collator_for

try:
    from brimful.integrations.trainers.lightning import PackDataModule, pl
except MissingExtraError as error:
    sys.exit(str(error))


class Chat(pl.LightningModule):
    def __init__(self, vocab_size: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.model = Qwen2ForCausalLM(tiny_config(vocab_size))
        self.losses: list[float] = []

    def training_step(self, batch: dict[str, torch.Tensor], index: int) -> torch.Tensor:
        loss = self.model(**batch).loss
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


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
        packs = PackedDataset.from_plan(source, encoder, plan)

        whole, first, second = (Chat(len(tokenizer)) for _ in range(3))
        trainer(folder, steps=8).fit(whole, data(packs, whole))
        stopped = trainer(folder, steps=3)
        stopped.fit(first, data(packs, first))
        stopped.save_checkpoint(f"{folder}/middle.ckpt")
        trainer(folder, steps=8).fit(second, data(packs, second), ckpt_path=f"{folder}/middle.ckpt")

        print("loss", " ".join(f"{loss:.3f}" for loss in whole.losses))
        print(
            "stopped after 3 and continued: the same losses"
            if first.losses + second.losses == whole.losses
            else "differs"
        )


def data(packs: PackedDataset, module: Chat) -> PackDataModule:
    return PackDataModule(packs, collator_for(module.model, device="cpu"))


def trainer(folder: str, *, steps: int) -> pl.Trainer:
    return pl.Trainer(
        default_root_dir=folder, max_steps=steps, accelerator="cpu", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip


def tiny_config(vocab_size: int) -> Qwen2Config:
    return Qwen2Config(
        vocab_size=vocab_size, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, tie_word_embeddings=True, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip


if __name__ == "__main__":
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning")
    main()
