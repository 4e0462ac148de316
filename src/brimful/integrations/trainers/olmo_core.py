"""OLMo-core 3: a loader for its trainer, whose batches name the boundaries of samples instead of
leaving them to end-of-text tokens.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from brimful.base.typing import AnyPath
from brimful.collate import Padding
from brimful.collate.torch import PackCollator
from brimful.errors import MissingExtraError, SettingsError
from brimful.plan.schedule import Tail
from brimful.serve import PackLoader
from brimful.store.shards import FingerprintedPacks

try:
    from olmo_core.data import DataCollator
    from olmo_core.data.data_loader import TextDataLoaderBase
except ImportError as error:
    raise MissingExtraError(
        f"OlmoCoreLoader needs OLMo-core 3 ({error}): pip install 'ai2-olmo-core>=3'"
    ) from error

__all__ = ["OlmoCoreLoader"]


class OlmoCoreLoader(TextDataLoaderBase):  # type: ignore[misc]
    """Data loader for ``olmo_core.train.TrainerConfig.build``: packs as rows of one length.

    A batch of a rank has ``global_batch_size ÷ dp_world_size ÷ sequence_length`` packs, with the keys
    of dialect ``olmo_core``. The trainer calls ``reshuffle`` before an epoch and ``reset`` after it.

    The state is the same on all ranks: epoch and step. A state with other packs or another seed is
    refused with the differences; with another number of ranks or another batch size, the run
    continues by pack index, as in ``PackLoader``.

    Args:
        packs: a ``PackedDataset`` or ``PackStore``.
        sequence_length: tokens of a row; at least the capacity of the packs.
        global_batch_size: tokens of a step on all ranks, padding included.
        work_dir: of OLMo-core; nothing is written there.
        pad_token_id: token of the padding.
        **order: OLMo-core's ``dp_rank`` and ``dp_world_size``, ``seed``, ``tail`` and ``costs``, as
            in ``PackLoader``; ``tail`` is ``repeat`` or ``drop``.

    Raises:
        SettingsError: as in ``PackLoader``; a batch that is not whole rows on each rank, or a
            ``tail`` that leaves a rank without a target, which OLMo-core divides by.
    """

    _epoch: int | None

    def __init__(
        self,
        packs: FingerprintedPacks,
        *,
        sequence_length: int,
        global_batch_size: int,
        work_dir: AnyPath,
        pad_token_id: int = 0,
        **order: Any,
    ) -> None:
        dp_world_size = order.get("dp_world_size", 1)
        packs_per_batch, num_left = divmod(global_batch_size, sequence_length * dp_world_size)
        if num_left or not packs_per_batch:
            raise SettingsError(
                f"global_batch_size={global_batch_size:,} must be a multiple of {sequence_length:,} "
                f"tokens on each of {dp_world_size:,} ranks"
            )
        tail = Tail.named(order.pop("tail", Tail.REPEAT))
        if tail is Tail.PAD:
            raise SettingsError(
                "tail='pad' leaves a rank without a target at the end of an epoch, and OLMo-core "
                "divides by the targets of each rank: tail='repeat' or 'drop'"
            )
        super().__init__(
            collator=DataCollator(pad_token_id=pad_token_id),
            work_dir=work_dir,
            global_batch_size=global_batch_size,
            dp_world_size=dp_world_size,
            dp_rank=order.get("dp_rank", 0),
        )
        self._packs, self._packs_per_batch = packs, packs_per_batch
        self._collate = PackCollator(
            dialect="olmo_core", padding=Padding(to=sequence_length), pad_token_id=pad_token_id
        )
        self._loader = PackLoader(
            packs, self._collate, packs_per_micro_batch=packs_per_batch, tail=tail, **order
        )

    @property
    def total_batches(self) -> int:
        """Number of batches of the epoch on each rank."""
        return len(self._loader)

    def reshuffle(self, epoch: int | None = None, **_: Any) -> None:
        """Go to an epoch, counted from 1, or the next one. A loaded state of this epoch is kept."""
        next_epoch = (self._epoch or 0) + 1 if epoch is None else epoch
        if next_epoch != self._epoch:
            self.batches_processed = 0
        self._epoch = next_epoch
        if self.batches_processed < self.total_batches:
            self._loader.set_epoch(next_epoch - 1)

    def _iter_batches(self) -> Iterable[dict[str, Any]]:
        # At its end an epoch is the next one of ``PackLoader``, and still this one of OLMo-core.
        if self.batches_processed < self.total_batches:
            yield from self._loader

    def get_mock_batch(self) -> dict[str, Any]:
        """Return a batch of the first packs, for the trainer's dry run."""
        size = len(self._packs)
        return self._collate([self._packs[index % size] for index in range(self._packs_per_batch)])

    def state_dict(self) -> dict[str, Any]:
        """Return the epoch of OLMo-core, its number of tokens, and the state of ``PackLoader``."""
        return {
            "epoch": self._epoch,
            "tokens_processed": self.tokens_processed,
            "packs": self._loader.state_dict(),
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue from a state.

        Raises:
            StateError: the state does not fit; names the differences.
        """
        self._loader.load_state_dict(state_dict["packs"])
        self._epoch, self.tokens_processed = state_dict["epoch"], state_dict["tokens_processed"]
        # Saved after its last batch, an epoch of OLMo-core is over only when it is asked for more.
        is_over = self._epoch is not None and self._loader.epoch >= self._epoch
        step: int = self._loader.state_dict()["step"]
        self.batches_processed = self.total_batches if is_over else step
