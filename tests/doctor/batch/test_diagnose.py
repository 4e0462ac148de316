"""Diagnosis of batches: nothing right is accused, and each check sees the fault that it looks for."""

from hypothesis import given
from hypothesis import strategies as st
from transformers import DataCollatorForSeq2Seq, DataCollatorWithFlattening  # noqa: F401
from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

from brimful.doctor.batch.diagnose import diagnose
from tests.doctor.batch.strategies import LENGTHS, made


def alone(case):
    return [
        {"input_ids": sample, "labels": [t if f else -100 for t, f in zip(sample, trained, strict=True)]}
        for sample, trained in zip(case.samples, case.targets, strict=True)
    ]


@given(case=made())
def test_no_batch_of_the_project_is_accused(case):
    """A tool that accuses right runs is not asked twice."""
    report = diagnose(case.batch, samples=alone(case), num_items=sum(map(sum, case.targets)))
    assert report.ok, str(report)
    assert all(line.evidence.value in ("seen", "unknown") for line in report.lines)


@st.composite
def rows(draw):
    """Samples with labels, as a dataset has them."""
    lengths = draw(LENGTHS)
    samples = []
    for size in lengths:
        ids = draw(st.lists(st.integers(1, 60), min_size=size, max_size=size))
        masks = draw(st.lists(st.booleans(), min_size=size, max_size=size))
        masks[-1] = True
        labels = [token if flag else -100 for token, flag in zip(ids, masks, strict=True)]
        samples.append({"input_ids": ids, "labels": labels})
    return samples


@given(
    samples=rows(),
    flags=st.tuples(st.booleans(), st.booleans(), st.booleans()),
    start=st.sampled_from((0, 2)),
)
def test_flattening_of_transformers_is_not_accused(samples, flags, start):
    collate = DataCollatorWithFlattening(
        return_position_ids=flags[0],
        return_flash_attn_kwargs=flags[1],
        return_seq_idx=flags[2],
        position_ids_start=start,
    )
    report = diagnose(collate(samples))
    assert report.ok, str(report)


@given(samples=rows(), multiple=st.sampled_from((None, 8)), packed=st.booleans(), padding_free=st.booleans())
def test_collators_of_trl_are_not_accused(samples, multiple, packed, padding_free):
    collate = DataCollatorForLanguageModeling(pad_token_id=0, padding_free=padding_free, pad_to_multiple_of=multiple)
    if packed and padding_free:
        lengths = [len(sample["input_ids"]) for sample in samples]
        whole = {name: [token for sample in samples for token in sample[name]] for name in samples[0]}
        samples = [{**whole, "seq_lengths": lengths}]
    report = diagnose(collate(samples))
    assert report.ok, str(report)
