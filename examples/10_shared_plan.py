"""One plan on two ranks: rank 0 measures and plans, both train on it, and go to the next epoch's plan together.

python examples/10_shared_plan.py      two processes on this machine, as `torchrun --nproc-per-node 2` starts them
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile

import torch.distributed as distributed
from transformers import AutoTokenizer

from brimful import ChatEncoder, PackLoader, PlanSettings, shared_plan
from brimful.demo import make_chats, train_tokenizer

RANKS = 2


def train(folder: str) -> None:
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    distributed.init_process_group("gloo", f"file://{folder}/rendezvous", rank=rank, world_size=world_size)
    chats, encoder = make_chats(limit=400), ChatEncoder(AutoTokenizer.from_pretrained(f"{folder}/tokenizer"))
    settings = PlanSettings(capacity=512, overflow="drop")
    with shared_plan(chats, encoder, settings, directory=f"{folder}/shared", cache_dir=folder, num_epochs=2) as shared:
        loader = PackLoader(shared.dataset(), dp_rank=rank, dp_world_size=world_size)
        for epoch in range(2):
            # Packs without a target of the loss keep a rank in step at the end of an epoch.
            mine = [
                sample
                for packs in loader
                for pack in packs
                if pack.loss_mask.any()
                for sample in pack.sample_ids.tolist()
            ]
            ranks: list[tuple[str, list[int]]] = [("", [])] * world_size
            distributed.all_gather_object(ranks, (shared.plan.fingerprint, mine))
            samples = [sample for _, served in ranks for sample in served]
            is_right = len({plan for plan, _ in ranks}) == 1 and len(set(samples)) == len(samples)
            if rank == 0:
                print(f"epoch {epoch}:", "one plan on both ranks, every sample once" if is_right else "differs")
        distributed.barrier()


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        texts = (turn["content"] for chat in make_chats(limit=400) for turn in chat["messages"])
        train_tokenizer(texts, f"{folder}/tokenizer", vocab_size=2000)
        environments = [{**os.environ, "RANK": str(rank), "WORLD_SIZE": str(RANKS)} for rank in range(RANKS)]
        processes = [
            subprocess.Popen([sys.executable, __file__, folder], env=environment) for environment in environments
        ]
        sys.exit(max(process.wait() for process in processes))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        train(sys.argv[1])
        sys.stdout.flush()
        os._exit(0)  # gloo's threads sometimes abort a process that takes its interpreter down while they live
    main()
