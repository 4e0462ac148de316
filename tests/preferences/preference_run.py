"""What one rank does in ``test_dpo``: started by torchrun, it trains and writes its weights."""

import os
import sys
from pathlib import Path

import numpy as np
import torch

from brimful import PackCollator
from brimful.integrations.trainers import evaluate_samples
from tests.preferences import preference_pairs as tiny
from tests.preferences.test_dpo import trained

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    weights = trained(folder, ranks=ranks)
    # Trainer has opened the process group. One pack for two ranks: the second has none of its own.
    assert torch.distributed.is_initialized()
    losses = evaluate_samples(
        tiny.model(1), tiny.packs()[:1], PackCollator(), dp_rank=rank, dp_world_size=ranks, device="cpu"
    )
    np.savez(folder / f"{rank}.npz", nll_sum=losses.nll_sum, sample_ids=losses.sample_ids, **weights)
    torch.distributed.barrier()
    # All is written down. Gloo's threads sometimes abort a process that takes its interpreter down while they live.
    os._exit(0)
