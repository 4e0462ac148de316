"""Sounds and pictures in one model, and pictures in tiles: packed they get the logits and gradients that they get alone."""

import io
import json

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
soundfile = pytest.importorskip("soundfile")

from brimful import PackCollator, open_packs, pack_dataset  # noqa: E402
from brimful.encode.tokenizer import Tokenizer  # noqa: E402
from brimful.media.collate import MediaFeatures  # noqa: E402
from brimful.media.encode.media_chat import MediaChatEncoder  # noqa: E402
from brimful.media.families import open_family  # noqa: E402
from brimful.plan import PlanSettings  # noqa: E402
from brimful.sources import open_source  # noqa: E402
from brimful.verify.drawn_samples import renumbered  # noqa: E402
from brimful.verify.models import tiny_media_model  # noqa: E402
from tests.flow.parity import assert_packed_is_alone  # noqa: E402
from tests.flow.test_media import png  # noqa: E402
from tests.verify.media_faults import Broken  # noqa: E402
from tests.verify.media_packs import turns  # noqa: E402

OMNI_TOKENS = ["<|AUDIO|>", "<|audio_bos|>", "<|audio_eos|>", "<|IMAGE|>", "<|vision_bos|>", "<|vision_eos|>"]
INTERN_TOKENS = ["<IMG_CONTEXT>", "<img>", "</img>"]


def template(**written):
    """A chat template that writes a text for each kind of media."""
    parts = "".join(
        f"{{% {'elif' if number else 'if'} part['type'] == '{kind}' %}}{text}"
        for number, (kind, text) in enumerate(written.items())
    )
    return (
        "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
        "{% if message['content'] is string %}{{ message['content'] }}{% else %}{% for part in message['content'] %}"
        f"{parts}{{% else %}}{{{{ part['text'] }}}}{{% endif %}}"
        "{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    )


def sound(seconds, seed):
    file = io.BytesIO()
    wave = np.random.default_rng(seed).normal(0, 0.1, int(16_000 * seconds)).astype(np.float32)
    soundfile.write(file, wave, 16_000, format="WAV", subtype="FLOAT")
    return file.getvalue()


def store_of(rows, family, tokens, chat_template, tokenizer_folder, folder, capacity):
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(tokenizer_folder)
    tokenizer.add_tokens(tokens, special_tokens=True)
    slow = Tokenizer(tokenizer, fast=False)  # its fast form is compared elsewhere, for seconds
    encoder = MediaChatEncoder(slow, open_family(family, folder), chat_template=chat_template)
    source = open_source(rows, media=True)
    settings = PlanSettings(capacity=capacity)
    pack_dataset(source, encoder, folder / "p", settings, num_proc=1, cache_dir=folder / "cache")
    store = open_packs(folder / "p")
    small = renumbered(list(store))
    assert store.attachment_settings is not None
    model = tiny_media_model(store.attachment_settings, small.token_ids, small.vocab)
    return small.packs, model, MediaFeatures.of_packs(store, folder)


@pytest.fixture
def omni(small_qwen, tmp_path):
    """Qwen2.5-Omni: a text, a picture, a sound, and both in one turn, in either order."""
    image = {"patch_size": 14, "merge_size": 2, "temporal_patch_size": 2, "max_pixels": 20_000}
    audio = {"feature_extractor_type": "WhisperFeatureExtractor", "feature_size": 128, "chunk_length": 4}
    settings = {**image, **audio, "image_processor_type": "Qwen2VLImageProcessor"}
    (tmp_path / "preprocessor_config.json").write_text(
        json.dumps({**settings, "processor_class": "Qwen2_5OmniProcessor"})
    )
    rows = [
        {"messages": turns("Nothing to see.")},
        {"messages": turns("<image>What?", "A picture."), "images": [png(56, 84, 1)]},
        {"messages": turns("<audio>What is said?"), "audios": [sound(2.5, 0)]},
        {"messages": turns("<audio>and<image>?"), "audios": [sound(0.5, 1)], "images": [png(84, 56, 2)]},
        {"messages": turns("<image>then<audio>?"), "audios": [sound(0.8, 2)], "images": [png(112, 84, 3)]},
    ]
    media = {"audio": "<|audio_bos|><|AUDIO|><|audio_eos|>", "image": "<|vision_bos|><|IMAGE|><|vision_eos|>"}
    return store_of(rows, "qwen2.5-omni", OMNI_TOKENS, template(**media), small_qwen, tmp_path, 200)


@pytest.fixture
def internvl(small_qwen, tmp_path):
    """InternVL: a text, one tile, four tiles and the whole, and two pictures."""
    image = {"image_processor_type": "GotOcr2ImageProcessor", "size": {"height": 56, "width": 56}, "max_patches": 4}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(image))
    processor = {"processor_class": "InternVLProcessor", "image_seq_length": 4}
    (tmp_path / "processor_config.json").write_text(json.dumps(processor))
    rows = [
        {"messages": turns("Nothing to see.")},
        {"messages": turns("<image>What?", "A picture."), "images": [png(56, 56, 1)]},
        {"messages": turns("<image>Which?"), "images": [png(200, 200, 2)]},
        {"messages": turns("<image>and<image>?"), "images": [png(300, 100, 3), png(50, 90, 4)]},
    ]
    media = {"image": "<IMG_CONTEXT>"}
    return store_of(rows, "internvl", INTERN_TOKENS, template(**media), small_qwen, tmp_path, 120)


