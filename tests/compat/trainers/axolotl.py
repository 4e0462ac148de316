"""Axolotl: one step of ``axolotl train`` with the plugin of its page."""

from typing import Any

from tests.compat.steps import report_log
from tests.compat.trainer import Trainer

TRAINER = Trainer(
    name="Axolotl",
    package="axolotl",
    page="axolotl.md",
    ours=(
        "tests/integrations/trainers/test_real_readers.py::test_axolotl_finds_our_boundaries",
        "tests/collate/test_real_libraries.py",
        "-k",
        "axolotl",
    ),
    needs=("triton",),
    why_no_own="its tests of packing load a tokenizer from the hub",
)

PLUGIN = """
from axolotl.common.datasets import TrainDatasetMeta
from axolotl.integrations.base import BasePlugin
from brimful import PackCollator, PackedDataset
from brimful.integrations.trainers.trl import SFTPacks


class Collator:
    def __init__(self, tokenizer=None, **options):
        self.collate = PackCollator()

    def __call__(self, features):
        return self.collate(features)


class Packs(BasePlugin):
    def load_datasets(self, cfg, preprocess=False):
        packs = SFTPacks(PackedDataset("packs"))
        steps = cfg.max_steps or int(len(packs) * cfg.num_epochs // cfg.batch_size)
        return TrainDatasetMeta(train_dataset=packs, total_num_steps=steps)

    def get_collator_cls_and_kwargs(self, cfg, is_eval=False):
        return Collator, {}
"""


def main() -> None:
    import sys
    from pathlib import Path
    from unittest.mock import patch

    import transformers
    import yaml

    Path("my_packs.py").write_text(PLUGIN, encoding="utf-8")
    sys.path.insert(0, ".")
    from axolotl.cli.train import do_cli

    options = {
        "base_model": "model",
        "plugins": ["my_packs.Packs"],
        # Not read: its configuration asks for one.
        "datasets": [{"path": "chats.jsonl", "ds_type": "json", "type": "chat_template"}],
        "sample_packing": False,
        "remove_unused_columns": False,
        "micro_batch_size": 1,
        "gradient_accumulation_steps": 1,
        "max_steps": 1,
        "num_epochs": 1,
        "learning_rate": 0.001,
        "optimizer": "adamw_torch",
        "lr_scheduler": "constant",
        "logging_steps": 1,
        "save_strategy": "no",
        "val_set_size": 0,
        "sequence_len": 2048,
        "attn_implementation": "sdpa",
        "output_dir": "out",
        **dict.fromkeys(("bf16", "fp16", "tf32", "use_wandb"), False),
    }
    Path("run.yaml").write_text(yaml.safe_dump(options), encoding="utf-8")
    trainers: list[Any] = []
    batches: list[dict[str, Any]] = []
    train = transformers.Trainer.train

    def watched_train(trainer, *args, **options):
        trainers.append(trainer)
        step = trainer.training_step

        def training_step(model, inputs, *rest, **others):  # its collator may run in workers
            batches.append(dict(inputs))
            return step(model, inputs, *rest, **others)

        trainer.training_step = training_step
        return train(trainer, *args, **options)

    with patch.object(transformers.Trainer, "train", watched_train):
        do_cli(config="run.yaml")
    report_log(trainers[0].state.log_history, batches[0])


if __name__ == "__main__":
    main()
