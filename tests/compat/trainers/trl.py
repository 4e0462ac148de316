"""TRL: one step of ``SFTTrainer`` on packs."""

from tests.compat.steps import Seen, report_log
from tests.compat.trainer import Trainer

TRAINER = Trainer(
    name="TRL",
    package="trl",
    page="trl.md",
    ours=("tests/integrations/trainers/test_trl.py", "tests/collate/test_real_libraries.py::test_trl_collator"),
    remarks=(
        ("1.15.0", "its loss needs Triton, which PyTorch for CPUs does not have"),
        ("1.15.0 ours", "its collator has fewer keys"),
    ),
)


def main() -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import SFTConfig, SFTTrainer

    from brimful import PackedDataset
    from brimful.integrations.trainers import collator_for
    from brimful.integrations.trainers.trl import SFTPacks, for_packs

    model = AutoModelForCausalLM.from_pretrained("model")
    options = {"max_steps": 1, "logging_steps": 1, "use_cpu": True, "bf16": False, "report_to": "none"}
    args = for_packs(SFTConfig("out", per_device_train_batch_size=1, save_strategy="no", **options))
    seen = Seen(collator_for(model, device="cpu"))
    trainer = SFTTrainer(
        model,
        args,
        train_dataset=SFTPacks(PackedDataset("packs")),
        data_collator=seen,
        processing_class=AutoTokenizer.from_pretrained("model"),
    )
    trainer.train()
    report_log(trainer.state.log_history, seen.batches[0])


if __name__ == "__main__":
    main()
