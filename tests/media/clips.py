"""Videos of every container, made in memory: 50 frames at 25 per second, 64 x 48, each of another grey."""

import gc
import io
import os
import tempfile
from fractions import Fraction
from typing import Any

import av
import numpy as np

av.logging.set_level(av.logging.PANIC)

CONTAINERS = {
    "mp4": ("mp4", "mpeg4", {}),
    "mov": ("mov", "mpeg4", {}),
    "avi": ("avi", "mpeg4", {}),
    "mkv": ("matroska", "mpeg4", {}),
    "webm": ("webm", "libvpx", {}),
    "ts": ("mpegts", "mpeg2video", {}),
    "flv": ("flv", "flv", {}),
    "gif": ("gif", "gif", {}),
    "fragments": ("mp4", "mpeg4", {"movflags": "frag_keyframe+empty_moov"}),
    "h264": ("mp4", "libx264", {"movflags": "faststart"}),
    "faststart": ("mp4", "mpeg4", {"movflags": "faststart"}),
    "vp9": ("webm", "libvpx-vp9", {}),
    "live": ("webm", "libvpx-vp9", {"live": "1"}),
}


def transformers_frames(path, indices):
    """Frames and facts of the reader of Transformers; ``indices`` may be a function of its metadata.

    It closes no file. A decoder that the garbage collector frees in a forked process, such as a worker of a later test,
    waits for ever for its threads, which are not there; so the collector runs here.
    """
    from transformers.video_utils import load_video

    pick = indices if callable(indices) else lambda metadata, **_: indices
    loaded = load_video(str(path), backend="pyav", sample_indices_fn=pick)
    gc.collect()
    return loaded


def clip(container="mp4", num_frames=50, rate=25, size=(64, 48), rotation=None, times=None):
    """Bytes of a video; ``times`` are milliseconds of frames that come at no constant rate."""
    format, codec, options = CONTAINERS[container]
    # A file, as ``faststart`` opens it by its name a second time.
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "clip")
        with av.open(path, "w", format=format, options=options) as output:
            stream = output.add_stream(codec, rate=rate)
            assert isinstance(stream, av.VideoStream)
            stream.width, stream.height = size
            stream.pix_fmt = "rgb8" if codec == "gif" else "yuv420p"
            if rotation is not None:
                stream.set_display_rotation(rotation)
            if times is not None:
                stream.time_base = stream.codec_context.time_base = Fraction(1, 1000)
            for number in range(num_frames):
                pixels = np.full((size[1], size[0], 3), number * 5 % 255, np.uint8)
                frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
                if times is not None:
                    frame.pts, frame.time_base = times[number], Fraction(1, 1000)
                output.mux(stream.encode(frame))
            output.mux(stream.encode())
        with open(path, "rb") as file:
            return file.read()


def trimmed(data, num_frames):
    """The MP4 without its first frames, by an edit list: the packets are still there."""
    file = io.BytesIO()
    with av.open(io.BytesIO(data)) as source, av.open(file, "w", format="mp4") as output:
        stream = source.streams.video[0]
        copy = output.add_stream_from_template(stream)
        for packet in source.demux(stream):
            if packet.dts is None:
                continue
            shift = int(num_frames / stream.average_rate / packet.time_base)
            packet.stream = copy
            packet.pts, packet.dts = packet.pts - shift, packet.dts - shift
            output.mux(packet)
    return file.getvalue()


GROUPS = {
    "h264 closed": ("libx264", {"x264-params": "keyint=10:min-keyint=10:bframes=3"}),
    "h264 open": ("libx264", {"x264-params": "open-gop=1:keyint=10:min-keyint=10:bframes=3"}),
    "h264 refreshed": ("libx264", {"x264-params": "intra-refresh=1:keyint=10:bframes=0"}),
    "hevc open": ("libx265", {"x265-params": "open-gop=1:keyint=10:min-keyint=10:bframes=3:log-level=none"}),
    "hevc refreshed": ("libx265", {"x265-params": "intra-refresh=1:keyint=10:bframes=0:log-level=none"}),
    "mpeg2": ("mpeg2video", {"bf": "2", "g": "10"}),
    "mpeg4": ("mpeg4", {"bf": "2", "g": "10"}),
}
"""Encoders with a key frame every ten frames; "open" groups refer to the group before them, as the last two do."""


def grouped(kind, num_frames=40):
    """Bytes of a Matroska video in groups of ten pictures, of noise that moves."""
    codec, options = GROUPS[kind]
    file = io.BytesIO()
    noise = np.random.default_rng(0).integers(0, 255, (48, 64 + num_frames, 3), dtype=np.uint8)
    with av.open(file, "w", format="matroska") as output:
        stream: Any = output.add_stream(codec, rate=25, options=options)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        for number in range(num_frames):
            pixels = np.ascontiguousarray(noise[:, number : number + 64])
            output.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        output.mux(stream.encode())
    return file.getvalue()


def without_first(data, num_packets, format, options=None):
    """The video in another container, without its first packets, as a recording that begins in the middle."""
    file = io.BytesIO()
    with av.open(io.BytesIO(data)) as source, av.open(file, "w", format=format, options=options or {}) as output:
        stream = source.streams.video[0]
        copy = output.add_stream_from_template(stream)
        for number, packet in enumerate(source.demux(stream)):
            if packet.size and number >= num_packets:
                packet.stream = copy
                output.mux(packet)
    return file.getvalue()
