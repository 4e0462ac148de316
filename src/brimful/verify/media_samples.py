"""Media of samples to verify: others of the same sizes, put into a sample to see whether another one moves."""

import io
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np

from brimful.collate.extras import PackExtras
from brimful.media import MediaKind, Medium, PlacedMedium
from brimful.media.audio import audio_header, load_audio
from brimful.media.images import load_image
from brimful.media.videos import video_header
from brimful.store.shards import Pack

_MAX_PACKS = 64
"""Maximum number of packs whose features are kept: some samples, with the changes made to them."""


def other_medium(item: PlacedMedium) -> PlacedMedium | None:
    """Return another image, video or audio clip of the same size as this one; None if none can be made.

    The negative of an image, frames that grow lighter for a video, audio played backwards and overlaid with a tone.
    """
    medium = replace(item.medium, data=item.read())
    try:
        data = _MAKERS[medium.kind](medium)
    except Exception:  # a library that cannot write such a medium may fail in any way: then nothing is shown with it
        return None
    return replace(item, medium=Medium(medium.kind, f"another {medium.name}"[:200], data=data), fingerprint="")


def _other_picture(medium: Medium) -> bytes:
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(255 - np.asarray(load_image(medium))).save(file, "PNG")
    return file.getvalue()


def _other_sound(medium: Medium) -> bytes:
    import soundfile

    rate = audio_header(medium).sampling_rate
    wave = load_audio(medium, rate)[::-1]
    tone = 0.25 * np.sin(np.arange(len(wave)) * (2 * np.pi * 440 / rate))
    file = io.BytesIO()
    soundfile.write(file, (0.5 * wave + tone).astype(np.float32), rate, format="WAV", subtype="FLOAT")
    return file.getvalue()


def _other_video(medium: Medium) -> bytes:
    import av

    header = video_header(medium)
    file = io.BytesIO()
    with av.open(file, "w", format="avi") as container:
        stream = container.add_stream("mpeg4", rate=Fraction(header.fps).limit_denominator(1001))
        stream.width, stream.height = header.width, header.height
        stream.pix_fmt = "yuv420p"
        for number in range(header.num_frames):
            pixels = np.full((header.height, header.width, 3), 40 + number * 7 % 180, dtype=np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        container.mux(stream.encode())
    return file.getvalue()


_MAKERS: dict[MediaKind, Callable[[Medium], bytes]] = {
    MediaKind.IMAGE: _other_picture,
    MediaKind.VIDEO: _other_video,
    MediaKind.AUDIO: _other_sound,
}


class RememberedFeatures:
    """A maker of features that keeps them, for a few small packs; training would fill its memory with it.

    Args:
        maker: such as ``MediaFeatures``.

    >>> from brimful.testing.toys import toy_pack
    >>> calls = []
    >>> remembered = RememberedFeatures(lambda pack: calls.append(pack) or PackExtras())
    >>> [remembered(toy_pack([2, 1])) == PackExtras() for _ in range(3)], len(calls)
    ([True, True, True], 1)
    """

    def __init__(self, maker: Callable[[Pack], PackExtras]) -> None:
        self._maker = maker
        self._extras: OrderedDict[Any, PackExtras] = OrderedDict()

    def __call__(self, pack: Pack) -> PackExtras:
        """Return the features of a pack, which depend on its media and the lengths of its segments alone."""
        key = (pack.media, tuple(pack.cu_seqlens.tolist()))
        if key not in self._extras:
            self._extras[key] = self._maker(pack)
            if len(self._extras) > _MAX_PACKS:
                self._extras.popitem(last=False)
        self._extras.move_to_end(key)
        return self._extras[key]
