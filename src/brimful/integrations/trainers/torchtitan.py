"""torchtitan: a loader for its trainer, with one-dimensional batches of a fixed number of
tokens.
"""

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

        {"input": int64[T], "positions": int64[T]}, labels int64[T]     T is always num_tokens_per_batch

    Labels are shifted within samples. torchtitan begins a document wherever ``positions`` is 0; the
    padding at the end is a separate document, or several if it is longer than the context, so that
    no position exceeds the RoPE table.

    The state is the same on all ranks: the epoch and the step in it. A state with other packs or
    another seed is refused with the differences; with another number of ranks, the run continues by
    pack index, as in ``PackLoader``.

    Args:
        packs: a ``PackedDataset`` or ``PackStore``.
        num_tokens_per_batch: T, the tokens of one forward pass on one data-parallel rank.
        max_context_length: the longest position plus 1; T if None.
        packs_per_batch: packs per forward pass; n packs of capacity T / n fill a row as well as one
            of capacity T.
        repeat: continue with the next epoch, in another order. False: torchtitan ends the run after
            one epoch.
        **order: torchtitan's ``dp_rank`` and ``dp_world_size``, ``seed``, ``tail`` and ``costs``,
            as in ``PackLoader``.

    Raises:
        SettingsError: as in ``PackLoader``.

    >>> from brimful.testing.toys import toy_packs
    >>> inputs, labels = next(iter(TorchtitanLoader(toy_packs(3), num_tokens_per_batch=8, max_context_length=4)))
    >>> inputs["positions"].tolist(), labels[3:].tolist()
    ([0, 1, 2, 3, 0, 1, 2, 3], [-100, -100, -100, -100, -100])
    """

    def __init__(
        self,
        packs: FingerprintedPacks,
        *,
        num_tokens_per_batch: int,
        max_context_length: int | None = None,
        packs_per_batch: int = 1,
        repeat: bool = True,
        **order: Any,
    ) -> None:
        self._context = num_tokens_per_batch if max_context_length is None else max_context_length
        if self._context < 1:
            raise SettingsError(f"max_context_length must be at least 1 and is {self._context}")
        self._collator = PackCollator(dialect="torchtitan", pad_to=num_tokens_per_batch)
        self._loader = PackLoader(
            packs, self._collate, packs_per_micro_batch=packs_per_batch, **order
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
        (batch,) = self._collator.rows(packs)
        longest = int(batch.real_lengths.max())
        if longest > self._context:
            raise SettingsError(
                f"a sample has {longest:,} tokens and max_context_length is {self._context:,}: "
                f"plan with overflow='split' or 'drop' and a capacity of {self._context:,}, or "
                "raise it"
            )
        tensors = self._collator.speak([batch])
        positions = tensors["positions"]
        # Positions of a longer tail restart at 0, and torchtitan takes each round as a separate
        # document.
        if batch.tail_length > self._context:
            positions = positions.clone()
            positions[-batch.tail_length :] %= self._context
        # Only these keys of the dialect: the trainer passes every key but the input to the model.
        return {"input": tensors["input"], "positions": positions}, tensors["labels"]
