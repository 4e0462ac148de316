"""A training on several ranks that may be killed at any time: one plan, one state beside the model, and it goes on.

    torchrun --nproc-per-node 2 examples/10_shared_plan.py run --data chats.jsonl --model model --max-length 2048
    python examples/10_shared_plan.py      # two ranks, one of them killed, started again, compared with a run that was not

``run`` gets the plans and the checkpoint; the same command goes on from there. Rank 0 measures and plans while the others wait
without an open collective, and the state of the loader lies in the same file as model and optimizer, which appears whole or not
at all.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as distributed
from transformers import AutoModelForCausalLM, AutoTokenizer

from brimful import ChatEncoder, PackLoader, PlanSettings
from brimful.cli.demo.docstring_chats import make_chats
from brimful.cli.demo.toy_model import make_model, train_tokenizer
from brimful.clusters import shared_plan
from brimful.integrations.trainers import collator_for

EPOCHS, SAVE_STEPS = 2, 3


def train(options: argparse.Namespace) -> None:
    distributed.init_process_group("gloo")
    rank, world_size = distributed.get_rank(), distributed.get_world_size()
    model = AutoModelForCausalLM.from_pretrained(options.model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    saved, step = options.folder / "checkpoint.pt", 0
    checkpoint = torch.load(saved, weights_only=True) if saved.exists() else None
    if checkpoint is not None:
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        step = checkpoint["step"]
    first_epoch = 0 if checkpoint is None else checkpoint["loader"]["epoch"]

    encoder = ChatEncoder(AutoTokenizer.from_pretrained(options.model))
    settings = PlanSettings(capacity=options.max_length, overflow="drop")
    with shared_plan(
        str(options.data),
        encoder,
        settings,
        directory=options.folder / "plans",
        num_epochs=EPOCHS,
        epoch=first_epoch,
    ) as shared:
        loader = PackLoader(
            shared.dataset(),
            collator_for(model, device="cpu"),
            dp_rank=rank,
            dp_world_size=world_size,
        )
        if checkpoint is not None:
            loader.load_state_dict(
                checkpoint["loader"]
            )  # refused by name if it is of other data or settings
        for _ in range(first_epoch, EPOCHS):
            for batch in loader:
                loss = one_step(model, optimizer, batch)
                step += 1
                if rank == 0:
                    with open(options.folder / "losses.jsonl", "a", encoding="utf-8") as log:
                        log.write(json.dumps([step, loss]) + "\n")
                    if step % SAVE_STEPS == 0:
                        states = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                        torch.save(
                            {**states, "loader": loader.state_dict(), "step": step}, f"{saved}.part"
                        )
                        os.replace(f"{saved}.part", saved)
                if (step, rank) == (options.kill_at, 1):
                    os.kill(os.getpid(), signal.SIGKILL)  # as if its machine were gone
        distributed.barrier()
    distributed.destroy_process_group()


def one_step(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, batch: dict[str, torch.Tensor]
) -> float:
    """Train on the packs of all ranks: the loss is the mean over their targets, whichever rank has them."""
    targets = (batch["labels"] != -100).sum()
    distributed.all_reduce(targets)
    # At the end of an epoch a rank may get a pack without targets, whose batch has this key already.
    loss = model(**{**batch, "num_items_in_batch": targets}).loss
    loss.backward()
    for parameter in model.parameters():
        distributed.all_reduce(parameter.grad)
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)
    loss = loss.detach()
    distributed.all_reduce(loss)
    return float(loss)


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        chats = make_chats(limit=300)
        (folder / "chats.jsonl").write_text("".join(json.dumps(chat) + "\n" for chat in chats))
        texts = (turn["content"] for chat in chats for turn in chat["messages"])
        make_model(train_tokenizer(texts, folder / "model", vocab_size=1000)).save_pretrained(
            folder / "model"
        )

        whole = folder / "whole"
        assert torchrun(folder, whole) == 0
        killed = folder / "killed"
        code = torchrun(folder, killed, "--kill-at", "8")
        print(
            f"rank 1 was killed after step 8: torchrun ended with {code}; the checkpoint is of step 6"
        )
        assert torchrun(folder, killed) == 0
        losses, others = losses_of(whole), losses_of(killed)
        print("loss", " ".join(f"{losses[step]:.3f}" for step in sorted(losses)))
        print(
            f"{len(losses)} steps in {EPOCHS} epochs:",
            "the same losses" if losses == others else "differs",
        )


def torchrun(folder: Path, run: Path, *options: str) -> int:
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        __file__,
        str(run),
    ]
    command += [
        "--data",
        str(folder / "chats.jsonl"),
        "--model",
        str(folder / "model"),
        "--max-length",
        "512",
        *options,
    ]
    environment = {**os.environ, "BRIMFUL_CACHE": str(folder / "cache"), "OMP_NUM_THREADS": "1"}
    # What gloo says of the rank that was killed is not shown.
    errors = subprocess.DEVNULL if options else None
    return subprocess.run(command, env=environment, stderr=errors, check=False).returncode


def losses_of(run: Path) -> dict[int, float]:
    """Loss of each step; of one that was trained again the later."""
    return dict(json.loads(line) for line in (run / "losses.jsonl").read_text().splitlines())


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--max-length", type=int, required=True)
    parser.add_argument("--kill-at", type=int, help="end rank 1 after this step, to try it")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    return options


if __name__ == "__main__":
    if len(sys.argv) > 1:
        train(parsed())
    else:
        main()
