"""Forwards of a probe: the batch as it is, with one segment exchanged, alone, and in evaluation.

All run in the job's own module, with its parallelism and kernels, before the job's forward goes on.
Every rank runs the same number of them, since layers may hold collectives.
"""

from __future__ import annotations

import contextlib
import inspect
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from brimful.base.typing import IGNORE_INDEX, Float32Array
from brimful.doctor.batch.rewrite import alone, exchanged
from brimful.doctor.batch.view import BatchView, Labelling, Segment, read_batch
from brimful.doctor.batch.words import Role, role_of
from brimful.doctor.probe.exchange import (
    Exchange,
    choose_alone,
    choose_exchange,
    reach_of,
    recorded_rows,
)
from brimful.doctor.probe.leaks import LayerMovement, Reach
from brimful.doctor.probe.ranks import RankTalk, rank_names
from brimful.doctor.probe.recorder import (
    Outcome,
    Recording,
    TokenGrid,
    layers_of,
    movement,
    outcome_of,
    recording,
)
from brimful.doctor.probe.unchanged import unchanged
from brimful.errors import CollateError, RankFailedError
from brimful.verify.modes import evaluating, first_sentence, seeded
from brimful.verify.reference_samples import ReferenceSamples
from brimful.verify.setup import PackingSetup, media_tokens

_COUPLED_WORDS = ("moe", "expert", "router", "fp8", "float8")
"""Words in names of classes whose numbers depend on the whole batch."""


class ProbeStopped(Exception):
    """A probe that cannot go on: the reason. Training does."""


