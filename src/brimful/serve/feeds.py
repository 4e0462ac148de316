"""Where micro-batches get their samples: by index, from lengths alone; or from a live stream."""

from __future__ import annotations

import base64
import copy
from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from brimful.encode.encoded import EncodedSample
from brimful.errors import CollateError, EncodeError, LengthChangedError, SettingsError, StateError
from brimful.fingerprint import fingerprint_array, fingerprint_bytes
from brimful.measure.table import as_lengths
from brimful.messages import counted
from brimful.rng import generator
from brimful.serve.composer import Composer, Piece
from brimful.shards import Pack, assemble_pack
from brimful.tokenised import read_tokenised
from brimful.typing import AnyIntArray, Int64Array, Lengths

__all__ = ["IndexedFeed", "StreamFeed"]

_AT_ONCE = 4096
"""Samples whose lengths become Python numbers at a time."""


class IndexedFeed:
    """Samples by index, each epoch in an order of its own. Composing reads lengths; only what is served is encoded."""

    def __init__(
        self,
        source: Any,
        lengths: AnyIntArray | Sequence[int],
        loss_tokens: AnyIntArray | Sequence[int] | None,
        *,
        by_targets: bool,
        seed: int | None,
    ) -> None:
        self._source, self._seed = source, seed
        self._lengths: Lengths = as_lengths(lengths)
        if by_targets and loss_tokens is None:
            raise SettingsError("count='loss_tokens' needs the targets of each sample: give loss_tokens with lengths")
        self._counted = self._lengths if loss_tokens is None else as_lengths(loss_tokens, "loss_tokens")
        for name, count in (("loss_tokens", len(self._counted)), ("the source", len(source))):
            if count != len(self._lengths):
                raise SettingsError(f"lengths has {len(self._lengths):,} samples and {name} {count:,}: measure again")
        if len(self._lengths) and not self._lengths.all():
            raise SettingsError(f"sample {int(np.argmin(self._lengths != 0))} has length 0; every sample needs 1 token")
        if not by_targets:
            self._counted = self._lengths
        self.identity: dict[str, Any] = {
            "lengths": fingerprint_array(self._lengths),
            "counted": fingerprint_array(self._counted),
            "seed": seed,
        }
        self._epoch = self._taken = 0

    def __repr__(self) -> str:
        return f"{self._taken:,} of {counted(len(self._lengths), 'sample')} taken"

    def copy(self) -> IndexedFeed:
        """Another that shares all but where it stands."""
        return copy.copy(self)

    def begin(self, epoch: int) -> None:
        """Go to the beginning of an epoch."""
        self._epoch = epoch
        count = len(self._lengths)
        self._order: Int64Array | None = None
        if self._seed is not None:
            self._order = generator(seed=self._seed, epoch=epoch, purpose="token budget").permutation(count)
        self._go_to(0)

    def _go_to(self, taken: int) -> None:
        self._taken = taken
        self._coming: Iterator[tuple[int, int, int]] = iter(())

    def _next(self) -> tuple[int, int, int] | None:
        found = next(self._coming, None)
        if found is None and self._taken < len(self._lengths):
            stop = min(self._taken + _AT_ONCE, len(self._lengths))
            ids = np.arange(self._taken, stop) if self._order is None else self._order[self._taken : stop]
            self._coming = zip(ids.tolist(), self._lengths[ids].tolist(), self._counted[ids].tolist(), strict=True)
            found = next(self._coming)
        return found

    def pull(self, composer: Composer) -> bool:
        """Give the composer one more sample; false at the end of the epoch."""
        found = self._next()
        if found is None:
            return False
        sample_id, length, counted = found
        if length < 0:
            composer.reject()
        else:
            try:
                composer.add(sample_id, length, counted)
            except BaseException:
                self._go_to(self._taken)  # whoever goes on comes to it again: no sample is passed over
                raise
        self._taken += 1
        return True

    def forget(self, waiting: Sequence[Piece], filler: Piece | None) -> None:
        """Nothing is kept."""

    def packs(self, pieces: Sequence[Piece]) -> list[Pack]:
        """One pack of the pieces.

        Raises:
            LengthChangedError: a sample has another length than was measured.
        """
        items = [_item_of(self._source[piece.key], piece.key) for piece in pieces]
        for piece, item in zip(pieces, items, strict=True):
            if len(item.input_ids) != self._lengths[piece.key]:
                raise LengthChangedError(
                    f"sample {piece.key} encodes to {len(item.input_ids):,} tokens and was measured with "
                    f"{int(self._lengths[piece.key]):,}: the data or the tokenizer changed since. Measure again"
                )
        return _packs_of(pieces, items)

    def mark(self) -> int:
        """Samples taken in this epoch."""
        return self._taken

    def save(self, mark: int, waiting: Sequence[Piece], filler: Piece | None) -> dict[str, Any]:
        """Numbers of the samples that wait, for JSON."""
        return {
            "taken": mark,
            "waiting": [list(piece) for piece in waiting],
            "filler": None if filler is None else list(filler),
        }

    def load(self, state: dict[str, Any], epoch: int) -> tuple[list[Piece], Piece | None]:
        """Go to where a state was saved."""
        taken, waiting = int(state["taken"]), [Piece(*map(int, row)) for row in state["waiting"]]
        filler = None if state["filler"] is None else Piece(*map(int, state["filler"]))
        count = len(self._lengths)
        for piece in [*waiting, filler] if filler else waiting:
            within = 0 <= piece.key < count and piece.start >= 0 and piece.length >= 1
            if not within or piece.start + piece.length > int(self._lengths[piece.key]):
                raise StateError(f"the loader state holds {piece}, which the source of {count:,} samples does not have")
        if not 0 <= taken <= count:
            raise StateError(f"the loader state took {taken:,} samples of an epoch that has {count:,}")
        self.begin(epoch)
        self._go_to(taken)
        return waiting, filler


