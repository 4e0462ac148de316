"""Task of one block of rows: its settings, its files, and the batches of samples that are encoded
together.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol, TypeVar

from brimful.base.wings import ATTACHMENT_MEASURES
from brimful.encode.encoder import Encoder
from brimful.errors import BadSampleError
from brimful.sources.sample import PlainMessages, Sample
from brimful.sources.source import Source

_BATCH_SAMPLES = 1024
_BATCH_CHARACTERS = 1 << 20
_ITEM_CHARACTERS = 1 << 10
"""Characters that a content with attachments counts as: it opens files, which takes as long as some
text.
"""

_Result = TypeVar("_Result")

_BATCHES_AHEAD = 2
"""Batches that wait for the tokenizer while one is rendered."""


@dataclass(frozen=True)
class BlockContext:
    """Settings that all blocks of a job share; sent to each worker process once.

    Attributes:
        search: for what samples share (``base.sharing.wing_of``); None if it is not looked for.
    """

    source: Source
    encoder: Encoder
    budgets: tuple[str, ...]
    skip_bad: bool
    keep_encoded: bool
    targets: bool
    looks_at_files: bool = False
    search: Any = None

    @property
    def needs_runs(self) -> bool:
        """True if the place of each target has to be found by encoding."""
        return self.targets and not self.encoder.all_are_targets

    @property
    def needs_labels(self) -> bool:
        """True if lengths alone are not enough."""
        return self.keep_encoded or self.needs_runs or set(self.budgets) != {"tokens"}


@dataclass(frozen=True)
class BlockTask:
    """Rows ``start … stop-1``, the file of their lengths, and the file of their tokens if they are
    kept.

    Attributes:
        num_bytes: of their text; None if unknown.
    """

    start: int
    stop: int
    lengths_path: str
    encoded_path: str | None
    num_bytes: int | None = None

    def __len__(self) -> int:
        return self.stop - self.start

    def __str__(self) -> str:
        return f"samples {self.start:,} to {self.stop - 1:,}"


class LengthComparison(Protocol):
    """Comparison of some samples of a job, block by block."""

    def is_due(self, task: BlockTask) -> bool:
        """Return true if the lengths of a measured block were not compared yet."""

    def compare(self, task: BlockTask) -> None:
        """Compare samples of a measured block, and record that it was done.

        Raises:
            ProcessorDiffersError: a sample has other tokens.
        """


def attachment_measures() -> Any:
    """Return the module of attachments in measured rows (``brimful.media.measure``). It has:

    - ``noted(samples, states, start)``: yields samples, and stores the states of their files in
      ``int64[num_samples]`` of the samples from ``start``;
    - ``changed_samples(source, runs, resources)``: yields the first row of each run whose files
      changed, and its first changed sample; ``runs`` are pairs of the first row and states of each;
    - ``Comparison(context, progress)``: the ``LengthComparison`` with the model's own processor.
    """
    return import_module(ATTACHMENT_MEASURES)


def in_halves(
    start: Callable[[list[Sample]], Callable[[], _Result]], batches: Iterable[list[Sample]]
) -> Iterator[tuple[list[Sample], _Result]]:
    """Yield the result of each batch: one is tokenized, which needs no Python, while the next is
    rendered.

    Rendering has its own thread, and tokenizing uses this one: ``fastokens`` makes tables for each
    thread, and the first thread of a worker process inherits the tables of the server that it was
    forked from.

    Args:
        start: does the first half of the work on a batch, and returns a function for the second
            half.
        batches: of samples.
    """
    remaining = iter(batches)

    def render() -> tuple[list[Sample], Callable[[], _Result]] | None:
        batch = next(remaining, None)
        return None if batch is None else (batch, start(batch))

    pool = ThreadPoolExecutor(1)
    try:
        # The queue is bounded: rendered texts of all batches would not fit in memory.
        queue = deque(pool.submit(render) for _ in range(_BATCHES_AHEAD))
        while (rendered := queue.popleft().result()) is not None:
            queue.append(pool.submit(render))
            batch, finish = rendered
            yield batch, finish()
    finally:
        pool.shutdown(
            cancel_futures=True
        )  # an error or Ctrl-C waits for one batch, not for all queued ones


def batches_of(
    samples: Iterable[Sample | BadSampleError], errors: list[BadSampleError]
) -> Iterator[list[Sample]]:
    """Yield runs of samples to encode together, bounded in number and in characters; append errors
    to ``errors``.
    """
    batch: list[Sample] = []
    batch_characters = 0
    for sample in samples:
        if isinstance(sample, BadSampleError):
            errors.append(sample)
            continue
        batch.append(sample)
        batch_characters += num_characters(sample)
        if len(batch) >= _BATCH_SAMPLES or batch_characters >= _BATCH_CHARACTERS:
            yield batch
            batch, batch_characters = [], 0
    if batch:
        yield batch


def num_characters(sample: Sample) -> int:
    """Return the characters of a sample's texts; a content with attachments counts as
    ``_ITEM_CHARACTERS``.
    """
    messages = sample.messages
    if type(messages) is PlainMessages:
        return sum(map(len, messages.texts))
    texts = [turn.get("content") or "" for turn in messages or ()]
    num_items = len(texts) - [*map(type, texts)].count(str)
    num_texts = (
        sum(map(len, texts))
        if not num_items
        else sum(len(text) for text in texts if type(text) is str)
    )
    return len(sample.text or "") + num_texts + num_items * _ITEM_CHARACTERS
