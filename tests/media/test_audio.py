"""A sound's header has the number of samples that decoding gives, and Transformers' waveform."""

import io
import struct

import numpy as np
import pytest

soundfile = pytest.importorskip("soundfile", reason="sounds need the extra brimful[media]")

from brimful.media import BadMediumError, MediaKind, Medium  # noqa: E402
from brimful.media.audio import audio_header, load_audio, num_samples_after_resampling  # noqa: E402
from brimful.media.families import open_family  # noqa: E402

NOISE = (np.random.default_rng(0).standard_normal((48_000, 2)) * 0.1).astype(np.float32)


def of(data):
    return Medium(MediaKind.AUDIO, "a sound", data=data)


def sound(format="WAV", rate=48_000, waveform=NOISE, **options):
    file = io.BytesIO()
    soundfile.write(file, waveform, rate, format=format, **options)
    return file.getvalue()


def liar(num_frames, data=None):
    """An MP3 whose header promises another number of frames of 1,152 samples."""
    data = bytearray(sound("MP3") if data is None else data)
    place = max(data.find(b"Xing"), data.find(b"Info")) + 8
    data[place : place + 4] = struct.pack(">I", num_frames)
    return bytes(data)


def without_header():
    """An MP3 whose number of samples can only be estimated."""
    data = sound("MP3")
    return data.replace(b"Xing", b"none", 1).replace(b"Info", b"none", 1)


