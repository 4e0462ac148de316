"""Forwards of a probe: the batch as it is, with one segment exchanged, and one sample alone, or one
in each row where rows must keep their length; two more if samples alone differ, to tell evaluation
from packing.

All run in the job's own modules, with its parallelism and kernels, before the job's forward goes
on. Every rank runs the same number of them, since layers may hold collectives.
"""

import contextlib
import warnings
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils._pytree import tree_map

from brimful.base.typing import IGNORE_INDEX, Float32Array, Int64Array
from brimful.doctor.batch.rewrite import alone, exchanged
from brimful.doctor.batch.view import BatchView, Labeling, RowSegment, read_batch
from brimful.doctor.batch.words import Role
from brimful.doctor.probing.calls import Call
from brimful.doctor.probing.exchange import Trial
from brimful.doctor.probing.leaks import LayerMovement, Reach
from brimful.doctor.probing.model_facts import config_of, media_tokens, parity_limit_of
from brimful.doctor.probing.modes import evaluating, first_sentence, seeded
from brimful.doctor.probing.ranks import ProbeStopped, RankTalk, rank_names
from brimful.doctor.probing.recorder import (
    Outcome,
    Recording,
    TokenGrid,
    first_tensor,
    movement,
    outcome_of,
    recording,
)
from brimful.doctor.probing.unchanged import WRAPPERS, unchanged
from brimful.errors import CollateError, RankFailedError

_COUPLED_WORDS = ("moe", "expert", "router", "fp8", "float8")
"""Words in names of classes whose numbers depend on the whole batch."""


class _LastLayer(Exception):
    """The last layer has run: the head and the loss are not needed."""


class Measurements(NamedTuple):
    """Measurements of one rank.

    Attributes:
        trial: what was exchanged.
        reach: which tokens may have moved.
        layers: movements of layers, and of the losses at the end.
        dtype: lowest precision of the layers.
        backward: gradients at the first layer's input, of the exchanged place at the end of the last
            layer, relative to the largest; None if they could not be taken.
        is_coupled: numbers of tokens may depend on the whole batch.
        outcome: of the batch as it is.
        given: what each layer got there but hidden states.
        alone_gap: mean difference between rows of several samples and samples alone, relative to
            the mean (at least 1); None if it could not be measured.
        alone_by: what was compared: losses, sums of losses, or hidden states.
        is_cut: the sample ran in a row of its own length.
        mode_gap: the same between training and evaluation.
    """

    trial: Trial
    reach: Reach
    layers: list[LayerMovement]
    dtype: torch.dtype
    backward: LayerMovement | None
    is_coupled: bool
    outcome: Outcome
    given: Mapping[str, list[torch.Tensor]]
    alone_gap: float | None
    alone_by: str
    is_cut: bool
    mode_gap: float | None

    def largest(self, tokens: Any) -> float:
        """Return the largest movement of some tokens, ``bool[R, T]``, in any layer."""
        return max(
            (float((item.sizes * tokens).max(initial=0.0)) for item in self.layers), default=0.0
        )


class _Input(NamedTuple):
    """Batch of a forward.

    Attributes:
        batch: None on a rank that gets none.
        grid: its rows and tokens.
        rows: rows whose hidden states are kept.
        segments: of the job's batch, that run alone in each row; empty for a batch with all.
    """

    batch: Mapping[str, Any] | None
    grid: TokenGrid
    rows: tuple[int, ...]
    segments: tuple[RowSegment, ...] = ()


class _Result(NamedTuple):
    """Numbers of one forward."""

    recording: Recording
    outcome: Outcome


