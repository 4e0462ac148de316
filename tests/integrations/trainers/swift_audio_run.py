"""``swift sft`` on a stream of recordings, with a tiny Qwen2-Audio on a CPU, in a process of ms-swift's own Python.

PYTHON -m tests.integrations.trainers.swift_audio_run FOLDER [FLAG …]      exits with 77 where ms-swift cannot be imported
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

CANNOT = 77
TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {% if message['content'] is string %}{{ message['content'] }}"
    "{% else %}{% for part in message['content'] %}{% if part['type'] == 'audio' %}<|audio_bos|><|AUDIO|><|audio_eos|>"
    "{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}\n{% endfor %}"
)


def make_model(folder: Path, texts: list[str]) -> Any:
    """Write a Qwen2-Audio with random weights, its tokenizer and its processor; return the tokenizer."""
    import transformers

    from brimful.cli.demo.toy_model import train_tokenizer

    marks = ["<|AUDIO|>", "<|audio_bos|>", "<|audio_eos|>"]
    train_tokenizer(texts, folder, vocab_size=600, special_tokens=marks, chat_template=TEMPLATE)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    size = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    tower = {"d_model": 16, "encoder_layers": 1, "encoder_attention_heads": 2, "encoder_ffn_dim": 16}
    config = transformers.Qwen2AudioConfig(
        audio_config={**tower, "num_mel_bins": 128, "max_source_positions": 1500},
        text_config={"model_type": "qwen2", **size, "num_key_value_heads": 1, "vocab_size": len(tokenizer),
                     "bos_token_id": None, "eos_token_id": None},
        audio_token_index=tokenizer.convert_tokens_to_ids("<|AUDIO|>"),
    )  # fmt: skip
    transformers.Qwen2AudioForConditionalGeneration(config).save_pretrained(folder)
    processor = {"feature_extractor_type": "WhisperFeatureExtractor", "processor_class": "Qwen2AudioProcessor"}
    (folder / "preprocessor_config.json").write_text(json.dumps({**processor, "feature_size": 128, "chunk_length": 30}))
    return tokenizer


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
    from examples.drawn_chats import make_media_chats

    from brimful import PackCollator
    from brimful.media.collate import MediaFeatures
    from brimful.media.encode.media_chat import MediaChatEncoder
    from brimful.media.families import open_family
    from brimful.stream import PackingProducer

    chats = make_media_chats(num_chats=1, num_tones=40)
    recordings, model, stream, plugin = (folder / name for name in ("in", "model", "stream", "plugin.py"))
    recordings.mkdir()
    tokenizer = make_model(model, [row["messages"][1]["content"] for row in chats.tones])
    for row in chats.tones:
        name = Path(row["audios"][0]).name
        (recordings / name).write_bytes(chats.files[row["audios"][0]])
        (recordings / name).with_suffix(".txt").write_text(row["messages"][1]["content"], encoding="utf-8")
    encoder = MediaChatEncoder(tokenizer, open_family("qwen2-audio", model), compare_media=False)
    producer = PackingProducer(
        recordings, encoder, stream, capacity=448, lookahead=8, packs_per_shard=1, lanes=2, overflow="drop"
    )
    while not (stream / "log" / f"{1:012d}.json").exists():
        producer.step()
    plugin.write_text("from brimful.integrations.trainers.ms_swift import install\ninstall()\n", encoding="utf-8")
    trainers: list[Any] = []
    batches: list[dict[str, Any]] = []
    original = sft.SwiftSft.train

    def train(self: Any, trainer: Any) -> Any:
        trainers.append(trainer)
        collate = trainer.data_collator
        trainer.data_collator = lambda rows: batches.append(collate(rows)) or dict(batches[-1])
        # The other packs come while the training waits for them.
        threading.Thread(target=lambda: (time.sleep(1), producer.close())).start()
        return original(self, trainer)

    sft.SwiftSft.train = train
    sys.argv = [
        "sft", "--model", str(model), "--model_type", "qwen2_audio", "--template", "qwen2_audio", "--dataset", str(stream),
        "--external_plugins", str(plugin), "--attn_impl", "sdpa", "--tuner_type", "full", "--torch_dtype", "float32",
        "--use_cpu", "true", "--max_steps", "3", "--logging_steps", "1", "--per_device_train_batch_size", "1",
        "--gradient_accumulation_steps", "2", "--output_dir", str(folder / "out"), "--save_strategy", "no", "--report_to",
        "none", "--check_model", "false", "--dataloader_num_workers", "0", "--split_dataset_ratio", "0",
        "--freeze_vit", "false", *flags,
    ]  # fmt: skip
    result = sft_main()
    losses = [entry["loss"] for entry in result["log_history"] if "loss" in entry]
    assert len(losses) == 3
    trainer = trainers[0]
    packs = [trainer.train_dataset.packs[index] for index in range(6)]
    assert [batch["input_ids"][0].tolist() for batch in batches[:6]] == [pack.input_ids.tolist() for pack in packs]
    assert all(
        len(batch["input_features"]) == len(pack.attachments) for batch, pack in zip(batches, packs, strict=False)
    )
    # The tower was trained, so its spectrograms were in the batch; and each sample is what it is alone with its own sound.
    net = trainer.model.eval()
    pack = max(packs, key=lambda pack: pack.num_segments)
    features = MediaFeatures.of_packs(trainer.train_dataset.packs, model)
    batch = PackCollator(media=features)([pack])
    edges = pack.cu_seqlens.tolist()
    with torch.no_grad():
        together = net(**{name: value for name, value in batch.items() if name != "labels"}).logits[0]
        for segment, (start, end) in enumerate(pairwise(edges)):
            alone = net(
                input_ids=batch["input_ids"][:, start:end],
                input_features=batch["input_features"][segment : segment + 1],
                feature_attention_mask=batch["feature_attention_mask"][segment : segment + 1],
            ).logits[0]
            torch.testing.assert_close(together[start:end], alone, atol=1e-5, rtol=1e-4)
    print(json.dumps({"packs": len(packs), "segments": pack.num_segments, "losses": losses}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
