"""Packs in ms-swift: a plugin of two lines, all arguments under ms-swift's own names, no flash attention needed.

    python examples/08_ms_swift_plugin.py

is the same as

    swift sft --external_plugins plugin.py --packing true --packing_length 512 --packing_strategy binpack …

with a ``plugin.py`` of the two lines below.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import tempfile
from pathlib import Path

from brimful.cli.demo.docstring_chats import make_chats
from brimful.cli.demo.toy_model import train_tokenizer

PLUGIN = "from brimful.integrations.trainers.ms_swift import install\ninstall()\n"


def main() -> None:
    os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")
    try:
        from swift.pipelines import sft_main
    except ModuleNotFoundError as error:
        sys.exit(f"ms-swift cannot be imported: {error}; pip install ms-swift")
    from transformers import AutoTokenizer, Qwen2Config, Qwen2ForCausalLM

    logging.getLogger("swift").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["HF_HOME"] = os.environ["MODELSCOPE_CACHE"] = folder
        model, data, plugin = (
            Path(folder, "model"),
            Path(folder, "chats.jsonl"),
            Path(folder, "plugin.py"),
        )
        chats = make_chats(limit=300)
        train_tokenizer(
            [turn["content"] for chat in chats for turn in chat["messages"]], model, vocab_size=2000
        )
        Qwen2ForCausalLM(
            Qwen2Config(
                vocab_size=len(AutoTokenizer.from_pretrained(model)), hidden_size=32, intermediate_size=64,
                num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, tie_word_embeddings=True,
                bos_token_id=None, eos_token_id=None,
            )
        ).save_pretrained(model)  # fmt: skip
        data.write_text("".join(json.dumps(chat) + "\n" for chat in chats), encoding="utf-8")
        plugin.write_text(PLUGIN, encoding="utf-8")
        result = sft_main(
            f"--model {model} --model_type qwen2 --template chatml --dataset {data} --external_plugins {plugin} "
            f"--packing true --packing_length 512 --max_length 512 --truncation_strategy delete --attn_impl sdpa "
            f"--tuner_type full --torch_dtype float32 --use_cpu true --max_steps 6 --logging_steps 1 "
            f"--per_device_train_batch_size 1 --gradient_accumulation_steps 2 --learning_rate 1e-2 "
            f"--output_dir {folder}/out --save_strategy no --report_to none --check_model false "
            f"--dataloader_num_workers 0 --split_dataset_ratio 0".split()
        )
        print(
            "loss",
            " ".join(f"{entry['loss']:.3f}" for entry in result["log_history"] if "loss" in entry),
        )
        print(f"train_dataset {result['train_dataset']}")


if __name__ == "__main__":
    main()
