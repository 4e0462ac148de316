"""Transformers: one step of ``Trainer`` on packs."""

from tests.compat.steps import Seen, report_log
from tests.compat.trainer import Trainer

TRAINER = Trainer(
    name="Transformers",
    package="transformers",
    page="transformers.md",
    ours=(
        "tests/integrations/trainers/test_transformers.py",
        "tests/collate/test_real_libraries.py::test_transformers_collator",
        "tests/collate/test_real_libraries.py::test_what_transformers_finds_in_positions",
    ),
    why_no_own="its source distribution has none of packing",
)


def main() -> None:
    from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

    from brimful import PackedDataset
    from brimful.integrations.trainers import collator_for

    model = AutoModelForCausalLM.from_pretrained("model")
    seen = Seen(collator_for(model, device="cpu"))
    options = {"max_steps": 1, "logging_steps": 1, "use_cpu": True, "report_to": "none", "save_strategy": "no"}
    args = TrainingArguments("out", per_device_train_batch_size=1, remove_unused_columns=False, **options)
    trainer = Trainer(model, args, train_dataset=PackedDataset("packs"), data_collator=seen)
    trainer.train()
    report_log(trainer.state.log_history, seen.batches[0])


if __name__ == "__main__":
    main()
