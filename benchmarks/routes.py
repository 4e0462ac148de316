"""The whole job as users of other projects write it: ``python routes.py ROUTE DATA TOKENIZER LENGTH PROCESSES OUTPUT``.

Each route is a process of its own, so that imports and workers are in its time, and writes packs that a trainer can
read. The last line it prints is JSON: packs and the share of their positions that hold a token.

trl        ``datasets``: JSON to Arrow, the tokenizer's chat template by ``map`` over one row at a time, as ``SFTTrainer`` does it,
           then ``trl.pack_dataset``, saved.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

__all__ = ["ROUTES"]


def trl(data: str, tokenizer_path: str, length: int, processes: int, output: Path) -> dict[str, Any]:
    """Tokenise by ``map``, pack by ``trl.pack_dataset``, save as Arrow."""
    from datasets import load_dataset
    from transformers import AutoTokenizer
    from trl import pack_dataset

    tokenizer = AutoTokenizer.from_pretrained(tokenizer_path)
    rows = load_dataset("json", data_files=data, split="train", cache_dir=str(output / "cache"))

    def tokenise(row: dict[str, Any]) -> dict[str, Any]:
        if "messages" in row:
            # Columns that a row lacks come as None from Arrow, and templates would write them.
            messages = [{key: value for key, value in turn.items() if value is not None} for turn in row["messages"]]
            ids = tokenizer.apply_chat_template(messages, return_dict=True)["input_ids"]
        else:
            ids = tokenizer(row["text"] + tokenizer.eos_token)["input_ids"]
        return {"input_ids": ids}

    rows = rows.map(tokenise, remove_columns=rows.column_names, num_proc=processes)
    packs = pack_dataset(rows, seq_length=length, strategy="bfd", map_kwargs={"num_proc": processes})
    packs.save_to_disk(str(output / "packs"))
    tokens = sum(map(len, packs.with_format("numpy")["input_ids"][:]))
    return {"packs": len(packs), "fill": tokens / (len(packs) * length), "tokens": tokens}


ROUTES = {"trl": trl}


if __name__ == "__main__":
    route, data, tokenizer, length, processes, output = sys.argv[1:]
    print(json.dumps(ROUTES[route](data, tokenizer, int(length), int(processes), Path(output))))
