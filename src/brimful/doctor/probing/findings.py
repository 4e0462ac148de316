"""Report of a probe: lines and findings from the measurements of one rank, and of all ranks."""

import itertools
import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch.utils._pytree import tree_leaves

from brimful.base.wording import counted
from brimful.doctor.batch.view import RowSegment
from brimful.doctor.batch.words import Role, role_of
from brimful.doctor.probing.calls import Call
from brimful.doctor.probing.forwards import Measurements, size_of
from brimful.doctor.probing.leaks import (
    LayerLeak,
    LayerMovement,
    find_leak,
    moves_everywhere,
    rounding_of,
)
from brimful.doctor.probing.model_facts import parity_limit_of
from brimful.doctor.probing.modes import current_implementation
from brimful.doctor.probing.ranks import RankTalk, rank_names
from brimful.doctor.report import DoctorReport, Evidence, Finding, Judgment, Line
from brimful.errors import BrimfulError

_STATE_WORDS = (
    "mamba",
    "deltanet",
    "linearattention",
    "recurrent",
    "rwkv",
    "conv",
    "ssm",
    "statespace",
)
"""Words in lower-case names of classes that carry a state or a convolution along the row."""

_MAX_LINES = 4
"""Lines of one topic in a report, if ranks differ."""

ROUTER_LOSSES = ("aux_loss", "router_aux_loss", "load_balancing_loss", "balance_loss")
"""Names of losses that balance experts."""