class StreamFeed:
    """Samples or packs as they come. Holds those that wait; a saved state holds their tokens."""

    identity: dict[str, Any] = {"kind": "stream"}

    def __init__(self, source: Any, *, by_targets: bool) -> None:
        self._source, self._by_targets = source, by_targets
        self._taken = 0
        self._items: dict[int, EncodedSample | Pack] = {}
        self._coming: Iterator[Any] | None = None

    def __repr__(self) -> str:
        return f"{counted(self._taken, 'sample')} of a stream taken"

    def begin(self, epoch: int) -> None:
        """Go to the beginning of an epoch: iterate again, when the first sample is asked for."""
        if hasattr(self._source, "set_epoch"):
            self._source.set_epoch(epoch)
        self._taken, self._coming = 0, None

    def pull(self, composer: Composer) -> bool:
        """Give the composer one more sample; waits for it where the stream does. False at the end."""
        if self._coming is None:
            self._coming = iter(self._source)
        item = next(self._coming, None)
        if item is None:
            return False
        item = _item_of(item, self._taken)
        if not len(item.input_ids):
            raise EncodeError(f"item {self._taken} of the stream has no tokens; leave such samples out before")
        samples = item.num_segments if isinstance(item, Pack) else 1
        # The first token of a sample is never a target; in a pack that is settled.
        targets = item.num_loss_tokens if isinstance(item, Pack) else int(np.count_nonzero(item.loss_mask[1:]))
        length = len(item.input_ids)
        self._items[self._taken] = item
        composer.add(self._taken, length, targets if self._by_targets else length, samples=samples)
        self._taken += 1
        return True

    def forget(self, waiting: Sequence[Piece], filler: Piece | None) -> None:
        """Keep only the items of these."""
        keys = {piece.key for piece in waiting} | ({filler.key} if filler else set())
        self._items = {key: self._items[key] for key in sorted(keys)}

    def packs(self, pieces: Sequence[Piece]) -> list[Pack]:
        """The pieces as packs: loose samples in one, packs of the stream as they are."""
        return _packs_of(pieces, [self._items[piece.key] for piece in pieces])

    def mark(self) -> dict[str, Any]:
        """Where the stream stands, if it can say, and the items that wait."""
        where = copy.deepcopy(self._source.state_dict()) if hasattr(self._source, "state_dict") else None
        return {"taken": self._taken, "source": where, "items": dict(self._items)}

    def save(self, mark: dict[str, Any], waiting: Sequence[Piece], filler: Piece | None) -> dict[str, Any]:
        """Position of the stream and tokens of the samples that wait, for JSON.

        Raises:
            StateError: the stream has no ``state_dict``.
        """
        if mark["source"] is None or not hasattr(self._source, "load_state_dict"):
            raise StateError(
                f"the stream {type(self._source).__name__} cannot say where it stands: give it state_dict() and "
                f"load_state_dict(), or give a source by index with lengths"
            )
        keys = sorted({piece.key for piece in waiting} | ({filler.key} if filler else set()))
        return {
            "taken": mark["taken"],
            "source_state": mark["source"],
            "waiting": [list(piece) for piece in waiting],
            "filler": None if filler is None else list(filler),
            "items": {str(key): _to_json(mark["items"][key]) for key in keys},
        }

    def load(self, state: dict[str, Any], epoch: int) -> tuple[list[Piece], Piece | None]:
        """Go to where a state was saved."""
        waiting = [Piece(*map(int, row)) for row in state["waiting"]]
        filler = None if state["filler"] is None else Piece(*map(int, state["filler"]))
        items = {int(key): _from_json(value) for key, value in state["items"].items()}
        for piece in [*waiting, filler] if filler else waiting:
            if piece.start < 0 or piece.length < 1 or piece.start + piece.length > len(items[piece.key].input_ids):
                raise StateError(f"the loader state holds {piece}, which its own tokens do not have")
        if not hasattr(self._source, "load_state_dict"):
            raise StateError(f"the stream {type(self._source).__name__} has no load_state_dict() to go back by")
        self.begin(epoch)
        self._source.load_state_dict(state["source_state"])
        self._items, self._taken = items, int(state["taken"])
        return waiting, filler


