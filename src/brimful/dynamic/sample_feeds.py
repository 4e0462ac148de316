"""Feeds of samples for micro-batches: by index, using only lengths; or from a live stream."""

from __future__ import annotations

import base64
import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, TypeAlias

import numpy as np

from brimful.base.attachment import AttachedInputs
from brimful.base.fingerprint import fingerprint_array
from brimful.base.rng import generator
from brimful.base.typing import Int64Array, IntArrayLike, Lengths
from brimful.base.wording import counted
from brimful.dynamic.compose import MicroBatchComposer, SampleSegment
from brimful.encode.encoded import EncodedSample
from brimful.errors import CollateError, EncodeError, LengthChangedError, SettingsError, StateError
from brimful.lengths.targets import as_lengths
from brimful.serve.tokenized import TokenizedSample, read_tokenized
from brimful.store.shards import Pack, assemble_pack
from brimful.trees.pack_tree import PackTree

Item: TypeAlias = EncodedSample | Pack | TokenizedSample
"""A sample or a pack of a feed; a plain sample stays as it was read if a pack cannot represent all
of it.
"""

_LOOKUP_SAMPLES = 4096
"""Number of samples whose lengths are converted to Python numbers at once."""


class IndexedSampleFeed:
    """Samples by index, in a different order each epoch. Composing reads lengths; only served
    samples are encoded.

    Attributes:
        identity: fingerprints and settings that a saved state must match.
        facts: description of the samples, for the error about a state that does not fit.
    """

    def __init__(
        self,
        source: Any,
        lengths: IntArrayLike,
        loss_tokens: IntArrayLike | None,
        *,
        by_targets: bool,
        seed: int | None,
    ) -> None:
        self._source, self._seed = source, seed
        self._lengths: Lengths = as_lengths(lengths)
        if by_targets and loss_tokens is None:
            raise SettingsError(
                "count='loss_tokens' needs the targets of each sample: give loss_tokens with "
                "lengths"
            )
        targets = self._lengths if loss_tokens is None else as_lengths(loss_tokens, "loss_tokens")
        for name, size in (("loss_tokens", len(targets)), ("the source", len(source))):
            if size != len(self._lengths):
                raise SettingsError(
                    f"lengths has {len(self._lengths):,} samples and {name} {size:,}: measure again"
                )
        if len(self._lengths) and not self._lengths.all():
            raise SettingsError(
                f"sample {int(np.argmin(self._lengths != 0))} has length 0; every sample needs 1 "
                "token"
            )
        self._budget_tokens = targets if by_targets else self._lengths
        self.identity = {
            "lengths": fingerprint_array(self._lengths),
            "counted": fingerprint_array(self._budget_tokens),
            "seed": seed,
        }
        tokens = int(self._lengths.sum(dtype=np.int64))
        self.facts = {"samples": len(self._lengths), "tokens": tokens, "seed": seed}
        self._num_taken = 0

    def __repr__(self) -> str:
        return f"{self._num_taken:,} of {counted(len(self._lengths), 'sample')} taken"

    def start(self, epoch: int) -> None:
        """Go to the beginning of an epoch."""
        self._order: Int64Array | None = None
        if self._seed is not None:
            rng = generator(seed=self._seed, epoch=epoch, purpose="token budget")
            self._order = rng.permutation(len(self._lengths))
        self._go_to(0)

    def _go_to(self, num_taken: int) -> None:
        self._num_taken = num_taken
        self._upcoming: Iterator[tuple[int, int, int]] = iter(())

    def fork(self) -> IndexedSampleFeed:
        """Return a feed of the same samples with its own position, at the same place."""
        feed = copy.copy(self)
        feed._go_to(self._num_taken)
        return feed

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_upcoming": iter(())}

    def pull(self, composer: MicroBatchComposer) -> bool:
        """Add one more sample to the composer; return false at the end of the epoch."""
        sample = next(self._upcoming, None)
        # Reading numbers one by one is several times faster from Python lists than from arrays.
        if sample is None and self._num_taken < len(self._lengths):
            stop = min(self._num_taken + _LOOKUP_SAMPLES, len(self._lengths))
            ids = (
                np.arange(self._num_taken, stop)
                if self._order is None
                else self._order[self._num_taken : stop]
            )
            columns = ids, self._lengths[ids], self._budget_tokens[ids]
            self._upcoming = zip(*(column.tolist() for column in columns), strict=True)
            sample = next(self._upcoming)
        if sample is None:
            return False
        sample_id, length, budget_tokens = sample
        if length < 0:
            composer.reject()
        else:
            composer.add(sample_id, length, budget_tokens)
        self._num_taken += 1
        return True

    def __getitems__(self, segments: Sequence[SampleSegment]) -> list[Pack | TokenizedSample]:
        """Encode the segments and return them as one pack.

        Raises:
            LengthChangedError: the length of a sample differs from the measured length.
        """
        keys = [segment.key for segment in segments]
        # PyTorch-style sources return several samples at once, which may be encoded together.
        get_items = getattr(self._source, "__getitems__", None)
        samples = [self._source[key] for key in keys] if get_items is None else get_items(keys)
        items = [_item_of(sample, key) for sample, key in zip(samples, keys, strict=True)]
        for segment, item in zip(segments, items, strict=True):
            length = int(self._lengths[segment.key])
            if len(item.input_ids) != length:
                raise LengthChangedError(
                    f"sample {segment.key} encodes to {len(item.input_ids):,} tokens and was "
                    f"measured with {length:,}: the data or the tokenizer changed since. Measure "
                    "again"
                )
        return _packs_of(segments, items)

    def go_back(self, position: dict[str, Any]) -> None:
        """Go back to a position of this epoch."""
        self._go_to(position["taken"])

    def position(self) -> dict[str, Any]:
        """Return the number of samples taken in this epoch."""
        return {"taken": self._num_taken}

    def position_to_json(
        self, position: dict[str, Any], held: Sequence[SampleSegment]
    ) -> dict[str, Any]:
        """Return a position for JSON; the held segments need no tokens."""
        return position

    def drop_except(self, segments: Sequence[SampleSegment]) -> None:
        """Do nothing: no tokens are held."""

    def load(self, state: Mapping[str, Any], epoch: int) -> None:
        """Go to a saved position, which may be of other ranks."""
        self.start(epoch)
        self._go_to(state["taken"])