class RankReport:
    """Report of one rank from its measurements.

    Args:
        evidence: the measurements.
        call: what was run.
        config: of the model; None if it has none.

    Attributes:
        leak: first movement of a neighbor in a layer of this rank; None without one.
    """

    def __init__(self, evidence: Measurements, call: Call, config: Any) -> None:
        self._evidence, self._call, self._config = evidence, call, config
        self.leak = self._found_in(evidence.layers)
        self._everywhere = moves_everywhere(
            evidence.layers, evidence.reach, evidence.dtype, evidence.is_coupled
        )

    def _found_in(self, layers: Sequence[LayerMovement]) -> LayerLeak | None:
        evidence = self._evidence
        return find_leak(layers, evidence.reach, evidence.dtype, is_coupled=evidence.is_coupled)

    def report(self, *, is_consequence: bool = False) -> DoctorReport:
        """Return lines and findings.

        Args:
            is_consequence: neighbors moved in an earlier stage, so movement here tells nothing.
        """
        if is_consequence:
            line = Line("isolation", "neighbors move from an earlier stage on", Evidence.SHOWN)
            return DoctorReport("probe", (line,))
        return DoctorReport("probe", tuple(self._lines()), tuple(self._findings()))

    def _lines(self) -> Iterator[Line]:
        evidence, trial = self._evidence, self._evidence.trial
        rows, width = trial.shape
        text = f"{counted(rows, 'row')} of {width:,} tokens"
        if self._has_neighbors:
            samples = counted(len(trial.segments), "sample")
            yield Line("packing", f"{samples} in {text}", Evidence.SEEN, trial.evidence)
        else:
            yield Line("packing", f"{text}, and nothing tells two samples of one row apart")
        yield self._isolation()
        names = sorted(
            {
                type(module).__name__
                for module in self._call.module.modules()
                if type(module).__name__.endswith("Attention")
            }
        )
        implementation = current_implementation(self._call.module)
        parts = [] if implementation == "as it is" else [implementation]
        if text := " in ".join([*parts, *names[:1]]):
            yield Line("attention", text, Evidence.SHOWN)
        is_apart = self.leak is None and not self._is_apart_unknown
        if evidence.alone_gap is not None and is_apart and self._has_neighbors:
            limit = parity_limit_of(evidence.dtype)
            if evidence.alone_gap <= limit:
                place = "" if evidence.is_cut else ", in rows of the same length,"
                # Rounding differs from machine to machine.
                gap = f"{round(evidence.alone_gap, 6):.1e}"
                text = f"{evidence.alone_by} of samples alone{place} differ by {gap}"
                yield Line("positions", text, Evidence.SHOWN)
        elif self._has_neighbors:
            text = ", nor with its parts on other ranks" if trial.has_parts else ""
            yield Line("positions", f"not compared with a sample alone{text}")

    def _isolation(self) -> Line:
        evidence, trial = self._evidence, self._evidence.trial
        if trial.exchanged is None and self.leak is None:
            return Line("isolation", "no row of this batch is known to hold two samples")
        if self._is_apart_unknown:
            text = "other tokens in a sample do not even move the sample's own numbers"
            return Line("isolation", text)
        if self.leak is not None:
            return Line("isolation", f"neighbors move from {self.leak.name} on", Evidence.SHOWN)
        if self._everywhere is not None:
            return Line("isolation", f"tokens of all rows move in {self._everywhere.name}")
        number = sum(layer.name != "loss" for layer in evidence.layers)
        parts = [counted(number, "layer")] if number else []
        parts += ["losses"] if number < len(evidence.layers) else []
        largest = evidence.largest(evidence.reach.exposed)
        verb = f"move by {largest:.1e}, as rounding does" if largest else "do not move"
        suffix = "" if evidence.backward else "; gradients not looked at"
        scope = f"{verb} ({' and '.join(parts)}{suffix})"
        if trial.is_padding:
            # Rows may hold samples that no word tells apart, and these may see each other.
            text = (
                "no row of this batch is known to hold two samples; other tokens in the padding: "
            )
            return Line("isolation", f"{text}the samples {scope}")
        return Line("isolation", f"other tokens in one sample: the others {scope}", Evidence.SHOWN)

    @property
    def _has_neighbors(self) -> bool:
        """True if a row is known to hold two samples."""
        segments = self._evidence.trial.segments
        return len(segments) > len({segment.row for segment in segments})

    @property
    def _is_apart_unknown(self) -> bool:
        """True if the exchange did not even move the exchanged tokens themselves."""
        evidence, trial = self._evidence, self._evidence.trial
        is_sample = trial.exchanged is not None and not trial.is_padding
        return is_sample and evidence.largest(evidence.reach.own) <= rounding_of(evidence.dtype)

    def _findings(self) -> Iterator[Finding]:
        evidence = self._evidence
        if self.leak is not None:
            yield self._leak_finding(self.leak)
        elif self._everywhere is not None:
            name = self._name(self._everywhere.name)
            detail = (
                f"other tokens in one row move tokens of other rows, or before them, first in {name}: "
                "statistics, scales or attention over the whole batch, so isolation could not be shown"
            )
            yield shown("isolation", detail, judgment=Judgment.SUSPECT)
        elif not self._is_apart_unknown:
            yield from self._leak_of_gradients()
            yield from self._gaps()
        if early := evidence.trial.early:
            detail = (
                f"positions begin {early} before the first one of this model (pad_token_id + 1)"
            )
            yield shown("positions", detail, change="number samples from pad_token_id + 1")
        yield from self._wrong_output()
        yield from self._auxiliary_loss()

    def _leak_of_gradients(self) -> Iterator[Finding]:
        """Yield a neighbor at whose tokens a sample has gradients, which moves nothing forward."""
        backward = self._evidence.backward
        if backward and (leak := self._found_in([backward])):
            detail = (
                f"only the backward: a sample has gradients at {leak.moved} of "
                f"{leak.segment.length} tokens of the sample at {_place(leak.segment)}"
            )
            change = "a kernel that gets the boundaries in its backward too"
            yield shown("isolation", detail, "neighbors_seen", change)

    def _leak_finding(self, leak: LayerLeak) -> Finding:
        evidence, trial = self._evidence, self._evidence.trial
        neighbor = leak.segment
        sizes = {layer.name: layer.sizes for layer in evidence.layers}
        layers = [layer.name for layer in evidence.layers if layer.name != "loss"]
        number = f" (layer {leak.layer + 1} of {len(layers)})" if leak.layer < len(layers) else ""
        if trial.exchanged is None:
            place, side = "a sample on another rank", ""
        else:
            noun = "padding" if trial.is_padding else "the sample"
            place = f"{noun} at {_place(trial.exchanged)}"
            is_later = trial.exchanged.start < neighbor.start
            side = f", {'after' if is_later else 'before'} it"
        detail = (
            f"other tokens in {place} move {leak.moved} of {neighbor.length} tokens of the "
            f"sample at {_place(neighbor)}{side}, first in {self._name(leak.name)}{number}, "
            f"by {leak.size:.1e}"
        )
        if "loss" in sizes:
            largest = float((sizes["loss"] * evidence.reach.exposed).max())
            detail += f"; losses of others move by up to {largest:.1e}"
        problem, change = self._cause(leak)
        return shown("isolation", detail, problem, change)

    def _name(self, layer: str) -> str:
        module = self._call.layers.get(layer)
        kind = "" if module is None else f" ({type(module).__name__})"
        stage = f"stage {self._call.stage} of {self._call.stages}, " if self._call.stage else ""
        return f"{stage}{'the losses' if layer == 'loss' else layer}{kind}"

    def _cause(self, leak: LayerLeak) -> tuple[str, str]:
        """Return the problem and the change that the circumstances of a leak suggest."""
        evidence, trial = self._evidence, self._evidence.trial
        if trial.is_padding:
            return "padding_seen", "give the mask of padding to every layer"
        module = self._call.layers.get(leak.name)
        classes = {type(part).__name__.lower() for part in module.modules()} if module else set()
        if any(word in name for word in _STATE_WORDS for name in classes):
            return (
                "state_crosses",
                "give seq_idx and cu_seq_lens to layers with a state, and install kernels that "
                "obey them (causal-conv1d, flash-linear-attention, mamba-ssm); or one sample a row",
            )
        if trial.mask == "pairs":
            return (
                "mask_replaced",
                "an attention implementation that takes this mask: sdpa or eager",
            )
        if trial.mask == "tokens":
            return "mask_hides_packs", "leave attention_mask out of packed batches"
        is_default = bool(getattr(self._config, "use_cache", False))
        has_cache = self._call.arguments.get("use_cache", is_default)
        if has_cache and (evidence.mode_gap or 0.0) > parity_limit_of(evidence.dtype):
            return (
                "neighbors_seen",
                "use_cache=False: with a cache packed samples are not looked for",
            )
        arguments = self._call.arguments
        if any(
            role_of(name) is Role.POSITIONS and 3 in getattr(value, "shape", ())[:2]
            for name, value in arguments.items()
        ):
            return "boundaries_missing", "position_ids of 4 rows, the positions of the text first"
        is_given = any(map(trial.is_told_by, evidence.given.get(leak.name, ())))
        if not is_given and (leak.layer > 0 or self._call.stage > 1):
            return "boundaries_lost", f"give the boundaries to {leak.name} as well"
        if not is_given and not any(map(trial.is_told_by, tree_leaves(arguments))):
            return (
                "boundaries_missing",
                "give the model positions that begin again, cu_seq_lens or a mask of all pairs",
            )
        return (
            "boundaries_ignored",
            "an attention that obeys the boundaries (flash_attention_2, or a mask of all pairs), or "
            "a state that begins again with each sample",
        )

    def _gaps(self) -> Iterator[Finding]:
        """Yield differences between packed and alone, and between training and evaluation."""
        evidence = self._evidence
        limit = parity_limit_of(evidence.dtype)
        if evidence.mode_gap is not None and evidence.mode_gap > limit:
            detail = (
                f"the same batch gives other losses in evaluation than in training: by "
                f"{evidence.mode_gap:.1e}, with dropout at 0"
            )
            yield shown(
                "isolation",
                detail,
                "evaluation_differs",
                "use the same attention and the same batches in training and evaluation",
                Judgment.SUSPECT,
            )
        elif evidence.alone_gap is not None and evidence.alone_gap > limit:
            place = ", in a row of their own length" if evidence.is_cut else ""
            detail = (
                f"{evidence.alone_by} of samples differ by {evidence.alone_gap:.1e} from the same "
                f"samples alone{place}, although no sample sees another"
            )
            yield shown(
                "positions",
                detail,
                "positions_run_on" if evidence.trial.positions_run_on else "",
                "number every sample from the same position, and scale positions alike in all rows",
                Judgment.WRONG if evidence.trial.positions_run_on else Judgment.SUSPECT,
            )

    def _wrong_output(self) -> Iterator[Finding]:
        vocab, channels = size_of(self._config, "vocab_size"), size_of(self._config, "hidden_size")
        if vocab is None or channels is None or vocab == channels:
            return
        for name, width in self._evidence.outcome.widths.items():
            is_hidden = "hidden" in name
            if (is_hidden and width == vocab) or (name == "logits" and width == channels):
                kind = "logits of the vocabulary" if is_hidden else "hidden states"
                detail = f"{name} of the output has {width} channels: these are {kind}"
                judgment = Judgment.WRONG if is_hidden else Judgment.SUSPECT
                change = "compute the loss from the output that the model returns"
                yield shown("targets", detail, "wrong_output", change, judgment)

    def _auxiliary_loss(self) -> Iterator[Finding]:
        """Yield a balance of experts that was asked for and is missing or 0."""
        is_default = bool(getattr(self._config, "output_router_logits", False))
        if not self._call.arguments.get("output_router_logits", is_default):
            return
        losses = self._evidence.outcome.extra_losses
        for name in ROUTER_LOSSES:
            if name in losses and not losses[name]:
                detail = f"output_router_logits is set, and {name} is {losses[name]}"
                change = "add the loss that balances experts to the loss of packed rows"
                yield shown("targets", detail, "auxiliary_loss", change)