def _item_of(item: Any, key: int) -> EncodedSample | Pack:
    """What a source gives: a sample or a pack as it is, a plain sample read.

    Raises:
        CollateError: the plain sample cannot be read, or has what packs do not carry; names the key.
    """
    if isinstance(item, (EncodedSample, Pack)):
        return item
    read = read_tokenised(item, f"sample {key}")
    beside = {
        "loss_weights": read.loss_weights,
        "source_id": read.source_ids,
        "position_ids": read.rope_positions if read.rope_positions is not None else read.position_start or None,
    }
    for name, value in beside.items():
        if value is not None:
            raise CollateError(
                f"sample {key} has {name!r}, which packs made by a token budget do not carry: leave it out, or collate "
                f"plain samples without a token budget"
            )
    segments = len(read.cu_seqlens) - 1
    if segments == 1:
        return EncodedSample(read.input_ids, read.loss_mask)
    return Pack(
        read.input_ids,
        read.loss_mask,
        read.cu_seqlens,
        np.full(segments, key, dtype=np.int64),
        read.places[read.cu_seqlens[:-1]].astype(np.int32),
    )


def _packs_of(pieces: Sequence[Piece], items: Sequence[EncodedSample | Pack]) -> list[Pack]:
    """Packs of several segments as they are, and one pack of all single samples; their sample ids are kept."""
    packs: list[Pack] = []
    ids, masks, sample_ids, starts = [], [], [], []
    for piece, item in zip(pieces, items, strict=True):
        if isinstance(item, Pack) and item.num_segments > 1:
            if piece.length != len(item):
                raise CollateError(
                    f"item {piece.key} is a pack of {item.num_segments} samples and {len(item):,} tokens, which is "
                    f"never cut: raise capacity, or choose overflow drop"
                )
            packs.append(item)
            continue
        sample_id, first = (int(item.sample_ids[0]), int(item.starts[0])) if isinstance(item, Pack) else (piece.key, 0)
        stop = piece.start + piece.length
        ids.append(item.input_ids[piece.start : stop])
        masks.append(item.loss_mask[piece.start : stop])
        sample_ids.append(sample_id)
        starts.append(first + piece.start)
    if ids:
        packs.append(assemble_pack(ids, masks, sample_ids, starts))
    return packs


_KINDS: dict[str, type[Any]] = {"EncodedSample": EncodedSample, "Pack": Pack}


def _to_json(item: EncodedSample | Pack) -> dict[str, Any]:
    """An item as text, with a checksum for each array."""
    arrays = {}
    for field in fields(item):
        value = getattr(item, field.name)
        if value is None:
            continue
        if not isinstance(value, np.ndarray) or value.dtype.hasobject:
            raise StateError(
                f"{type(item).__name__}.{field.name} of a sample that waits is no array and cannot be saved"
            )
        data = np.ascontiguousarray(value.astype(value.dtype.newbyteorder("<"), copy=False)).tobytes()
        arrays[field.name] = [
            value.dtype.newbyteorder("<").str,
            list(value.shape),
            base64.b64encode(data).decode("ascii"),
            fingerprint_bytes(data),
        ]
    return {"kind": type(item).__name__, "arrays": arrays}


def _from_json(value: dict[str, Any]) -> Any:
    arrays = {}
    for name, (dtype, shape, text, checksum) in value["arrays"].items():
        data = base64.b64decode(text, validate=True)
        if fingerprint_bytes(data) != checksum:
            raise StateError(
                f"the loader state is damaged: {name} of a sample that waits has other bytes than were saved"
            )
        array = np.frombuffer(data, dtype=np.dtype(dtype)).reshape(shape)
        arrays[name] = array.astype(array.dtype.newbyteorder("="))
    return _KINDS[value["kind"]](**arrays)
