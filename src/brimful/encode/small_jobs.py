"""Jobs so small that they need no fast tokenizer: before it was loaded, the reference would have encoded them."""

from collections.abc import Iterable
from typing import Protocol

from brimful.encode.encoder import Encoder
from brimful.preloading import USUAL_ROW_BYTES, is_small


class SizedRows(Protocol):
    """Some rows of a job: a block of a source, or a task."""

    @property
    def num_bytes(self) -> int | None:
        """Bytes of their text; None where that is not known."""

    def __len__(self) -> int: ...


def encoder_of_job(encoder: Encoder, parts: Iterable[SizedRows]) -> Encoder:
    """Return the encoder for all parts of a job: one that is loaded sooner if they hold little text."""
    num_rows = num_bytes = 0
    for part in parts:
        num_rows += len(part)
        num_bytes += len(part) * USUAL_ROW_BYTES if part.num_bytes is None else part.num_bytes
    return encoder.engine.light if is_small(num_bytes, num_rows) else encoder
