"""The model's processor is loaded, and compared with, in every layout of files that Transformers has written."""

import json
import shutil
from typing import Any

import pytest

pytest.importorskip("torch", reason="processors need torch")
transformers = pytest.importorskip("transformers", reason="needs the extra brimful[text]")
pytest.importorskip("PIL", reason="pictures need the extra brimful[media]")
pytest.importorskip("soundfile", reason="sounds need the extra brimful[media]")

from brimful.encode.tokenizer import Tokenizer  # noqa: E402
from brimful.media import BadMediumError, MediaKind, Medium, PlacedMedium  # noqa: E402
from brimful.media.encode.media_chat import MediaChatEncoder  # noqa: E402
from brimful.media.encode.processor import ProcessorReference  # noqa: E402
from brimful.media.families import FAMILIES, open_family  # noqa: E402
from brimful.media.videos import VideoHeader, load_frames  # noqa: E402
from brimful.sources import open_source  # noqa: E402
from tests.flow.test_media import png  # noqa: E402
from tests.flow.test_media_families import INTERN_TOKENS, OMNI_TOKENS, sound, template  # noqa: E402
from tests.verify.media_packs import turns  # noqa: E402

QWEN_IMAGE = {
    "image_processor_type": "Qwen2VLImageProcessor",
    "patch_size": 14,
    "merge_size": 2,
    "temporal_patch_size": 2,
}
QWEN3_IMAGE = {**QWEN_IMAGE, "patch_size": 16, "size": {"shortest_edge": 65_536, "longest_edge": 1_000_000}}
WHISPER = {"feature_extractor_type": "WhisperFeatureExtractor", "feature_size": 128, "chunk_length": 4}
QWEN_TEXT = {"image": "<|vision_start|><|image_pad|><|vision_end|>"}
AUDIO_TEXT = {"audio": "<|audio_bos|><|AUDIO|><|audio_eos|>"}
OMNI_TEXT = {**AUDIO_TEXT, "image": "<|vision_bos|><|IMAGE|><|vision_eos|>"}

KINDS: dict[str, Any] = {
    "qwen2-vl": ({}, QWEN_IMAGE, [], QWEN_TEXT),
    "qwen2.5-vl": ({}, QWEN_IMAGE, [], QWEN_TEXT),
    "qwen3-vl": ({}, QWEN3_IMAGE, [], QWEN_TEXT),
    "llava": (
        {"patch_size": 14, "num_additional_image_tokens": 1, "vision_feature_select_strategy": "default"},
        {"image_processor_type": "CLIPImageProcessor", "crop_size": 56, "size": {"shortest_edge": 56}},
        ["<image>"],
        {"image": "<image>"},
    ),
    "internvl": (
        {"image_seq_length": 4},
        {"image_processor_type": "GotOcr2ImageProcessor", "size": {"height": 56, "width": 56}, "max_patches": 4},
        INTERN_TOKENS,
        {"image": "<IMG_CONTEXT>"},
    ),
    "qwen2-audio": ({}, WHISPER, OMNI_TOKENS, AUDIO_TEXT),
    "qwen2.5-omni": ({}, {**QWEN_IMAGE, **WHISPER}, OMNI_TOKENS, OMNI_TEXT),
}


NAMED = {
    "internvl": {
        "start_image_token": "<img>",
        "end_image_token": "</img>",
        "context_image_token": "<IMG_CONTEXT>",
        "video_token": "<img>",
    },
    "qwen2.5-omni": {
        "audio_token": "<|AUDIO|>",
        "audio_bos_token": "<|audio_bos|>",
        "audio_eos_token": "<|audio_eos|>",
        "image_token": "<|IMAGE|>",
        "vision_bos_token": "<|vision_bos|>",
        "vision_eos_token": "<|vision_eos|>",
        "video_token": "<|video_pad|>",
    },
}
"""Tokens that processors ask their tokenizer for."""


def reference_of(name, folder, tokenizer):
    encoder = MediaChatEncoder(
        Tokenizer(tokenizer, fast=False), open_family(name, folder), chat_template=template(**KINDS[name][3])
    )
    return encoder, encoder.attachment_reference


