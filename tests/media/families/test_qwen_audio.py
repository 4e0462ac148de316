"""Tokens of sounds from their headers are what the installed processor makes of their waveforms."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brimful.errors import SettingsError
from brimful.media import MediaKind, Medium
from brimful.media.audio import AudioHeader, load_audio
from brimful.media.families import Piece, open_family


def extractor(**values):
    module = pytest.importorskip("transformers", reason="needs the extra brimful[text]")
    pytest.importorskip("torch", reason="spectrograms need torch")
    return module.WhisperFeatureExtractor(feature_size=128, **values)


@pytest.fixture(scope="module")
def processor(small_qwen):
    """The real processor of Qwen2-Audio, with a tokenizer that knows its tokens."""
    from transformers import AutoTokenizer, Qwen2AudioProcessor

    tokenizer = AutoTokenizer.from_pretrained(small_qwen)
    tokenizer.add_tokens(["<|AUDIO|>", "<|audio_bos|>", "<|audio_eos|>"], special_tokens=True)
    return Qwen2AudioProcessor(extractor(), tokenizer)


def tokens_of(processor, waveform):
    """Numbers of the token of sounds and of columns that the processor makes."""
    made = processor(text="a<|audio_bos|><|AUDIO|><|audio_eos|>b", audio=[waveform], sampling_rate=16_000)
    return list(made["input_ids"][0]).count(processor.audio_token_id), int(np.sum(made["feature_attention_mask"][0]))


def test_one_placeholder_becomes_a_token_for_40_milliseconds():
    """A second at 44,100 Hz: 16,000 samples, 100 columns, 25 tokens. Of an hour 30 seconds are heard."""
    family = open_family("qwen2-audio")
    expansion = family.audio(AudioHeader(44_100, 44_100, 2))
    assert expansion.pieces == (Piece("<|AUDIO|>", 25),)
    assert (expansion.num_mel_frames, expansion.num_tokens, expansion.num_patches) == (100, 25, 0)
    hour = AudioHeader(3_600 * 16_000, 16_000, 1)
    assert family.audio(hour).num_tokens == 750
    assert open_family("qwen2.5-omni").audio(hour).num_tokens == 7_500


@pytest.mark.long
def test_shipped_sounds(processor, data_dir):
    """Every real clip, from the file to the tokens."""
    paths = [
        *(data_dir / "audio").glob("*/*.*"),
        *(data_dir / "multimodal/llama_factory_demo/mllm_demo_data").glob("*"),
    ]
    paths = sorted(path for path in paths if path.suffix in (".wav", ".flac", ".mp3"))
    family = open_family("qwen2-audio")
    assert len(paths) == 33
    for path in paths:
        medium = Medium(MediaKind.AUDIO, path.name, str(path))
        expansion = family.expand(medium)
        due = tokens_of(processor, load_audio(medium, 16_000))
        assert (expansion.num_tokens, expansion.num_mel_frames) == due, path.name


@pytest.mark.parametrize(
    "num_samples", [1, 159, 160, 161, 320, 321, 480, 481, 640, 641, 16_000, 479_840, 479_841, 480_000, 480_001]
)
def test_sounds_of_every_length(processor, num_samples):
    """Where a column, a token or the longest sound ends."""
    expansion = open_family("qwen2-audio").audio(AudioHeader(num_samples, 16_000, 1))
    assert (expansion.num_tokens, expansion.num_mel_frames) == tokens_of(processor, np.zeros(num_samples, np.float32))


@settings(max_examples=30)
@given(st.integers(1, 40_000), st.sampled_from([(160, 2), (320, 1), (300, 2), (7, 1)]))
def test_columns_of_other_settings(num_samples, settings_of_file):
    """A hop that does not divide the longest sound leaves a column out."""
    hop_length, chunk_length = settings_of_file
    reference = extractor(hop_length=hop_length, chunk_length=chunk_length)
    made = reference(np.zeros(num_samples, np.float32), sampling_rate=16_000, return_attention_mask=True)
    from brimful.media.families.qwen_audio import SpectrogramSettings

    columns = SpectrogramSettings(hop_length=hop_length, chunk_length=chunk_length)
    assert columns.num_columns(AudioHeader(num_samples, 16_000, 1)) == made["attention_mask"].sum()


@pytest.mark.filterwarnings("ignore:At least one mel filter")
@pytest.mark.parametrize(
    "values", [{}, {"chunk_length": 300, "n_samples": 1}, {"hop_length": 320, "sampling_rate": 8_000}]
)
@pytest.mark.parametrize("name", ["qwen2-audio", "qwen2.5-omni"])
def test_a_file_is_read_as_transformers_reads_it(name, values, tmp_path):
    """Names that the extractor computes itself are not read from the file."""
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(values))
    reference = type(extractor()).from_pretrained(tmp_path)
    made = open_family(name, tmp_path).settings["audio"]
    assert made == {name: getattr(reference, name) for name in ("sampling_rate", "hop_length", "chunk_length")}


def test_settings_that_cannot_be():
    with pytest.raises(SettingsError, match="the family qwen2-audio has no setting fps"):
        open_family("qwen2-audio", fps=2)
    with pytest.raises(SettingsError, match="sampling_rate of audio has to be a positive whole number and is -1"):
        open_family("qwen2-audio", sampling_rate=-1)
    assert open_family("qwen2-audio", sampling_rate=8_000).audio(AudioHeader(8_000, 8_000, 1)).num_mel_frames == 50