class StreamSampleFeed:
    """Samples or packs in the order of a stream. Waiting items are held; a saved state holds their
    tokens.
    """

    identity: dict[str, Any] = {"kind": "stream"}
    facts = identity

    def __init__(self, source: Any, *, by_targets: bool) -> None:
        self._source, self._by_targets = source, by_targets
        self._num_taken = 0
        self._items: dict[int, Item] = {}
        self._returned_items: list[Item] = []
        self._upcoming: Iterator[Any] | None = None

    def __repr__(self) -> str:
        return f"{counted(self._num_taken, 'sample')} of a stream taken"

    def start(self, epoch: int) -> None:
        """Go to the beginning of an epoch; the stream is iterated at the first ``pull``."""
        if hasattr(self._source, "set_epoch"):
            self._source.set_epoch(epoch)
        self._num_taken, self._upcoming, self._returned_items = 0, None, []

    def pull(self, composer: MicroBatchComposer) -> bool:
        """Add one more sample to the composer; return false at the end. May block."""
        if self._returned_items:
            item = self._returned_items.pop(0)
        else:
            if self._upcoming is None:
                # Without its length, a data set that answers any index would never end.
                is_by_index = hasattr(self._source, "__len__") and not hasattr(
                    self._source, "__iter__"
                )
                self._upcoming = (
                    map(self._source.__getitem__, range(len(self._source)))
                    if is_by_index
                    else iter(self._source)
                )
            taken = next(self._upcoming, None)
            if taken is None:
                return False
            item = _item_of(taken, self._num_taken)
        length = len(item.input_ids)
        if not length:
            raise EncodeError(
                f"item {self._num_taken} of the stream has no tokens; leave such samples out before"
            )
        # The first token of a sample is never a target; the mask of a pack already excludes it.
        num_samples = 1 if isinstance(item, EncodedSample) else item.num_segments
        num_targets = int(np.count_nonzero(item.loss_mask[1:]))
        if isinstance(item, Pack) and item.sharing is not None:
            num_samples, num_targets = item.num_samples, item.sharing.num_targets
        self._items[self._num_taken] = item
        composer.add(
            self._num_taken,
            length,
            num_targets if self._by_targets else length,
            samples=num_samples,
        )
        self._num_taken += 1
        return True

    def go_back(self, position: dict[str, Any]) -> None:
        """Go back to a position of this epoch: the items that were taken since are taken again."""
        taken = position["taken"]
        self._returned_items = [
            *(self._items[key] for key in range(taken, self._num_taken)),
            *self._returned_items,
        ]
        self._num_taken = taken

    def fork(self) -> StreamSampleFeed:
        """Refuse, because an iterator has one position."""
        raise SettingsError(
            f"the stream {type(self._source).__name__} has one position, and workers need one "
            "each: iterate the loader itself, over DataLoader(stream, batch_size=None, "
            "num_workers=n) if its samples take long, or give samples by index and their lengths"
        )

    def drop_except(self, segments: Sequence[SampleSegment]) -> None:
        """Release all items except the items of these segments."""
        self._items = {segment.key: self._items[segment.key] for segment in segments}

    def __getitems__(self, segments: Sequence[SampleSegment]) -> list[Pack | TokenizedSample]:
        """Return the segments as packs: all single samples in one pack, other items unchanged."""
        return _packs_of(segments, [self._items[segment.key] for segment in segments])

    def position(self) -> dict[str, Any]:
        """Return the number of samples taken, the stream's state or None, and the held items."""
        source_state = (
            copy.deepcopy(self._source.state_dict())
            if hasattr(self._source, "state_dict")
            else None
        )
        return {"taken": self._num_taken, "source_state": source_state, "items": dict(self._items)}

    def position_to_json(
        self, position: dict[str, Any], held: Sequence[SampleSegment]
    ) -> dict[str, Any]:
        """Return the position with the tokens of the held segments."""
        if position["source_state"] is None or not hasattr(self._source, "load_state_dict"):
            raise StateError(
                f"the stream {type(self._source).__name__} cannot report its position: give it "
                "state_dict() and load_state_dict(), or give a source by index with lengths"
            )
        # Items at the position, not the current items: numbers restart with each epoch, and the
        # filler may be from the last epoch.
        keys = {segment.key for segment in held}
        return {**position, "items": {str(key): _to_json(position["items"][key]) for key in keys}}

    def load(self, state: Mapping[str, Any], epoch: int) -> None:
        """Go to a saved position by the stream's own ``load_state_dict``."""
        if not hasattr(self._source, "load_state_dict"):
            raise StateError(
                f"the stream {type(self._source).__name__} has no load_state_dict() to restore its "
                "position"
            )
        self.start(epoch)
        self._source.load_state_dict(state["source_state"])
        self._items = {int(key): _from_json(value) for key, value in state["items"].items()}
        self._num_taken = state["taken"]


