"""verl: samples of packs as the rows of its SFT trainer, in micro-batches that keep the budget on every rank.

    python examples/14_verl_fine_tuning.py

Needs no verl: ``loss_of`` below does what its engine and ``sft_loss`` do. ``docs/trainers/verl.md`` has the command, and the
variable that gives reinforcement learning the same micro-batches.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from transformers import AutoTokenizer

from brimful import ChatEncoder, PlanSettings, open_source, pack_dataset
from brimful.cli.demo.docstring_chats import make_chats
from brimful.cli.demo.toy_model import make_model, train_tokenizer
from brimful.integrations.trainers.verl import VerlSamples
from brimful.rl.compat.verl import micro_batch_indices

RANKS, SAMPLES_A_RANK, MAX_TOKENS = 2, 16, 1024


def loss_of(model: torch.nn.Module, rows: list[dict[str, torch.Tensor]]) -> float:
    """Minus the sum of the log-probabilities of the targets of a micro-batch: one row, positions from 0 in each sample."""
    ids, positions, mask = (
        torch.cat([row[name] for row in rows])
        for name in ("input_ids", "position_ids", "loss_mask")
    )
    with torch.no_grad():
        logits = model(input_ids=ids[None], position_ids=positions[None], use_cache=False).logits[0]
    log_probs = logits.log_softmax(-1).gather(1, ids.roll(-1)[:, None])[:, 0]
    return -float((log_probs * mask.roll(-1)).sum())


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        chats = make_chats(limit=400)
        texts = (turn["content"] for chat in chats for turn in chat["messages"])
        train_tokenizer(texts, folder, vocab_size=2000)
        encoder = ChatEncoder(AutoTokenizer.from_pretrained(folder))
        packs = Path(folder, "packs")
        settings = PlanSettings(capacity=MAX_TOKENS, overflow="drop")
        pack_dataset(open_source(chats), encoder, packs, settings, cache_dir=folder)

        samples = VerlSamples(packs, None, {"pad_mode": "no_padding"})
        model = make_model(2048)
        steps = []
        for rank in range(RANKS):
            rows = [samples[RANKS * number + rank] for number in range(SAMPLES_A_RANK)]
            lengths = torch.tensor([len(row["input_ids"]) for row in rows]).numpy()
            micro_batches = [
                [rows[place] for place in places]
                for places in micro_batch_indices(lengths, MAX_TOKENS)
            ]
            tokens = [sum(len(row["input_ids"]) for row in micro) for micro in micro_batches]
            print(f"rank {rank}: {len(rows)} samples in micro-batches of {tokens} tokens")
            steps.append(micro_batches)

        # verl divides by the targets of all ranks.
        micro_batches = [micro for step in steps for micro in step]
        rows = [row for micro in micro_batches for row in micro]
        targets = sum(int(row["loss_mask"].sum()) for row in rows)
        loss = sum(loss_of(model, micro) for micro in micro_batches) / targets
        alone = sum(loss_of(model, [row]) for row in rows) / targets
        print(f"loss of the step {loss:.4f}, of its samples one by one {alone:.4f}")


if __name__ == "__main__":
    main()
