"""torchtitan: a loader for its trainer, with batches of a fixed shape."""

from collections.abc import Iterator
from typing import Any

import torch

from brimful.collate.torch import PackCollator
from brimful.errors import SettingsError
from brimful.serve import PackLoader
from brimful.store.shards import FingerprintedPacks, Pack

__all__ = ["TorchtitanLoader"]


class TorchtitanLoader:
    """Dataloader for torchtitan's trainer: endless pairs of inputs and labels, with a state.

    ::

        {"input": int64[B, S], "positions": int64[B, S]}, labels int64[B, S]    releases, to 0.3.0
        {"input": int64[T], "positions": int64[T]}, labels int64[T]             its main branch

    Every batch has this shape. Labels are shifted within samples. torchtitan begins a document
    wherever ``positions`` is 0; the padding at the end of a row is a separate document, or several
    if it is longer than the context, so that no position exceeds the RoPE table.

    The state is the same on all ranks: the epoch and the step in it. A state with other packs or
    another seed is refused with the differences; with another number of ranks, the run continues by
    pack index, as in ``PackLoader``.

    Args:
        packs: a ``PackedDataset`` or ``PackStore``.
        seq_len: S, the tokens of a row.
        local_batch_size: B, the rows of a batch, a pack in each.
        num_tokens_per_batch: T, the tokens of a batch, in place of ``seq_len``.
        max_context_length: the longest position plus 1; the length of a row if None.
        packs_per_batch: packs in T; n packs of capacity T / n fill it as well as one of capacity T.
        repeat: continue with the next epoch, in another order. False: torchtitan ends the run after
            one epoch.
        **order: torchtitan's ``dp_rank`` and ``dp_world_size``, ``seed``, ``tail`` and ``costs``,
            as in ``PackLoader``.

    Raises:
        SettingsError: as in ``PackLoader``, or not one of ``seq_len`` and ``num_tokens_per_batch``.

    >>> from brimful.testing.toys import toy_packs
    >>> inputs, labels = next(iter(TorchtitanLoader(toy_packs(3), seq_len=5, local_batch_size=2)))
    >>> inputs["positions"].tolist(), labels[:, 3:].tolist()
    ([[0, 1, 2, 3, 0], [0, 1, 2, 3, 0]], [[-100, -100], [-100, -100]])
    """

    def __init__(
        self,
        packs: FingerprintedPacks,
        *,
        seq_len: int | None = None,
        local_batch_size: int = 1,
        num_tokens_per_batch: int | None = None,
        max_context_length: int | None = None,
        packs_per_batch: int = 1,
        repeat: bool = True,
        **order: Any,
    ) -> None:
        width = num_tokens_per_batch if seq_len is None else seq_len
        if width is None or None not in (seq_len, num_tokens_per_batch):
            raise SettingsError(
                "give seq_len and local_batch_size, as the releases of torchtitan do, or "
                "num_tokens_per_batch, as its main branch does"
            )
        self._context = width if max_context_length is None else max_context_length
        if self._context < 1:
            raise SettingsError(f"max_context_length must be at least 1 and is {self._context}")
        self._num_rows = None if seq_len is None else local_batch_size
        self._collator = PackCollator(dialect="torchtitan", pad_to=width)
        self._loader = PackLoader(
            packs,
            self._collate,
            packs_per_micro_batch=packs_per_batch if self._num_rows is None else self._num_rows,
            **order,
        )
        self._repeat = repeat

    def __iter__(self) -> Iterator[tuple[dict[str, torch.Tensor], torch.Tensor]]:
        while True:
            yield from self._loader
            if not self._repeat:
                return

    def __len__(self) -> int:
        """Return the number of batches of one epoch on this rank."""
        return len(self._loader)

    def state_dict(self) -> dict[str, Any]:
        """Return the position in the epochs (``PackLoader.state_dict``)."""
        return self._loader.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a state; an empty one changes nothing.

        Raises:
            StateError: the state does not fit; names the differences.
        """
        if state_dict:
            self._loader.load_state_dict(state_dict)

    def close(self) -> None:
        """Do nothing; torchtitan closes every loader."""

    def _collate(self, packs: list[Pack]) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        if self._num_rows is None:
            ids, positions, labels = self._row(packs)
        else:
            rows = [self._row([pack]) for pack in packs]
            # The end of an epoch can have fewer packs than rows, and torchtitan one shape.
            ids, positions, labels = rows[0]
            empty = (
                torch.zeros_like(ids),
                torch.arange(len(ids)) % self._context,
                labels.new_full(labels.shape, -100),
            )
            rows += [empty] * (self._num_rows - len(rows))
            ids, positions, labels = (torch.stack(column) for column in zip(*rows, strict=True))
        # Only these keys of the dialect: the trainer passes every key but the input to the model.
        return {"input": ids, "positions": positions}, labels

    def _row(self, packs: list[Pack]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        (batch,) = self._collator.rows(packs)
        longest = int(batch.real_lengths.max())
        if longest > self._context:
            raise SettingsError(
                f"a sample has {longest:,} tokens and max_context_length is {self._context:,}: "
                f"plan with overflow='split' or 'drop' and a capacity of {self._context:,}, or "
                "raise it"
            )
        tensors = self._collator.convert([batch])
        # Positions of a longer tail restart at 0, and torchtitan takes each round as a separate
        # document.
        return tensors["input"], tensors["positions"] % self._context, tensors["labels"]
