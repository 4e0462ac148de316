"""Sizes of jobs: for small ones, loading the fast tokenizer or starting processes takes longer than encoding."""

from collections.abc import Iterable
from typing import Protocol

from brimful.encode.encoder import Encoder
from brimful.preloading import ONE_PROCESS_BYTES, USUAL_ROW_BYTES, is_small


class SizedRows(Protocol):
    """Some rows of a job: a block of a source, or a task."""

    @property
    def num_bytes(self) -> int | None:
        """Bytes of their text; None if unknown."""

    def __len__(self) -> int: ...


def encoder_of_job(encoder: Encoder, parts: Iterable[SizedRows]) -> Encoder:
    """Return the encoder for all parts of a job: one that loads sooner if they hold little text."""
    return encoder.engine.light if is_small(*_text_of(parts)) else encoder


def is_for_one_process(encoder: Encoder, parts: Iterable[SizedRows]) -> bool:
    """Return true if one process encodes all parts before others would have started, and keeps several cores busy."""
    if encoder.takes_media or not encoder.engine.uses_threads:
        return False
    return _text_of(parts)[0] < ONE_PROCESS_BYTES


def _text_of(parts: Iterable[SizedRows]) -> tuple[int, int]:
    """Return the bytes of text of a job and its rows."""
    num_rows = num_bytes = 0
    for part in parts:
        num_rows += len(part)
        num_bytes += len(part) * USUAL_ROW_BYTES if part.num_bytes is None else part.num_bytes
    return num_bytes, num_rows
