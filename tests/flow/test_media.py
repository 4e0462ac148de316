"""Chats with pictures, from rows to a model: packed with texts they get the logits and gradients that they get alone."""

import io
import json
import random
from typing import Any

import numpy as np
import pytest
from PIL import Image

from brimful import PackCollator, PackedDataset, measure_lengths, open_packs, pack_dataset, plan_packs
from brimful.errors import CollateError, OversizedSampleError
from brimful.media.collate import MediaFeatures
from brimful.media.encode.media_chat import MediaChatEncoder
from brimful.media.families import open_family
from brimful.plan import PlanSettings
from brimful.sources import open_source

MAX_PIXELS = 30_000
CAPACITY = 400


def png(width, height, seed):
    pixels = np.random.default_rng(seed).integers(0, 255, (height, width, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def rows():
    """Texts, pictures, several pictures, and turns of both."""
    draw = random.Random(0)
    for number in range(14):
        count = number % 4
        sizes = [(draw.randint(28, 300), draw.randint(28, 300)) for _ in range(count)]
        pictures = [png(*size, seed=number * 10 + index) for index, size in enumerate(sizes)]
        turns = [
            ("<image>" * (count > 0) + f"What is number {number}?", "A picture."),
            ("Why?" + "<image>" * max(0, count - 1), "So."),
        ]
        messages = [
            {"role": role, "content": text}
            for question, answer in turns
            for role, text in (("user", question), ("assistant", answer))
        ]
        yield {"messages": messages, "images": pictures}


@pytest.fixture(scope="module")
def source():
    return open_source(list(rows()), media=True)


def encoder_of(family, tokenizer):
    return MediaChatEncoder(
        tokenizer,
        open_family(family, tokenizer, max_pixels=MAX_PIXELS),
        chat_template=tokenizer / "chat_template_vl.jinja",
    )


@pytest.fixture
def encoder(small_qwen):
    return encoder_of("qwen2-vl", small_qwen)


@pytest.fixture
def packs(source, encoder, tmp_path):
    settings = PlanSettings(capacity=CAPACITY, budgets={"patches": 600})
    pack_dataset(source, encoder, tmp_path / "packs", settings, cache_dir=tmp_path / "cache")
    return open_packs(tmp_path / "packs")


def test_each_sample_is_packed_once_with_its_media(source, encoder, packs):
    """Byte for byte, each at its tokens, and no pack above its budgets."""
    seen = []
    for pack in packs:
        assert sum(item.num_patches for item in pack.attachments) <= 600
        for segment, sample_id in enumerate(pack.sample_ids.tolist()):
            seen.append(sample_id)
            alone = encoder.encode(source[sample_id])
            begin = int(pack.cu_seqlens[segment])
            items = [item for item in pack.attachments if item.segment == segment]
            assert [item.read() for item in items] == [medium.read() for medium in source[sample_id].attachments]
            assert [item.start - begin for item in items] == [item.start for item in alone.attachments]
            assert pack.segment(segment).tolist() == alone.input_ids.tolist()
    assert sorted(seen) == list(range(len(source)))


def test_packs_on_the_fly_are_those_of_the_store(source, encoder, packs, tmp_path):
    """One plan, two ways to serve it."""
    table = measure_lengths(source, encoder, cache_dir=tmp_path / "cache")
    plan = plan_packs(table, capacity=CAPACITY, budgets={"patches": 600})
    dataset = PackedDataset.from_plan(source, encoder, plan)
    assert len(dataset) == len(packs)
    for ours, theirs in zip(dataset, packs, strict=True):
        assert ours.input_ids.tolist() == theirs.input_ids.tolist()
        places = [
            [
                (item.medium.kind, item.medium.name, item.read(), item.start, item.grid, item.segment)
                for item in pack.attachments
            ]
            for pack in (ours, theirs)
        ]
        assert places[0] == places[1]


def test_budgets_of_media_are_measured(source, encoder, tmp_path):
    """The table knows what the towers will get."""
    table = measure_lengths(source, encoder, cache_dir=tmp_path)
    assert table.budgets["images"].tolist() == [len(source[index].attachments) for index in range(len(source))]
    encoded = [encoder.encode(source[index]) for index in range(len(source))]
    assert table.tokens.tolist() == [len(sample) for sample in encoded]
    patches = [sum(int(np.prod(item.grid)) for item in sample.attachments) for sample in encoded]
    assert table.budgets["patches"].tolist() == patches


def test_a_sample_with_pictures_is_not_cut(source, encoder, tmp_path):
    """Half a picture has no meaning; it is refused before anything is planned."""
    settings = PlanSettings(capacity=64, overflow="split")
    with pytest.raises(
        OversizedSampleError,
        match=r"samples with media are not cut\. Choose smaller images with max_pixels, overflow",
    ):
        pack_dataset(source, encoder, tmp_path / "packs", settings, cache_dir=tmp_path / "cache")


def test_samples_with_pictures_that_are_all_too_long(source, encoder, tmp_path):
    """The way out does not name a cut, which would be refused in turn."""
    pictures = open_source([row for row in rows() if row["images"]], media=True)
    settings = PlanSettings(capacity=16, overflow="drop")
    with pytest.raises(OversizedSampleError, match="Choose smaller images with max_pixels, a larger capacity"):
        pack_dataset(pictures, encoder, tmp_path / "packs", settings, cache_dir=tmp_path / "cache")


def test_packs_with_media_need_their_features(packs):
    """Without it a model is trained on placeholders."""
    with pytest.raises(CollateError, match=r"holds image .* and the collator makes no features of media"):
        PackCollator()([next(pack for pack in packs if pack.attachments)])


def test_a_picture_that_was_changed_since_is_named(small_qwen, encoder, tmp_path):
    """A reference is to bytes, not to a name."""
    path = tmp_path / "a.png"
    path.write_bytes(png(60, 60, 0))
    row = {"question": "<image>?", "answer": "a", "image": "a.png"}
    source = open_source([row], media_dir=tmp_path)
    pack_dataset(source, encoder, tmp_path / "packs", PlanSettings(capacity=CAPACITY), cache_dir=tmp_path / "cache")
    collator = PackCollator(media=MediaFeatures(small_qwen, "qwen2-vl", max_pixels=MAX_PIXELS))
    (pack,) = open_packs(tmp_path / "packs")
    assert collator([pack])["image_grid_thw"].tolist() == [[1, 4, 4]]
    path.write_bytes(png(60, 60, 1))
    with pytest.raises(CollateError, match=r"sample 0, image 'a.png': was changed since it was packed"):
        collator([pack])
    path.unlink()
    with pytest.raises(CollateError, match=r"sample 0, image 'a.png': does not exist"):
        collator([pack])


def test_other_settings_of_the_processor_are_refused(small_qwen, packs):
    """Other limits give other grids than were counted."""
    collator = PackCollator(media=MediaFeatures(small_qwen, "qwen2-vl", max_pixels=5_000))
    pack = max(packs, key=lambda pack: sum(item.num_patches for item in pack.attachments))
    with pytest.raises(CollateError, match="its settings differ from the job's"):
        collator([pack])


TEXT = {
    "vocab_size": 10_300,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 24,
    "rope_parameters": {"rope_type": "default", "mrope_section": [4, 4, 4], "rope_theta": 10_000.0},
}
TOKENS = {
    "image_token_id": 10_268,
    "video_token_id": 10_269,
    "vision_start_token_id": 10_265,
    "vision_end_token_id": 10_266,
}


def tiny_model(family, patch_size=14):
    """A random model of the family, of some thousand parameters without its vocabulary."""
    import torch
    import transformers

    torch.manual_seed(0)
    vision: dict[str, Any] = {
        "depth": 2,
        "num_heads": 2,
        "patch_size": patch_size,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
    }
    if family == "qwen2-vl":
        vision |= {"embed_dim": 32, "hidden_size": 48, "mlp_ratio": 2}
        config = transformers.Qwen2VLConfig(text_config=TEXT, vision_config=vision, **TOKENS)
        return transformers.Qwen2VLForConditionalGeneration(config).eval()
    if family == "qwen2.5-vl":
        vision |= {"hidden_size": 32, "out_hidden_size": 48, "intermediate_size": 64, "fullatt_block_indexes": [1]}
        vision["tokens_per_second"] = 2  # of every published model; the class says 4
        config = transformers.Qwen2_5_VLConfig(text_config=TEXT, vision_config=vision, **TOKENS)
        return transformers.Qwen2_5_VLForConditionalGeneration(config).eval()
    vision |= {"hidden_size": 32, "out_hidden_size": 48, "intermediate_size": 64, "deepstack_visual_indexes": [0]}
    config = transformers.Qwen3VLConfig(text_config=TEXT, vision_config=vision, **TOKENS)
    return transformers.Qwen3VLForConditionalGeneration(config).eval()


@pytest.mark.parametrize(
    "family",
    [
        "qwen2.5-vl",
        pytest.param("qwen2-vl", marks=pytest.mark.long),
        pytest.param("qwen3-vl", marks=pytest.mark.long),
    ],
)
def test_packed_is_alone(family, source, small_qwen, tmp_path):
    """Logits and the gradients of the summed loss, vision tower included: each sample as if it were alone."""
    torch = pytest.importorskip("torch")
    encoder = encoder_of("qwen2-vl" if family == "qwen3-vl" else family, small_qwen)
    pack_dataset(source, encoder, tmp_path / "p", PlanSettings(capacity=CAPACITY), cache_dir=tmp_path / "cache")
    features = MediaFeatures(small_qwen, "qwen2-vl" if family == "qwen3-vl" else family, max_pixels=MAX_PIXELS)
    collator = PackCollator(media=features)
    model = tiny_model(family)
    from transformers import AutoImageProcessor

    from tests.flow.parity import assert_packed_is_alone

    processor = AutoImageProcessor.from_pretrained(small_qwen, backend="pil", max_pixels=MAX_PIXELS)

    def alone_inputs(pack, segment, _):
        """Of the row itself, by the processor of Transformers."""
        sample = source[int(pack.sample_ids[segment])]
        encoded = encoder.encode(sample)
        ids = torch.tensor(encoded.input_ids[None].astype(np.int64))
        inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        if sample.attachments:
            pictures = [Image.open(medium.open()) for medium in sample.attachments]
            inputs |= processor(images=pictures, return_tensors="pt")
            inputs["mm_token_type_ids"] = (ids == TOKENS["image_token_id"]).int()
        return inputs, torch.from_numpy(encoded.labels)

    packs = open_packs(tmp_path / "p")
    num_samples = assert_packed_is_alone(model, packs, collator, None, "model.visual", alone_inputs=alone_inputs)
    assert num_samples == len(source)


LLAVA_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}"
    "{% else %}{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<image>{% else %}{{ part['text'] }}{% endif %}"
    "{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
)


