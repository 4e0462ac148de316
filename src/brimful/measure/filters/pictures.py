"""Filter of images that cannot be decoded, or show nothing."""

from dataclasses import dataclass

from brimful.measure.filters.filter import Filter
from brimful.media import BadMediumError, MediaKind
from brimful.media.images import load_image
from brimful.sources.sample import Sample


@dataclass(frozen=True)
class Pictures(Filter):
    """Filter of samples with an image whose pixels are damaged or missing, or all of one color.

    Measuring reads only headers; this filter decodes every image once, which takes much longer.
    """

    name = "pictures"
    form = "pictures"
    summary = "images that cannot be decoded, or are of one color"

    @classmethod
    def parse(cls, text: str) -> "Pictures":
        if text:
            raise ValueError(text)
        return cls()

    def reason(self, sample: Sample) -> str | None:
        for medium in sample.media:
            if medium.kind is not MediaKind.IMAGE:
                continue
            try:
                image = load_image(medium)
            except BadMediumError as error:
                return f"image {medium.name[:200]!r}: {error}"
            # The darkest and the brightest value of each of three channels.
            if all(low == high for low, high in (channel.getextrema() for channel in image.split())):
                return f"image {medium.name[:200]!r} is empty: all its pixels have one color"
        return None
