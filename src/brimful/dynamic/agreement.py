"""Agreement of ranks on each step: whether all ranks serve it, and whether a rank failed."""

from __future__ import annotations

from typing import Any

from brimful.errors import RankFailedError, SettingsError
from brimful.plan.schedule import Tail
from brimful.serve.process_group import process_group


class RankAgreement:
    """Agreement of all ranks on whether a step is served, for ranks that each read their own
    stream.

    It costs one small reduction per step over a gloo group, on CPUs, in parallel with the model.
    With ``pad`` and ``repeat`` a step is served if any rank has one, with ``drop`` if all ranks
    have one. A rank whose source fails, or that never had a sample to run with the others, reports
    it in the same reduction: all other ranks raise immediately instead of waiting until a
    collective times out.

    Args:
        tail: ``tail`` of the loader.
        group: processes that agree; a new gloo group over all processes if None. In that case every
            process must make its ``RankAgreement``.

    Raises:
        SettingsError: no process group was initialized.

    ::

        loader = WindowBatches(own_stream, Window(8192), collator, agree=RankAgreement())
    """

    def __init__(self, tail: Tail | str = Tail.PAD, *, group: Any | None = None) -> None:
        distributed = process_group()
        if distributed is None:
            raise SettingsError(
                "RankAgreement asks the other ranks: call torch.distributed.init_process_group "
                "first"
            )
        self._needs_all = Tail.named(tail) is Tail.DROP
        self._group = distributed.new_group(backend="gloo") if group is None else group

    @property
    def rank_and_size(self) -> tuple[int, int]:
        """Rank of this process in the group, and number of ranks: they identify the stream of a
        saved state.
        """
        import torch.distributed

        return torch.distributed.get_rank(self._group), torch.distributed.get_world_size(
            self._group
        )

    def __call__(self, has_step: bool, *, can_run: bool = True) -> bool:
        """Return whether all ranks serve the step.

        Args:
            has_step: true if this rank has samples for the step.
            can_run: true if this rank can run a step of the others, without loss; false for a
                stream without a sample, which raises its own error if a step is served.

        Raises:
            RankFailedError: a rank could not make its step; names the lowest such rank of the
                group.
        """
        idle_rank = -1 if can_run or self._needs_all else self.rank_and_size[0]
        is_unlike, failed_rank = self._reduced(has_step != self._needs_all, idle_rank)
        if is_unlike and failed_rank not in (-1, idle_rank):
            raise RankFailedError(
                f"rank {failed_rank} could not make its next step: its own error says why"
            )
        return is_unlike != self._needs_all

    def fail(self) -> None:
        """Report that this rank cannot make its step: all others raise."""
        # A rank without anything to run fails the others only if one of them has a step; this rank
        # always does.
        self._reduced(True, self.rank_and_size[0])

    def _reduced(self, flag: bool, failed_rank: int) -> tuple[bool, int]:
        """Return whether any rank gave a flag, and the lowest rank that failed; -1 for none."""
        import torch
        import torch.distributed

        size = torch.distributed.get_world_size(self._group)
        # One maximum is enough: a lower rank becomes a higher number.
        values = torch.tensor([int(flag), 0 if failed_rank < 0 else size - failed_rank])
        torch.distributed.all_reduce(values, op=torch.distributed.ReduceOp.MAX, group=self._group)
        highest = int(values[1])
        return bool(values[0]), size - highest if highest else -1
