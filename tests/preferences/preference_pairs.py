"""Eight short preferences, a tiny policy and its reference, and TRL's own trainer on the same rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from brimful import CompletionEncoder, PackedDataset, measure_lengths, open_source, plan_packs

WORDS = [f"w{number}" for number in range(60)]


def rows(count: int = 8) -> list[dict[str, str]]:
    """Texts of 2 to 9 words a part; the sides of a row have different lengths."""
    random = np.random.default_rng(7)

    def text() -> str:
        return " ".join(random.choice(WORDS, size=random.integers(2, 10)))

    return [{"prompt": text(), "chosen": " " + text(), "rejected": " " + text()} for _ in range(count)]


def tokenizer() -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {name: index for index, name in enumerate(["<pad>", "<eos>", *WORDS])}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="<pad>", eos_token="<eos>")


def model(seed: int) -> Any:
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=len(WORDS) + 2,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        initializer_range=0.3,
        bos_token_id=None,
        eos_token_id=1,
        pad_token_id=0,
    )
    return Qwen2ForCausalLM(config)


def packs(count: int = 8, *, capacity: int = 64, **options: Any) -> PackedDataset:
    source, encoder = open_source(rows(count)), CompletionEncoder(tokenizer())
    plan = plan_packs(measure_lengths(source, encoder), capacity=capacity, **options)
    return PackedDataset.from_plan(source, encoder, plan)


def trl_trainer(folder: Any, count: int = 8, *, policy: Any = None, reference: Any = None, **options: Any) -> Any:
    import datasets
    import trl

    arguments = trl.DPOConfig(
        str(folder), report_to="none", use_cpu=True, bf16=False, save_strategy="no", disable_tqdm=True, **options
    )
    return trl.DPOTrainer(
        policy or model(0),
        reference or model(1),
        args=arguments,
        train_dataset=datasets.Dataset.from_list(rows(count)),
        processing_class=tokenizer(),
    )
