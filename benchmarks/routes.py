"""The whole job as users of other projects write it: ``python routes.py ROUTE DATA TOKENIZER LENGTH PROCESSES OUTPUT``.

Each route is a process of its own, so that imports and workers are in its time, and writes packs that a trainer can
read. The last line it prints is JSON: packs and the share of their positions that hold a token.

trl        ``datasets``: JSON to Arrow, the tokenizer's chat template by ``map`` over one row at a time, as ``SFTTrainer`` does it,
           then ``trl.pack_dataset``, saved.
ms-swift   ``swift export --to_cached_dataset``, then its ``PackingDataset``. Lengths are kept and no tokens: training encodes
           again, which is not in the time.
axolotl    ``axolotl preprocess``, then its ``MultipackBatchSampler``. Tokens are kept, packs are made anew by each training.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

__all__ = ["ROUTES"]


def trl(
    data: str, tokenizer_path: str, length: int, processes: int, output: Path
) -> dict[str, Any]:
    """Tokenise by ``map``, pack by ``trl.pack_dataset``, save as Arrow."""
    from datasets import load_dataset
    from transformers import AutoTokenizer
    from trl import pack_dataset

    tokenizer = AutoTokenizer.from_pretrained(tokenizer_path)
    rows = load_dataset("json", data_files=data, split="train", cache_dir=str(output / "cache"))

    def tokenise(row: dict[str, Any]) -> dict[str, Any]:
        if "messages" in row:
            # Columns that a row lacks come as None from Arrow, and templates would write them.
            messages = [
                {key: value for key, value in turn.items() if value is not None}
                for turn in row["messages"]
            ]
            ids = tokenizer.apply_chat_template(messages, return_dict=True)["input_ids"]
        else:
            ids = tokenizer(row["text"] + tokenizer.eos_token)["input_ids"]
        return {"input_ids": ids}

    rows = rows.map(tokenise, remove_columns=rows.column_names, num_proc=processes)
    packs = pack_dataset(
        rows, seq_length=length, strategy="bfd", map_kwargs={"num_proc": processes}
    )
    packs.save_to_disk(str(output / "packs"))
    tokens = sum(map(len, packs.with_format("numpy")["input_ids"][:]))
    return {"packs": len(packs), "fill": tokens / (len(packs) * length), "tokens": tokens}


_SMALL_MODEL = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 151_936,
    "max_position_embeddings": 32_768,
}
"""Configuration of a model beside the tokenizer: these routes ask for one, and load no weights."""


def ms_swift(
    data: str, tokenizer_path: str, length: int, processes: int, output: Path
) -> dict[str, Any]:
    """Measure by ``swift export``, and pack by its data set."""
    from types import SimpleNamespace

    from datasets import load_from_disk
    from swift.dataset import PackingDataset
    from swift.pipelines import export_main

    arguments = {
        "model": str(_model_folder(tokenizer_path, output)),
        "model_type": "qwen2",
        "template": "qwen2_5",
        "dataset": data,
        "to_cached_dataset": "true",
        "dataset_num_proc": str(processes),
        "max_length": str(length),
        "split_dataset_ratio": "0",
        "output_dir": str(output / "cached"),
        "load_from_cache_file": "false",
    }
    if "messages" not in _first_row(data):
        arguments |= {"truncation_strategy": "split", "use_chat_template": "false"}
    export_main([word for name, value in arguments.items() for word in (f"--{name}", value)])
    rows = load_from_disk(str(output / "cached" / "train"))
    packs = PackingDataset(
        SimpleNamespace(max_length=length), rows, packing_length=length, packing_num_proc=processes
    )
    tokens = sum(packs.packed_length)
    return {"packs": len(packs), "fill": tokens / (len(packs) * length), "tokens": tokens}


def axolotl(
    data: str, tokenizer_path: str, length: int, processes: int, output: Path
) -> dict[str, Any]:
    """Tokenise by ``axolotl preprocess``, and pack by its sampler."""
    import numpy as np
    from axolotl.cli.args import PreprocessCliArgs
    from axolotl.cli.config import load_cfg
    from axolotl.cli.preprocess import do_preprocess
    from axolotl.utils.samplers.multipack import MultipackBatchSampler
    from datasets import load_from_disk

    chats = {
        "type": "chat_template",
        "field_messages": "messages",
        "chat_template": "tokenizer_default",
    }
    settings = {
        "base_model": str(_model_folder(tokenizer_path, output)),
        "datasets": [
            {
                "path": data,
                "ds_type": "json",
                **(chats if "messages" in _first_row(data) else {"type": "completion"}),
            }
        ],
        "sequence_len": length,
        "sample_packing": True,
        "dataset_prepared_path": str(output / "prepared"),
        "dataset_num_proc": processes,
        "output_dir": str(output / "run"),
        "micro_batch_size": 1,
        "gradient_accumulation_steps": 1,
        "learning_rate": 1e-5,
        "num_epochs": 1,
        "val_set_size": 0,
    }
    config = output / "config.yml"
    config.write_text(json.dumps(settings))  # JSON is YAML
    do_preprocess(load_cfg(str(config)), PreprocessCliArgs())
    (folder,) = (path for path in (output / "prepared").iterdir() if path.is_dir())
    rows = load_from_disk(str(folder)).with_format("numpy")
    lengths = np.array([len(ids) for ids in rows["input_ids"][:]])
    sampler = MultipackBatchSampler(
        range(len(lengths)),
        1,
        length,
        lengths,
        bin_size=200,
        drop_last=False,
        num_processes=processes,
    )
    packs = [pack for batch in sampler for pack in batch]
    tokens = int(sum(lengths[pack].sum() for pack in packs))
    return {"packs": len(packs), "fill": tokens / (len(packs) * length), "tokens": tokens}


def _model_folder(tokenizer_path: str, output: Path) -> Path:
    """Make a folder with the tokenizer and the configuration of a model."""
    folder = output / "model"
    folder.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_bytes((Path(tokenizer_path) / name).read_bytes())
    (folder / "config.json").write_text(json.dumps(_SMALL_MODEL))
    return folder


def _first_row(data: str) -> dict[str, Any]:
    with open(data, encoding="utf-8") as file:
        row: dict[str, Any] = json.loads(file.readline())
    return row


ROUTES = {"trl": trl, "ms-swift": ms_swift, "axolotl": axolotl}


if __name__ == "__main__":
    route, data, tokenizer, length, processes, output = sys.argv[1:]
    print(json.dumps(ROUTES[route](data, tokenizer, int(length), int(processes), Path(output))))