class ModuleCall:
    """Call of a module, with its arguments by name, that can be made again.

    Args:
        module: the module that is called.
        args, kwargs: its arguments.
        tokens: name of the argument that holds the tokens, if it is an unusual one.

    Attributes:
        arguments: by name; the tokens as ``input_ids`` if their name is an unusual one.
    """

    def __init__(
        self, module: Any, args: Sequence[Any], kwargs: Mapping[str, Any], tokens: str | None = None
    ) -> None:
        # A compiled module is run as it was written: hooks would be compiled into it.
        self.module = getattr(module, "_orig_mod", module)
        self._names = _argument_names(self.module)
        given = [*self._names, *(f"argument {index}" for index in range(len(args)))]
        self._positional = given[: len(args)]
        arguments = {**dict(zip(self._positional, args, strict=True)), **kwargs}
        self._keys = {name: "input_ids" if name == tokens else name for name in arguments}
        self.arguments = {self._keys[name]: value for name, value in arguments.items()}

    def batch(self, loaded: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return the arguments as a batch, with words of the loader's batch that the module does
        not get.
        """
        known = {role_of(name) for name, value in self.arguments.items() if value is not None}
        missing = {
            name: value
            for name, value in (loaded or {}).items()
            if role_of(name) not in {None, Role.IDS, *known}
        }
        return {**self.arguments, **missing}

    def accepts(self, name: str) -> bool:
        """Return true if the module takes this argument and the call does not have it."""
        return name in self._names and name not in self.arguments

    def again(self, batch: Mapping[str, Any], **others: Any) -> Any:
        """Call the module with copies of the arguments in a batch."""
        values = {
            name: None if self.arguments[key] is None else _copied(batch[key])
            for name, key in self._keys.items()
        }
        args = [values.pop(name) for name in self._positional]
        return self.module(*args, **values, **others)


def _argument_names(module: Any) -> list[str]:
    """Return the names of a forward's arguments; of a wrapper, the ones of the module in it."""
    parameters = inspect.signature(module.forward).parameters.values()
    names = [item.name for item in parameters if item.kind is item.POSITIONAL_OR_KEYWORD]
    if not names and hasattr(module, "get_base_model"):
        return _argument_names(module.get_base_model())
    inner = getattr(module, "module", None)
    return names if names or inner is None else _argument_names(inner)


def _copied(value: Any) -> Any:
    """Copy tensors and containers, which a forward may write into."""
    if isinstance(value, torch.Tensor):
        return value.clone()
    if isinstance(value, dict):
        return {name: _copied(item) for name, item in value.items()}
    return [_copied(item) for item in value] if type(value) is list else value


@dataclass(frozen=True, eq=False)
class Evidence:
    """Measurements of one rank.

    Attributes:
        view: of the batch.
        exchange: what was exchanged; None if this rank has nothing to exchange.
        reach: which tokens may have moved.
        layers: movements of layers, and of the losses at the end.
        own: largest movement of the exchanged tokens.
        dtype: lowest precision of the layers.
        coupled: numbers of tokens may depend on the whole batch.
        outcome: of the batch as it is.
        alone_gap: mean difference of losses between rows of several samples and samples alone,
            relative to the mean loss (at least 1); None if it could not be measured.
        alone_by: what was compared: losses, sums of losses, or hidden states.
        mode_gap: the same between training and evaluation.
    """

    view: BatchView
    exchange: Exchange | None
    reach: Reach
    layers: list[LayerMovement]
    own: float
    dtype: torch.dtype
    coupled: bool
    outcome: Outcome
    alone_gap: float | None
    alone_by: str
    mode_gap: float | None


class _Result(NamedTuple):
    """Numbers of one forward."""

    states: Recording
    outcome: Outcome


class Forwards:
    """Forwards of one rank over one batch.

    Args:
        call: the call of the job.
        batch: its arguments, with words of the loader.
        view: of the batch.
        talk: with the other ranks.
    """

    def __init__(
        self, call: ModuleCall, batch: Mapping[str, Any], view: BatchView, talk: RankTalk
    ) -> None:
        self._call, self._batch, self._view, self._talk = call, batch, view, talk
        for word in view.words_with(Role.BOUNDARIES):
            if (
                word.array is not None
                and word.array.dtype != object
                and word.array.max() > view.ids.size
            ):
                raise CollateError(
                    f"{word} ends at {int(word.array.max()):,}, and the batch has "
                    f"{view.ids.size:,} tokens: boundaries of other tokens tell nothing here"
                )
        samples = ReferenceSamples([{"input_ids": row.tolist()} for row in view.ids])
        self._setup = PackingSetup(call.module, dict, samples)
        self.config = self._setup.config
        media = media_tokens(self.config)
        self._grid = TokenGrid(view.shape, np.isin(view.ids, media) if media else None)
        self._layers = layers_of(call.module)
        classes = {type(module).__name__.lower() for module in call.module.modules()}
        self._coupled = any(word in name for word in _COUPLED_WORDS for name in classes)
        # All batches are made before the first forward: ranks agree on whether all can be run.
        self._exchange = choose_exchange(view, self.config)
        self._segments = choose_alone(view, self._exchange)
        self._rows = recorded_rows(view, self._exchange)
        self._exchanged, self._alone = batch, batch
        if self._exchange is not None:
            place = self._exchange.segment
            self._exchanged = exchanged(batch, view, place, self._exchange.ids)
        if self._segments is not None:
            try:
                self._alone = alone(batch, view, self._segments)
            except CollateError:  # media cannot be moved
                self._segments = None

    @property
    def has_parts(self) -> bool:
        """True if a row begins within a sample, whose beginning another rank has."""
        positions = self._view.positions
        firsts = {segment.row: segment for segment in reversed(self._view.segments)}
        return positions is not None and any(
            int(positions[row, segment.start]) != self._setup.position_start
            for row, segment in firsts.items()
        )

    def run(self, *, shares_rows: bool = False) -> Evidence:
        """Run all forwards and measure. A rank that has nothing to exchange runs its batch as it
        is.

        Args:
            shares_rows: ranks have parts of rows, so no sample is alone on one of them.

        Raises:
            ProbeStopped: a forward failed, on this rank or another one.
            RankFailedError: a forward failed on this rank alone, and others wait in it.
        """
        with unchanged(self._call.module), _without_compiled_calls(self._call.module):
            base = self._forward("as it is", self._batch)
            other = self._exchanged
            if base.outcome.losses is None and self._segments is not None:
                other = _with_targets_of(other, self._view, self._segments)
            changed = self._forward("exchanged", other)
            single = self._forward("alone", self._alone)
            options = {"use_cache": False} if self._call.accepts("use_cache") else {}
            with evaluating(self._call.module):
                late = self._forward("evaluation", self._batch, **options)
        reach = reach_of(self._view, self._exchange, self._rows, coupled=self._coupled)
        layers = self._movements(base, changed)
        gap, measure = (None, "") if shares_rows else self._alone_gap(base, changed, single)
        dtypes = [*base.states.dtypes, self._setup.dtype]
        return Evidence(
            view=self._view,
            exchange=self._exchange,
            reach=reach,
            layers=layers,
            own=max([float(layer.sizes[reach.own].max(initial=0.0)) for layer in layers] or [0.0]),
            dtype=max(dtypes, key=lambda dtype: float(torch.finfo(dtype).eps)),
            coupled=self._coupled,
            outcome=base.outcome,
            alone_gap=gap,
            alone_by=measure,
            mode_gap=self._mode_gap(base, late),
        )

    def _forward(self, name: str, batch: Mapping[str, Any], **options: Any) -> _Result:
        """Run one forward on all ranks; each says whether its own came to an end."""
        problem = ""
        result = None
        targets = self._view.targets
        try:
            with (
                warnings.catch_warnings(),
                seeded(self._setup.device),
                recording(self._layers, self._grid, self._rows) as states,
            ):
                warnings.simplefilter("ignore")
                if name == "alone" and self._segments is not None:
                    targets = read_batch(batch).targets
                output = self._call.again(batch, **options)
                vocab = size_of(self.config, "vocab_size")
                result = _Result(states, outcome_of(output, targets, self._grid, vocab))
        except Exception as error:  # a model may refuse a batch in any way it likes
            problem = f"{type(error).__name__}: {first_sentence(error)}"
        answers = self._talk.ask(f"forward {name}", problem)
        if answers.missing and problem:
            raise RankFailedError(
                f"the forward of the probe ({name}) failed on rank {self._talk.rank} ({problem}), "
                f"and {rank_names(answers.missing)} wait for it: leave the probe out"
            )
        if answers.missing:
            raise ProbeStopped(
                f"no answer from {rank_names(answers.missing)} after a forward ({name})"
            )
        failures = {rank: text for rank, text in answers.values.items() if text}
        if failures:
            rank, text = next(iter(failures.items()))
            where = f" on {rank_names(failures)}" if len(answers.values) > 1 else ""
            raise ProbeStopped(f"a forward ({name}) failed{where}: {text}")
        assert result is not None
        return result

    def _movements(self, before: _Result, after: _Result) -> list[LayerMovement]:
        """Return movements of layers in the order in which they ran, and of losses at the end."""
        layers = [
            LayerMovement(old.name, movement(old, new, self._grid))
            for old, new in zip(before.states.states, after.states.states, strict=True)
        ]
        old_losses, new_losses = before.outcome.losses, after.outcome.losses
        if old_losses is not None and new_losses is not None:
            gaps = np.abs(old_losses - new_losses) / np.maximum(1.0, np.abs(old_losses))
            layers.append(LayerMovement("loss", np.nan_to_num(gaps)[self._rows]))
        return layers

    def _alone_gap(
        self, base: _Result, changed: _Result, single: _Result
    ) -> tuple[float | None, str]:
        """Compare samples alone with the same samples in their rows: losses, else sums, else hidden
        states.
        """
        segments = self._segments
        if segments is None:
            return None, ""
        old, new = base.outcome, single.outcome
        if old.losses is not None:
            packed = np.full(self._view.shape, np.nan, dtype=np.float32)
            for row, (source, start, stop) in enumerate(segments):
                # The target of the last token is not a part of the sample.
                packed[row, : stop - start - 1] = old.losses[source, start : stop - 1]
            return _mean_gap(packed, new.losses), "losses"
        # Both batches train these samples alone; a balance of experts would be another one.
        if changed.outcome.loss is not None and new.loss is not None and not new.extra_losses:
            gap = abs(changed.outcome.loss - new.loss) / max(1.0, abs(new.loss))
            return gap, "sums of losses"
        if not base.states.states or not single.states.states or self._grid.is_medium is not None:
            return None, ""
        gaps = []
        for index, row in enumerate(self._rows):
            _, start, stop = segments[row]
            place = (slice(index, index + 1), slice(start, stop))
            before = base.states.states[-1].at(place)
            after = single.states.states[-1].at((place[0], slice(0, stop - start)))
            gaps.append(float(movement(before, after, TokenGrid((1, stop - start))).mean()))
        return max(gaps), "hidden states"

    def _mode_gap(self, base: _Result, late: _Result) -> float | None:
        """Compare training with evaluation: losses, else hidden states."""
        if base.outcome.losses is not None:
            return _mean_gap(base.outcome.losses, late.outcome.losses)
        if not base.states.states or not late.states.states:
            return None
        last = base.states.states[-1], late.states.states[-1]
        return float(movement(*last, self._grid).mean())


def size_of(config: Any, name: str) -> int | None:
    """Return a size of a configuration or of its text model; None if it has none."""
    for part in (config, getattr(config, "text_config", None)):
        if isinstance(value := getattr(part, name, None), int):
            return value
    return None


def _mean_gap(before: Float32Array | None, after: Float32Array | None) -> float | None:
    """Return mean|before − after| ÷ max(1, mean|before|) over entries that both have; None without
    any.
    """
    if before is None or after is None or before.shape != after.shape:
        return None
    both = ~np.isnan(before) & ~np.isnan(after)
    if not both.any():
        return None
    scale = max(1.0, float(np.abs(before[both]).mean()))
    return float(np.abs(before[both] - after[both]).mean()) / scale


def _with_targets_of(
    batch: Mapping[str, Any], view: BatchView, segments: Sequence[Segment]
) -> Mapping[str, Any]:
    """Return a batch in which only some segments are trained, so that a sum of losses is theirs."""
    word = next((word for word in view.words if word.path == view.labels_word), None)
    if word is None or len(word.path) > 1 or not isinstance(word.value, torch.Tensor):
        return batch
    keep = torch.zeros(view.shape, dtype=torch.bool, device=word.value.device)
    for row, start, stop in segments:
        if view.labelling is Labelling.AS_TOKENS:
            keep[row, start + 1 : stop] = True
        else:
            keep[row, start : stop - 1] = True
    labels = word.value.masked_fill(~keep.reshape(word.value.shape), IGNORE_INDEX)
    return {**batch, str(word.path[0]): labels}


@contextlib.contextmanager
def _without_compiled_calls(model: torch.nn.Module) -> Iterator[None]:
    """Run modules that were compiled in place as they were written: hooks would be compiled into
    them.
    """
    compiled = [
        (module, call)
        for module in model.modules()
        if (call := getattr(module, "_compiled_call_impl", None)) is not None
    ]
    try:
        for module, _ in compiled:
            module._compiled_call_impl = None
        yield
    finally:
        for module, call in compiled:
            module._compiled_call_impl = call
