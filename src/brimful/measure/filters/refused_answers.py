"""Filter of answers in which a model declined to answer."""

from dataclasses import dataclass

from brimful.measure.filters.filter import Filter, answers
from brimful.sources.sample import Sample

PHRASES = ("i'm sorry", "i am sorry", "i cannot", "i can't", "i'm unable to", "i am unable to", "as an ai")
"""Beginnings of refusals, in lowercase, with straight apostrophes."""

_STRAIGHT = str.maketrans({"’": "'", "‘": "'", "ʼ": "'"})


@dataclass(frozen=True)
class Refusals(Filter):
    """Filter of samples with an answer that begins with a phrase; case and form of apostrophes are ignored.

    >>> chat = [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "I’m sorry, I cannot say."}]
    >>> Refusals().reason(Sample(0, messages=chat))
    "an answer is a refusal: it begins with 'i'm sorry'"
    """

    name = "refusals"
    form = "refusals[=PHRASE;PHRASE…]"
    summary = "answers that begin with a refusal"

    phrases: tuple[str, ...] = PHRASES

    def __post_init__(self) -> None:
        if isinstance(self.phrases, str) or not self.phrases or not all(map(str.strip, self.phrases)):
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
