"""Filters of texts: of their length, of words that repeat, and of answers that refuse."""

from dataclasses import dataclass
from itertools import groupby
from typing import ClassVar, TypeVar

from brimful.measure.filters.filter import Filter, answers, whole_number
from brimful.sources.sample import Sample

_Bounds = TypeVar("_Bounds", bound="TextLength")


PHRASES = (
    "i'm sorry",
    "i am sorry",
    "i cannot",
    "i can't",
    "i'm unable to",
    "i am unable to",
    "as an ai",
)
"""Beginnings of refusals, in lowercase, with straight apostrophes."""

_STRAIGHT = str.maketrans({"’": "'", "‘": "'", "ʼ": "'"})


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
            raise self.refuse(
                f"bounds must be a range of numbers and are {self.least} and {self.most}"
            )

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


@dataclass(frozen=True)
class Repetition(Filter):
    """Filter of samples with an answer that repeats one word ``words`` times in a row; 8 as in
    LLaVA-OneVision-1.5.

    Words are separated by white space; case is ignored.

    >>> Repetition(words=3).reason(Sample(0, text="a dog Dog dog runs"))
    "a text has the word 'dog' 3 times in a row"
    >>> Repetition(words=4).reason(Sample(0, text="a dog dog dog runs")) is None
    True
    """

    name = "repetition"
    form = "repetition[=WORDS]"
    summary = "texts that repeat one word this many times in a row (8)"

    words: int = 8

    def __post_init__(self) -> None:
        if self.words < 2:
            raise self.refuse(f"words must be at least 2 and is {self.words}")

    @classmethod
    def parse(cls, text: str) -> "Repetition":
        return cls(whole_number(text)) if text else cls()

    def reason(self, sample: Sample) -> str | None:
        for answer in answers(sample):
            for word, run in groupby(answer.casefold().split()):
                number = sum(1 for _ in run)
                if number >= self.words:
                    return f"a text has the word {word[:40]!r} {number:,} times in a row"
        return None


@dataclass(frozen=True)
class Refusals(Filter):
    """Filter of samples with an answer that begins with a phrase; case and form of apostrophes are
    ignored.

    >>> chat = [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "I’m sorry, I cannot say."}]
    >>> Refusals().reason(Sample(0, messages=chat))
    "an answer is a refusal: it begins with 'i'm sorry'"
    """

    name = "refusals"
    form = "refusals[=PHRASE;PHRASE…]"
    summary = "answers that begin with a refusal"

    phrases: tuple[str, ...] = PHRASES

    def __post_init__(self) -> None:
        if (
            isinstance(self.phrases, str)
            or not self.phrases
            or not all(map(str.strip, self.phrases))
        ):
            raise self.refuse(f"phrases must be texts and are {self.phrases!r}")
        object.__setattr__(self, "phrases", tuple(map(_plain, self.phrases)))

    @classmethod
    def parse(cls, text: str) -> "Refusals":
        return cls(tuple(text.split(";"))) if text else cls()

    def reason(self, sample: Sample) -> str | None:
        for answer in answers(sample):
            beginning = _plain(answer[:1000])
            phrase = next((phrase for phrase in self.phrases if beginning.startswith(phrase)), None)
            if phrase is not None:
                return f"an answer is a refusal: it begins with '{phrase}'"
        return None


def _plain(text: str) -> str:
    return text.translate(_STRAIGHT).strip().casefold()
