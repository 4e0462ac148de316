"""The reading of one file: the format of its rows, and the columns and marks that may be left out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from brimful.messages import setting
from brimful.sources.formats import RowFormat
from brimful.sources.sample import MalformedRowError, Sample
from brimful.sources.unread import placeholder, refusal, unread_columns, unread_of_messages


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
        """The settings that decide, beside a row, the content of its sample."""
        settings = {"format": self.format.name, "fields": dict(self.format.fields)}
        return {**settings, **({"ignore": sorted(self.ignore)} if self.ignore else {})}

    def sample(self, sample_id: int, row: Any) -> Sample:
        """Convert a row to a sample.

        Raises:
            MalformedRowError: it is no row of this format, or says something that cannot be packed.
        """
        unread = unread_columns(row, self.format.columns, ignore=self.ignore)
        reason = refusal(unread)
        if reason is not None:
            raise MalformedRowError(reason)
        content = self.format.convert(row)
        messages = content.get("messages")
        if messages is None:
            self._check_placeholder(content.get("text"))
        else:
            for message in messages:
                self._check_placeholder(message.get("content"))
            unread += sorted(unread_of_messages(messages) - self.ignore)
        return Sample(sample_id, **content, unread=tuple(unread))

    def _check_placeholder(self, text: str | None) -> None:
        """Refuse a text with the mark of a medium, which comes without one."""
        if text and "<" in text and (mark := placeholder(text, ignore=self.ignore)) is not None:
            raise MalformedRowError(
                f"its text holds {mark} where a medium belongs, and media cannot be packed so far: if it is plain "
                f"text, say so with {setting('ignore', [mark])}"
            )
