"""Map-style data set over a stream that may still grow: samplers request packs by number, and wait
for new packs.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any, Literal, TypeAlias

from brimful.base.arguments import understands
from brimful.base.checks import index_of, setting_number, whole_number
from brimful.base.fingerprint import short
from brimful.base.typing import AnyPath, Fingerprint
from brimful.base.wording import counted, setting
from brimful.errors import SettingsError, UnfinishedStoreError
from brimful.plan import Alignment
from brimful.store.shards import Pack
from brimful.stream.assignment import Assignment, OnCorrupt, StreamSettings
from brimful.stream.chunks import ChunkPacks, holds_chunks
from brimful.stream.followed_packs import FollowedPacks

Beyond: TypeAlias = Literal["error", "pad", "repeat"]


class LazyShardedDataset:
    """Packs of a finished or growing stream by number, for the samplers of Megatron, Transformers
    and PyTorch.

    The number is global: every rank opens the same data set, and its sampler chooses the packs of
    the rank, each pack exactly once. A request for a pack that does not exist yet waits for it.
    Picklable and safe to fork: each process of a ``DataLoader`` follows the log and maps the shards
    itself.

    Number ``i`` is place ``i % lanes`` of step ``i // lanes``, so batches equal the batches of
    ``StreamLoader``. Places that stay empty at the end give a pack without loss: the length is a
    multiple of ``lanes``, and if ``lanes`` is the number of packs in a global batch, no sampler
    drops or repeats a pack to make ranks equal.

    Args:
        directory: path or URL of the stream; or a directory of packed rows in
            ``chunk_00000.jsonl``, …, which has no end.
        num_packs: declared length, a multiple of ``lanes``; the length of the finished stream if
            None. Samplers need the length before they begin: a growing stream needs it, or an upper
            bound for trainings that end after a number of steps.
        lanes: packs of one global batch, over all ranks and micro-batches; the lanes of the stream
            if None.
        assign: ``lane`` or ``pack`` (``Assignment``); by lanes if the stream has several, otherwise
            by packs.
        beyond: result for a number after the end of the stream: ``error``; ``pad``, a pack without
            loss; or ``repeat``, the packs from the beginning again.
        timeout: maximum seconds of one wait; None waits forever, with a warning each minute.
        on_corrupt: ``error``, or ``skip``: a pack without loss replaces a damaged one, which is
            counted.
        cache_dir, cache_bytes: see ``open_packs``.

    Attributes:
        packs: packs of the stream by position.
        lanes: packs of one global batch.
        fingerprint: fingerprint of the plan, or of the producer.
        alignment: alignment that the packs reserve room for:
            ``PackCollator(padding=Padding.of_alignment(…))``.
        attachment_settings: settings that media were encoded with, for ``MediaFeatures.of_packs``; None
            for packs of text.

    Raises:
        SettingsError: lanes that do not divide the declared length.

    >>> import tempfile
    >>> from brimful.testing.toys import toy_stream
    >>> dataset = LazyShardedDataset(toy_stream(tempfile.mkdtemp(), [2, 1]), lanes=2)
    >>> len(dataset), [pack.num_loss_tokens for pack in dataset]
    (4, [3, 3, 3, 0])
    """

    @understands(
        {
            "samples_per_chunk": "leave it out: lines of chunks are counted",
            "pre_packed": "leave it out: rows of chunks are packs here, and `brimful produce` "
            "packs raw ones",
            **dict.fromkeys(
                ("encode_fn", "template"),
                "`brimful produce` encodes raw rows, and the plugin of ms-swift the rows of its "
                "flag",
            ),
            "max_wait_time": "use timeout=, in seconds; None waits forever",
            "max_total_samples": "use num_packs=",
            **dict.fromkeys(
                ("dp_rank", "dp_world_size"),
                "leave it out: packs have global numbers, and the sampler of each rank picks its own",
            ),
            "data_dir": "name the stream by the first argument, directory",
            "mark_completed": "call brimful.stream.mark_completed after a checkpoint",
        }
    )
    def __init__(
        self,
        directory: AnyPath,
        *,
        num_packs: int | None = None,
        lanes: int | None = None,
        assign: Assignment | str | None = None,
        beyond: Beyond = "error",
        timeout: float | None = None,
        on_corrupt: OnCorrupt = "error",
        cache_dir: AnyPath | None = None,
        cache_bytes: int | None = None,
    ) -> None:
        if beyond not in ("error", "pad", "repeat"):
            raise SettingsError(
                f"{setting('beyond')} {beyond!r} is unknown: use one of error, pad, repeat"
            )
        # Numbers are global: below, every process acts as the only rank.
        settings = StreamSettings(
            lanes=lanes,
            assign=assign,
            packs_per_micro_batch=1,
            timeout=timeout,
            on_corrupt=on_corrupt,
            cache_dir=cache_dir,
            cache_bytes=cache_bytes,
        )
        self._beyond = beyond
        self.packs: FollowedPacks
        if holds_chunks(directory):
            self.packs = ChunkPacks(directory, settings)
        else:
            self.packs = FollowedPacks(directory, settings)
        self.directory, self.lanes = self.packs.directory, self.packs.lanes
        identity = self.packs.identity
        self.fingerprint: Fingerprint = identity["plan"]
        self.alignment = Alignment(**identity.get("alignment", {}))
        self.attachment_settings: dict[str, Any] | None = identity.get("media_settings")
        self._num_packs = (
            None if num_packs is None else setting_number("num_packs", num_packs, minimum=1)
        )
        if num_packs is not None and num_packs % self.lanes:
            raise SettingsError(
                f"{setting('num_packs', num_packs)} is not a multiple of "
                f"{setting('lanes', self.lanes)}, so the last global batch would be cut: declare "
                f"{num_packs + -num_packs % self.lanes}"
            )
        end = self.end
        if num_packs is not None and end is not None and end > num_packs:
            logging.getLogger("brimful").warning(
                "%s: num_packs=%d leaves out %d packs of the finished stream",
                self.directory,
                num_packs,
                end - num_packs,
            )

    @property
    def end(self) -> int | None:
        """Number after the last place of the stream, a multiple of ``lanes``; None while it
        grows.
        """
        num_steps = self.packs.steps_per_epoch
        return None if num_steps is None else num_steps * self.lanes

    def __len__(self) -> int:
        """Return the declared length, or the length of the finished stream.

        Raises:
            UnfinishedStoreError: the stream grows, and no length was declared.
        """
        if self._num_packs is not None:
            return self._num_packs
        end = self.end
        if end is None:
            raise UnfinishedStoreError(
                f"{self.directory} still grows ({counted(self.packs.log.num_packs, 'pack')} so "
                f"far), and samplers need a length: declare {setting('num_packs')}, at least the "
                f"steps of the training × {self.lanes}"
            )
        return end

    def __getitem__(self, index: int) -> Pack:
        """Return the pack with a number, and wait for it if it does not exist yet.

        Raises:
            IndexError: the stream has ended before this number, and ``beyond`` is ``error``.
            StreamTimeoutError: the pack did not arrive in time.
            CorruptFileError: its shard is damaged.
            ShardExpiredError: its shard was removed after later checkpoints.
        """
        pack_index = index_of("a pack", index)
        if pack_index < 0:
            pack_index += len(self)
        if pack_index < 0:
            raise IndexError(f"no pack {index}: a data set of {len(self):,} begins at {-len(self)}")
        packs = self.packs
        if not packs.has_micro_batch(
            pack_index, f"pack {pack_index:,} ({packs.log.num_packs:,} exist)"
        ):
            end = self.end
            if end and self._beyond == "repeat":
                pack_index %= end
            elif not end or self._beyond == "error":
                raise IndexError(
                    f"{self.directory} ended with {end:,} packs, and pack {pack_index} was "
                    f"requested: declare num_packs={end}, "
                    f'or let beyond="repeat" begin again'
                )
        # For a place without a pack it makes a pack without loss.
        (pack,) = packs.__getitems__([pack_index])
        return pack  # type: ignore[no-any-return]

    def __iter__(self) -> Iterator[Pack]:
        """Serve the packs in order, up to the declared length or the end of the stream."""
        pack_indices = count() if self._num_packs is None else range(self._num_packs)
        for pack_index in pack_indices:
            # A declared length may be longer than the stream.
            if (
                self._num_packs is None or self._beyond == "error"
            ) and not self.packs.has_micro_batch(pack_index):
                return
            yield self[pack_index]

    def __getitems__(self, indices: Sequence[int]) -> list[Pack]:
        return [self[index] for index in indices]

    @property
    def num_skipped(self) -> int:
        """Number of damaged packs that this process has seen."""
        return self.packs.num_skipped

    def ack(self, step: int, group: str, *, checkpoint: str = "", in_order: bool = True) -> None:
        """Acknowledge the steps before a durable checkpoint of the model; called by one rank.

        Args:
            step: optimizer steps of ``lanes`` packs that the checkpoint includes, from the
                beginning of the stream.
            group: the ranks that train one model on this stream.
            checkpoint: name of the checkpoint, for inspection.
            in_order: true if numbers were requested in order, each once. A shuffling sampler may
                request any pack later, and a repeated pass requests all packs again: with false
                every shard stays.

        Raises:
            StateError: another run has acknowledged this step after different packs.
        """
        position = whole_number("step", step, minimum=0) * self.lanes
        end = self.end
        if self._beyond == "pad" and end is not None:
            position = min(position, end)  # steps after the end had no packs
        state = self.packs.state_at(position)
        is_last_pass = in_order and self._beyond != "repeat" and (end is None or position <= end)
        self.packs.ack(group, state, checkpoint=checkpoint, is_last_pass=is_last_pass)

    def __repr__(self) -> str:
        end = self.end
        length = "growing" if end is None else f"finished with {end:,}"
        declared_length = "" if self._num_packs is None else f", {self._num_packs:,} declared"
        return (
            f"LazyShardedDataset({self.directory!r}, {length}{declared_length}, lanes "
            f"{self.lanes}, {short(self.fingerprint)})"
        )
