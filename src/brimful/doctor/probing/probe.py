"""Probe inside of a running job: the forward that the job makes, with other tokens in one
segment.

::

    first forward in training        three forwards without gradients, everything put back
    forwards until the next step     targets are counted
    step of the optimizer            the report is complete, all hooks are gone
"""

import contextlib
import sys
import weakref
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from brimful.base.checks import check_type, is_number, whole_number
from brimful.base.wording import setting
from brimful.doctor.batch.checks.boundaries import check_agreement
from brimful.doctor.batch.diagnose import diagnose
from brimful.doctor.batch.view import BatchView, read_batch
from brimful.doctor.batch.words import Role, role_of
from brimful.doctor.probing.calls import ModuleCall
from brimful.doctor.probing.exchange import choose_trial
from brimful.doctor.probing.findings import (
    RankReport,
    combined,
    not_shown,
    report_of_all,
    tell,
)
from brimful.doctor.probing.forwards import Forwards
from brimful.doctor.probing.model_facts import config_of, position_start_of
from brimful.doctor.probing.modes import first_sentence
from brimful.doctor.probing.ranks import ProbeStopped, RankTalk
from brimful.doctor.probing.recorder import STACKS
from brimful.doctor.probing.step import StepCount, step_report
from brimful.doctor.report import DoctorReport, Line
from brimful.errors import BrimfulError, RankFailedError, SettingsError

__all__ = ["Probe", "probe"]

_MAX_FORWARDS = 1024
"""Forwards of one step that are counted: a loop without an optimizer of torch ends there."""

_TOPICS_OF_BATCH = ("targets", "tokens")
"""Topics of which a batch alone tells a line."""

_PLACES = (Role.BOUNDARIES, Role.NUMBERS, Role.LENGTHS, Role.POSITIONS)
"""Words of a loader that must tell the same samples as the ones that a model gets."""


