"""Packs and a model that a CPU trains in a moment."""

from __future__ import annotations

from typing import Any

from brimful.testing.toys import ToyPacks, toy_pack


def packs(count: int, *, seed: int = 0) -> ToyPacks:
    """Packs of three samples of different lengths; sample ids go on from pack to pack."""
    shapes = ([9, 6, 3], [4, 12, 2], [7, 7, 5])
    return ToyPacks([toy_pack(shapes[i % 3], first_sample=3 * i, seed=seed + i) for i in range(count)])


def model(seed: int = 0) -> Any:
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(seed)
    return Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=1000,
            hidden_size=16,
            intermediate_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            bos_token_id=None,
            eos_token_id=None,
        )
    )
