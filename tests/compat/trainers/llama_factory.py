"""LLaMA-Factory: one step of ``run_exp`` with the two names that its page replaces."""

from tests.compat.steps import Seen, report_log
from tests.compat.trainer import Trainer

TRAINER = Trainer(
    name="LLaMA-Factory",
    package="llamafactory",
    page="llama_factory.md",
    ours=("tests/collate/test_real_libraries.py", "-k", "llama_factory"),
    remarks=(("0.9.4", "its Transformers 4 cannot read a tokenizer that Transformers 5 wrote"),),
)


def main() -> None:
    import importlib.machinery
    import sys
    import types
    from unittest.mock import patch

    try:
        import torchaudio  # type: ignore[import-not-found]  # noqa: F401
    except (ImportError, OSError):  # LLaMA-Factory imports it for any data, and its wheels want the CUDA build of torch
        sys.modules["torchaudio"] = types.ModuleType("torchaudio")
        sys.modules["torchaudio"].__spec__ = importlib.machinery.ModuleSpec("torchaudio", None)

    import transformers
    from llamafactory.data.collator import prepare_4d_attention_mask
    from llamafactory.train.sft import workflow
    from llamafactory.train.tuner import run_exp

    from brimful import PackCollator, PackedDataset

    packs = PackedDataset("packs")

    class Collator:
        def __init__(self, compute_dtype, **options):
            self.dtype = compute_dtype

        def __call__(self, features):
            batch = PackCollator(dialect="llama_factory", pad_to=2048)(features)
            batch.pop("packing_params")
            batch["attention_mask"] = prepare_4d_attention_mask(batch["attention_mask"], self.dtype)
            return batch

    seen = Seen(PackCollator())

    class Watched(Collator):
        def __call__(self, features):
            seen(features)
            return super().__call__(features)

    workflow.get_dataset = lambda *args, **options: {"train_dataset": packs}
    workflow.SFTDataCollatorWith4DAttentionMask = Watched
    options = {
        "model_name_or_path": "model",
        "stage": "sft",
        "do_train": True,
        "finetuning_type": "full",
        "dataset": "chats",
        "template": "qwen",
        "cutoff_len": 2048,
        "packing": False,
        "remove_unused_columns": False,
        "flash_attn": "sdpa",
        "per_device_train_batch_size": 1,
        "gradient_accumulation_steps": 1,
        "output_dir": "out",
        "max_steps": 1,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "use_cpu": True,
    }
    trainers = []
    train = transformers.Trainer.train

    def watched_train(trainer, *args, **settings):
        trainers.append(trainer)
        return train(trainer, *args, **settings)

    with patch.object(transformers.Trainer, "train", watched_train):
        run_exp(options)
    report_log(trainers[0].state.log_history, seen.batches[0])


if __name__ == "__main__":
    main()
