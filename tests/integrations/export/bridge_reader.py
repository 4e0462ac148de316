"""A script that makes batches of an export with Megatron-Bridge's own data set of packed Parquet, and prints them as one line of JSON.

Importing its whole package takes every model and a GPU's libraries. So its packages are opened without their first files, and
of the modules around the reader only names stand in; data set, collation and masks are Bridge's.
"""

import json
import sys
import types
from pathlib import Path

import megatron

ROOT = next(folder for path in megatron.__path__ if (folder := Path(path) / "bridge").is_dir())

for name in ("", ".data", ".training", ".training.tokenizers", ".utils"):
    package = types.ModuleType(f"megatron.bridge{name}")
    package.__path__ = [str(ROOT.joinpath(*name.split(".")[1:]))]
    sys.modules[package.__name__] = package
STAND_INS: dict[str, dict[str, object]] = {
    "megatron.bridge.utils.common_utils": {
        "get_local_rank_preinit": int,
        "get_rank_safe": int,
        "get_world_size_safe": lambda: 1,
    },
    "megatron.bridge.training.tokenizers.tokenizer": {"MegatronTokenizer": object},
}
for name, content in STAND_INS.items():
    module = types.ModuleType(name)
    vars(module).update(content)
    sys.modules[name] = module

if (ROOT / "data" / "packing" / "parquet.py").exists():
    from megatron.bridge.data.packing.parquet import GPTSFTPackedParquetDataset
else:  # up to 0.5
    from megatron.bridge.data.datasets.packed_parquet import GPTSFTPackedParquetDataset

pattern, metadata, capacity = sys.argv[1], sys.argv[2], int(sys.argv[3])
tokenizer = types.SimpleNamespace(eos_id=0, eod=0, bos_id=None, space_sensitive=False)
options = {
    "tokenizer": tokenizer,
    "max_seq_length": capacity,
    "pad_to_max_length": True,
    "pad_cu_seqlens": True,
    "pack_metadata_file_path": metadata,
    "prompt_template": "{input} {output}",  # of rows that are not packed; asked for all the same
    "label_key": "output",
    "truncation_field": "input",
}
dataset = GPTSFTPackedParquetDataset(file_path=pattern, **options)
batches = []
for number in range(len(dataset)):
    row = dataset[number]
    dataset.validate_row(number, row["input_ids"], row["loss_mask"], row["seq_boundaries"][:-1])
    batch = dataset.collate_fn([row])
    found = {name: batch[name].tolist() for name in ("tokens", "labels", "loss_mask", "position_ids")}
    # Up to 0.5 boundaries have another name, and -1 behind the last.
    edges = batch["cu_seqlens_q" if "cu_seqlens_q" in batch else "cu_seqlens"].flatten().tolist()
    found |= {"cu_seqlens": [edge for edge in edges if edge >= 0], "count": batch["token_count"]}
    batches.append(found)
print("\n" + json.dumps(batches))
