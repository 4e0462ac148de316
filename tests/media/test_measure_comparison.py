"""A share of the samples with media goes through the model's own processor: planted faults are found, by name."""

import dataclasses
import io
import json
import wave
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from brimful import measure_lengths
from brimful.base.progress import Progress
from brimful.base.tables import open_table, write_table
from brimful.errors import EncodersDifferError, ProcessorDiffersError
from brimful.measure.block_task import BlockTask
from brimful.media import measure as comparison
from brimful.media.encode.media_chat import MediaChatEncoder
from brimful.media.encode.processor import ProcessorReference
from brimful.media.families import open_family
from brimful.media.families.qwen_vl import Qwen2VL
from brimful.media.measure import Comparison
from brimful.sources import open_source
from brimful.testing.toys import toy_media_tokenizer, toy_picture

pytest.importorskip("transformers", reason="the processor is that of Transformers")
pytest.importorskip("PIL", reason="pictures need the extra brimful[media]")

SMALL = {"min_pixels": 784, "max_pixels": 7840}


@pytest.fixture(scope="module")
def tokenizer():
    """With the beginning of an answer for generation, as the templates of models have it."""
    tokenizer = toy_media_tokenizer()
    tokenizer.chat_template += "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    return tokenizer


@pytest.fixture
def directory(tmp_path):
    """A processor's directory of Qwen2-VL, for small pictures."""
    files = {"image_processor_type": "Qwen2VLImageProcessor", "video_processor_type": "Qwen2VLVideoProcessor", **SMALL}
    path = tmp_path / "processor"
    path.mkdir()
    (path / "preprocessor_config.json").write_text(json.dumps(files))
    return path


@pytest.fixture
def compared(monkeypatch):
    """Samples that were compared, by id."""
    ids = []
    difference = ProcessorReference.difference

    def record(self, sample, length):
        ids.append(sample.sample_id)
        return difference(self, sample, length)

    monkeypatch.setattr(ProcessorReference, "difference", record)
    return ids


def row(text, *pictures, answer="A square.", **columns):
    messages = [{"role": "user", "content": text}, {"role": "assistant", "content": answer}]
    return {"messages": messages, **({"images": list(pictures)} if pictures else {}), **columns}


def measure(rows, encoder, tmp_path, **options):
    return measure_lengths(open_source(rows, media=True), encoder, cache_dir=tmp_path / "cache", num_proc=1, **options)


def all_rows(monkeypatch):
    """Compare every sample with media, however long it takes."""
    monkeypatch.setattr(comparison, "SHARE", 1)
    monkeypatch.setattr(comparison, "TIME_SHARE", 1e9)


ROWS = [
    row("Hi", answer="Hello."),
    row("<image>What?", toy_picture(56, 84)),
    row("<image>And?", toy_picture(300, 20)),
    row("<image><image>", toy_picture(28, 28), toy_picture(90, 61)),
    row("<image>", toy_picture(5, 5)),
]


def family_of(directory, tamper):
    """The family with a fault in what it makes of a picture."""

    class Tampered(Qwen2VL):
        def image(self, size):
            return tamper(super().image(size))

    family = open_family("qwen2-vl", directory)
    family.__class__ = Tampered
    return family


def test_the_first_of_each_kind_is_compared(tokenizer, directory, tmp_path, compared):
    """One picture, and several: of the texts none."""
    encoder = MediaChatEncoder(tokenizer, open_family("qwen2-vl", directory))
    table = measure(ROWS, encoder, tmp_path)
    assert compared == [1, 3]
    assert (table.tokens > 0).all()


def test_a_share_of_the_others_is_compared_as_long_as_there_is_time(
    tokenizer, directory, tmp_path, compared, monkeypatch
):
    """The first of each kind is compared too: a family may be wrong for some sizes alone."""
    all_rows(monkeypatch)
    measure(ROWS, MediaChatEncoder(tokenizer, open_family("qwen2-vl", directory)), tmp_path)
    assert sorted(compared) == [1, 2, 3, 4]


def test_no_time_no_share(tokenizer, directory, tmp_path, compared, monkeypatch):
    all_rows(monkeypatch)
    monkeypatch.setattr(comparison, "TIME_SHARE", 0.0)
    measure(ROWS, MediaChatEncoder(tokenizer, open_family("qwen2-vl", directory)), tmp_path)
    assert sorted(compared) == [1, 3]


@pytest.mark.parametrize("count", [4096, 300])
def test_one_of_each_256_is_compared_wherever_its_block_begins(tmp_path, count):
    """By no period of the data: a family that is wrong for one size in sixteen is found."""
    write_table(tmp_path / "part.arrow", {"tokens": np.ones(count, np.int32), "images": np.ones(count, np.int32)}, {})
    context: Any = SimpleNamespace(encoder=SimpleNamespace(attachment_reference=None))
    rows = Comparison(context, Progress())
    chosen = [
        start + row
        for start in range(0, 1 << 17, count)
        for row in rows._rows(open_table(tmp_path / "part.arrow"), BlockTask(start, start + count, "", None))
    ]
    assert len(chosen) == len(set(chosen))
    assert abs(len(chosen) - (1 << 17) / comparison.SHARE) < 16
    for period in (2, 3, 5, 7, 8, 16):
        assert {sample_id % period for sample_id in chosen} == {*range(period)}


