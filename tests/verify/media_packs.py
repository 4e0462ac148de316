"""Packs with media and tiny models of their families, for the tests of ``verify``."""

import json

import numpy as np

from brimful import open_packs, pack_dataset
from brimful.media.collate import MediaFeatures
from brimful.media.encode.media_chat import MediaChatEncoder
from brimful.media.families import open_family
from brimful.plan import PlanSettings
from brimful.sources import open_source
from tests.flow.test_media import llava_store, png


def turns(question, answer="It is so."):
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


def rows_of_pictures():
    """Two pictures of one size in two samples, two of other sizes in one, and a text between them."""
    return [
        {"messages": turns("<image>What?", "A picture."), "images": [png(56, 84, 1)]},
        {"messages": turns("Hello?", "Hello there.")},
        {"messages": turns("<image>Which?", "Another one."), "images": [png(56, 84, 2)]},
        {"messages": turns("<image>and<image>?"), "images": [png(84, 56, 3), png(56, 112, 4)]},
    ]


def qwen_folder(folder, family):
    patch = 16 if family == "qwen3-vl" else 14
    image = {"image_processor_type": "Qwen2VLImageProcessor", "patch_size": patch, "max_pixels": 30_000}
    (folder / "preprocessor_config.json").write_text(json.dumps(image))
    limit = 40_000 if family == "qwen3-vl" else 6_000
    video = {"do_sample_frames": True, "fps": 3, "size": {"shortest_edge": 3_000, "longest_edge": limit}}
    (folder / "video_preprocessor_config.json").write_text(json.dumps(video))
    return folder


def packs_of(rows, family, tokenizer, folder, *, chat_template=None, capacity=70):
    """Packs of rows in a store, with the processor in ``folder``, and their features."""
    encoder = MediaChatEncoder(
        tokenizer, open_family(family, folder), chat_template=chat_template or tokenizer / "chat_template_vl.jinja"
    )
    source = open_source(rows, media=True)
    settings = PlanSettings(capacity=capacity)
    pack_dataset(source, encoder, folder / "packs", settings, num_proc=1, cache_dir=folder / "cache")
    store = open_packs(folder / "packs")
    return store, MediaFeatures.of_packs(store, folder)


def llava_packs(tokenizer_folder, folder):
    return llava_store(open_source(rows_of_pictures(), media=True), tokenizer_folder, folder)


def audio_packs(tokenizer_folder, folder):
    import io

    import soundfile
    import transformers

    from tests.flow.test_media_audio import AUDIO_TOKENS, TEMPLATE

    tokenizer = transformers.AutoTokenizer.from_pretrained(tokenizer_folder)
    tokenizer.add_tokens(AUDIO_TOKENS, special_tokens=True)
    settings = {"feature_extractor_type": "WhisperFeatureExtractor", "feature_size": 128, "chunk_length": 2}
    (folder / "preprocessor_config.json").write_text(json.dumps({**settings, "processor_class": "Qwen2AudioProcessor"}))

    def sound(seconds, seed):
        file = io.BytesIO()
        wave = np.random.default_rng(seed).normal(0, 0.1, int(16_000 * seconds)).astype(np.float32)
        soundfile.write(file, wave, 16_000, format="WAV", subtype="FLOAT")
        return file.getvalue()

    rows = [
        {"messages": turns("<audio>What is said?"), "audios": [sound(0.5, 0)]},
        {"messages": turns("Nothing to hear.")},
        {"messages": turns("<audio>And here<audio>?"), "audios": [sound(0.5, 1), sound(0.8, 2)]},
    ]
    return packs_of(rows, "qwen2-audio", tokenizer, folder, chat_template=TEMPLATE, capacity=120)
