"""Unsloth: two steps of ``SFTTrainer``, whose collator is set after it is made."""

from tests.compat.steps import Seen, report_log
from tests.compat.trainer import Trainer

TRAINER = Trainer(
    name="Unsloth",
    package="unsloth",
    page="unsloth.md",
    ours=("tests/collate/test_real_libraries.py", "-k", "unsloth"),
    remarks=(("2026.10.8", "it needs a GPU"),),
)


def main() -> None:
    from unsloth import FastLanguageModel  # type: ignore[import-not-found]  # isort: skip  # first: it changes trl and transformers

    from trl import SFTConfig, SFTTrainer

    from brimful import PackCollator, PackedDataset
    from brimful.integrations.trainers.trl import SFTPacks, for_packs

    model, tokenizer = FastLanguageModel.from_pretrained("model", load_in_4bit=False)
    options = {"max_steps": 1, "logging_steps": 1, "bf16": False, "report_to": "none"}
    arguments = for_packs(SFTConfig("out", per_device_train_batch_size=1, save_strategy="no", **options))
    packs = SFTPacks(PackedDataset("packs"))
    trainer = SFTTrainer(model, args=arguments, train_dataset=packs, processing_class=tokenizer)
    seen = Seen(PackCollator(dialect="unsloth"))
    trainer.data_collator = seen
    trainer.train()
    report_log(trainer.state.log_history, seen.batches[0])


if __name__ == "__main__":
    main()
