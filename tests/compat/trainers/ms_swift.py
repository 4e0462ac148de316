"""ms-swift: one step of ``swift sft`` with the plugin of its page."""

from typing import Any

from tests.compat.steps import report_log
from tests.compat.trainer import Trainer

TRAINER = Trainer(
    name="ms-swift",
    package="ms-swift",
    page="ms_swift.md",
    ours=(
        "tests/integrations/trainers/test_ms_swift.py",
        "tests/collate/test_real_libraries.py::test_ms_swift_packing_row",
    ),
    why_no_own="its tests of packing are not in its source distribution",
    remarks=(("4.5.3", "it asks for workers that stay without asking for workers"),),
)

PLUGIN = "from brimful.integrations.trainers.ms_swift import install\ninstall()\n"

WORDS = """
--model model --model_type qwen2 --template chatml --dataset chats.jsonl --external_plugins plugin.py --packing true
--packing_length 1024 --max_length 1024 --truncation_strategy delete --attn_impl sdpa --tuner_type full --torch_dtype float32
--use_cpu true --max_steps 1 --logging_steps 1 --per_device_train_batch_size 1 --gradient_accumulation_steps 1 --output_dir out
--save_strategy no --report_to none --check_model false --dataloader_num_workers 0 --dataloader_persistent_workers false --split_dataset_ratio 0
"""


def main() -> None:
    from pathlib import Path

    Path("plugin.py").write_text(PLUGIN, encoding="utf-8")
    from swift.pipelines import sft_main
    from swift.pipelines.train import sft

    batches: list[dict[str, Any]] = []
    train = sft.SwiftSft.train

    def watched_train(self, trainer):
        step = trainer.training_step

        def training_step(model, inputs, *args, **options):
            batches.append(dict(inputs))
            return step(model, inputs, *args, **options)

        trainer.training_step = training_step
        return train(self, trainer)

    sft.SwiftSft.train = watched_train
    result = sft_main(WORDS.split())
    report_log(result["log_history"], batches[0])


if __name__ == "__main__":
    main()
