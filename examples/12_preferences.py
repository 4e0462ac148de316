"""DPO on packed pairs: rows of TRL, one pass of the reference model, then ``Trainer`` of Transformers.

    python examples/12_preferences.py

Both sides of a row share a pack, so that no loss needs another batch. The reference model is asked once for all epochs;
each pair of a step weighs the same, in packs of few pairs and of many.
"""

from __future__ import annotations

import tempfile

import numpy as np
from transformers import (
    AutoTokenizer,
    Qwen2Config,
    Qwen2ForCausalLM,
    Trainer,
    TrainingArguments,
    set_seed,
)

from brimful import PackedDataset, PlanSettings, pack_dataset
from brimful.cli.demo.docstring_chats import make_chats
from brimful.cli.demo.toy_model import train_tokenizer
from brimful.integrations.trainers import collator_for
from brimful.preferences import (
    PreferenceCollator,
    ReferenceLogps,
    compute_references,
    train_on_preferences,
)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        chats = make_chats(limit=300)
        train_tokenizer(
            (turn["content"] for chat in chats for turn in chat["messages"]),
            folder,
            vocab_size=2000,
        )
        summary = pack_dataset(
            preferences(chats),
            folder,
            f"{folder}/packs",
            PlanSettings(capacity=1024, overflow="drop"),
            cache_dir=f"{folder}/cache",
        )
        print(f"{summary.plan.num_packs} packs, fill {100 * summary.plan.fill_ratio:.1f} %")

        set_seed(0)
        tokenizer = AutoTokenizer.from_pretrained(folder)
        model, packs = (
            Qwen2ForCausalLM(tiny_config(len(tokenizer))),
            PackedDataset(f"{folder}/packs"),
        )
        collator = collator_for(model, device="cpu")
        # The policy before its first step is the reference: nothing else has to stay in memory.
        compute_references(model, packs, collator, f"{folder}/references")
        references = ReferenceLogps.open(f"{folder}/references")
        arguments = TrainingArguments(
            folder, max_steps=8, per_device_train_batch_size=1, gradient_accumulation_steps=2, learning_rate=1e-2,
            logging_steps=1, save_strategy="no", report_to="none", use_cpu=True, disable_tqdm=True,
            remove_unused_columns=False,
        )  # fmt: skip
        trainer = Trainer(model, arguments, PreferenceCollator(collator, references), packs)
        train_on_preferences(trainer, beta=0.1)
        trainer.train()
        losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
        print("loss", " ".join(f"{float(loss):.3f}" for loss in losses))
        print(
            f"accuracy of the last micro-batch {trainer.preference_metrics['rewards/accuracies']:.2f}"
        )


def preferences(
    chats: list[dict[str, list[dict[str, str]]]],
) -> list[dict[str, list[dict[str, str]]]]:
    """Make a toy task: the answer to the question is chosen, that to another question is rejected."""
    answers = [chat["messages"][-1:] for chat in chats]
    others = np.roll(np.arange(len(chats)), 1).tolist()
    return [
        {"prompt": chat["messages"][:-1], "chosen": answer, "rejected": answers[other]}
        for chat, answer, other in zip(chats, answers, others, strict=True)
    ]


def tiny_config(vocab_size: int) -> Qwen2Config:
    return Qwen2Config(
        vocab_size=vocab_size, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, tie_word_embeddings=True, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip


if __name__ == "__main__":
    main()
