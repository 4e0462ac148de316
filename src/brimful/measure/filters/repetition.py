"""Filter of answers that repeat one word."""

from dataclasses import dataclass
from itertools import groupby

from brimful.measure.filters.filter import Filter, answers, whole_number
from brimful.sources.sample import Sample


@dataclass(frozen=True)
class Repetition(Filter):
    """Filter of samples with an answer that repeats one word ``words`` times in a row; 8 as in LLaVA-OneVision-1.5.

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