@pytest.mark.parametrize("name", KINDS)
def test_every_layout_of_every_processor_is_compared(name, small_qwen, tmp_path, monkeypatch):
    """One ``processor_config.json`` with the settings of the parts in it, and a file for each part.

    Given twice, as a dictionary and as the part, the processor could not be made, and nothing was compared.
    """
    of_processor, of_part, tokens, texts = KINDS[name]
    of_processor = {**of_processor, "processor_class": FAMILIES[name].processor_class}
    tokenizer = transformers.AutoTokenizer.from_pretrained(small_qwen)
    tokenizer.add_tokens(tokens, special_tokens=True)
    for attribute, token in NAMED.get(name, {}).items():
        setattr(tokenizer, attribute, token)
        setattr(tokenizer, f"{attribute}_id", tokenizer.convert_tokens_to_ids(token))
    files = tmp_path / "files"
    files.mkdir()
    (files / "processor_config.json").write_text(json.dumps(of_processor))
    (files / "preprocessor_config.json").write_text(json.dumps(of_part))
    (files / "config.json").write_text("{}")
    _, reference = reference_of(name, files, tokenizer)
    assert reference.obstacle == ""

    saved, nested = tmp_path / "saved", tmp_path / "nested"
    processor = reference._processor
    present = [part for part in processor.get_attributes() if getattr(processor, part) is not None]
    for part in set(processor.get_attributes()) - set(present):
        delattr(processor, part)
    monkeypatch.setattr(
        type(processor), "get_attributes", staticmethod(lambda: present)
    )  # a part that is None cannot be saved
    processor.save_pretrained(saved)
    shutil.copytree(files, nested)
    (nested / "preprocessor_config.json").unlink()
    parts = [part for part, kind in (("image_processor", "image"), ("feature_extractor", "audio")) if kind in texts]
    by_hand = dict.fromkeys([*parts, *(["video_processor"] if "qwen" in name and "image" in texts else [])], of_part)
    (nested / "processor_config.json").write_text(json.dumps({**of_processor, **by_hand}))

    row = {"messages": turns("".join(f"<{kind}>" for kind in texts) + "What?")}
    row |= {"images": [png(84, 56, 1)]} if "image" in texts else {}
    row |= {"audios": [sound(1.5, 0)]} if "audio" in texts else {}
    sample = open_source([row], media=True)[0]
    for folder in (files, saved, nested):
        encoder, reference = reference_of(name, folder, tokenizer)
        assert reference.obstacle == "", folder
        assert reference.difference(sample, len(encoder.encode(sample))) == ""
    if transformers.__version__ >= "5":
        assert parts[0] in json.loads((saved / "processor_config.json").read_text())


@pytest.mark.parametrize("num_frames", [1, 3])
def test_videos_go_through_the_processor_up_to_a_limit(num_frames, monkeypatch):
    """Of a longer one only the last frame is decoded, as its header may promise frames that are not there."""
    pytest.importorskip("av", reason="videos need the extra brimful[media]")
    from tests.media.clips import clip

    item = PlacedMedium(Medium(MediaKind.VIDEO, "a", data=clip(num_frames=num_frames)), 0, 1, 1, num_frames=num_frames)
    own: Any = {"prepare": None, "encode": None, "tokenizer": None}
    reference = ProcessorReference(open_family("qwen2-vl"), render=lambda messages, tools: "text", **own)
    asked: dict[str, Any] = {}

    def processor(**arguments):
        asked.update(arguments)
        return {}

    processor.video_processor = None  # type: ignore[attr-defined]
    reference._processor = processor
    assert reference._output((), None, [item]) is None
    processor.video_processor = "one"  # type: ignore[attr-defined]
    for limit, output in ((2 * 3 * num_frames * 64 * 48, {}), (2 * 3 * num_frames * 64 * 48 - 1, None)):
        monkeypatch.setattr("brimful.media.encode.processor._MAX_FRAME_BYTES", limit)
        assert reference._output((), None, [item, item]) == output
    for video, facts in zip(asked["videos"], asked["video_metadata"], strict=True):
        assert (video == load_frames(item.medium, range(num_frames))).all()
        assert (facts.total_num_frames, facts.fps, facts.frames_indices) == (num_frames, 25, [*range(num_frames)])
    assert (asked["text"], asked["do_sample_frames"], len(asked["videos"])) == (["text"], False, 2)
    monkeypatch.setattr(
        "brimful.media.encode.processor.video_header", lambda _: VideoHeader(num_frames + 1, 25.0, 64, 48)
    )
    with pytest.raises(BadMediumError):
        reference._output((), None, [item])


def test_every_family_with_a_processor_is_among_them():
    assert {name for name, family in FAMILIES.items() if family.processor_class} == set(KINDS)
