"""Chats with videos and pictures, from rows to a model: packed with texts they get the logits and gradients that they get alone."""

import json

import numpy as np
import pytest

pytest.importorskip("av", reason="videos need the extra brimful[media]")
torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from brimful import PackCollator, PackedDataset, measure_lengths, open_packs, pack_dataset, plan_packs  # noqa: E402
from brimful.errors import CollateError, SettingsError  # noqa: E402
from brimful.media.collate import MediaFeatures  # noqa: E402
from brimful.media.encode.media_chat import MediaChatEncoder  # noqa: E402
from brimful.media.families import open_family  # noqa: E402
from brimful.plan import PlanSettings  # noqa: E402
from brimful.sources import open_source  # noqa: E402
from brimful.verify.drawn_samples import renumbered  # noqa: E402
from brimful.verify.models import tiny_media_model  # noqa: E402
from tests.flow.parity import assert_packed_is_alone  # noqa: E402
from tests.flow.test_media import TOKENS, png, tiny_model  # noqa: E402
from tests.media.clips import clip  # noqa: E402

FAMILIES = ["qwen2-vl", "qwen2.5-vl", "qwen3-vl"]


@pytest.fixture(scope="module")
def source():
    """A text, a video, a picture between two videos, and pictures in several turns."""

    def turns(*texts):
        roles = ("user", "assistant")
        return [{"role": roles[index % 2], "content": text} for index, text in enumerate(texts)]

    slow, fast = clip("h264", num_frames=60, rate=20, size=(64, 96)), clip(num_frames=25, rate=10, size=(112, 64))
    rows = [
        {"messages": turns("Hello.", "Hello.")},
        {"messages": turns("<video>What happens?", "It gets lighter."), "videos": [slow]},
        {
            "messages": turns("<video>And <image>", "Yes.", "<video>?", "No."),
            "videos": [fast, slow],
            "images": [png(90, 60, 1)],
        },
        {"messages": turns("<image><image>Two.", "Two."), "images": [png(60, 60, 2), png(120, 60, 3)]},
        {"messages": turns("<video>Again?", "Yes."), "videos": [fast]},
    ]
    return open_source(rows, media=True)


@pytest.fixture(scope="module")
def processors(tmp_path_factory):
    """Directory of a processor of each family."""
    folders = {}
    for family in FAMILIES:
        folder = tmp_path_factory.mktemp("processor")
        patch = 16 if family == "qwen3-vl" else 14
        image = {"image_processor_type": "Qwen2VLImageProcessor", "patch_size": patch, "max_pixels": 30_000}
        (folder / "preprocessor_config.json").write_text(json.dumps(image))
        limit = 60_000 if family == "qwen3-vl" else 8_000
        video = {"do_sample_frames": True, "fps": 3, "size": {"shortest_edge": 3_000, "longest_edge": limit}}
        (folder / "video_preprocessor_config.json").write_text(json.dumps(video))
        folders[family] = folder
    return folders


def packed(family, source, tokenizer, processor, directory):
    encoder = MediaChatEncoder(
        tokenizer, open_family(family, processor), chat_template=tokenizer / "chat_template_vl.jinja"
    )
    settings = PlanSettings(capacity=400)
    pack_dataset(source, encoder, directory / "p", settings, num_proc=1, cache_dir=directory / "c")
    return encoder, open_packs(directory / "p")


def alone_inputs(encoder, features, sample):
    """A sample as the model takes it: with types of tokens, from which it makes its own positions."""
    from brimful.store.shards import assemble_pack

    encoded = encoder.encode(sample)
    pack = assemble_pack([encoded.input_ids], [encoded.loss_mask], [0], attachments=[encoded.attachments])
    ids = torch.tensor(encoded.input_ids[None].astype(np.int64))
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if sample.attachments:
        types = (ids == TOKENS["image_token_id"]).int() + 2 * (ids == TOKENS["video_token_id"]).int()
        arrays = {name: array for media in features(pack).attached for name, array in media.arrays.items()}
        inputs |= {name: torch.from_numpy(array) for name, array in arrays.items()}
        inputs["mm_token_type_ids"] = types
    return encoded, inputs


