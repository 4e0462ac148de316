"""Probe of Megatron-style schedules: functions that run the micro-batches of a step through the
stages of a pipeline.

::

    first training call      one micro-batch is taken from the iterator and runs three times, forward
                             only: as it is, with one segment exchanged, with samples alone
    then                     it is put back in front of the iterator, and the call goes on

Only some ranks have a batch. The others get the places of samples from a rank of their replica.
"""

import contextlib
import functools
import itertools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from brimful.doctor.batch.view import read_batch
from brimful.doctor.probing.calls import Call, copied
from brimful.doctor.probing.exchange import Trial, choose_trial
from brimful.doctor.probing.findings import RankReport, not_shown, report_of_all, tell
from brimful.doctor.probing.forwards import Forwards
from brimful.doctor.probing.model_facts import config_of
from brimful.doctor.probing.modes import first_sentence
from brimful.doctor.probing.probe import check_options
from brimful.doctor.probing.ranks import ProbeStopped, RankTalk
from brimful.doctor.probing.recorder import layers_of
from brimful.doctor.report import DoctorReport, Line
from brimful.errors import RankFailedError
from brimful.serve.process_group import process_group

__all__ = ["ProbedSchedule", "probed"]

_PARALLEL_STATE = "megatron.core.parallel_state"
_RANDOM = "megatron.core.tensor_parallel.random"


def probed(
    forward_backward_func: Callable[..., Any],
    *,
    group: Any = None,
    on_fault: str = "warn",
    timeout: float = 60.0,
) -> "ProbedSchedule":
    """Return a schedule that probes at its first training call, and then is the schedule itself.

    ::

        forward_backward_func = probed(get_forward_backward_func())

    It works with the schedules of Megatron-Core 0.16, and with any function of their keywords:
    ``forward_step_func``, ``data_iterator``, ``model``, ``num_microbatches``, ``forward_only``. A
    forward step returns an output and a loss function of it; on the last stage the output has a
    loss for each token.

    Args:
        forward_backward_func: the schedule.
        group: ranks of one replica of the model, which work on the same micro-batches; Megatron's
            model-parallel group if None, all ranks of the job without Megatron.
        on_fault: ``warn`` logs findings on rank 0, ``raise`` ends the run with them on all ranks.
        timeout: seconds that ranks wait for each other.

    Raises:
        SettingsError: another ``on_fault``, or a time that is not positive.

    >>> def schedule(*, forward_step_func, data_iterator, model, num_microbatches, **others):
    ...     for _ in range(num_microbatches):
    ...         output, loss_func = forward_step_func(data_iterator, model)
    ...         loss, name = loss_func(output)
    ...     return [name]
    >>> schedule = probed(schedule)
    >>> schedule.report.verdict.partition(":")[0]
    'NOT SHOWN'
    """
    check_options(on_fault, timeout)
    return ProbedSchedule(forward_backward_func, group, on_fault == "raise", timeout)


class ProbedSchedule:
    """Schedule with a probe; see ``probed``.

    Attributes:
        report: the report; it says nothing before the first training call.
    """

    def __init__(
        self, schedule: Callable[..., Any], group: Any, raises: bool, timeout: float
    ) -> None:
        self._schedule, self._group = schedule, group
        self._raises, self._timeout = raises, timeout
        self._is_done = False
        self.report = DoctorReport("probe", (Line("isolation", "no training call yet"),))

    def __call__(self, **keywords: Any) -> Any:
        """Run a step; at the first training call after the probe."""
        if not self._is_done and not keywords.get("forward_only", False):
            self._is_done = True
            keywords = self._probe(keywords)
        return self._schedule(**keywords)

    def _probe(self, keywords: dict[str, Any]) -> dict[str, Any]:
        """Probe the first micro-batch; return the keywords with an iterator that has it still."""
        call = ScheduleCall(self._schedule, keywords)
        talk = RankTalk.of_group(None, self._timeout)
        try:
            report = self._examine(call, talk)
        except RankFailedError:
            raise
        except ProbeStopped as stop:
            report = not_shown(str(stop))
        except Exception as error:  # the report may not end a run, whatever is wrong with it
            report = not_shown(f"{type(error).__name__}: {first_sentence(error)}")
        self.report = report
        tell(report, is_first=talk.is_first, raises=self._raises)
        return {**keywords, "data_iterator": call.iterator()}

    def _examine(self, call: "ScheduleCall", talk: RankTalk) -> DoctorReport:
        """Run the forwards on all ranks, and merge their reports.

        Raises:
            ProbeStopped: a rank could not take part, or a forward failed.
        """
        batch, view, ids, trial, reason = call.batch, None, None, None, ""
        config = config_of(call.module)
        if batch is not None:
            # A rank that refuses tells the others so, before any of them runs.
            try:
                view = read_batch(batch)
                trial, ids = choose_trial(view, config)
            except Exception as error:  # a batch of unusual form
                reason = f"{type(error).__name__}: {first_sentence(error)}"
        trials = talk.agree("ready", reason, None if trial is None else trial.as_dict())
        replica = _replica(self._group, talk.ranks)
        theirs = [trials[rank][0] for rank in replica]
        first = next((trial for trial in theirs if trial is not None), None)
        # Other replicas would wait in vain for a rank that stops alone.
        reason = "" if first is not None else "no rank of its replica has a batch"
        talk.agree("trial", reason)
        assert first is not None
        trial = Trial.from_dict(first)
        with _unchanged_tracker():
            evidence = Forwards(call, talk, trial, batch, view, ids, modes=False).run()
        report = RankReport(evidence, call, config)
        # What an earlier stage has moved is moved in all later ones.
        answers = talk.ask("leak", [call.stage, report.leak is not None])
        is_consequence = any(
            answers.values[rank][0] < call.stage and answers.values[rank][1]
            for rank in replica
            if rank in answers.values
        )
        return report_of_all(talk, report.report(is_consequence=is_consequence))