SOUNDS = {
    "WAV": lambda: sound(),
    "WAV float": lambda: sound(subtype="FLOAT"),
    "WAV ADPCM": lambda: sound(subtype="IMA_ADPCM"),
    "WAV mono": lambda: sound(waveform=NOISE[:, 0]),
    "WAV cut": lambda: sound()[:-1_001],
    "AIFF": lambda: sound("AIFF"),
    "FLAC": lambda: sound("FLAC"),
    "Vorbis": lambda: sound("OGG"),
    "Vorbis cut": lambda: sound("OGG")[:-1_000],
    "Opus": lambda: sound("OGG", subtype="OPUS"),
    "Opus cut": lambda: sound("OGG", subtype="OPUS")[:-1_000],
    "MP3": lambda: sound("MP3"),
    "MP3 mono": lambda: sound("MP3", waveform=NOISE[:, 0]),
    "MP3 with ID3": lambda: b"ID3\x03\0\0\0\0\x07\x76" + bytes(1_014) + sound("MP3"),
    "MP3 cut": lambda: sound("MP3")[:-500],
    "MP3 half": lambda: sound("MP3")[: len(sound("MP3")) // 2],
    "MP3 twice": lambda: sound("MP3") * 2,
    "MP3 that promises less": lambda: liar(10),
    "MP3 that promises more": lambda: liar(1_000),
    "MP3 without header": lambda: without_header(),
    "MP3 without its first frame": lambda: sound("MP3")[sound("MP3").find(sound("MP3")[:2], 4) :],
    "nothing": lambda: sound(waveform=NOISE[:0]),
}


@pytest.mark.parametrize("name", SOUNDS)
def test_a_header_tells_what_decoding_gives(name, tmp_path):
    """From a file, from bytes, and from a member of a tar."""
    data = SOUNDS[name]()
    decoded, rate = soundfile.read(io.BytesIO(data), dtype="float32", always_2d=True)
    path = tmp_path / "sound"
    path.write_bytes(b"..." + data + b"...")
    whole = tmp_path / "whole"
    whole.write_bytes(data)
    for medium in (
        of(data),
        Medium(MediaKind.AUDIO, name, str(whole)),
        Medium(MediaKind.AUDIO, name, str(path), offset=3, size=len(data)),
    ):
        assert audio_header(medium) == (len(decoded), rate, decoded.shape[1])


def test_headers_do_lie():
    """The test above would pass without looking at anything if ``libsndfile`` were right about each of them."""
    lies = {
        name
        for name, data in ((name, make()) for name, make in SOUNDS.items())
        if soundfile.info(io.BytesIO(data)).frames != len(soundfile.read(io.BytesIO(data))[0])
    }
    assert lies == {"MP3 cut", "MP3 half", "MP3 that promises more", "MP3 without header"}


@pytest.mark.parametrize("rate", [16_000, 24_000, 44_100, 48_000])
@pytest.mark.parametrize("name", ["WAV", "WAV mono", "FLAC", "MP3", "MP3 half", "Opus"])
def test_waveforms_are_those_of_transformers(name, rate, tmp_path):
    """The same samples to the last bit, and as many as the header says."""
    pytest.importorskip("transformers", minversion="5.23")  # which has no release for Python 3.10
    pytest.importorskip("soxr", reason="other rates need the extra brimful[media]")
    reference = pytest.importorskip("transformers.audio_utils", reason="needs the extra brimful[text]")
    path = tmp_path / "sound"
    path.write_bytes(SOUNDS[name]())
    due = reference.load_audio(str(path), rate, backend="soundfile")
    waveform = load_audio(of(SOUNDS[name]()), rate)
    assert waveform.dtype == np.float32
    np.testing.assert_array_equal(waveform, due)
    assert num_samples_after_resampling(audio_header(of(SOUNDS[name]())), rate) == len(due)


@pytest.mark.parametrize("num_samples", [1, 2, 3, 159, 1_001, 44_099, 44_100, 44_101])
@pytest.mark.parametrize("rate", [8_000, 11_025, 22_050, 44_100])
def test_samples_after_resampling(num_samples, rate, tmp_path):
    """Rounded up, where the resampler itself rounds to the nearest."""
    pytest.importorskip("transformers", minversion="5.23")  # which has no release for Python 3.10
    pytest.importorskip("soxr", reason="other rates need the extra brimful[media]")
    reference = pytest.importorskip("transformers.audio_utils", reason="needs the extra brimful[text]")
    data = sound(rate=rate, waveform=NOISE[:num_samples, 0])
    (tmp_path / "sound").write_bytes(data)
    due = reference.load_audio(str(tmp_path / "sound"), 16_000, backend="soundfile")
    assert num_samples_after_resampling(audio_header(of(data)), 16_000) == len(due)
    np.testing.assert_array_equal(load_audio(of(data), 16_000), due)


@pytest.mark.parametrize("family", ["qwen2-audio", "qwen2.5-omni"])
@pytest.mark.parametrize(("num_samples", "is_taken"), [(0, False), (1, False), (320, False), (321, True)])
def test_a_sound_that_is_too_short_for_a_token_is_refused(family, num_samples, is_taken):
    """Without it a sound without samples would be packed with no token, and a model would be asked about nothing."""
    medium = of(sound(rate=16_000, waveform=NOISE[:num_samples, 0]))
    if is_taken:
        assert open_family(family).expand(medium).num_tokens == 1
    else:
        with pytest.raises(BadMediumError, match=f"is too short for a token: {num_samples} samples?$"):
            open_family(family).expand(medium)


@pytest.mark.parametrize("rate", [1, 100, 199, 10_000_001, 2**31 - 1])
def test_a_rate_that_no_sound_has_is_refused(rate):
    """A WAV of 64 kB at 1 Hz is 512 million samples at the rate of a model."""
    data = bytearray(sound(rate=8_000))
    data[24:28] = struct.pack("<I", rate)
    with pytest.raises(BadMediumError, match=f"states {rate:,} samples a second"):
        audio_header(of(bytes(data)))


@pytest.mark.parametrize("rate", [200, 10_000_000])
def test_a_rate_that_a_sound_may_have_is_taken(rate):
    data = bytearray(sound(rate=8_000))
    data[24:28] = struct.pack("<I", rate)
    assert audio_header(of(bytes(data))).sampling_rate == rate


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "is empty"),
        (b"<html>404</html>", "libsndfile cannot read it: "),
        (sound()[:30], "libsndfile cannot read it: "),
    ],
)
def test_what_is_damaged_says_so_in_a_line(data, reason):
    """The caller that knows the sample names it."""
    for use in (audio_header, lambda medium: load_audio(medium, 16_000)):
        with pytest.raises(BadMediumError, match=reason) as raised:
            use(of(data))
        assert "\n" not in str(raised.value)
        assert "object at" not in str(raised.value)


def promising(num_frames):
    """A FLAC whose header promises another number of samples; 0 stands in a stream whose end was not known."""
    data = sound("FLAC")
    numbers = int.from_bytes(data[18:26], "big") >> 36 << 36 | num_frames
    return data[:18] + numbers.to_bytes(8, "big") + data[26:]


