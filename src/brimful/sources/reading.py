"""How the rows of one file become samples: their format, and what of them may be left out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from brimful.messages import setting
from brimful.sources.formats import RowFormat
from brimful.sources.sample import MalformedRowError, Sample
from brimful.sources.unread import placeholder, refusal, unread_columns, unread_of_messages

__all__ = ["Reading"]


@dataclass(frozen=True)
class Reading:
    """A format, and the columns and marks that the caller does not want.

    >>> from brimful.sources.formats import format_named
    >>> Reading(format_named("text")).sample(3, {"text": "a", "id": 7}).unread
    ('id',)
    """

    format: RowFormat
    ignore: frozenset[str] = frozenset()

    @property
    def settings(self) -> dict[str, Any]:
        """What, beside a row, decides what its sample holds."""
        described = {"format": self.format.name, "fields": dict(self.format.fields)}
        return {**described, **({"ignore": sorted(self.ignore)} if self.ignore else {})}

    def sample(self, sample_id: int, row: Any) -> Sample:
        """The sample of a row.

        Raises:
            MalformedRowError: it is no row of this format, or says something that cannot be packed.
        """
        refused = refusal(row, self.format.columns, ignore=self.ignore)
        if refused is not None:
            raise MalformedRowError(refused)
        content = self.format.convert(row)
        unread = [name for name in unread_columns(row, self.format.columns) if name not in self.ignore]
        messages = content.get("messages")
        if messages is not None:
            unread += sorted(unread_of_messages(messages) - self.ignore)
        self._check_placeholders(content)
        return Sample(sample_id, **content, unread=tuple(unread))

    def _check_placeholders(self, content: Mapping[str, Any]) -> None:
        """No mark says that a medium belongs in a text that comes without one."""
        messages = content.get("messages")
        texts = [content.get("text")] if messages is None else [message.get("content") for message in messages]
        for text in texts:
            mark = placeholder(text, ignore=self.ignore) if text else None
            if mark is not None:
                raise MalformedRowError(
                    f"its text holds {mark} where a medium belongs, and media cannot be packed so far: if it is plain "
                    f"text, say so with {setting('ignore', [mark])}"
                )
