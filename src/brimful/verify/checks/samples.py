"""Is every sample in the batch once, and is it left as it was?"""

from __future__ import annotations

from brimful.verify.report import Finding, Status
from brimful.verify.subject import Subject

__all__ = ["check_complete", "check_untouched"]


def check_untouched(subject: Subject) -> Finding:
    """A collator that writes into its samples spoils them for the next epoch, where they are cached."""
    features = subject.case.copies()
    subject.collator(features)
    changed = subject.case.changed(features)
    if not changed:
        return Finding("untouched", Status.PASS)
    index, key = changed[0]
    return Finding(
        "untouched",
        Status.FAIL,
        detail=f"{len(changed)} fields of {len({index for index, _ in changed})} samples changed: {key!r} of {index}",
        cause=f"the collator writes into the {key} of the sample it is given (in-place labels)",
        way_out="copy before writing: a cached sample is collated again in the next epoch",
    )


def check_complete(subject: Subject) -> Finding:
    """Row and token counts can be right while one sample is missing and another is there twice."""
    batch, segments = subject.batch, subject.case.segments
    if not batch.found.certain:
        return Finding(
            "complete",
            Status.NOT_SUPPORTED,
            detail="where the samples lie is not certain: the collator lays tokens that occur once out in another way, or "
            "refuses them, and the tokens of these samples fit into the batch in several ways",
            way_out="verify with samples of which none can be read out of others: no repeats, no sample of a single token",
        )
    lost = [segment for segment, place in zip(segments, batch.places, strict=True) if place is None]
    foreign = int((batch.free & ~batch.padding).sum())
    if not lost and not foreign:
        return Finding("complete", Status.PASS, detail=f"{len(segments)} samples, each once")
    parts = []
    if lost:
        names = ", ".join(f"{segment.name} ({len(segment.ids)} tokens)" for segment in lost[:4])
        parts.append(f"{len(lost)} of {len(segments)} samples are not in the batch as a whole: {names}")
    if foreign:
        parts.append(f"{foreign} tokens belong to no sample and are no padding")
    if batch.found.repeated:
        cause = f"{segments[batch.found.repeated[0]].name} is repeated" + (
            f" and {lost[0].name} is lost" if lost else ""
        )
    elif lost:
        cause = f"{lost[0].name} is lost, truncated or split by the collator"
    else:
        cause = "the collator adds tokens of its own between samples, or pads with several tokens"
    return Finding(
        "complete", Status.FAIL, detail="; ".join(parts), cause=cause, way_out="count samples and tokens in and out"
    )