@pytest.mark.parametrize(
    "data",
    [
        sound("FLAC")[:-1],
        sound("FLAC")[:-1_000],
        promising(0),
        promising(48_001),
        promising(10**9),
        promising(2**36 - 1),
    ],
    ids=["cut by a byte", "cut", "of unknown length", "promises one more", "promises hours", "promises all"],
)
def test_a_flac_that_ends_before_its_samples_is_refused_by_its_header(data, tmp_path):
    """As by Transformers. Believed, it was packed with the tokens of its promise, and training failed on it."""
    reference = pytest.importorskip("transformers.audio_utils", reason="needs the extra brimful[text]")
    (tmp_path / "sound").write_bytes(data)
    with pytest.raises((soundfile.SoundFileError, ValueError, MemoryError)):
        reference.load_audio(str(tmp_path / "sound"), 48_000, backend="soundfile")
    for use in (audio_header, lambda medium: load_audio(medium, 48_000)):
        with pytest.raises(BadMediumError, match="libsndfile cannot read it: "):
            use(of(data))


def test_a_flac_that_promises_less_ends_there():
    """A decoder stops at the number of its header, and so does the count."""
    assert audio_header(of(promising(100))).num_frames == len(load_audio(of(promising(100)), 48_000)) == 100


RATES = {
    "WAV": (8_000, 11_025, 16_000, 22_050, 44_100, 48_000, 96_000, 192_000),
    "FLAC": (8_000, 11_025, 44_100, 192_000),
    "Vorbis": (8_000, 22_050, 192_000),
    "Opus": (8_000, 16_000, 48_000),
    "MP3": (8_000, 11_025, 22_050, 44_100),
}
KINDS = {
    "WAV": {"subtype": "PCM_24"},
    "FLAC": {"format": "FLAC", "subtype": "PCM_24"},
    "Vorbis": {"format": "OGG"},
    "Opus": {"format": "OGG", "subtype": "OPUS"},
    "MP3": {"format": "MP3"},
}


@pytest.mark.parametrize(
    ("kind", "rate", "channels"),
    [
        (kind, rate, channels)
        for kind, rates in RATES.items()
        for rate in rates
        for channels in ((1, 2) if kind == "MP3" else (1, 2, 6))
    ],
)
def test_every_rate_and_number_of_channels(kind, rate, channels, tmp_path):
    """Samples, waveform and tokens of 0.1 s equal decoding's: six channels are mixed down, each rate becomes 16 kHz."""
    pytest.importorskip("transformers", minversion="5.23")  # which has no release for Python 3.10
    pytest.importorskip("soxr", reason="other rates need the extra brimful[media]")
    reference = pytest.importorskip("transformers.audio_utils", reason="needs the extra brimful[text]")
    data = sound(rate=rate, waveform=np.repeat(NOISE[: rate // 10, :1], channels, axis=1), **KINDS[kind])
    (tmp_path / "sound").write_bytes(data)
    due = reference.load_audio(str(tmp_path / "sound"), 16_000, backend="soundfile")
    header = audio_header(of(data))
    assert tuple(header) == (soundfile.info(tmp_path / "sound").frames, rate, channels)
    assert num_samples_after_resampling(header, 16_000) == len(due) >= 1_600
    np.testing.assert_array_equal(load_audio(of(data), 16_000), due)


@pytest.mark.parametrize("codec", ["aac", "alac"])
def test_what_libsndfile_does_not_know_is_refused(codec):
    """Transformers reads them with torchcodec alone, whose resampling gives other samples."""
    av = pytest.importorskip("av", reason="AAC is written by PyAV")
    file = io.BytesIO()
    with av.open(file, "w", format="ipod") as output:
        stream = output.add_stream(codec, rate=48_000, layout="mono")
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 4_096), np.float32), format="fltp", layout="mono")
        frame.sample_rate = 48_000
        output.mux(stream.encode(frame))
        output.mux(stream.encode())
    with pytest.raises(BadMediumError, match="libsndfile cannot read it: Format not recognised"):
        audio_header(of(file.getvalue()))


def test_shipped_sounds(data_dir):
    """Real speech, whose numbers of samples its list knows too."""
    folder = data_dir / "audio"
    paths = [*sorted(folder.glob("*/*.*")), *(data_dir / "multimodal/llama_factory_demo/mllm_demo_data").glob("*")]
    paths = [path for path in paths if path.suffix in (".wav", ".flac", ".mp3")]
    assert len(paths) == 33
    for path in paths:
        header = audio_header(Medium(MediaKind.AUDIO, path.name, str(path)))
        assert header.num_frames == len(soundfile.read(path)[0]), path.name
