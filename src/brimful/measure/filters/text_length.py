"""Filters of texts that are too short or too long, in characters or in words."""

from dataclasses import dataclass
from typing import ClassVar, TypeVar

from brimful.measure.filters.filter import Filter, answers, whole_number
from brimful.sources.sample import Sample

_Bounds = TypeVar("_Bounds", bound="TextLength")


@dataclass(frozen=True)
class TextLength(Filter):
    """Filter of samples whose answers together are shorter than ``least`` or longer than ``most``.

    Attributes:
        least: 0 for no bound.
        most: None for no bound.
    """

    unit: ClassVar[str]

    least: int = 0
    most: int | None = None

    def __post_init__(self) -> None:
        if self.least < 0 or (self.most is not None and self.most < max(1, self.least)):
            raise self.refuse(f"bounds must be a range of numbers and are {self.least} and {self.most}")

    @classmethod
    def parse(cls: type[_Bounds], text: str) -> _Bounds:
        least, colon, most = text.partition(":")
        if not colon or not (least or most):
            raise ValueError(text)
        return cls(int(least) if least else 0, whole_number(most) if most else None)

    def size(self, text: str) -> int:
        """Return the length of one text, in this unit."""
        raise NotImplementedError

    def reason(self, sample: Sample) -> str | None:
        texts = answers(sample)
        if not texts and sample.kind == "tokens":
            return None
        size = sum(map(self.size, texts))
        if size < self.least:
            return f"its text has {size:,} {self.unit}, fewer than {self.least:,}"
        if self.most is not None and size > self.most:
            return f"its text has {size:,} {self.unit}, more than {self.most:,}"
        return None


@dataclass(frozen=True)
class Characters(TextLength):
    """Filter of samples by the characters of their answers, without white space around them.

    >>> Characters(50, 3500).reason(Sample(0, text="A cat."))
    'its text has 6 characters, fewer than 50'
    """

    name = "characters"
    form = "characters=LEAST:MOST"
    summary = "texts of fewer or more characters"
    unit = "characters"

    def size(self, text: str) -> int:
        return len(text.strip())


@dataclass(frozen=True)
class Words(TextLength):
    """Filter of samples by the words of their answers, separated by white space.

    >>> Words(most=2).reason(Sample(0, text="A cat runs."))
    'its text has 3 words, more than 2'
    """

    name = "words"
    form = "words=LEAST:MOST"
    summary = "texts of fewer or more words"
    unit = "words"

    def size(self, text: str) -> int:
        return len(text.split())
