"""Batches that ms-swift's Megatron trainer gets from a stream, against its own packing of the same samples, on a CPU.

PYTHON -m tests.integrations.trainers.swift_megatron_run FOLDER TOKENIZER FAMILY      exits with 77 where ms-swift cannot be imported

Everything up to the forward is ms-swift's own code: its template encodes the samples and joins both kinds of rows, and its trainer
prepares the batch of each context-parallel rank. Only ``transformer_engine``, which needs a GPU, is a module of empty names.
"""

from __future__ import annotations

import importlib.machinery
import json
import os
import shutil
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, patch

CANNOT = 77
IMAGE_TOKEN = 151_655
"""The template of ms-swift has this number in its source."""


class EmptyEngine:
    """A finder of ``transformer_engine`` whose modules have every name."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name.split(".")[0].startswith("transformer_engine"):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)  # type: ignore[arg-type]
        return None

    def create_module(self, spec: Any) -> types.ModuleType:
        class Module(types.ModuleType):
            __version__ = "2.9.0"
            __path__: list[str] = []

            def __getattr__(self, name: str) -> Any:
                if name.startswith("__"):
                    raise AttributeError(name)
                return type(name, (), {"__init__": lambda *_, **__: None}) if name[0].isupper() else MagicMock()

        return Module(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """Leave the module empty."""


SIZE = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
}
ROPE = {"type": "mrope", "mrope_section": [1, 1, 2], "rope_type": "default"}
TOWER = {"depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "out_hidden_size": 16}


def make_pictures(folder: Path, tokenizer: Path) -> None:
    """Write a Qwen2.5-VL with random weights, and the tokenizer and image processor of Qwen2.5."""
    import transformers

    config = transformers.Qwen2_5_VLConfig(
        text_config={**SIZE, "vocab_size": 151_665, "rope_scaling": ROPE},
        vision_config={**TOWER, "fullatt_block_indexes": [0]},
        image_token_id=IMAGE_TOKEN,
    )
    transformers.Qwen2_5_VLForConditionalGeneration(config).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tokenizer / name, folder / name)
    shutil.copy(tokenizer / "chat_template_vl.jinja", folder / "chat_template.jinja")
    processor = json.loads((tokenizer / "preprocessor_config.json").read_text())
    processor["processor_class"] = "Qwen2_5_VLProcessor"
    (folder / "preprocessor_config.json").write_text(json.dumps(processor))


MARKS = {
    **{
        f"audio{part}_token": f"<|{word}|>"
        for part, word in (("", "AUDIO"), ("_bos", "audio_bos"), ("_eos", "audio_eos"))
    },
    "image_token": "<|IMAGE|>",
    "video_token": "<|VIDEO|>",
    "vision_bos_token": "<|vision_bos|>",
    "vision_eos_token": "<|vision_eos|>",
}
SOUNDS = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{% if message['content'] is string %}"
    "{{ message['content'] }}{% else %}{% for part in message['content'] %}{% if part['type'] == 'audio' %}"
    "<|audio_bos|><|AUDIO|><|audio_eos|>{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n"
    "{% endfor %}"
)


def make_sounds(folder: Path, tokenizer: Path) -> None:
    """Write a Qwen2.5-Omni with random weights and without speech, its tokenizer and its processors."""
    import torch
    import transformers

    words = transformers.AutoTokenizer.from_pretrained(tokenizer)
    words.add_tokens(list(MARKS.values()), special_tokens=True)
    words.save_pretrained(folder)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings |= {**MARKS, "extra_special_tokens": MARKS, "model_specific_special_tokens": MARKS}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    ids = {name: words.convert_tokens_to_ids(mark) for name, mark in MARKS.items()}
    listener = {
        "d_model": 16,
        "encoder_layers": 1,
        "encoder_attention_heads": 2,
        "encoder_ffn_dim": 16,
        "output_dim": 16,
    }
    thinker = {
        "audio_config": {**listener, "num_mel_bins": 128},
        "vision_config": {**TOWER, "fullatt_block_indexes": [0]},
        "text_config": {**SIZE, "vocab_size": len(words), "rope_scaling": ROPE},
        **{f"{kind}_token_index": ids[f"{kind}_token"] for kind in ("audio", "image", "video")},
        **{f"{kind}_{place}_token_id": ids[f"{kind}_{mark}_token"]
           for kind in ("audio", "vision") for place, mark in (("start", "bos"), ("end", "eos"))},
        "position_id_per_seconds": 25, "seconds_per_chunk": 2,
    }  # fmt: skip
    config = transformers.Qwen2_5OmniConfig(thinker_config=thinker, enable_audio_output=False)
    transformers.Qwen2_5OmniForConditionalGeneration(config).save_pretrained(folder)
    torch.save({}, folder / "spk_dict.pt")
    processor = {
        "processor_class": "Qwen2_5OmniProcessor", "image_processor_type": "Qwen2VLImageProcessor",
        "feature_extractor_type": "WhisperFeatureExtractor", "feature_size": 128, "chunk_length": 300,
        "nb_max_frames": 30000, "n_samples": 4800000, "min_pixels": 3136, "max_pixels": 12845056,
    }  # fmt: skip
    (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    (folder / "chat_template.jinja").write_text(SOUNDS)


def picture_chats(folder: Path) -> Iterator[dict[str, Any]]:
    """Chats with two images, one, and none; the sides are multiples of 28, so nothing is resized."""
    from PIL import Image

    for number in range(12):
        names = []
        for place in range(number % 3):
            names.append(f"{number}-{place}.png")
            size = (56 + 28 * (number % 4), 56 + 28 * place)
            Image.effect_noise(size, 60).convert("RGB").save(folder / names[-1])
        yield {"messages": turns("<image>" * len(names), number), "images": names}


def sound_chats(folder: Path) -> Iterator[dict[str, Any]]:
    """Chats with two recordings, one, and none."""
    from examples.drawn_chats import make_media_chats

    files = iter(make_media_chats(num_chats=1, num_tones=20).files.items())
    for number in range(12):
        names = []
        while len(names) < number % 3:
            name, data = next(files)
            if name.endswith(".wav"):
                names.append(Path(name).name)
                (folder / names[-1]).write_bytes(data)
        yield {
            "messages": [{"role": "system", "content": "Hear."}, *turns("<audio>" * len(names), number)],
            "audios": names,
        }


def turns(marks: str, number: int) -> list[dict[str, str]]:
    answer = "a " * (1 + number) + "cat"
    return [{"role": "user", "content": f"{marks}What is it?"}, {"role": "assistant", "content": answer}]


KINDS: dict[str, tuple[Any, Any, str]] = {
    "qwen2.5-vl": (make_pictures, picture_chats, "images"),
    "qwen2.5-omni": (make_sounds, sound_chats, "audios"),
}


ROUNDING = {"pixel_values": 0.02, "input_features": 1e-5}


def check_equal(ours: dict[str, Any], theirs: dict[str, Any], case: str) -> None:
    """Compare two batches: the same keys in the same types; features to the rounding of two image processors."""
    import torch

    assert ours.keys() == theirs.keys(), (case, ours.keys() ^ theirs.keys())
    if "input_features" in theirs:  # ms-swift pads each to 300 seconds; what the mask leaves out reaches no model
        width, mask = ours["input_features"].shape[-1], theirs["feature_attention_mask"]
        assert not mask[:, width:].any(), (case, "no column of a sound is missing")
        theirs = {**theirs, "feature_attention_mask": mask[:, :width]}
        theirs["input_features"] = theirs["input_features"][..., :width] * mask[:, None, :width]
        ours = {**ours, "input_features": ours["input_features"] * mask[:, None, :width]}
    for name, due in theirs.items():
        if isinstance(due, torch.Tensor):
            assert (ours[name].dtype, ours[name].shape) == (due.dtype, due.shape), (case, name)
            torch.testing.assert_close(ours[name], due, atol=ROUNDING.get(name, 0), rtol=0, msg=name)
        elif name == "packed_seq_params":
            check_equal(vars(ours[name]), vars(due), case)
        else:
            assert ours[name] == due, (case, name)


def main(folder: Path, tokenizer: Path, family: str) -> None:
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ["HF_HOME"] = os.environ["MODELSCOPE_CACHE"] = str(folder)
    sys.meta_path.insert(0, EmptyEngine())
    try:
        from swift.megatron.trainers import utils
        from swift.megatron.utils import get_padding_to, megatron_lm_utils
        from swift.model import get_model_processor
        from swift.template import get_template
    except ImportError as error:
        print(error, file=sys.stderr)
        raise SystemExit(CANNOT) from error
    import numpy as np
    import torch

    from brimful.integrations.trainers.ms_swift_stream import SwiftStream, _with_media
    from brimful.media.encode.media_chat import MediaChatEncoder
    from brimful.media.families import open_family
    from brimful.stream import LazyShardedDataset, PackingProducer

    model, data, stream = folder / "model", folder / "data", folder / "stream"
    data.mkdir()
    make_model, make_chats, key = KINDS[family]
    model.mkdir()
    make_model(model, tokenizer)
    rows = list(make_chats(data))
    (data / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    encoder = MediaChatEncoder(str(model), open_family(family, model), compare_media=False)
    PackingProducer(data, encoder, stream, capacity=192, lookahead=6, packs_per_shard=2).run(close=True)
    packs = LazyShardedDataset(stream, lanes=1)
    kind = family.replace("-", "_").replace(".", "_")
    net, processor = get_model_processor(str(model), model_type=kind, torch_dtype=torch.float32, device_map="cpu")
    num_segments = 0
    splits = [(1, 1), (1, 4), (2, 1), (2, 2), (4, 1)]
    for megatron, (cp, tp) in [(False, (1, 1)), *((True, split) for split in splits)]:
        template = get_template(processor, template_type=kind, sequence_parallel_size=cp)
        template.set_mode("train")
        template.model, template.use_megatron, own_collate = net, megatron, template.data_collator
        template.packing = template.padding_free = True
        args = SimpleNamespace(
            model_dir=str(model), tensor_model_parallel_size=tp, sequence_parallel=True, context_parallel_size=cp,
            fp8_recipe=None, attention_backend="flash", task_type="causal_lm", pipeline_model_parallel_size=1,
            padding_free=True, is_multimodal=True, use_flash_attn=True,
        )  # fmt: skip
        mine = _with_media(packs, template, args)
        padding_to = get_padding_to(args) if megatron else None
        for index in range(len(packs)):
            case = f"pack {index}, megatron {megatron}, cp {cp}, tp {tp}"
            pack = packs[index]
            edges, encoded = pack.cu_seqlens, []
            for segment, number in enumerate(pack.sample_ids.tolist()):
                row = rows[number]
                one = template.encode({**row, key: [str(data / name) for name in row[key]]}, return_length=True)
                due = slice(edges[segment], edges[segment + 1])
                assert one["input_ids"] == pack.input_ids[due].tolist(), (case, "the samples are the same")
                one["labels"] = pack.labels[due].tolist()  # ms-swift trains the line break after an answer too
                encoded.append(one)
            batches: Any = [
                collate([some_rows], padding_to=padding_to)
                for collate, some_rows in ((template.data_collator, mine[index]), (own_collate, encoded))
            ]
            batches[1].pop("loss_scale", None)  # of the labels that were replaced
            num_segments += pack.num_segments
            check_equal(batches[0], batches[1], case)
            if not megatron:
                continue
            padded = -(-np.diff(edges) // (2 * cp)) * (2 * cp) if cp > 1 else np.diff(edges)
            num_targets = 0
            for rank in range(cp):
                ranks: Any = {
                    "get_context_parallel_world_size": lambda cp=cp: cp,
                    "get_context_parallel_rank": lambda rank=rank: rank,
                }
                with patch.multiple(megatron_lm_utils.mpu, **ranks):
                    prepared = [utils.prepare_batch(args, dict(batch)) for batch in batches]
                check_equal(prepared[0], prepared[1], f"{case}, rank {rank}")
                params = prepared[0]["packed_seq_params"]
                assert params.seq_lens.tolist() == np.diff(edges).tolist(), case
                begins = params.cu_seqlens_q[: len(padded) + 1].tolist()
                assert begins == [0, *np.cumsum(padded).tolist()], (case, "a boundary at each sample")
                num_targets += int((prepared[0]["labels"] != -100).sum())
            assert num_targets == pack.num_loss_tokens, (case, "each target on one rank")
    assert isinstance(mine, SwiftStream)
    print(json.dumps({"packs": len(packs), "segments": num_segments}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
