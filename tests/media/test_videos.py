"""A video's header has the frames that decoding gives, and the facts that Transformers reads with PyAV."""

import io

import numpy as np
import pytest

av = pytest.importorskip("av", reason="videos need the extra brimful[media]")

from brimful.media import BadMediumError, MediaKind, Medium  # noqa: E402
from brimful.media.videos import load_frames, video_header  # noqa: E402
from tests.media.clips import CONTAINERS, clip, trimmed  # noqa: E402


def of(data):
    return Medium(MediaKind.VIDEO, "a video", data=data)


def decoded(data):
    """Number of frames that decoding gives."""
    with av.open(io.BytesIO(data)) as container:
        return sum(1 for _ in container.decode(video=0))


def stated(data):
    with av.open(io.BytesIO(data)) as container:
        return container.streams.video[0].frames


@pytest.mark.parametrize("container", CONTAINERS)
def test_a_header_tells_the_frames_that_decoding_gives(container, tmp_path):
    """Half of the containers state none at all."""
    data = clip(container)
    path = tmp_path / "clip"
    path.write_bytes(b"..." + data)
    for medium in (of(data), Medium(MediaKind.VIDEO, "a video", str(path), offset=3, size=len(data))):
        header = video_header(medium)
        assert (header.num_frames, header.width, header.height, header.rotation) == (decoded(data), 64, 48, 0)
        assert header.fps == 25


def test_containers_that_state_another_number():
    """Without their packets the lengths of these would be wrong, or none."""
    assert {name for name in CONTAINERS if stated(clip(name)) == 0} >= {"mkv", "webm", "ts", "flv", "fragments"}
    for cut in (clip("avi")[:-4_000], clip("avi")[:-2_000], clip("faststart")[:-600]):
        assert stated(cut) == 50
        assert video_header(of(cut)).num_frames == decoded(cut) < 50


def test_a_video_that_was_trimmed(data_dir):
    """An edit list leaves out the first second: its packets are there, are decoded, and are never seen."""
    path = data_dir / "multimodal/llama_factory_demo/mllm_demo_data/1.mp4"
    short = trimmed(path.read_bytes(), 25)
    assert stated(short) == 243
    assert video_header(of(short)).num_frames == decoded(short) == 218


def test_a_whole_file_is_not_demuxed(data_dir, monkeypatch):
    """The index of an MP4 is a thousandth of it."""
    import brimful.media.videos as videos

    monkeypatch.setattr(videos, "_count_packets", lambda container: pytest.fail("demuxed"))
    for name in ("1.mp4", "2.avi", "3.mp4", "4.mp4"):
        path = data_dir / "multimodal/llama_factory_demo/mllm_demo_data" / name
        assert video_header(Medium(MediaKind.VIDEO, name, str(path))).num_frames == stated(path.read_bytes())


@pytest.mark.parametrize("name", ["1.mp4", "2.avi", "3.mp4", "4.mp4"])
def test_shipped_videos(name, data_dir):
    """The facts of the reader of Transformers, and its frames."""
    reference = pytest.importorskip("transformers.video_utils", reason="needs the extra brimful[text]")
    path = data_dir / "multimodal/llama_factory_demo/mllm_demo_data" / name
    medium = Medium(MediaKind.VIDEO, name, str(path))
    header = video_header(medium)
    indices = list(range(0, header.num_frames, 40))
    video, facts = reference.load_video(str(path), backend="pyav", sample_indices_fn=lambda metadata, **_: indices)
    assert header[:4] == (facts.total_num_frames, facts.fps, facts.width, facts.height)
    np.testing.assert_array_equal(load_frames(medium, indices), video)
    assert header.num_frames == decoded(path.read_bytes())


def test_frames_that_are_asked_for_twice():
    """A sampler that wants more frames than there are repeats some."""
    frames = load_frames(of(clip(num_frames=3)), [0, 1, 1, 2])
    assert frames.shape == (4, 48, 64, 3)
    np.testing.assert_array_equal(frames[1], frames[2])
    assert frames[:, 0, 0, 0].tolist() == sorted(frames[:, 0, 0, 0].tolist())
    with pytest.raises(BadMediumError, match="has no frame 7"):
        load_frames(of(clip(num_frames=3)), [0, 7])


@pytest.mark.parametrize("rotation", [None, 0, 90, -90, 180, 45])
@pytest.mark.parametrize("container", ["mp4", "mov", "faststart", "fragments"])
def test_rotations_are_those_of_decoded_frames(container, rotation):
    """A telephone that is held upright stores pictures that lie."""
    data = clip(container, num_frames=2, rotation=rotation)
    with av.open(io.BytesIO(data)) as source:
        due = next(source.decode(video=0)).rotation
    assert abs(due) == abs(rotation or 0)
    assert video_header(of(data)).rotation == due


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "is empty"),
        (b"<html>404</html>", "FFmpeg cannot read it: Invalid data"),
        (clip("mp4")[:1_000], "FFmpeg cannot read it: Invalid data"),
        (clip("h264")[:-20], "FFmpeg cannot read it: Invalid data"),
    ],
)
def test_what_is_damaged_says_so_in_a_line(data, reason):
    with pytest.raises(BadMediumError, match=reason) as raised:
        video_header(of(data))
    assert "\n" not in str(raised.value)


def test_a_sound_is_no_video(data_dir):
    path = data_dir / "audio/ljspeech/LJ001-0001.flac"
    with pytest.raises(BadMediumError, match="has no video stream"):
        video_header(Medium(MediaKind.VIDEO, "a", str(path)))
