"""Tiny model of the demo, which the code of the documentation trains."""

from typing import Any


def make_model(vocab_size: int) -> Any:
    """Make a Qwen2 of 32 dimensions with random weights, the same every time."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=vocab_size,
        hidden_size=32,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=2048,  # the capacity of the demo's packs
        tie_word_embeddings=True,
        attn_implementation="sdpa",
        bos_token_id=None,
        eos_token_id=None,
        use_cache=False,  # training needs no cache
    )
    return Qwen2ForCausalLM(config).train()
