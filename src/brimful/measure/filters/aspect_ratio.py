"""Filter of images that are too narrow or too wide."""

from dataclasses import dataclass

from brimful.measure.filters.filter import Filter
from brimful.media import BadMediumError, MediaKind
from brimful.media.images import image_size
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
            raise self.refuse(f"ratios must be a range above 0 and are {self.least} and {self.most}")

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
                    f"image {medium.name[:200]!r} of {width:,} × {height:,} has an aspect ratio of {ratio:.3g}, outside of "
                    f"{self.least:g} to {self.most:g}"
                )
        return None
