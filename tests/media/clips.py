"""Videos of every container, made in memory: 50 frames at 25 per second, 64 x 48, each of another grey."""

import gc
import io
import os
import tempfile
from fractions import Fraction

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