SampleFeed: TypeAlias = IndexedSampleFeed | StreamSampleFeed
"""Source of samples for a composer, with a position that can be saved."""


def _item_of(item: Any, key: int) -> Item:
    """Return a plain sample as a brimful object, and samples and packs unchanged.

    Raises:
        CollateError: the plain sample cannot be read; names the key.
    """
    if isinstance(item, (EncodedSample, Pack)):
        return item
    sample = replace(read_tokenized(item, f"sample {key}"), sample_id=key)
    if not sample.is_pack:
        return sample
    # A row that another library packed becomes a pack; its segments share the number of the row.
    if sample.num_segments == 1:
        return EncodedSample(sample.input_ids, sample.loss_mask)
    return Pack(
        sample.input_ids,
        sample.loss_mask,
        sample.cu_seqlens,
        np.full(sample.num_segments, key, dtype=np.int64),
        sample.indices[sample.cu_seqlens[:-1]].astype(np.int32),
    )


def _packs_of(
    segments: Sequence[SampleSegment], items: Sequence[Item]
) -> list[Pack | TokenizedSample]:
    """Return the items as packs: single samples are joined, other items stay unchanged.

    Packs of several samples, and samples that a pack cannot represent, stay unchanged. Samples keep
    their order: the samples between two samples that a pack cannot represent become one pack.
    """
    packs: list[Pack | TokenizedSample] = []
    singles: list[tuple[SampleSegment, EncodedSample | Pack]] = []
    for segment, item in zip(segments, items, strict=True):
        if isinstance(item, TokenizedSample):
            packs += [*_pack_of(singles), item.segment(segment.start, segment.length)]
            singles = []
        elif isinstance(item, Pack) and (item.num_segments > 1 or item.sharing is not None):
            if segment.length != len(item):
                raise CollateError(
                    f"item {segment.key} is a pack of {item.num_samples} samples and "
                    f"{len(item):,} tokens, which is never cut: raise capacity, or choose overflow "
                    "drop"
                )
            packs.append(item)
        else:
            singles.append((segment, item))
    return [*packs, *_pack_of(singles)]


