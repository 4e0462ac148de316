"""Packs in ``SFTTrainer`` of TRL: the data set shown as TRL wants it, its settings put right, no flash attention needed.

    python examples/05_trl_sft.py

``packing`` stays off in ``SFTConfig``: the packs are made already, and ``PackCollator`` flattens them. Evaluation is
packed here; ``SFTPacks(one_by_one(packs))`` is the same samples unpacked, and ``evaluate_samples`` is the loss that does
not depend on which samples share a row.
"""

from __future__ import annotations

import sys
import tempfile

from transformers import AutoTokenizer, Qwen2Config, Qwen2ForCausalLM, set_seed

from brimful import ChatEncoder, PackedDataset, measure_lengths, open_source, plan_packs
from brimful.cli.demo.docstring_chats import make_chats
from brimful.cli.demo.toy_model import train_tokenizer
from brimful.errors import missing_extra
from brimful.integrations.trainers import collator_for, evaluate_samples, one_by_one
from brimful.integrations.trainers.transformers import log_packing
from brimful.integrations.trainers.trl import SFTPacks, for_packs

try:
    from trl import SFTConfig, SFTTrainer
except ModuleNotFoundError:
    sys.exit(str(missing_extra("trl", "trl", "this example")))


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        chats = make_chats(limit=400)
        train_tokenizer(
            (turn["content"] for chat in chats for turn in chat["messages"]),
            folder,
            vocab_size=2000,
        )
        tokenizer = AutoTokenizer.from_pretrained(folder)
        packs, held_out = (packed(part, tokenizer, folder) for part in (chats[40:], chats[:40]))

        set_seed(0)
        model = Qwen2ForCausalLM(tiny_config(len(tokenizer)))
        collator = collator_for(model, device="cpu")
        arguments = SFTConfig(
            folder, max_steps=6, per_device_train_batch_size=1, per_device_eval_batch_size=1,
            gradient_accumulation_steps=2, learning_rate=1e-2, logging_steps=1, save_strategy="no", report_to="none",
            use_cpu=True, bf16=False, disable_tqdm=True,
        )  # fmt: skip
        trainer = SFTTrainer(
            model,
            for_packs(arguments),
            train_dataset=SFTPacks(packs),
            eval_dataset=SFTPacks(held_out),
            data_collator=collator,
            processing_class=tokenizer,
        )
        log_packing(trainer)
        trainer.train()
        history = [entry for entry in trainer.state.log_history if "loss" in entry]
        print("loss", " ".join(f"{float(entry['loss']):.3f}" for entry in history))
        print(
            f"{history[-1]['samples_per_step']:.1f} samples a step, fill {100 * history[-1]['fill']:.1f} %"
        )
        print(f"eval_loss {trainer.evaluate()['eval_loss']:.4f}, a mean over batches")
        print("packed    ", evaluate_samples(model, held_out, collator))
        print("one by one", evaluate_samples(model, one_by_one(held_out), collator))


def packed(chats: list[dict[str, object]], tokenizer: object, cache: str) -> PackedDataset:
    source, encoder = open_source(chats), ChatEncoder(tokenizer)
    plan = plan_packs(
        measure_lengths(source, encoder, cache_dir=cache), capacity=512, overflow="drop"
    )
    return PackedDataset.from_plan(source, encoder, plan)


def tiny_config(vocab_size: int) -> Qwen2Config:
    return Qwen2Config(
        vocab_size=vocab_size, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, tie_word_embeddings=True, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip


if __name__ == "__main__":
    main()
