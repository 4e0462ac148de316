"""Diagnosis of batches of any loader: what is in them, and what contradicts itself."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from brimful.base.checks import whole_number
from brimful.base.wording import counted
from brimful.doctor.batch.checks import BATCH_CHECKS, RUN_CHECKS
from brimful.doctor.batch.checks.samples import check_number, check_samples, samples_alone
from brimful.doctor.batch.lines import lines_of, notes_of
from brimful.doctor.batch.run_facts import RunFacts
from brimful.doctor.batch.view import BatchView, read_batch
from brimful.doctor.batch.words import (
    PREFIXES,
    Role,
    is_container,
    leaves_of,
    name_and_prefix_of,
    role_of,
)
from brimful.doctor.report import DoctorReport, Evidence, Finding, Line

__all__ = ["diagnose"]

_UNREAD = (
    "not judged, as the loader may have more batches: brimful doctor --batches reads more (in "
    "Python: all batches, and is_whole=True)"
)
"""Words on samples that are in none of the batches that were read."""


def diagnose(
    batch: Any,
    *,
    samples: Sequence[Any] | int | None = None,
    tokenizer: Any = None,
    num_items: int | None = None,
    config: Any = None,
    is_whole: bool = False,
) -> DoctorReport:
    """Read batches of any loader, and tell what is in them and what contradicts itself.

    ::

        tokens         a a a b b b      loader    one row, two samples, a mask of ones
        position_ids   0 1 2 0 1 2      finding   the mask hides the packs
        mask           1 1 1 1 1 1

    Nothing is computed by a model, and nothing is changed: that the model obeys what a batch says
    is what ``probe`` shows.

    Args:
        batch: one batch, or a list of batches: mappings, objects with attributes or pairs of inputs
            and labels, with tensors, arrays or lists. Tokens are ``[B, T]`` or ``[T]``; names are
            those of any trainer that ``docs/doctor.md`` lists.
        samples: the samples that the loader makes batches of, alone: lists of tokens, or mappings
            with ``input_ids`` and perhaps ``labels``, not shifted. Or only their number.
        tokenizer: an object with ``eos_token_id``, ``bos_token_id`` and ``decode``.
        num_items: the number by which the loss of the step with these batches is divided.
        config: what is known of the run: a mapping or an object with settings of the trainer
            (``packing``, ``padding_free``), of the model (``attn_implementation``,
            ``eos_token_id``), and ``max_length``, ``row_multiple`` and ``segment_multiple``.
        is_whole: true if these are all batches of the samples, such as a loader read to its end. A
            sample that is in none of them is missing then; otherwise a line tells the number.

    Returns:
        Lines that were *seen* in the batches, and findings. Notes hold the text of the first
        segments, with the trained text in ``«…»``, if there is a tokenizer.

    Raises:
        WrongTypeError: not a batch.
        CollateError: no token ids under a known name.

    >>> batch = {"input_ids": [[5, 6, 7, 8]], "labels": [[5, 6, 7, 8]], "seq_lengths": [[2, 2]]}
    >>> print(diagnose(batch).findings[0].detail)
    the first token of 1 sample is predicted from the last token of the sample before: token 2
    """
    facts = RunFacts.of(tokenizer, config, num_items)
    views = [
        read_batch(item, prefix=prefix, facts=facts)
        for item in batches_of(batch)
        for prefix in _prefixes_of(item)
    ]
    findings, lines = list(_findings_of(views)), list(lines_of(views))
    if samples is not None and not any(view.why_unread for view in views):
        if isinstance(samples, int):
            results = list(check_number(views, whole_number("samples", samples, minimum=0)))
        else:
            results = list(check_samples(views, samples_alone(samples)))
            if all(finding.problem == "samples_lost" for finding in results):
                text = "samples that were given are segments of their own"
                matches = DoctorReport("", (Line("isolation", text, Evidence.SEEN),))
                lines = list(DoctorReport("", tuple(lines)).with_others(matches).lines)
        for finding in results:
            # Samples that were not seen may come in batches that were not read.
            if finding.problem == "samples_lost" and not is_whole:
                lines.append(Line(finding.topic, f"{finding.detail}; {_UNREAD}"))
            else:
                findings.append(finding)
    return DoctorReport(_subject(views), tuple(lines), tuple(findings), tuple(notes_of(views)))


def batches_of(batch: Any) -> list[Any]:
    """Return the batches of an argument: of a list, or the one that it is.

    A list or tuple of a container and an array is one batch: inputs and labels.

    >>> pair = ({"input": [[1]]}, [[2]])
    >>> len(batches_of(pair)), len(batches_of([pair, pair])), len(batches_of([[1, 2], [3, 4]]))
    (1, 2, 1)
    """
    if not isinstance(batch, (list, tuple)) or hasattr(batch, "_fields"):
        return [batch]
    are_batches = [is_container(item) or _is_pair(item) for item in batch]
    return list(batch) if batch and all(are_batches) else [batch]


def _is_pair(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and len(value) == 2 and is_container(value[0])


def _prefixes_of(batch: Any) -> list[str]:
    """Return the prefixes under which a batch has tokens."""
    prefixes = {
        prefix
        for path, _ in leaves_of(batch)
        for name, prefix in [name_and_prefix_of(path)]
        if role_of(name) is Role.IDS
    }
    return sorted(prefixes, key=("", *PREFIXES).index) or [""]


def _findings_of(views: Sequence[BatchView]) -> Iterator[Finding]:
    """Ask all questions. The same finding in several batches is told once, with their number."""
    numbers: dict[tuple[object, ...], list[Finding]] = {}
    for view in views:
        if view.why_unread:
            continue
        for check in BATCH_CHECKS:
            for finding in check(view):
                identity = (check, finding.topic, finding.judgment, finding.problem)
                numbers.setdefault(identity, []).append(finding)
    for own in numbers.values():
        # Several words and several batches may have the same fault.
        more = f" (and {len(own) - 1:,} more like it)" if len(own) > 1 else ""
        yield replace(own[0], detail=own[0].detail + more)
    if not any(view.why_unread for view in views):
        for check_run in RUN_CHECKS:
            yield from check_run(views)


def _subject(views: Sequence[BatchView]) -> str:
    shapes = {view.shape for view in views}
    rows, width = views[0].shape
    shape = f"[{rows}, {width:,}]" if len(shapes) == 1 else "several shapes"
    names = ", ".join(dict.fromkeys(word.name or str(word) for word in views[0].words))
    number = counted(len(views), "batch") if len(views) == 1 else f"{len(views):,} batches"
    return f"{number} of {shape}: {names}"
