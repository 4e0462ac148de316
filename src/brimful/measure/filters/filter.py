"""Contract of a filter: one check of a sample before it is encoded."""

import abc
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from brimful.base.wording import setting
from brimful.errors import SettingsError
from brimful.sources.sample import Sample


@dataclass(frozen=True)
class Filter(abc.ABC):
    """Check of samples. A frozen object that validates itself; its fields are its settings."""

    name: ClassVar[str]
    """Name on the command line and in the account."""
    form: ClassVar[str]
    """Syntax of its text, for help and messages."""
    summary: ClassVar[str]
    """Samples that it removes, in a few words."""

    @classmethod
    @abc.abstractmethod
    def parse(cls, text: str) -> "Filter":
        """Make a filter from the text after its name, which may be empty.

        Raises:
            ValueError: the text cannot be parsed.
        """

    @abc.abstractmethod
    def reason(self, sample: Sample) -> str | None:
        """Return the reason to leave a sample out; None to keep it.

        A medium that cannot be opened is not a reason: the encoder reports it.
        """

    @property
    def settings(self) -> dict[str, Any]:
        """Settings that decide which samples it removes."""
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in values.items()
        }

    def refuse(self, problem: str) -> SettingsError:
        """Return the error of an impossible setting of this filter."""
        return SettingsError(
            f"{setting('filters', self.name, python=f'filter {self.name}')}: {problem}"
        )


def answers(sample: Sample) -> list[str]:
    """Return the texts that a sample teaches: the answers of a chat, or the document; empty for
    tokens.

    >>> answers(Sample(0, messages=[{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]))
    ['ho']
    """
    if sample.messages is None:
        return [sample.text] if sample.text else []
    texts = []
    for message in sample.messages:
        content = message.get("content")
        if message.get("role") != "assistant" or not content:
            continue
        if isinstance(content, list):
            content = "".join(part.get("text") or "" for part in content)
        texts.append(content)
    return texts


def whole_number(text: str) -> int:
    """Parse a whole number above 0."""
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number
