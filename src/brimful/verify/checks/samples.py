"""Samples in the batch: each present once, and unchanged by the collator."""

from brimful.verify.setup import PackingSetup
from brimful.verify.verify_report import Finding, failed, joined, not_supported, passed

_MAX_NAMED_SAMPLES = 4
"""Maximum number of lost samples that one message names."""


def check_inputs_unmodified(setup: PackingSetup) -> Finding:
    """Find fields that the collator writes into: cached samples would be spoiled for the next epoch."""
    features = setup.samples.copies()
    setup.collator(list(features))
    modifications = setup.samples.modified_fields(features)
    if not modifications:
        return passed("untouched")
    index, key = modifications[0]
    return failed(
        "untouched",
        f"{len(modifications)} fields of {len({index for index, _ in modifications})} samples changed: {key!r} of {index}",
        f"the collator writes into the {key} of the sample it is given (in-place labels)",
        "copy before writing: a cached sample is collated again in the next epoch",
    )


def check_complete(setup: PackingSetup) -> Finding:
    """Find lost, repeated and foreign tokens: row and token counts can be right with one sample lost and one repeated."""
    batch, segments = setup.batch, setup.samples.segments
    if not batch.layout.certain:
        return not_supported(
            "complete",
            "where the samples lie is not certain: the collator lays tokens that occur once out in another way, or "
            "refuses them, and the tokens of these samples fit into the batch in several ways",
            "verify with samples that cannot be confused with others: no repeats, no sample of a single token",
        )
    absent = [segment for segment, place in zip(segments, batch.layout.places, strict=True) if place is None]
    num_foreign = int((batch.free & ~batch.padding).sum())
    if not absent and not num_foreign:
        return passed("complete", f"{len(segments)} samples, each once")
    remarks = []
    if absent:
        names = ", ".join(f"{segment.name} ({len(segment.ids)} tokens)" for segment in absent[:_MAX_NAMED_SAMPLES])
        remarks.append(f"{len(absent)} of {len(segments)} samples are not in the batch as a whole: {names}")
    if num_foreign:
        remarks.append(f"{num_foreign} tokens belong to no sample and are not padding")
    # A repeat explains foreign tokens, and usually also the sample whose place it took.
    if batch.layout.repeated:
        cause = f"{segments[batch.layout.repeated[0]].name} is repeated"
        cause += f" and {absent[0].name} is lost" if absent else ""
    elif absent:
        cause = f"{absent[0].name} is lost, truncated or split by the collator"
    else:
        cause = "the collator adds tokens of its own between samples, or pads with several tokens"
    return failed("complete", joined(*remarks), cause, "count samples and tokens in and out")