class ScheduleCall(Call):
    """First training call of a schedule, with its first micro-batch.

    Args:
        schedule: the function.
        keywords: of the call.

    Attributes:
        module: all chunks of the model on this rank.
        arguments: the micro-batch, by word.
        layers: of all chunks, by name and number.
        stage, stages: number of this rank's stage, from 1, and of all; 0 without a pipeline.
        part, parts: number of this rank's part of a row between layers, and of all parts, under
            sequence parallelism.
        batch: the micro-batch; None on a rank that gets none.
    """

    def __init__(self, schedule: Callable[..., Any], keywords: Mapping[str, Any]) -> None:
        self._schedule, self._keywords = schedule, keywords
        chunks = _listed(keywords["model"])
        self.module = torch.nn.ModuleList(chunks)
        self._iterators = _listed(keywords["data_iterator"])
        self._items = [None if item is None else next(item, None) for item in self._iterators]
        self.batch: Any = next((item for item in self._items if item is not None), None)
        self.arguments = self.batch if isinstance(self.batch, Mapping) else {}
        self.layers = {
            _title(name, layer, number if len(chunks) > 1 else None): layer
            for number, chunk in enumerate(chunks)
            for name, layer in layers_of(chunk).items()
        }
        self.stage, self.stages = _stage()
        self.part, self.parts = _part(chunks[0])
        # Interleaved schedules take as many micro-batches as a call of theirs has.
        self._number = 1 if len(chunks) == 1 else int(keywords["num_microbatches"])

    def again(self, batch: Mapping[str, Any] | None, **options: Any) -> Any:
        """Run the schedule forward only with a micro-batch; return the losses of its tokens on the
        last stage.
        """
        outputs: list[Any] = []
        forward_step = self._keywords["forward_step_func"]

        @functools.wraps(forward_step)
        def watched_step(*arguments: Any, **settings: Any) -> Any:
            output, loss_func = forward_step(*arguments, **settings)

            def watched_loss(tensor: Any, **keywords: Any) -> Any:
                # A schedule divides the loss in place, and a loss function may weigh its losses so.
                outputs.append(copied(tensor))
                return loss_func(tensor, **keywords)

            return output, None if loss_func is None else watched_loss

        iterators = [
            None if item is None else iter([copied(batch) for _ in range(self._number)])
            for item in self._items
        ]
        self._schedule(
            **{
                **self._keywords,
                "forward_step_func": watched_step,
                "data_iterator": self._in_form(iterators),
                "num_microbatches": self._number,
                "forward_only": True,
            }
        )
        return outputs[0] if outputs else None

    def iterator(self) -> Any:
        """Return the iterator of the call, with the micro-batch in front of it again."""
        return self._in_form(
            [
                source if item is None else itertools.chain([item], source)
                for item, source in zip(self._items, self._iterators, strict=True)
            ]
        )

    def _in_form(self, iterators: list[Any]) -> Any:
        is_list = isinstance(self._keywords["data_iterator"], list)
        return iterators if is_list else iterators[0]


@contextlib.contextmanager
def _unchanged_tracker() -> Iterator[None]:
    """Put back the random numbers that Megatron keeps for parallel regions."""
    random = sys.modules.get(_RANDOM)
    tracker = None if random is None else random.get_cuda_rng_tracker()
    states = None if tracker is None else tracker.get_states()
    try:
        yield
    finally:
        if tracker is not None:
            tracker.set_states(states)


def _listed(item: Any) -> list[Any]:
    return list(item) if isinstance(item, (list, tuple)) else [item]


def _title(name: str, layer: torch.nn.Module, chunk: int | None) -> str:
    """Return the name of a layer with its chunk and its number in the whole model."""
    number = getattr(layer, "layer_number", None)
    prefix = "" if chunk is None else f"chunk {chunk}, "
    return f"{prefix}{name}" + ("" if number is None else f", layer_number {number}")


def _replica(group: Any, ranks: Sequence[int]) -> Sequence[int]:
    """Return the ranks that work on the same micro-batches as this one."""
    state = sys.modules.get(_PARALLEL_STATE)
    if group is None and state is not None and state.model_parallel_is_initialized():
        group = state.get_model_parallel_group()
    distributed = process_group()
    if group is None or distributed is None:
        return ranks
    members: Sequence[int] = distributed.get_process_group_ranks(group)
    return members


def _stage() -> tuple[int, int]:
    """Return the number of this rank's stage, from 1, and of all; zeros without a pipeline."""
    state = sys.modules.get(_PARALLEL_STATE)
    if state is None or not state.model_parallel_is_initialized():
        return 0, 0
    size = state.get_pipeline_model_parallel_world_size()
    return (state.get_pipeline_model_parallel_rank() + 1, size) if size > 1 else (0, 0)


def _part(chunk: torch.nn.Module) -> tuple[int, int]:
    """Return the number of this rank's part of hidden states, from 0, and of all parts."""
    state = sys.modules.get(_PARALLEL_STATE)
    config = config_of(chunk)
    if state is None or not getattr(config, "sequence_parallel", False):
        return 0, 1
    return state.get_tensor_model_parallel_rank(), state.get_tensor_model_parallel_world_size()