class Probe:
    """Probe a model in its own training loop: do samples of one row see each other?

    At the first forward in training mode the model runs three more times, without gradients: on the
    batch as it is, with the tokens of one segment exchanged, and in evaluation with one sample
    alone; up to thrice more if those differ. Tokens of other segments must stand, in every layer. On one
    rank gradients at them are taken as well, without the weights. Then everything is as it was:
    weights, buffers, random numbers, attributes, gradients; losses of the run do not change by a
    bit. The report is complete when the optimizer makes its first step.

    ::

        with probe(model) as check:
            for batch in check.watch(loader):
                loss = model(**batch).loss
                …
        print(check.report)

    Args:
        model: the outermost module, with its wrappers (DDP, FSDP, PEFT, compiled); the module that
            is called with tokens may lie in it.
        on_fault: ``warn`` logs findings, ``raise`` ends the run with them on all ranks. A report
            without any is printed to standard error, on the first rank.
        group: ranks that take part; all ranks of the job if None.
        tokens: name of the argument that holds the tokens, if it is none of ``input_ids``,
            ``tokens``, ``input``, ….
        tokenizer: of the model. A batch in which nothing tells samples apart is read with it, as
            ``diagnose`` does; ``ProbeCallback`` takes the trainer's.
        timeout: seconds that ranks wait for each other. A rank that gives no answer is named, and
            training goes on.
        later: steps after the first one whose first batches are probed as well, as a mask may be
            kept from the first batch on.

    Attributes:
        report: the report so far; it says nothing before the first forward.
        complete: true once the first step was counted.

    Raises:
        SettingsError: another ``on_fault``, or a time or number that is not allowed.

    >>> from brimful.verify.models import tiny_model
    >>> model, ids = tiny_model("qwen2").train(), torch.arange(3, 15)[None]
    >>> place = torch.arange(12)[None] % 6
    >>> batch = {"input_ids": ids, "labels": ids.masked_fill(place == 0, -100)}
    >>> with probe(model) as check:
    ...     output = model(**batch, position_ids=place, use_cache=False)
    >>> print(check.report)
    probe
    packing             seen     2 samples in 1 row of 12 tokens
    samples apart       shown    other tokens in one sample: the others do not move (2 layers and losses)
    attention           shown    sdpa in Qwen2Attention
    positions           shown    losses of samples alone differ by 0.0e+00
    targets             seen     83.3 % of tokens are targets; the label of a token is the token itself: the model
                                 must shift
    divisor of the loss shown    sum of losses ÷ 10 targets of each micro-batch
    BOS and EOS         unknown  BOS and EOS are unknown without a tokenizer
    samples a step      seen     2 samples and 10 targets in a micro-batch
    NOTHING FOUND: samples were shown to be apart
    """

    _is_busy = False
    """A probe runs forwards: they are the first ones of no other probe either."""

    def __init__(
        self,
        model: torch.nn.Module,
        *,
        on_fault: str = "warn",
        group: Any = None,
        tokens: str | None = None,
        tokenizer: Any = None,
        timeout: float = 60.0,
        later: int = 0,
    ) -> None:
        check_type("model", model, (torch.nn.Module,), "a module of torch")
        check_options(on_fault, timeout)
        self.report = DoctorReport("probe", (Line("isolation", "no forward in training yet"),))
        self.complete = False
        self._model, self._raises, self._tokens = model, on_fault == "raise", tokens
        self._group, self._timeout, self._tokenizer = group, timeout, tokenizer
        self._talk: RankTalk | None = None
        self._loaded: Mapping[str, Any] = {}
        self._count = StepCount()
        self._module: torch.nn.Module | None = None
        self._handles: list[Any] = []
        self._step: Any = None
        self._seen = DoctorReport("", ())
        self._first: tuple[Any, ...] = ()
        self._told, self._later = 0, whole_number("later", later, minimum=0)
        self._earlier: DoctorReport | None = None
        self._reason = "no module of the model was called in training mode"

    def __repr__(self) -> str:
        return f"Probe({type(self._model).__name__}, {self.report.verdict})"

    def __enter__(self) -> "Probe":
        return self.attach()

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        if error is not None:
            self._talk = None  # a rank that fails waits for no other
        self.detach()

    def attach(self) -> "Probe":
        """Register the hooks. The context manager does this, and ``detach`` at its end."""
        if self._handles or self.complete:
            return self
        self._talk = RankTalk.of_group(self._group, self._timeout)
        hook: Any = self._before
        late_hook: Any = self._after
        # Once compiled into a model, a hook would never be called.
        if "torch._dynamo" in sys.modules:
            hook, late_hook = torch.compiler.disable(hook), torch.compiler.disable(late_hook)
        # First of all hooks: FSDP gathers weights in its own, and must do so for each forward.
        for module in _outer_modules(self._model):
            self._handles += [
                module.register_forward_pre_hook(hook, with_kwargs=True, prepend=True),
                module.register_forward_hook(late_hook),
            ]
        # A run that failed may leave this hook: it keeps no model in memory.
        method = weakref.WeakMethod(self._on_step)

        def on_step(optimizer: Any, *_: Any) -> None:
            if (call := method()) is not None:
                call(optimizer)
            else:
                _leave(handle)

        self._step = handle = register_optimizer_step_post_hook(on_step)
        return self

    def detach(self) -> None:
        """Remove the hooks, and complete the report without a step of the optimizer."""
        if self._handles and not self.complete:
            self._finish()
        if self._step is not None:
            self._step.remove()

    def watch(self, loader: Iterable[Any]) -> Iterator[Any]:
        """Yield the batches of a loader, and remember the one in use.

        A loader may know boundaries and labels that never reach the model: ``doc_lens``, labels of
        a loss that is computed outside of it.
        """
        for batch in loader:
            self.tell_batch(batch)
            yield batch

    def tell_batch(self, batch: Any) -> None:
        """Give the batch of the loader that the next forward belongs to, as ``watch`` does."""
        self._loaded = batch if isinstance(batch, Mapping) else {}

    def tell_loss(
        self,
        loss: Any,
        *,
        divisor: float | None = None,
        num_items: float | None = None,
        expected: float | None = None,
    ) -> None:
        """Give the loss of the first micro-batch, if it is computed outside of the model.

        Args:
            loss: a number, or a tensor with one.
            divisor: what the sum over targets was divided by; the targets of the micro-batch if
                None.
            num_items: targets of the whole step, as the loop counts them; None if it does not.
            expected: what the loss must be before any step, such as ``math.log(2)`` for DPO. It is
                compared with that then, and not with losses of tokens.
        """
        if not self.complete:
            number = float(loss.detach() if isinstance(loss, torch.Tensor) else loss)
            self._count.tell(number, divisor, num_items, expected)

    def _before(self, module: torch.nn.Module, args: Any, kwargs: Any) -> None:
        """Act at the first forward in training mode whose arguments can be read."""
        if Probe._is_busy or self.complete:
            return
        # ``from_pretrained`` returns a model in evaluation mode, and Lightning leaves it so.
        if not module.training and not (self._model.training and torch.is_grad_enabled()):
            return
        if self._module not in (None, module):
            return
        try:
            call = ModuleCall(module, args, kwargs, self._tokens)
            batch = call.batch(self._loaded)
            view = read_batch(batch)
        except Exception as error:  # arguments may be of any form
            self._reason = f"{first_sentence(error)}: tokens= names the argument that has them"
            return
        if self._module is None:
            self._module = module
            config = config_of(call.module)
            self._first = view, call.kept, config, batch.get("num_items_in_batch")
            self._act(call, batch, view)
        if torch.is_grad_enabled():
            self._count.add(view, batch.get("num_items_in_batch"))
        if len(self._count.targets) >= _MAX_FORWARDS:
            self._finish()

    def _after(self, module: torch.nn.Module, args: Any, output: Any) -> None:
        """Take the losses of the first forward: the loss of the run has its dropout and noise."""
        if module is not self._module or not self._first or Probe._is_busy:
            return
        first, self._first = self._first, ()
        with torch.no_grad(), contextlib.suppress(Exception):  # an output of unusual form
            self._count.add_outcome(output, *first)

    def _act(self, call: ModuleCall, batch: Mapping[str, Any], view: BatchView) -> None:
        assert self._talk is not None
        is_first = self._talk.is_first
        Probe._is_busy = True
        try:
            self._seen = _seen_in(batch, self._loaded, self._tokenizer)
            self._examine(call, batch, view)
        except RankFailedError:
            raise
        except ProbeStopped as stop:
            self._stop(str(stop))
        except Exception as error:  # the report may not end a run, whatever is wrong with it
            self._stop(f"{type(error).__name__}: {first_sentence(error)}")
        finally:
            Probe._is_busy = False
        self._tell(is_first)

    def _tell(self, is_first: bool) -> None:
        """Tell new findings at once, and that there are none at the end."""
        number = len(self.report.findings)
        if number > self._told or (self.complete and not number):
            self._told = number
            tell(self.report, is_first=is_first, raises=self._raises)

    def _examine(self, call: ModuleCall, batch: Mapping[str, Any], view: BatchView) -> None:
        """Run the forwards on all ranks, and merge their reports.

        Raises:
            ProbeStopped: a rank could not take part, or a forward failed.
        """
        assert self._talk is not None
        config, forwards, reason, has_parts = config_of(call.module), None, "", False
        try:
            trial, ids = choose_trial(view, config, position_start_of(config))
            has_parts = trial.has_parts
            forwards = Forwards(call, self._talk, trial, batch, view, ids)
        except Exception as error:  # a batch of unusual form
            reason = f"{type(error).__name__}: {first_sentence(error)}"
        self._count.is_part = shares_rows = self._agree(reason, has_parts)
        assert forwards is not None
        evidence = forwards.run(shares_rows=shares_rows)
        report = RankReport(evidence, call, config).report()
        self._add(combined(report_of_all(self._talk, report), self._seen))

    def _agree(self, reason: str, has_parts: bool = False) -> bool:
        """Ask all ranks whether each can take part, and what each has seen.

        Args:
            reason: why this rank cannot; empty if it can.
            has_parts: rows of this rank begin within a sample.

        Returns:
            Whether ranks share rows (context parallelism).

        Raises:
            ProbeStopped: one cannot; names it.
        """
        assert self._talk is not None
        self._seen = report_of_all(self._talk, self._seen, "seen")
        return any(part for (part,) in self._talk.agree("ready", reason, has_parts).values())

    def _add(self, report: DoctorReport) -> None:
        """Take the report of a batch; of a later one what is new in it."""
        if self._earlier is not None:
            faults = {(item.topic, item.problem) for item in self.report.findings}
            additions = (
                replace(item, detail=f"a later batch: {item.detail}")
                for item in report.findings
                if (item.topic, item.problem) not in faults
            )
            report = replace(self.report, findings=(*self.report.findings, *additions))
        self.report = report

    def _stop(self, reason: str) -> None:
        self._add(combined(not_shown(reason), self._seen))
        self._talk = None  # ranks may have different reports now, so they ask each other no more
        if not self.complete:
            self._finish()

    def _on_step(self, optimizer: Any) -> None:
        """Complete the report after the first step of the model's optimizer, which may run the
        forward.
        """
        if self.complete or Probe._is_busy:
            return
        parameters = set(self._model.parameters())
        weights = [weight for group in optimizer.param_groups for weight in group["params"]]
        # Copies of weights in a higher precision are parameters of no model.
        if not parameters or any(
            weight in parameters or not isinstance(weight, torch.nn.Parameter) for weight in weights
        ):
            self._finish(self._later)

    def _remove(self) -> None:
        """Remove the hooks, also from within one of them."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
        _leave(self._step)

    def _finish(self, later: int = 0) -> None:
        """Add the report of the step, and remove the hooks unless later steps are probed."""
        self.complete = not later
        if not later:
            self._remove()
        is_first = self._talk is None or self._talk.is_first
        if self._module is None and self._talk is not None:
            # Other ranks may wait to begin.
            try:
                self._agree(self._reason)
            except ProbeStopped as stop:
                self._stop(str(stop))
                self._tell(is_first)
        talk, self._talk = self._talk, None
        if talk is None:
            return
        answers = talk.ask("step", self._count.as_dict())
        try:
            step = step_report(answers.values)
        except Exception as error:  # the report may not end a run, whatever is wrong with it
            problem = f"the step could not be counted: {first_sentence(error)}"
            self.report = replace(self.report, notes=(*self.report.notes, problem))
        else:
            self._add(step if self._earlier else combined(self.report, step))
        self._tell(is_first)
        if later:
            self._later, self._earlier = later - 1, self.report
            self._module, self._count = None, StepCount()
            self._talk = RankTalk.of_group(self._group, self._timeout)


probe = Probe
"""A probe, by the name that a loop calls it by."""


def _leave(handle: Any) -> None:
    """Remove the last hook of steps: torch may be on its way through them, so no other can go."""
    if next(reversed(handle.hooks_dict_ref()), None) == handle.id:
        handle.remove()


def _seen_in(
    batch: Mapping[str, Any], loader_batch: Mapping[str, Any], tokenizer: Any
) -> DoctorReport:
    """Return what is seen in the batch of a call, and in the loader's.

    Where both have the same tokens, they must tell the same samples.
    """
    report = diagnose(batch, tokenizer=tokenizer)
    findings = list(report.findings)
    try:
        if np.array_equal(read_batch(loader_batch).ids, read_batch(batch).ids):
            words = {
                name: value
                for name, value in loader_batch.items()
                if role_of(name) in _PLACES and value is not batch.get(name)
            }
            findings += check_agreement(read_batch({**batch, "loader": words}))
        else:
            findings += diagnose(loader_batch, tokenizer=tokenizer).findings
    except BrimfulError:  # nothing was told of the loader, or its batch has a form of its own
        pass
    lines = tuple(line for line in report.lines if line.topic in _TOPICS_OF_BATCH)
    return replace(report, lines=lines, findings=tuple(findings), notes=())


def _outer_modules(model: torch.nn.Module) -> Iterator[torch.nn.Module]:
    """Yield a module and the modules in it that may be called with tokens: not layers, and nothing
    without parts, such as embeddings.
    """
    if any(True for _ in model.children()):
        yield model
    for child in model.children():
        if not isinstance(child, STACKS):
            yield from _outer_modules(child)


class HasProbe:
    """Base of the callbacks of trainers: a probe that begins with training."""

    _probe: Probe | None = None

    @property
    def report(self) -> DoctorReport | None:
        """The report so far; None before training begins."""
        return None if self._probe is None else self._probe.report

    def on_train_end(self, *arguments: Any, **objects: Any) -> None:
        if self._probe is not None:
            self._probe.detach()


def check_options(on_fault: str, timeout: float) -> None:
    """Check the options of a probe.

    Raises:
        SettingsError: another ``on_fault``, or a time that is not positive.
    """
    if on_fault not in ("warn", "raise"):
        raise SettingsError(f"{setting('on_fault', on_fault)} must be warn or raise")
    if not is_number(timeout) or not timeout > 0:
        raise SettingsError(f"{setting('timeout', timeout)} must be a number of seconds above 0")