def test_sounds_and_pictures_in_one_model(omni):
    """Qwen2.5-Omni's thinker: both towers get gradients, and positions in space equal the model's own."""
    pytest.importorskip("transformers", minversion="5.23")  # which has no release for Python 3.10
    packs, model, features = omni
    # Where positions are not given, the model finds media by the tokens before them: those of these packs.
    for pack in packs:
        for item in pack.attachments:
            name = "audio_start_token_id" if item.medium.kind.value == "audio" else "vision_start_token_id"
            setattr(model.config, name, int(pack.input_ids[item.start + item.runs[0] - 1]))
            setattr(model.model.config, name, getattr(model.config, name))
    collator = PackCollator(media=features)
    for tower in ("model.audio_tower", "model.visual"):
        assert assert_packed_is_alone(model, packs, collator, features, tower) == 5
    assert len(packs) < 5


def test_sounds_are_as_wide_as_the_longest_of_the_batch(omni, monkeypatch):
    """Qwen2.5-Omni reads the columns of the mask alone: with all columns of its longest sound it gives the same logits."""
    packs, model, features = omni
    sounds = [item for pack in packs for item in pack.attachments if item.num_mel_frames]
    short = PackCollator(media=features)(packs)
    monkeypatch.setattr(type(features.family), "needs_full_spectrograms", True)
    full = PackCollator(media=features)(packs)
    widths = [batch["input_features"].shape[-1] for batch in (short, full)]
    assert widths == [max(item.num_mel_frames for item in sounds), 400]
    assert short["feature_attention_mask"].sum() == full["feature_attention_mask"].sum()
    with torch.no_grad():
        logits = [
            model(**{name: value for name, value in batch.items() if name != "labels"}).logits
            for batch in (short, full)
        ]
    assert torch.equal(*logits)


def test_pictures_in_tiles(internvl):
    """InternVL: one picture is several rows of pixels, and each row is a tile of its own for the tower."""
    packs, model, features = internvl
    tiles = [item.num_tokens // 4 for pack in packs for item in pack.attachments]
    assert 1 in tiles
    assert max(tiles) == 5
    collator = PackCollator(media=features)
    assert assert_packed_is_alone(model, packs, collator, features, "model.vision_tower") == 4
    assert len(packs) < 4


@pytest.mark.long
@pytest.mark.parametrize("name", ["omni", "internvl"])
def test_verify_passes_them(name, request):
    """The tiny models of ``brimful verify packs --processor DIR``; another medium in one sample moves no other."""
    from brimful.verify import verify_packing

    packs, model, features = request.getfixturevalue(name)
    collator = PackCollator(pad_to=sum(map(len, packs)) + 9, media=features)
    report = verify_packing(model, collator, packs, attention="sdpa")
    assert report.ok, str(report)


def sounds_exchanged(batch):
    """Spectrograms and masks are turned about, and both are as wide as before."""
    return {**batch, **{name: batch[name].flip(0) for name in ("input_features", "feature_attention_mask")}}


def a_mask_turned_about(batch):
    """Each sound is given the columns of another."""
    return {**batch, "feature_attention_mask": batch["feature_attention_mask"].flip(0)}


@pytest.mark.long
@pytest.mark.parametrize("fault", [sounds_exchanged, a_mask_turned_about])
def test_verify_finds_exchanged_sounds(omni, fault):
    """Alone a sound has fewer columns than in a batch with a longer one: what lies under its mask is compared."""
    from brimful.verify import verify_packing

    packs, model, features = omni
    collator = PackCollator(media=features)
    report = verify_packing(model, Broken(collator, fault), packs, attention="sdpa", gradients=False)
    assert "media" in {finding.check for finding in report.failures}, str(report)