def llava_store(source, small_qwen, directory):
    """Packs for LLaVA in a directory, with their processor; and their features."""
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(small_qwen)
    tokenizer.add_tokens(["<image>"], special_tokens=True)
    size = {"height": 56, "width": 56}
    image = {"image_processor_type": "CLIPImageProcessor", "size": {"shortest_edge": 56}, "crop_size": size}
    processor = {"patch_size": 14, "vision_feature_select_strategy": "default", "num_additional_image_tokens": 1}
    (directory / "preprocessor_config.json").write_text(json.dumps(image))
    (directory / "processor_config.json").write_text(json.dumps({"processor_class": "LlavaProcessor", **processor}))
    encoder = MediaChatEncoder(tokenizer, open_family("llava", directory), chat_template=LLAVA_TEMPLATE)
    settings = PlanSettings(capacity=300)
    pack_dataset(source, encoder, directory / "p", settings, num_proc=1, cache_dir=directory / "cache")
    store = open_packs(directory / "p")
    return store, MediaFeatures.of_packs(store, directory)


def test_a_fixed_number_of_tokens_for_each_picture(source, small_qwen, tmp_path):
    """LLaVA: a random model gets the same of packs and of single samples, its gradients too."""
    pytest.importorskip("torch")
    from brimful.verify.drawn_samples import renumbered
    from brimful.verify.models import tiny_media_model
    from tests.flow.parity import assert_packed_is_alone

    store, features = llava_store(source, small_qwen, tmp_path)
    small = renumbered(list(store))
    assert {item.num_tokens for pack in small.packs for item in pack.attachments} == {16}
    model = tiny_media_model(store.attachment_settings, small.token_ids, small.vocab)
    collator = PackCollator(media=features)
    assert assert_packed_is_alone(model, small.packs, collator, features, "model.vision_tower") == len(source)
