"""What one rank does in ``test_ranks``: started by torchrun, it trains and writes down what it saw and learnt."""

import json
import os
import sys
from pathlib import Path

import numpy as np
import torch

from brimful import PackCollator
from tests.integrations.trainers import tiny

SETTINGS = {"packs": 11, "accumulation": 2, "epochs": 2}

SOURCES = {"chat": 13, "code": 23}
"""The 36 samples of 12 packs of three: the fifth pack has samples of both."""

SCHEDULE = {"packs": 23, "stop": 9, "steps": 12}
"""23 packs, four a step: six steps an epoch, the last with a place that no pack has."""
SCHEDULE_COSTS = np.random.default_rng(0).lognormal(1.0, 1.0, SCHEDULE["packs"])


class Recorder(PackCollator):
    """Remembers the first sample of every pack with targets."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def rows(self, features):
        self.seen += [int(pack.sample_ids[0]) for pack in features if pack.num_loss_tokens]
        return super().rows(features)


def by_transformers(folder, ranks):
    import transformers

    from brimful.integrations.trainers.transformers import log_packing

    collator, model = Recorder(), tiny.model()
    arguments = transformers.TrainingArguments(
        output_dir=str(folder / "out"),
        num_train_epochs=SETTINGS["epochs"],
        per_device_train_batch_size=1,
        gradient_accumulation_steps=SETTINGS["accumulation"] * 2 // ranks,
        learning_rate=0.1,
        lr_scheduler_type="constant",
        optim="sgd",
        max_grad_norm=0,
        logging_steps=1,
        report_to="none",
        save_strategy="no",
        use_cpu=True,
        disable_tqdm=True,
    )
    # A multiple of what a step takes: else accelerate repeats packs to fill the last step, and two runs differ.
    trainer = transformers.Trainer(
        model=model, args=arguments, train_dataset=tiny.packs(SETTINGS["packs"] + 1), data_collator=collator
    )
    log_packing(trainer, by_source=SOURCES)
    trainer.train()
    logs = [entry for entry in trainer.state.log_history if "supervised_tokens" in entry]
    names = [f"{metric}/{source}" for metric in ("loss", "token_acc") for source in SOURCES]
    counts = [(entry["supervised_tokens"], entry["samples_per_step"]) for entry in logs]
    return collator.seen, model, {"counts": counts, "sources": [[entry.get(name) for name in names] for entry in logs]}


class Places(PackCollator):
    """Remembers the first sample of the pack of every forward; -1 for one without targets."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def rows(self, features):
        self.seen += [int(pack.sample_ids[0]) if pack.num_loss_tokens else -1 for pack in features]
        return super().rows(features)


def by_schedule(folder, ranks, resume=None):
    """Train 23 packs of unequal cost in the schedule; a checkpoint stands in the middle of the second epoch."""
    import transformers

    from brimful.integrations.trainers.transformers import follow_schedule

    collator, model = Places(), tiny.model()
    arguments = transformers.TrainingArguments(
        output_dir=str(folder / "schedule"),
        num_train_epochs=2,
        per_device_train_batch_size=1,
        gradient_accumulation_steps=4 // ranks,
        learning_rate=0.1,
        lr_scheduler_type="constant",
        optim="sgd",
        max_grad_norm=0,
        logging_steps=1,
        report_to="none",
        save_strategy="no" if resume else "steps",
        save_steps=SCHEDULE["stop"],
        use_cpu=True,
        disable_tqdm=True,
    )
    packs = tiny.packs(SCHEDULE["packs"])
    trainer = transformers.Trainer(model=model, args=arguments, train_dataset=packs, data_collator=collator)
    follow_schedule(trainer, costs=SCHEDULE_COSTS, window_steps=6)
    trainer.train(resume_from_checkpoint=None if resume is None else str(resume))
    return collator.seen, model, [trainer.state.global_step]


def stopped_and_resumed(folder, ranks):
    """Train to the end, then again from the checkpoint, in the same processes."""
    seen, model, (steps,) = by_schedule(folder, ranks)
    checkpoint = folder / "schedule" / f"checkpoint-{SCHEDULE['stop']}"
    later, resumed, (later_steps,) = by_schedule(folder, ranks, checkpoint)
    changes = [
        float(np.abs(one - other).max())
        for one, other in zip(weights_of(model).values(), weights_of(resumed).values(), strict=True)
    ]
    return seen, model, {"later": later, "steps": [steps, later_steps], "change": max(changes)}


def by_lightning(folder, ranks):
    import lightning.pytorch as pl

    from brimful.integrations.trainers.lightning import PackDataModule

    class Module(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = tiny.model()

        def training_step(self, batch, index):
            loss = self.model(**batch).loss
            losses.append(float(loss.detach()))
            return loss

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    losses = []
    collator, module = Recorder(), Module()
    trainer = pl.Trainer(
        default_root_dir=folder,
        max_epochs=SETTINGS["epochs"],
        accelerator="cpu",
        devices=ranks,
        strategy="ddp" if ranks > 1 else "auto",
        accumulate_grad_batches=SETTINGS["accumulation"] * 2 // ranks,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, PackDataModule(tiny.packs(SETTINGS["packs"]), collator))
    return collator.seen, module.model, [trainer.global_step, losses]


def weights_of(model):
    return {name: each.detach().numpy() for name, each in model.named_parameters()}


if __name__ == "__main__":
    folder, which = Path(sys.argv[1]), sys.argv[2]
    torch.set_num_threads(1)
    rank, ranks = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    runs = {"transformers": by_transformers, "lightning": by_lightning, "schedule": stopped_and_resumed}
    seen, model, logs = runs[which](folder, ranks)
    np.savez(
        folder / f"{rank} of {ranks}.npz", **{name: each.detach().numpy() for name, each in model.named_parameters()}
    )
    (folder / f"{rank} of {ranks}.json").write_text(json.dumps({"seen": seen, "logs": logs}))
    if ranks > 1:
        torch.distributed.barrier()
        # All is written down. Gloo's threads sometimes abort a process that takes its interpreter down while they live.
        os._exit(0)
