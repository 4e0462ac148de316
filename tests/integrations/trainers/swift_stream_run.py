"""``swift sft`` on a stream of brimful, on a CPU, in a process of ms-swift's own Python.

PYTHON -m tests.integrations.trainers.swift_stream_run FOLDER [FLAG …]      exits with 77 where ms-swift cannot be imported
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

CANNOT = 77


def main(folder: Path, flags: list[str]) -> None:
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ["HF_HOME"] = os.environ["MODELSCOPE_CACHE"] = str(folder)
    try:
        from swift.pipelines import sft_main
        from swift.pipelines.train import sft
    except ImportError as error:
        print(error, file=sys.stderr)
        raise SystemExit(CANNOT) from error
    import torch
    from transformers import AutoTokenizer, Qwen2Config, Qwen2ForCausalLM

    from brimful import ChatEncoder
    from brimful.cli.demo.docstring_chats import make_chats
    from brimful.cli.demo.toy_model import train_tokenizer
    from brimful.stream import PackingProducer

    chats = make_chats(limit=60)
    model, stream, plugin = folder / "model", folder / "stream", folder / "plugin.py"
    train_tokenizer([turn["content"] for chat in chats for turn in chat["messages"]], model, vocab_size=1000)
    tokenizer = AutoTokenizer.from_pretrained(model)
    config = Qwen2Config(
        vocab_size=len(tokenizer), hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    Qwen2ForCausalLM(config).save_pretrained(model)
    plugin.write_text("from brimful.integrations.trainers.ms_swift import install\ninstall()\n", encoding="utf-8")
    producer = PackingProducer(
        chats, ChatEncoder(tokenizer), stream, capacity=512, lookahead=16, packs_per_shard=2, overflow="drop"
    )
    while not (stream / "log" / f"{0:012d}.json").exists():
        producer.step()
    trainers: list[Any] = []
    rows: list[list[int]] = []
    original = sft.SwiftSft.train

    def train(self: Any, trainer: Any) -> Any:
        trainers.append(trainer)
        collate = trainer.data_collator

        def noted(batch: Any) -> Any:
            rows.extend([token for row in pack for token in row["input_ids"]] for pack in batch)
            return collate(batch)

        trainer.data_collator = noted
        # The other packs come while the training waits for them.
        threading.Thread(target=lambda: (time.sleep(1), producer.close())).start()
        return original(self, trainer)

    sft.SwiftSft.train = train
    # ms-swift reads the command line, as `swift sft` gives it.
    sys.argv = [
        "sft", "--model", str(model), "--model_type", "qwen2", "--template", "chatml", "--dataset", str(stream),
        "--external_plugins", str(plugin), "--attn_impl", "sdpa", "--tuner_type", "full", "--torch_dtype", "float32",
        "--use_cpu", "true", "--max_steps", "1000", "--logging_steps", "1", "--per_device_train_batch_size", "1",
        "--gradient_accumulation_steps", "2", "--output_dir", str(folder / "out"), "--save_strategy", "no", "--report_to",
        "none", "--check_model", "false", "--dataloader_num_workers", "0", "--split_dataset_ratio", "0", *flags,
    ]  # fmt: skip
    result = sft_main()
    trainer = trainers[0]
    packs = trainer.train_dataset.packs
    # It ends with the stream: after the first step that has no packs.
    losses = [round(entry["loss"], 4) for entry in result["log_history"] if "loss" in entry]
    assert len(losses) == packs.end // 2 + 1
    assert losses[-1] == 0
    assert max(losses) < 1.2 * losses[0], losses
    trained = [pack.input_ids.tolist() for pack in (packs[index] for index in range(6))]
    assert rows[:6] == trained, "other packs were trained than those of the stream, or in another order"
    pack = max((packs[index] for index in range(6)), key=lambda pack: pack.num_segments)
    batch = trainer.template.data_collator([trainer.train_dataset[0]])
    assert "attention_mask" not in batch
    net = trainer.model.eval()
    positions = [place for length in (pack.cu_seqlens[1:] - pack.cu_seqlens[:-1]).tolist() for place in range(length)]
    with torch.no_grad():
        ids = torch.tensor(pack.input_ids.tolist())[None]
        together = net(input_ids=ids, position_ids=torch.tensor(positions)[None]).logits[0]
        for start, end in zip(pack.cu_seqlens.tolist(), pack.cu_seqlens[1:].tolist(), strict=False):
            torch.testing.assert_close(
                together[start:end], net(input_ids=ids[:, start:end]).logits[0], atol=1e-5, rtol=1e-4
            )
    print(json.dumps({"packs": len(trained), "segments": pack.num_segments, "losses": losses}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