def _pack_of(singles: Sequence[tuple[SampleSegment, EncodedSample | Pack]]) -> list[Pack]:
    """Return single samples as a list with one pack; an empty list without samples."""
    ids, masks, sample_ids, starts, attachments = [], [], [], [], []
    for segment, item in singles:
        # A pack of one sample may hold a part of it, and the segment a part of that part: the
        # starts are added.
        sample_id, item_start = segment.key, 0
        if isinstance(item, Pack):
            sample_id, item_start = int(item.sample_ids[0]), int(item.starts[0])
        tokens = slice(segment.start, segment.start + segment.length)
        ids.append(item.input_ids[tokens])
        masks.append(item.loss_mask[tokens])
        sample_ids.append(sample_id)
        starts.append(item_start + segment.start)
        # In a pack of one sample, media starts are relative to the pack.
        attachments.append(
            [replace(medium, start=medium.start + item_start) for medium in item.attachments]
        )
    return (
        [assemble_pack(ids, masks, sample_ids, starts, attachments if any(attachments) else None)]
        if ids
        else []
    )


_CLASSES: dict[str, Any] = {
    **{one.__name__: one for one in (EncodedSample, Pack, PackTree, TokenizedSample)},
    "Media": AttachedInputs,
}
"""Classes of what a state may hold, by name: nothing else is built from a file."""

_NAMES = {one: name for name, one in _CLASSES.items()}

_FIELDS = {"attached": "media", "sharing": "tree"}
"""Names of fields in a state, where they differ."""


def _to_json(value: Any) -> Any:
    """Return an item, or a part of it, for JSON: arrays by little-endian dtype, shape and base64."""
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        dtype = value.dtype.newbyteorder("<")
        text = base64.b64encode(value.astype(dtype, copy=False).tobytes()).decode("ascii")
        return {"dtype": dtype.str, "shape": list(value.shape), "data": text}
    if type(value) in _NAMES:
        names = [item.name for item in fields(value)]
        values = {_FIELDS.get(name, name): _to_json(getattr(value, name)) for name in names}
        return {"class": _NAMES[type(value)], **values}
    if isinstance(value, Mapping):
        return {"items": {key: _to_json(value[key]) for key in value}}
    if isinstance(value, (list, tuple)):
        return [*map(_to_json, value)]
    if value is None or isinstance(value, (int, str)):
        return value
    raise StateError(f"a sample that waits has a {type(value).__name__}, which cannot be saved")


def _from_json(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(map(_from_json, value))
    if not isinstance(value, dict):
        return value
    if "dtype" in value:
        array = np.frombuffer(base64.b64decode(value["data"]), dtype=np.dtype(value["dtype"]))
        return array.reshape(value["shape"]).astype(array.dtype.newbyteorder("="))
    if "items" in value:
        return {key: _from_json(item) for key, item in value["items"].items()}
    names = {written: name for name, written in _FIELDS.items()}
    values = {
        names.get(name, str(name)): _from_json(item)
        for name, item in value.items()
        if name != "class"
    }
    return _CLASSES[value["class"]](**values)
