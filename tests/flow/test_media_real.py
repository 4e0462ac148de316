"""Real pictures, captions, exams, speech and clips: packed they get the logits, loss and gradients that they get alone."""

import gzip
import json

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("av")

from brimful import PackCollator, open_packs, pack_dataset
from brimful.media.collate import MediaFeatures
from brimful.media.encode.media_chat import MediaChatEncoder
from brimful.media.families import open_family
from brimful.plan import PlanSettings
from brimful.sources import open_source
from brimful.verify.drawn_samples import renumbered
from brimful.verify.models import tiny_media_model
from tests.flow.parity import assert_packed_is_alone
from tests.flow.test_media_audio import AUDIO_TOKENS, TEMPLATE
from tests.verify.media_packs import qwen_folder, turns

DEMO = "multimodal/llama_factory_demo"


def exams(data_dir):
    folder = data_dir / "multimodal/mathvision"
    with gzip.open(folder / "mathvision.jsonl.gz", "rt") as file:
        rows = [row for row in map(json.loads, file) if row["image_shipped"]][:24]
    for row in rows:
        question = "<image>" + row["question"].replace("<image1>", "").replace("<", "(")
        yield {"messages": turns(question, str(row["answer"])), "images": [row["image"]]}


def captions(data_dir):
    for line in (data_dir / "multimodal/coco/coco.jsonl").read_text().splitlines()[:8]:
        row = json.loads(line)
        for caption in row["captions"]:
            yield {"messages": turns("<image>Describe it.", caption), "images": [row["image"]]}


def demo_chats(data_dir, *names):
    for name in names:
        yield from json.loads((data_dir / DEMO / name).read_text())


def speech(data_dir):
    for line in (data_dir / "audio/audio.jsonl").read_text().splitlines()[::6]:
        row = json.loads(line)
        yield {"messages": turns("<audio>What is said?", row["text"]), "audios": [row["audio"]]}


CASES = {
    "exams": (exams, "multimodal/mathvision", "qwen2-vl", 24),
    "captions": (captions, "multimodal/coco", "qwen3-vl", 40),
    "pictures and clips": (
        lambda data_dir: demo_chats(data_dir, "mllm_demo.json", "mllm_video_demo.json"),
        DEMO,
        "qwen2.5-vl",
        None,
    ),
    "sounds": (lambda data_dir: demo_chats(data_dir, "mllm_audio_demo.json"), DEMO, "qwen2-audio", None),
    "speech": (speech, "audio", "qwen2-audio", 5),
}


def audio_processor(folder, tokenizer):
    import transformers

    settings = {"feature_extractor_type": "WhisperFeatureExtractor", "feature_size": 128, "chunk_length": 10}
    (folder / "preprocessor_config.json").write_text(json.dumps({**settings, "processor_class": "Qwen2AudioProcessor"}))
    loaded = transformers.AutoTokenizer.from_pretrained(tokenizer)
    loaded.add_tokens(AUDIO_TOKENS, special_tokens=True)
    return loaded


@pytest.mark.long
@pytest.mark.parametrize("name", CASES)
def test_packed_is_alone(name, data_dir, small_qwen, tmp_path):
    """As shipped, but for their size: pictures of at most 30,000 pixels and sounds of ten seconds."""
    rows, place, family, count = CASES[name]
    template, tokenizer = small_qwen / "chat_template_vl.jinja", small_qwen
    options = {}
    if family == "qwen2-audio":
        template, tokenizer = TEMPLATE, audio_processor(tmp_path, small_qwen)
    else:
        qwen_folder(tmp_path, family)
        options = {"fps": 0.5, "max_frames": 4} if name == "pictures and clips" else {}
    encoder = MediaChatEncoder(tokenizer, open_family(family, tmp_path, **options), chat_template=template)
    source = open_source(list(rows(data_dir)), media_dir=data_dir / place)
    settings = PlanSettings(capacity=900)
    pack_dataset(source, encoder, tmp_path / "p", settings, num_proc=1, cache_dir=tmp_path / "c")
    store = open_packs(tmp_path / "p")
    assert store.attachment_settings is not None
    small = renumbered(list(store))
    model = tiny_media_model(store.attachment_settings, small.token_ids, small.vocab)
    features = MediaFeatures.of_packs(store, tmp_path)
    tower = "model.audio_tower" if family == "qwen2-audio" else "model.visual"
    num_samples = assert_packed_is_alone(model, small.packs, PackCollator(media=features), features, tower)
    assert num_samples == len(source) == (count or len(source))
    assert len(store) < num_samples