@pytest.mark.parametrize("family", FAMILIES)
def test_positions_are_those_of_the_model(family, source, small_qwen, processors, tmp_path):
    """Frames between timestamps, seconds of frames, pictures and turns: each sample as ``get_rope_index`` counts it."""
    encoder, packs = packed(family, source, small_qwen, processors[family], tmp_path)
    features = MediaFeatures.of_packs(packs, processors[family])
    model = tiny_model(family, patch_size=16 if family == "qwen3-vl" else 14).model
    seen = 0
    for pack in packs:
        batch = PackCollator(media=features, pad_to=400)([pack])
        assert batch["position_ids"].shape == (4, 1, 400)
        for segment, sample_id in enumerate(pack.sample_ids.tolist()):
            encoded, inputs = alone_inputs(encoder, features, source[sample_id])
            begin, end = pack.cu_seqlens[segment : segment + 2].tolist()
            rows = batch["position_ids"][:, 0, begin:end]
            assert rows[0].tolist() == list(range(len(encoded)))
            if source[sample_id].attachments:
                names = (
                    "image_grid_thw",
                    "video_grid_thw",
                    "second_per_grid_ts",
                    "mm_token_type_ids",
                    "attention_mask",
                )
                given = {name: inputs[name] for name in names if name in inputs}
                positions, _ = model.get_rope_index(inputs["input_ids"], **given)
                assert rows[1:].tolist() == positions[:, 0].tolist()
                seen += 1
    assert seen == 4


@pytest.mark.parametrize("family", FAMILIES)
def test_packed_is_alone(family, source, small_qwen, processors, tmp_path):
    """Logits, loss and gradients, vision tower included."""
    _, store = packed(family, source, small_qwen, processors[family], tmp_path)
    features = MediaFeatures.of_packs(store, processors[family])
    small = renumbered(list(store))
    model = tiny_media_model(store.attachment_settings, small.token_ids, small.vocab)
    collator = PackCollator(media=features)
    assert assert_packed_is_alone(model, small.packs, collator, features, "model.visual") == len(source)


def test_features_know_the_settings_of_the_packs(source, small_qwen, processors, tmp_path):
    """They are not given twice, and another processor is refused by name."""
    family = open_family("qwen2.5-vl", processors["qwen2.5-vl"], fps=2, max_pixels=20_000, video_max_pixels=6_000)
    encoder = MediaChatEncoder(small_qwen, family, chat_template=small_qwen / "chat_template_vl.jinja")
    settings = PlanSettings(capacity=400)
    pack_dataset(source, encoder, tmp_path / "p", settings, num_proc=1, cache_dir=tmp_path / "c")
    dataset = PackedDataset(tmp_path / "p")
    features = MediaFeatures.of_packs(dataset, processors["qwen2.5-vl"])
    assert features.family.settings == family.settings
    for pack in dataset:
        PackCollator(media=features)([pack])
    plan = plan_packs(measure_lengths(source, encoder, cache_dir=tmp_path / "c"), capacity=400)
    on_the_fly = PackedDataset.from_plan(source, encoder, plan)
    assert MediaFeatures.of_packs(on_the_fly, processors["qwen2.5-vl"]).family.settings == family.settings
    with pytest.raises(SettingsError, match=r"has patch_size=16 for images and the packs were made with 14: give the"):
        MediaFeatures.of_packs(dataset, processors["qwen3-vl"])
    wrong = PackCollator(media=MediaFeatures(processors["qwen2.5-vl"], "qwen2.5-vl", fps=5, max_pixels=20_000))
    pack = next(pack for pack in dataset if any(item.num_frames > 1 for item in pack.attachments))
    with pytest.raises(CollateError, match="settings of the processor differ from the job's"):
        wrong([pack])
