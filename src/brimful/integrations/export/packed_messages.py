"""Rows of several conversations, as Megatron-LM's ``SFTDataset`` and NeMo RL read them: a system
message begins each.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from brimful.errors import BadSampleError
from brimful.integrations.export.export_layout import (
    Layout,
    ReadPack,
    Shard,
    ShardOutcome,
    write_blob,
)
from brimful.integrations.export.packed_pairs import check_whole
from brimful.sources.sample import Sample


class MegatronSftLayout(Layout):
    """One object a line: ``messages`` of all samples of a pack, and ``sample_ids``.

    The readers apply their own template and tokenizer, and cut a row at their sequence length: a row
    is full if the packs were made with the same.
    """

    name = "megatron-sft"
    takes_source = True
    reader = ("datasets", "datasets")

    def write_shard(self, shard: Shard) -> ShardOutcome:
        def lines() -> Iterator[bytes]:
            for index, pack in shard:
                check_whole(pack, index)
                sample_ids = pack.sample_ids.tolist()
                messages = [
                    {"role": role, "content": text}
                    for sample_id in sample_ids
                    for role, text in turns_of_conversation(shard.plan.source[sample_id])
                ]
                row = {"messages": messages, "sample_ids": sample_ids}
                yield json.dumps(row).encode() + b"\n"

        key = _key(shard.index)
        return shard.outcome({key: write_blob(shard.store, key, lines())})

    def advice(self, directory: str) -> str:
        return (
            f"Megatron-LM: --sft --data-path {directory}/{_key(0)}; NeMo RL: data.train.dataset_name="
            f"megatron_sft_packed data.train.data_path={directory}/{_key(0)}; both with the "
            "tokenizer, template and length of the packs"
        )

    def read(self, directory: str, num_shards: int) -> Iterator[ReadPack]:
        import datasets

        paths = [str(Path(directory, _key(shard))) for shard in range(num_shards)]
        for row in datasets.load_dataset("json", data_files=paths, split="train", streaming=True):
            samples: list[list[tuple[str, str]]] = []
            for message in row["messages"]:
                if message["role"] == "system":
                    samples.append([])
                samples[-1].append((message["role"], message["content"]))
            yield ReadPack(messages=samples)


def _key(shard: int) -> str:
    return f"packs-{shard:06d}.jsonl"


def turns_of_conversation(sample: Sample) -> list[tuple[str, str]]:
    """Return roles and texts of a conversation: system, then user and assistant in turn.

    Raises:
        BadSampleError: the readers would divide it, or read something else.

    >>> turns_of_conversation(Sample(0, messages=[{"role": "system", "content": "Be kind."},
    ...                                           {"role": "user", "content": "Who?"},
    ...                                           {"role": "assistant", "content": "Ann."}]))
    [('system', 'Be kind.'), ('user', 'Who?'), ('assistant', 'Ann.')]
    """
    messages = sample.messages or ()
    roles = [message.get("role") for message in messages]
    keys = {key for message in messages for key, value in message.items() if value}
    texts = [_text(message.get("content")) for message in messages]
    reason = ""
    if not roles or roles[0] != "system":
        reason = "begins with no system message, which says where a conversation begins: add one"
    elif roles[1:] != ["user", "assistant"] * (len(roles) // 2) or roles == ["system"]:
        reason = f"has turns of {', '.join(map(str, roles))}"
    elif sample.tools or keys > {"role", "content"}:
        reason = f"has {', '.join(sorted(keys - {'role', 'content'})) or 'tools'}"
    elif None in texts:
        reason = "has contents that are not text"
    elif "" in texts[2::2]:
        reason = "has an empty answer"
    if reason:
        raise BadSampleError(
            f"{reason}; the layout holds a system message, then questions and answers",
            sample_id=sample.sample_id,
        )
    return [(str(role), str(text)) for role, text in zip(roles, texts, strict=True)]


def _text(content: Any) -> str | None:
    """Return the text of a content; None if it has something else."""
    if isinstance(content, str):
        return content
    items: Sequence[Any] = content or ()
    if any(item["type"] != "text" for item in items):
        return None
    return "".join(item["text"] for item in items)
