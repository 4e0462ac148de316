"""Chats with sounds, from rows to a model: packed they get the logits and gradients that they get alone."""

import json

import pytest

from brimful import PackCollator, open_packs, pack_dataset
from brimful.errors import CollateError
from brimful.media.collate import MediaFeatures
from brimful.media.encode.media_chat import MediaChatEncoder
from brimful.media.families import open_family
from brimful.plan import PlanSettings
from brimful.sources import open_source

AUDIO_TOKENS = ["<|AUDIO|>", "<|audio_bos|>", "<|audio_eos|>"]

TEMPLATE = (
    "{% set count = namespace(value=0) %}"
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}"
    "{% else %}{% for part in message['content'] %}"
    "{% if part['type'] == 'audio' %}{% set count.value = count.value + 1 %}"
    "Audio {{ count.value }}: <|audio_bos|><|AUDIO|><|audio_eos|>\n"
    "{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
)
"""Sounds are numbered over the conversation, as in Qwen2-Audio."""


@pytest.fixture(scope="module")
def tokenizer(small_qwen):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(small_qwen)
    tokenizer.add_tokens(AUDIO_TOKENS, special_tokens=True)
    return tokenizer


@pytest.fixture(scope="module")
def processor(tmp_path_factory):
    """Directory of a processor of Qwen2-Audio."""
    folder = tmp_path_factory.mktemp("processor")
    settings = {"feature_extractor_type": "WhisperFeatureExtractor", "feature_size": 128, "chunk_length": 30}
    (folder / "preprocessor_config.json").write_text(json.dumps({**settings, "processor_class": "Qwen2AudioProcessor"}))
    return folder


@pytest.fixture(scope="module")
def source(data_dir):
    """Real speech: one sound, two sounds, none."""
    folder = data_dir / "audio"
    clips = [json.loads(line) for line in (folder / "audio.jsonl").read_text().splitlines()][:6]
    names = [clip["audio"] for clip in clips]
    questions = [
        ("<audio>What is said?", names[:1]),
        ("<audio>Or this?<audio>", names[1:3]),
        ("Nothing to hear.", []),
        ("First<audio>, then<audio>, then<audio>.", names[3:6]),
    ]
    rows = [{"question": text, "answer": "Words.", "audios": paths} for text, paths in questions]
    return open_source(rows, media_dir=folder)


@pytest.fixture(scope="module")
def encoder(tokenizer, processor):
    return MediaChatEncoder(tokenizer, open_family("qwen2-audio", processor), chat_template=TEMPLATE)


@pytest.fixture
def packs(source, encoder, tmp_path):
    pack_dataset(source, encoder, tmp_path / "p", PlanSettings(capacity=1200), num_proc=1, cache_dir=tmp_path / "cache")
    return open_packs(tmp_path / "p")


def test_sounds_are_numbered_as_the_template_does(encoder, source, tokenizer):
    """The second sound of a conversation has another number before it, also in packs."""
    text = tokenizer.decode(encoder.encode(source[3]).input_ids.tolist())
    parts = text.replace("<|AUDIO|>", "").split("<|im_start|>user\n")[1].split("<|im_end|>")[0]
    sounds = [f"Audio {number}: <|audio_bos|><|audio_eos|>\n" for number in (1, 2, 3)]
    assert parts == f"First{sounds[0]}, then{sounds[1]}, then{sounds[2]}."


def test_spectrograms_have_as_many_columns_as_were_counted(packs, processor):
    """Counted from headers; a sound of another length would be refused by name."""
    collator = PackCollator(media=MediaFeatures(processor, "qwen2-audio"))
    seen = 0
    for pack in packs:
        batch = collator([pack])
        columns = [item.num_mel_frames for item in pack.attachments]
        assert batch["feature_attention_mask"].sum(-1).tolist() == columns
        assert batch["input_features"].shape[1:] == (128, 3000)
        seen += len(columns)
    assert seen == 6


@pytest.mark.long
def test_packed_is_alone(packs, processor):
    """Logits, loss and gradients of a random Qwen2-Audio, its tower included."""
    pytest.importorskip("torch")
    from brimful.verify.drawn_samples import renumbered
    from brimful.verify.models import tiny_media_model
    from tests.flow.parity import assert_packed_is_alone

    small = renumbered(list(packs))
    model = tiny_media_model(packs.attachment_settings, small.token_ids, small.vocab)
    features = MediaFeatures.of_packs(packs, processor)
    collator = PackCollator(media=features)
    assert assert_packed_is_alone(model, small.packs, collator, features, "model.audio_tower") == 4


def test_another_rate_is_refused(packs, tmp_path, processor):
    """The settings of the batch have to equal the job's."""
    settings = json.loads((processor / "preprocessor_config.json").read_text())
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({**settings, "hop_length": 320}))
    collator = PackCollator(media=MediaFeatures(tmp_path, "qwen2-audio"))
    with pytest.raises(CollateError, match="its settings differ from the job's"):
        collator([next(pack for pack in packs if pack.attachments)])