def test_one_row_of_patches_too_many(tokenizer, directory, tmp_path):
    """An off-by-one in a size: the error names sample, picture and both grids, and how to go on."""

    def tamper(expansion):
        _, height, width = expansion.grid
        return dataclasses.replace(expansion, grid=(1, height + 1, width), num_patches=(height + 1) * width)

    encoder = MediaChatEncoder(tokenizer, family_of(directory, tamper))
    with pytest.raises(ProcessorDiffersError) as caught:
        measure(ROWS, encoder, tmp_path)
    message = str(caught.value)
    assert "(sample 1): image '' has the grid (1, 7, 4) by its header, and (1, 6, 4) by Qwen2VLProcessor of" in message
    assert "compare_media=False" in message
    assert isinstance(caught.value, EncodersDifferError)


def test_one_token_too_many(tokenizer, directory, tmp_path):
    """A grid that is right, and a wrong number of tokens for it."""

    def tamper(expansion):
        piece = expansion.pieces[0]
        return dataclasses.replace(expansion, pieces=(piece._replace(repetitions=piece.repetitions + 1),))

    encoder = MediaChatEncoder(tokenizer, family_of(directory, tamper))
    table_tokens = measure(ROWS[1:2], MediaChatEncoder(tokenizer, open_family("qwen2-vl", directory)), tmp_path / "a")
    ours = int(table_tokens.tokens[0])
    with pytest.raises(ProcessorDiffersError, match=f"it has {ours + 1} tokens, and {ours} by Qwen2VLProcessor"):
        measure(ROWS[1:2], encoder, tmp_path)


@pytest.mark.usefixtures("compared")
def test_a_fault_that_only_some_sizes_have(tokenizer, directory, tmp_path, monkeypatch):
    """The first picture is right: the share finds the one that is not."""

    def tamper(expansion):
        is_wide = expansion.grid[2] > 2 * expansion.grid[1]
        return dataclasses.replace(expansion, grid=(1, 2, 2)) if is_wide else expansion

    encoder = MediaChatEncoder(tokenizer, family_of(directory, tamper))
    all_rows(monkeypatch)
    with pytest.raises(ProcessorDiffersError, match=r"\(sample 2\): image"):
        measure(ROWS, encoder, tmp_path)


def test_a_template_that_looks_at_the_texts_beside_a_picture(tokenizer, directory, tmp_path, monkeypatch):
    """Placeholders are asked of the template once for each shape of conversations; this one looks at the text around them."""
    template = tokenizer.chat_template.replace(
        "{% else %}<|vision_start|>",
        "{% else %}{% if 'number' in message.content[-1].text %}Look: {% endif %}<|vision_start|>",
    )
    assert template != tokenizer.chat_template
    rows = [row("<image>What?", toy_picture(56, 56)), row("<image>Which number?", toy_picture(56, 56))]
    all_rows(monkeypatch)
    encoder = MediaChatEncoder(tokenizer, open_family("qwen2-vl", directory), chat_template=template)
    with pytest.raises(ProcessorDiffersError, match=r"\(sample 1\): it has .* tokens, and .* by Qwen2VLProcessor"):
        measure(rows, encoder, tmp_path)


def test_a_picture_whose_pixels_are_cut_is_no_difference(tokenizer, directory, tmp_path, compared):
    """Its header is whole, so it is measured; what becomes of it in training is another policy's question."""
    rng = np.random.default_rng(0)
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(rng.integers(0, 256, (64, 64, 3), dtype=np.uint8)).save(file, "JPEG")
    broken = row("<image>", file.getvalue()[:-700])
    table = measure([broken, ROWS[1]], MediaChatEncoder(tokenizer, open_family("qwen2-vl", directory)), tmp_path)
    assert compared == [0]
    assert (table.tokens > 0).all()


def test_what_was_compared_is_remembered(tokenizer, directory, tmp_path, compared):
    """A job that goes on compares only what was not compared; another processor is compared again."""
    encoder = MediaChatEncoder(tokenizer, open_family("qwen2-vl", directory))
    for _ in range(2):
        measure(ROWS, encoder, tmp_path)
        for table in (tmp_path / "cache" / "lengths").glob("*/*.arrow"):
            table.unlink()  # as if the job was killed before its table was written
    assert compared == [1, 3]
    (directory / "preprocessor_config.json").write_text(
        json.dumps({**SMALL, "image_processor_type": "Qwen2VLImageProcessorPil"})
    )
    measure(ROWS, MediaChatEncoder(tokenizer, open_family("qwen2-vl", directory)), tmp_path)
    assert compared == [1, 3, 1, 3]


def test_a_job_that_was_killed_before_the_comparison_compares(tokenizer, directory, tmp_path, monkeypatch):
    """Without it a wrong length would enter by the cache."""

    def tamper(expansion):
        return dataclasses.replace(expansion, grid=(1, 2, 2))

    encoder = MediaChatEncoder(tokenizer, family_of(directory, tamper))
    for _ in range(2):
        with pytest.raises(ProcessorDiffersError):
            measure(ROWS, encoder, tmp_path)