class Forwards:
    """Forwards of one rank.

    Args:
        call: what is run.
        talk: with the other ranks.
        trial: what is exchanged.
        batch: of the job, with words of the loader; None on a rank that gets none.
        view: of the batch.
        ids: ``int64[n]``: tokens of the exchanged place.
        modes: run in evaluation too.
    """

    def __init__(
        self,
        call: Call,
        talk: RankTalk,
        trial: Trial,
        batch: Mapping[str, Any] | None = None,
        view: BatchView | None = None,
        ids: Int64Array | None = None,
        *,
        modes: bool = True,
    ) -> None:
        self._call, self._talk, self._trial, self._modes = call, talk, trial, modes
        self._view = view
        config, parameter = config_of(call.module), next(call.module.parameters())
        self._device, self._dtype = parameter.device, parameter.dtype
        self._vocab = size_of(config, "vocab_size")
        media = media_tokens(config) if view is not None else []
        is_medium = np.isin(view.ids[[*trial.rows]], media) if media and view is not None else None
        grid = TokenGrid(trial.shape, is_medium, call.part, call.parts)
        classes = {type(module).__name__.lower() for module in call.module.modules()}
        self._is_coupled = any(word in name for word in _COUPLED_WORDS for name in classes)
        self._whole = self._exchanged = _Input(batch, grid, trial.rows)
        self._singles: list[_Input] = []
        # All batches are made before the first forward, so that a rank can refuse in time.
        if batch is not None and view is not None:
            _check_boundaries(view)
            if trial.exchanged is not None and ids is not None:
                other_batch = exchanged(batch, view, trial.exchanged, ids)
                self._exchanged = self._whole._replace(batch=other_batch)
            if trial.alone is not None:
                with contextlib.suppress(CollateError):  # media cannot be moved
                    self._add_singles(batch, view, trial.alone)

    def _add_singles(
        self, batch: Mapping[str, Any], view: BatchView, segments: tuple[RowSegment, ...]
    ) -> None:
        """Make batches of samples alone: one in each row; and the one that begins last in the rows
        whose hidden states are kept, in a row of its own length, unless ranks, schedules or compiled parts may count on the length
        of the row.
        """
        in_rows = alone(batch, view, segments)
        self._singles = [self._whole._replace(batch=in_rows, segments=segments)]
        is_compiled = any("_orig_mod" in part._modules for part in self._call.module.modules())
        if self._modes and self._talk.is_alone and not is_compiled:
            rows = self._trial.rows
            segment = max((segments[row] for row in rows), key=lambda item: item.start)
            single = alone(batch, view, [segment], is_cut=True)
            self._singles.append(_Input(single, TokenGrid((1, segment.length)), (0,), (segment,)))

    @property
    def _single(self) -> _Input:
        """Samples alone; without any, the batch as it is."""
        return (self._singles or [self._whole])[-1]

    def run(self, *, shares_rows: bool = False) -> Measurements:
        """Run all forwards and measure. A rank that has nothing to exchange runs its batch as it
        is.

        Args:
            shares_rows: ranks have parts of rows, so no sample is alone on one of them.

        Raises:
            ProbeStopped: a forward failed, on this rank or another one.
            RankFailedError: a forward failed on this rank alone, and others wait in it.
        """
        if shares_rows:
            self._singles = []
        base = self._forward("as it is", self._whole)
        try:
            variant, single = self._variants(base)
        except ProbeStopped:
            if len(self._singles) < 2:
                raise
            self._singles.pop()  # a model of rows of one length
            variant, single = self._variants(base)
        gap, measure = self._alone_gap(base, variant, single)
        dtypes = [*base.recording.dtypes, self._dtype]
        dtype = max(dtypes, key=lambda dtype: float(torch.finfo(dtype).eps))
        # Without samples alone the third forward was the batch itself.
        late = single if self._modes and not self._singles else None
        if self._modes and self._differs("alone", gap, dtype):
            late = self._forward("evaluation", self._whole, evaluates=True)
            single = self._forward("alone in training", self._single)
            gap, measure = self._alone_gap(base, variant, single)
            if self._differs("evaluation", self._mode_gap(base, late), dtype):
                noise = self._mode_gap(base, self._forward("other seed", self._whole, seed=1))
                # A dropout whose rate has no name leaves nothing to compare.
                if (noise or 0.0) > parity_limit_of(dtype):
                    gap = late = None
        return Measurements(
            trial=self._trial,
            reach=self._trial.reach(is_coupled=self._is_coupled),
            layers=self._movements(base, variant),
            dtype=dtype,
            backward=self._backward(base.recording),
            is_coupled=self._is_coupled,
            outcome=base.outcome,
            given=base.recording.given,
            alone_gap=gap,
            alone_by=measure,
            is_cut=len(self._singles) > 1,
            mode_gap=None if late is None else self._mode_gap(base, late),
        )

    def _variants(self, base: _Result) -> tuple[_Result, _Result]:
        """Run the batch with one segment exchanged, and samples alone."""
        variant = self._exchanged
        if base.outcome.losses is None:
            variant = variant._replace(batch=self._with_targets_alone(variant.batch))
        result = self._forward("exchanged", variant)
        # In evaluation: a right run has the losses of samples alone there too.
        return result, self._forward("alone", self._single, evaluates=self._modes)

    def _differs(self, name: str, gap: float | None, dtype: torch.dtype) -> bool:
        """Return true if samples alone, or evaluation, differ on any rank: packing may be the
        reason, evaluation or chance.
        """
        is_large = gap is not None and gap > parity_limit_of(dtype)
        return any(self._talk.ask(f"differs {name}", is_large).values.values())

    def _forward(
        self, name: str, inputs: _Input, *, evaluates: bool = False, seed: int = 0
    ) -> _Result:
        """Run one forward on all ranks; each says whether its own came to an end.

        Args:
            name: of the forward.
            inputs: what it gets.
            evaluates: run in evaluation, and without a cache.
            seed: of its random numbers.
        """
        module, problem = self._call.module, ""
        options = {"use_cache": False} if evaluates and self._call.accepts("use_cache") else {}
        result = None
        try:
            with (
                warnings.catch_warnings(),
                # Each forward begins with the state of the job: a statistic moves with each.
                unchanged(module),
                evaluating(module) if evaluates else contextlib.nullcontext(),
                _without_compiled_calls(module),
                seeded(self._device, seed),
                recording(self._call.layers, inputs.grid, inputs.rows) as states,
            ):
                warnings.simplefilter("ignore")
                output = self._call.again(inputs.batch, **options)
                targets = np.full(self._trial.shape, IGNORE_INDEX)
                if self._view is not None:
                    view = read_batch(inputs.batch) if inputs.segments else self._view
                    targets = view.targets
                result = _Result(states, outcome_of(output, targets, inputs.grid, self._vocab))
        except Exception as error:  # a model may refuse a batch in any way it likes
            problem = f"{type(error).__name__}: {first_sentence(error)}"
        self._check_all_ran(name, problem)
        assert result is not None
        return result

    def _check_all_ran(self, name: str, problem: str) -> None:
        """Stop on all ranks if a forward failed on one.

        Ranks that wait in a collective of the forward would take the next one for it.
        """
        answers = self._talk.ask(f"forward {name}", problem)
        if answers.missing and problem:
            raise RankFailedError(
                f"the forward of the probe ({name}) failed on rank {self._talk.rank} ({problem}), "
                f"and {rank_names(answers.missing)} may wait in it: leave the probe out"
            )
        if answers.missing:
            names = rank_names(answers.missing)
            raise ProbeStopped(f"no answer from {names} after a forward ({name})")
        failures = {rank: text for rank, text in answers.values.items() if text}
        if failures:
            place = f" on {rank_names(failures)}" if len(answers.values) > 1 else ""
            text = next(iter(failures.values()))
            raise ProbeStopped(f"a forward ({name}) failed{place}: {text}")

    def _backward(self, base: Recording) -> LayerMovement | None:
        """Take gradients of the exchanged place at the tokens of all others; weights get none.

        Ranks and wrappers act at gradients, and a mask of pairs may let the place see others.
        """
        place, module, rows = self._trial.exchanged, self._call.module, list(self._trial.rows)
        is_free = self._modes and self._talk.is_alone and self._trial.mask != "pairs"
        if not is_free or place is None or self._trial.is_padding or not base.states:
            return None
        if any(type(part).__module__.startswith(WRAPPERS) for part in module.modules()):
            return None
        leaves: list[torch.Tensor] = []
        outputs: list[Any] = []
        last = base.states[-1].name

        def begin(layer: Any, *words: Any) -> Any:
            tensor = first_tensor(words)
            if leaves or tensor is None:
                return None
            leaves.append(tensor.detach().requires_grad_())
            return tree_map(lambda item: leaves[0] if item is tensor else item, words)

        def end(layer: Any, inputs: Any, output: Any) -> None:
            outputs.append(first_tensor(output))
            if len(outputs) == sum(state.name == last for state in base.states):
                raise _LastLayer

        layers = self._call.layers
        handles = [
            layers[base.states[0].name].register_forward_pre_hook(begin, with_kwargs=True),
            layers[last].register_forward_hook(end),
        ]
        try:
            with unchanged(module), torch.enable_grad(), seeded(self._device):
                with contextlib.suppress(_LastLayer), _without_compiled_calls(module):
                    self._call.again(self._whole.batch)
                states = self._whole.grid.rows_of(outputs[-1])
                assert states is not None
                assert states.shape[1] == self._trial.shape[1]
                # A norm at the end makes sums and squares constant.
                value = states[place.row, place.start : place.stop].float().cumsum(-1).sum()
                gradients = self._whole.grid.rows_of(torch.autograd.grad(value, leaves)[0])
            assert gradients is not None
            sizes = torch.linalg.vector_norm(gradients.float(), dim=-1)
            return LayerMovement(
                "the backward", self._whole.grid.by_token(sizes[rows] / sizes.max())
            )
        except Exception:  # no room, or a model without gradients
            return None
        finally:
            for handle in handles:
                handle.remove()

    def _movements(self, base: _Result, variant: _Result) -> list[LayerMovement]:
        """Return movements of layers in the order in which they ran, and of losses at the end."""
        pairs = zip(base.recording.states, variant.recording.states, strict=True)
        layers = [
            LayerMovement(state.name, movement(state, other_state, self._whole.grid))
            for state, other_state in pairs
        ]
        losses, other_losses = base.outcome.losses, variant.outcome.losses
        if losses is not None and other_losses is not None:
            gaps = np.abs(losses - other_losses) / np.maximum(1.0, np.abs(losses))
            layers.append(LayerMovement("loss", np.nan_to_num(gaps)[list(self._trial.rows)]))
        return layers

    def _alone_gap(
        self, base: _Result, variant: _Result, single: _Result
    ) -> tuple[float | None, str]:
        """Compare samples alone with the same samples in their rows: losses, else sums, else hidden
        states.
        """
        (_, grid, rows, segments), losses = self._single, base.outcome.losses
        if not segments:
            return None, ""
        if losses is not None:
            row_losses = np.full(grid.shape, np.nan, dtype=np.float32)
            for row, (source, start, stop) in enumerate(segments):
                # The target of the last token is not a part of the sample.
                row_losses[row, : stop - start - 1] = losses[source, start : stop - 1]
            return _mean_gap(row_losses, single.outcome.losses), "losses"
        # Both batches train these samples alone; a balance of experts would be another one.
        loss, single_loss = variant.outcome.loss, single.outcome.loss
        if loss is not None and single_loss is not None and not single.outcome.extra_losses:
            return abs(loss - single_loss) / max(1.0, abs(single_loss)), "sums of losses"
        states = base.recording.states, single.recording.states
        if not all(states) or self._whole.grid.is_medium is not None or self._whole.grid.parts > 1:
            return None, ""
        gaps = []
        for index, row in enumerate(rows):
            source, start, stop = segments[row]
            place = self._trial.rows.index(source)
            state = states[0][-1].at(slice(place, place + 1), slice(start, stop))
            single_state = states[1][-1].at(slice(index, index + 1), slice(0, stop - start))
            grid = TokenGrid((1, stop - start))
            gaps.append(float(movement(state, single_state, grid).mean()))
        return max(gaps), "hidden states"

    def _mode_gap(self, base: _Result, late: _Result) -> float | None:
        """Compare training with evaluation: losses, else hidden states."""
        if base.outcome.losses is not None:
            return _mean_gap(base.outcome.losses, late.outcome.losses)
        if not base.recording.states or not late.recording.states:
            return None
        last = base.recording.states[-1], late.recording.states[-1]
        return float(movement(*last, self._whole.grid).mean())

    def _with_targets_alone(self, batch: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
        """Return a batch in which only the samples that run alone are trained, so that a sum of
        losses is theirs.
        """
        view, segments = self._view, self._single.segments
        if batch is None or view is None or not segments:
            return batch
        word = view.labels_word
        if word is None or len(word.path) > 1 or not isinstance(word.value, torch.Tensor):
            return batch
        is_shifted = view.labeling is not Labeling.AS_TOKENS
        keep = torch.zeros(view.shape, dtype=torch.bool, device=word.value.device)
        for row, start, stop in segments:
            keep[row, start + 1 - is_shifted : stop - is_shifted] = True
        labels = batch[str(word.path[0])].masked_fill(~keep.reshape(word.value.shape), IGNORE_INDEX)
        return {**batch, str(word.path[0]): labels}


def size_of(config: Any, name: str) -> int | None:
    """Return a size of a configuration or of its text model; None if it has none.

    >>> from types import SimpleNamespace
    >>> size_of(SimpleNamespace(text_config=SimpleNamespace(vocab_size=128)), "vocab_size")
    128
    """
    for part in (config, getattr(config, "text_config", None)):
        if isinstance(value := getattr(part, name, None), int):
            return value
    return None


def _check_boundaries(view: BatchView) -> None:
    """Refuse boundaries of other tokens than the batch has, such as of a row with its media.

    Raises:
        CollateError: names the word.
    """
    if view.why_unread:
        raise CollateError(view.why_unread)
    for word in view.words_with(Role.BOUNDARIES):
        if word.array is None or word.array.dtype == object or str(word) != view.evidence:
            continue
        if (end := int(word.array.max(initial=0))) > view.ids.size:
            raise CollateError(
                f"{word} ends at {end:,}, and the batch has {view.ids.size:,} tokens: these are "
                "boundaries of other tokens"
            )


def _mean_gap(losses: Float32Array | None, other_losses: Float32Array | None) -> float | None:
    """Return mean|losses − others| ÷ max(1, mean|losses|) over entries that both have; None without
    any.
    """
    if losses is None or other_losses is None or losses.shape != other_losses.shape:
        return None
    is_shared = ~np.isnan(losses) & ~np.isnan(other_losses)
    if not is_shared.any():
        return None
    scale = max(1.0, float(np.abs(losses[is_shared]).mean()))
    return float(np.abs(losses - other_losses)[is_shared].mean()) / scale


@contextlib.contextmanager
def _without_compiled_calls(model: torch.nn.Module) -> Iterator[None]:
    """Run modules that were compiled in place as they were written: hooks would be compiled into
    them.
    """
    calls = [
        (module, call)
        for module in model.modules()
        if (call := getattr(module, "_compiled_call_impl", None)) is not None
    ]
    try:
        for module, _ in calls:
            module._compiled_call_impl = None
        yield
    finally:
        for module, call in calls:
            module._compiled_call_impl = call
