"""A video's header has the frames that decoding gives, and the facts that Transformers reads with PyAV."""

import io
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

av = pytest.importorskip("av", reason="videos need the extra brimful[media]")

from brimful.media import BadMediumError, MediaKind, Medium  # noqa: E402
from brimful.media.videos import _is_complete, load_frames, video_header  # noqa: E402
from tests.media.clips import (  # noqa: E402
    CONTAINERS,
    GROUPS,
    clip,
    grouped,
    transformers_frames,
    trimmed,
    without_first,
)
from tests.media.pictures import picture  # noqa: E402


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
        assert header == (decoded(data), 25, 64, 48)


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
    pytest.importorskip("transformers.video_utils", reason="needs the extra brimful[text]")
    path = data_dir / "multimodal/llama_factory_demo/mllm_demo_data" / name
    medium = Medium(MediaKind.VIDEO, name, str(path))
    header = video_header(medium)
    indices = list(range(0, header.num_frames, 40))
    video, facts = transformers_frames(path, indices)
    assert header[:4] == (facts.total_num_frames, facts.fps, facts.width, facts.height)
    np.testing.assert_array_equal(load_frames(medium, indices), video)
    assert header.num_frames == decoded(path.read_bytes())


def test_frames_that_are_asked_for_twice():
    """A sampler that wants more frames than the video has repeats some."""
    frames = load_frames(of(clip(num_frames=3)), [0, 1, 1, 2])
    assert frames.shape == (4, 48, 64, 3)
    np.testing.assert_array_equal(frames[1], frames[2])
    assert frames[:, 0, 0, 0].tolist() == sorted(frames[:, 0, 0, 0].tolist())
    with pytest.raises(BadMediumError, match="has no frame 7"):
        load_frames(of(clip(num_frames=3)), [0, 7])


UNEVEN = [0, 5, 400, 401, 900, 2_000, 60_000, 60_040, 61_000]

KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    **{f"{container} turned by {angle}": (container, {"rotation": angle}) for container in ("mp4", "mkv") for angle in (90, -90, 180)},
    **{f"{container} of {count}": (container, {"num_frames": count}) for container in ("h264", "vp9") for count in (1, 2, 3)},
    **{f"{container} at 120": (container, {"rate": 120}) for container in ("h264", "vp9", "avi")},
    **{f"{container} at 29.97": (container, {"rate": Fraction(30_000, 1_001)}) for container in ("h264", "live", "flv")},
    **{f"{container} of odd size": (container, {"size": (65, 49)}) for container in ("mkv", "vp9", "gif")},
    **{f"{container} uneven": (container, {"num_frames": 9, "times": UNEVEN}) for container in ("h264", "mkv", "vp9", "live")},
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_the_facts_and_frames_of_transformers(kind, tmp_path):
    """Rate and size as its reader has them; the number is decoding's, which it takes for 0 in Matroska and WebM."""
    pytest.importorskip("transformers.video_utils", reason="needs the extra brimful[text]")
    container, options = KINDS[kind]
    data = clip(container, **options)
    (tmp_path / "clip").write_bytes(data)
    header = video_header(of(data))
    indices = sorted({0, header.num_frames - 1})
    video, facts = transformers_frames(tmp_path / "clip", indices)
    assert facts.total_num_frames in (header.num_frames, 0)
    assert header == (decoded(data), facts.fps, facts.width, facts.height)
    np.testing.assert_array_equal(load_frames(of(data), indices), video)


def test_frames_at_no_constant_rate_count_as_they_are_stored(tmp_path):
    """An AVI has an empty frame where none is due: Transformers counts 61,000, and looks for frames that no decoder gives."""
    data = clip("avi", num_frames=9, times=UNEVEN)
    assert stated(data) > 60_000
    assert video_header(of(data)).num_frames == decoded(data) == 9


def test_a_video_that_is_turned_keeps_the_size_of_its_frames():
    """The test above would pass if none were turned."""
    with av.open(io.BytesIO(clip("mkv", num_frames=2, rotation=90))) as source:
        assert next(source.decode(video=0)).rotation == 90


@pytest.mark.parametrize("container", ["vp9", "live", "ts", "mkv"])
def test_what_has_no_index_is_counted_to_where_it_was_cut(container):
    """As a recording that was broken off: no length in its header, and half of the file."""
    data = clip(container)
    for cut in (data[:-1], data[: len(data) // 2]):
        assert video_header(of(cut)).num_frames == decoded(cut)
    assert decoded(data[: len(data) // 2]) < 50


FRAGMENTS = {"movflags": "frag_keyframe+empty_moov"}


@pytest.mark.parametrize("kind", GROUPS)
def test_what_begins_within_a_group_of_pictures_is_counted_as_it_is_decoded(kind):
    """A cut recording: decoders leave out frames that refer to frames before the cut; counted, they could not be loaded."""
    whole = grouped(kind)
    fewer = set()
    for format, options in (
        ("matroska", {}),
        ("mpegts", {}),
        ("mp4", {}),
        ("mp4", FRAGMENTS),
        ("mov", {}),
        ("avi", {}),
        ("nut", {}),
    ):
        for num_packets in (0, 1, 2, 5, 10, 11, 13, 20):
            try:
                data = without_first(whole, num_packets, format, options)
            except (av.FFmpegError, ValueError):  # this container cannot hold it
                continue
            try:
                num_frames = decoded(data)
            except av.FFmpegError:
                num_frames = 0
            if not num_frames:
                with pytest.raises(BadMediumError):
                    video_header(of(data))
                continue
            assert video_header(of(data)).num_frames == num_frames, (format, num_packets)
            if num_frames < 40 - num_packets:
                fewer.add(format)
    assert len(fewer) >= (0 if kind == "hevc refreshed" else 4)  # a refreshed HEVC video has one key frame


@pytest.mark.parametrize(
    ("kind", "num_packets", "complete"),
    [("h264 closed", 0, True), ("hevc open", 0, True), ("h264 refreshed", 10, False)],
)
def test_a_key_frame_of_an_mp4_is_decoded_only_if_it_may_be_incomplete(kind, num_packets, complete):
    """To decode one doubles the time that a header takes."""
    with av.open(io.BytesIO(without_first(grouped(kind), num_packets, "mp4"))) as container:
        packet = next(container.demux(video=0))
        assert packet.is_keyframe
        assert _is_complete(bytes(packet), packet.stream.codec.name) == complete


@pytest.mark.parametrize("kind", ["h264 closed", "hevc open", "mpeg2"])
def test_a_transport_stream_cut_anywhere(kind):
    whole = without_first(grouped(kind), 0, "mpegts")
    for place in range(0, len(whole) * 3 // 4, len(whole) // 6):
        header = video_header(of(whole[place:]))
        assert header.num_frames == decoded(whole[place:])
        assert len(load_frames(of(whole[place:]), range(header.num_frames))) == header.num_frames


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "is empty"),
        (b"<html>404</html>", "FFmpeg cannot read it: Invalid data"),
        (clip("mp4")[:1_000], "FFmpeg cannot read it: Invalid data"),
        (clip("h264")[:-20], "FFmpeg cannot read it: Invalid data"),
        (picture("GIF", "L"), "states no frame rate"),
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
