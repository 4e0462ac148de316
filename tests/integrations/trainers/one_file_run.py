"""What one rank does in ``test_one_file``: started by torchrun, it trains on one file and writes down what it saw."""

import json
import os
import sys
from pathlib import Path
from unittest.mock import patch

import torch
import transformers

from brimful import measure_lengths
from brimful.integrations.trainers import packed_for_transformers
from tests.integrations.trainers import tiny


def main(home, folder):
    os.environ["BRIMFUL_CACHE"] = str(folder / "cache")
    seen = []
    args = transformers.TrainingArguments(
        str(folder / "out"),
        num_train_epochs=1,
        per_device_train_batch_size=1,
        logging_steps=1,
        report_to="none",
        save_strategy="no",
        use_cpu=True,
        disable_tqdm=True,
        dataloader_drop_last=True,
    )
    tokenizer = transformers.AutoTokenizer.from_pretrained(home / "tokenizer")
    with patch("brimful.clusters.source_plans.measure_lengths", side_effect=measure_lengths) as measured:
        call = packed_for_transformers(tiny.model(), tokenizer, home / "chats.jsonl", args, max_length=128)
    collate = call["data_collator"]
    call["data_collator"] = lambda packs: seen.extend(packs[0].sample_ids.tolist()) or collate(packs)
    trainer = transformers.Trainer(**call)
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    found = {
        "plan": call["train_dataset"]._shared.plan.fingerprint,
        "measured": measured.called,
        "losses": losses,
        "seen": seen,
    }
    (folder / f"{args.process_index}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
    torch.distributed.barrier()
    # All is written down. Gloo's threads sometimes abort a process that takes its interpreter down while they live.
    os._exit(0)
