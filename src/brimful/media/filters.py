"""Quality filters that look at images: their sizes, and whether they show anything."""

from dataclasses import dataclass

from brimful.measure.filters import register
from brimful.measure.filters.filter import Filter
from brimful.media import BadMediumError, MediaKind
from brimful.media.images import image_size, load_image
from brimful.sources.sample import Sample


@dataclass(frozen=True)
class AspectRatio(Filter):
    """Filter of samples with an image whose width ÷ height is below ``least`` or above ``most``.

    The size comes from the header, after its orientation is applied.
    """

    name = "aspect-ratio"
    form = "aspect-ratio=LEAST:MOST"
    summary = "images of a smaller or larger width ÷ height"

    least: float
    most: float

    def __post_init__(self) -> None:
        if not 0 < self.least <= self.most < float("inf"):
            raise self.refuse(
                f"ratios must be a range above 0 and are {self.least} and {self.most}"
            )

    @classmethod
    def parse(cls, text: str) -> "AspectRatio":
        least, colon, most = text.partition(":")
        if not colon:
            raise ValueError(text)
        return cls(float(least), float(most))

    def reason(self, sample: Sample) -> str | None:
        for medium in sample.media:
            if medium.kind is not MediaKind.IMAGE:
                continue
            try:
                width, height = image_size(medium)
            except BadMediumError:
                continue
            ratio = width / height
            if not self.least <= ratio <= self.most:
                return (
                    f"image {medium.name[:200]!r} of {width:,} × {height:,} has an aspect ratio of "
                    f"{ratio:.3g}, outside of {self.least:g} to {self.most:g}"
                )
        return None


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
            if all(
                low == high for low, high in (channel.getextrema() for channel in image.split())
            ):
                return f"image {medium.name[:200]!r} is empty: all its pixels have one color"
        return None


register(AspectRatio, Pictures)