def shown(
    topic: str,
    detail: str,
    problem: str = "",
    change: str = "",
    judgment: Judgment = Judgment.WRONG,
) -> Finding:
    """Return a finding that a probe has shown."""
    return Finding(topic, judgment, detail, Evidence.SHOWN, problem, change)


def _place(segment: RowSegment) -> str:
    """Return the place of a segment: ``row 0, 12 to 20``."""
    return f"row {segment.row}, {segment.start:,} to {segment.stop:,}"


def merged(reports: Mapping[int, DoctorReport]) -> DoctorReport:
    """Return one report of all ranks, the same on each of them; what all ranks say is said once.

    >>> line = Line("isolation", "others do not move", Evidence.SHOWN)
    >>> reports = {0: DoctorReport("probe", (line,)), 1: DoctorReport("probe", ())}
    >>> merged(reports).lines[0].text
    'rank 0: others do not move'
    """
    lines: dict[Line, list[int]] = {}
    findings: dict[tuple[Any, ...], list[tuple[int, Finding]]] = {}
    for rank in sorted(reports):
        for line in reports[rank].lines:
            lines.setdefault(line, []).append(rank)
        # Numbers differ from rank to rank: a fault is told once, with the first rank's.
        for item in reports[rank].findings:
            key = (item.topic, item.judgment, item.problem, item.change)
            findings.setdefault(key, []).append((rank, item))

    def prefix(ranks: Sequence[int]) -> str:
        return "" if len(ranks) == len(reports) else f"{rank_names(ranks)}: "

    all_lines: dict[str, list[Line]] = {}
    for line, ranks in lines.items():
        lines_of_topic = all_lines.setdefault(line.topic, [])
        if len(lines_of_topic) < _MAX_LINES:
            lines_of_topic.append(replace(line, text=prefix(ranks) + line.text))
    report = DoctorReport(
        "probe",
        tuple(itertools.chain.from_iterable(all_lines.values())),
        tuple(
            replace(pairs[0][1], detail=prefix(sorted(dict(pairs))) + pairs[0][1].detail)
            for pairs in findings.values()
        ),
        tuple(dict.fromkeys(note for report in reports.values() for note in report.notes)),
    )
    # Of several lines of a topic the strongest evidence counts.
    return replace(report.with_others(), subject=report.subject)


