"""Configurations of known models."""

import numpy as np
from hypothesis import strategies as st

from brimful.plan.schedule import (
    Tail,
    schedule_packs,
)

QWEN3_06B = {
    "hidden_size": 1024, "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8,
    "head_dim": 128, "intermediate_size": 3072, "vocab_size": 151936, "model_type": "qwen3",
}  # fmt: skip


QWEN3_8B = QWEN3_06B | {
    "hidden_size": 4096, "num_hidden_layers": 36, "num_attention_heads": 32, "intermediate_size": 12288,
}  # fmt: skip


LLAMA2_7B = {
    "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 32,
    "intermediate_size": 11008, "vocab_size": 32000, "model_type": "llama",
}  # fmt: skip


LLAMA3_8B = LLAMA2_7B | {"num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256}


LLAMA3_70B = LLAMA3_8B | {
    "hidden_size": 8192, "num_hidden_layers": 80, "num_attention_heads": 64, "intermediate_size": 28672,
}  # fmt: skip


def schedule(num_packs, *, world=1, micro=1, each=1, epoch=0, seed=0, tail=Tail.PAD, **more):
    return schedule_packs(
        num_packs,
        dp_world_size=world,
        micro_batches=micro,
        packs_per_micro_batch=each,
        epoch=epoch,
        seed=seed,
        tail=tail,
        **more,
    )


def barrier_seconds(array, costs):
    """Sum over all micro-batches of the slowest rank: the time of an epoch."""
    with_none = np.append(costs, 0)
    return int(with_none[array].sum(axis=3).max(axis=1).sum())


@st.composite
def cases(draw, *, most_packs=3):
    """Shapes of steps, costs with many equal ones, windows from one step to more than all."""
    costs = draw(st.lists(st.integers(0, 9) | st.sampled_from([1, 100]), min_size=1, max_size=60))
    return {
        "num_packs": len(costs),
        "world": draw(st.integers(1, 5)),
        "micro": draw(st.integers(1, 3)),
        "each": draw(st.integers(1, most_packs)),
        "epoch": draw(st.integers(0, 3)),
        "seed": draw(st.sampled_from([None, 0, 1])),
        "tail": draw(st.sampled_from(list(Tail))),
        "costs": np.array(costs, dtype=np.float64),
        "window_steps": draw(st.sampled_from([1, 2, 3, 1000])),
    }
