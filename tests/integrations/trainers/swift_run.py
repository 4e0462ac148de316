"""``swift sft`` with the plugin, on a CPU, in a process of its own: ms-swift changes every Trainer of the process it is in.

python -m tests.integrations.trainers.swift_run FOLDER      exits with 77 where ms-swift cannot be imported
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

CANNOT = 77


def main(folder: Path) -> None:
    os.environ["HF_HUB_OFFLINE"] = "1"
    try:
        from swift.pipelines import sft_main
        from swift.pipelines.train import sft
    except ImportError as error:
        print(error, file=sys.stderr)
        raise SystemExit(CANNOT) from error
    import torch
    from transformers import AutoTokenizer, Qwen2Config, Qwen2ForCausalLM

    from brimful.cli.demo.docstring_chats import make_chats
    from brimful.cli.demo.toy_model import train_tokenizer
    from brimful.integrations.trainers.ms_swift import SwiftPacks

    chats = make_chats(limit=60)
    model, data, plugin = folder / "model", folder / "chats.jsonl", folder / "plugin.py"
    train_tokenizer([turn["content"] for chat in chats for turn in chat["messages"]], model, vocab_size=1000)
    size = len(AutoTokenizer.from_pretrained(model))
    config = Qwen2Config(
        vocab_size=size, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    Qwen2ForCausalLM(config).save_pretrained(model)
    data.write_text("".join(json.dumps(chat) + "\n" for chat in chats), encoding="utf-8")
    plugin.write_text("from brimful.integrations.trainers.ms_swift import install\ninstall()\n", encoding="utf-8")
    kept = {}
    original = sft.SwiftSft.train

    def train(self, trainer):
        kept["trainer"] = trainer
        return original(self, trainer)

    sft.SwiftSft.train = train
    result = sft_main(
        f"--model {model} --model_type qwen2 --template chatml --dataset {data} --external_plugins {plugin} --packing true "
        f"--packing_length 512 --max_length 512 --truncation_strategy delete --attn_impl sdpa --tuner_type full "
        f"--torch_dtype float32 --use_cpu true --max_steps 2 --logging_steps 1 --per_device_train_batch_size 1 "
        f"--output_dir {folder}/out --save_strategy no --report_to none --check_model false --dataloader_num_workers 0 "
        f"--split_dataset_ratio 0".split()
    )
    assert [entry for entry in result["log_history"] if "loss" in entry]
    trainer = kept["trainer"]
    packs = trainer.train_dataset
    assert isinstance(packs, SwiftPacks), type(packs)
    row = max((packs[index] for index in range(len(packs))), key=len)
    assert len(row) > 1
    batch = trainer.data_collator([row])
    assert "attention_mask" not in batch
    assert all(sample["labels"][0] == -100 for sample in row)
    net = trainer.model.eval()
    with torch.no_grad():
        together = net(input_ids=batch["input_ids"], position_ids=batch["position_ids"]).logits[0]
        start = 0
        for sample in row:
            ids = torch.tensor(sample["input_ids"])[None]
            alone = net(input_ids=ids).logits[0]
            torch.testing.assert_close(together[start : start + ids.shape[1]], alone, atol=1e-5, rtol=1e-4)
            start += ids.shape[1]
    print(f"isolated: {len(row)} samples")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