def combined(report: DoctorReport, *reports: DoctorReport) -> DoctorReport:
    """Return one report of a probe, of the batch that it ran and of the step.

    A fault that was shown is not told as seen as well. A mask that may hide samples hides none
    where these were shown to be apart.
    """
    subject, report = report.subject, report.with_others(*reports)
    faults = {
        (item.topic, item.problem) for item in report.findings if item.evidence is Evidence.SHOWN
    }
    if report.isolation is Evidence.SHOWN and "isolation" not in dict(faults):
        faults.add(("isolation", "mask_hides_packs"))
    findings = (
        item
        for item in report.findings
        if item.evidence is Evidence.SHOWN or (item.topic, item.problem) not in faults
    )
    return replace(report, subject=subject, findings=tuple(findings))


def report_of_all(talk: RankTalk, report: DoctorReport, question: str = "report") -> DoctorReport:
    """Ask all ranks for their reports and merge them."""
    answers = talk.ask(question, report.as_dict())
    reports = {rank: DoctorReport.from_dict(value) for rank, value in answers.values.items()}
    report = merged(reports)
    if answers.missing:
        note = f"no report from {rank_names(answers.missing)}"
        report = replace(report, notes=(*report.notes, note))
    return report


def tell(report: DoctorReport, *, is_first: bool, raises: bool) -> None:
    """Log findings on the first rank, and print a report without any; raise it on all ranks if it
    has findings and the caller wants that.

    Raises:
        BrimfulError: the report.
    """
    if is_first and report.ok:
        print(report, file=sys.stderr, flush=True)
    elif is_first:
        logging.getLogger("brimful").warning("%s", report)
    if raises and not report.ok:
        raise BrimfulError(str(report))


def not_shown(reason: str) -> DoctorReport:
    """Return the report of a probe that stopped."""
    return DoctorReport("probe", (Line("isolation", f"not shown: {reason}"),))