def test_without_the_comparison(tokenizer, directory, tmp_path, compared):
    """For users who know why their lengths differ, or have no processor to compare with."""
    tampered = family_of(directory, lambda expansion: dataclasses.replace(expansion, grid=(1, 2, 2)))
    measure(ROWS, MediaChatEncoder(tokenizer, tampered, compare_media=False), tmp_path)
    measure(ROWS, MediaChatEncoder(tokenizer, open_family("qwen2-vl", None, **SMALL)), tmp_path)
    assert compared == []


def test_sounds(tmp_path, monkeypatch):
    """The spectrogram of the real waveform has the columns that were counted; one more is found."""
    pytest.importorskip("soundfile", reason="sounds need the extra brimful[media]")
    pytest.importorskip("torch", reason="spectrograms need torch")
    folder = tmp_path / "processor"
    folder.mkdir()
    extractor = {"feature_extractor_type": "WhisperFeatureExtractor", "feature_size": 128, "sampling_rate": 16_000}
    (folder / "preprocessor_config.json").write_text(json.dumps(extractor))
    tokenizer = toy_media_tokenizer()
    tokenizer.add_tokens(["<|AUDIO|>", "<|audio_bos|>", "<|audio_eos|>"], special_tokens=True)
    template = tokenizer.chat_template.replace(
        "<|vision_start|><|{{ part.type }}_pad|><|vision_end|>", "<|audio_bos|><|AUDIO|><|audio_eos|>"
    )
    file = io.BytesIO()
    with wave.open(file, "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(2)
        sound.setframerate(8_000)
        sound.writeframes(bytes(2 * 4_001))
    rows = [row("<audio>What?", audios=[file.getvalue()])]
    family = open_family("qwen2-audio", folder)
    assert measure(rows, MediaChatEncoder(tokenizer, family, chat_template=template), tmp_path).tokens[0] > 12

    def tampered(header):
        expansion = type(family).audio(family, header)
        return dataclasses.replace(expansion, num_mel_frames=expansion.num_mel_frames + 1)

    wrong = open_family("qwen2-audio", folder, sampling_rate=16_000)
    monkeypatch.setattr(wrong, "audio", tampered)
    with pytest.raises(
        ProcessorDiffersError, match="has 52 columns of its spectrogram by its header, and 51 by Qwen2Audio"
    ):
        measure(rows, MediaChatEncoder(tokenizer, wrong, chat_template=template), tmp_path / "wrong")


@pytest.mark.parametrize("fault", [False, True])
def test_videos(fault, tokenizer, directory, tmp_path, data_dir, torchvision, monkeypatch):
    """Frames as they are decoded, through the video processor."""
    limits = {"video_min_pixels": 784, "video_max_pixels": 7840}
    family = open_family("qwen2-vl", directory, num_frames=4, **limits)
    if fault:
        video = family.video
        monkeypatch.setattr(family, "video", lambda header: dataclasses.replace(video(header), grid=(3, 2, 2)))
    path = data_dir / "multimodal/llama_factory_demo/mllm_demo_data/1.mp4"
    encoder = MediaChatEncoder(tokenizer, family)
    rows = [row("<video>What?", videos=[path.read_bytes()])]
    if fault:
        with pytest.raises(ProcessorDiffersError, match=r"video '' has the grid \(3, 2, 2\) by its header, and \(2, "):
            measure(rows, encoder, tmp_path)
    else:
        assert measure(rows, encoder, tmp_path).tokens[0] > 12
        assert encoder.attachment_reference._processor.video_processor is not None


def test_a_processor_that_cannot_be_loaded_is_said(tokenizer, tmp_path, compared, monkeypatch):
    """Lengths need only its numbers; training will need its class, and says so then."""
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(SMALL))
    said = []
    progress = Progress()
    monkeypatch.setattr(progress, "say", said.append)
    encoder = MediaChatEncoder(tokenizer, open_family("qwen2-vl", tmp_path))
    assert (measure(ROWS, encoder, tmp_path, progress=progress).tokens > 0).all()
    assert compared == []
    assert len(said) == 1
    assert said[0].startswith(
        "media are not compared with the processor of the model, which cannot be loaded (ValueError"
    )


def test_a_picture_cut_behind_its_header_is_told(tokenizer, directory, tmp_path, monkeypatch):
    """Without it the first to say so is the training: its header has all that a length needs."""
    progress, said = Progress(), []
    monkeypatch.setattr(progress, "say", said.append)
    cut = toy_picture(56, 84)[:60]
    encoder = MediaChatEncoder(tokenizer, open_family("qwen2-vl", directory))
    assert measure([row("<image>What?", cut)], encoder, tmp_path, progress=progress).tokens[0] > 0
    assert len(said) == 1
    assert said[0].startswith(
        "memory[0] (sample 0): one of its media cannot be decoded, though its header can be read ("
    )
