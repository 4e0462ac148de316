"""Faults that the gallery of threads does not have, each found by its own check, and their mended twins."""

from dataclasses import dataclass, field
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from brimful.doctor.batch.diagnose import diagnose  # noqa: E402
from tests.doctor.faults.batches import int32, one_row, varlen  # noqa: E402

SAMPLES = [[1, 5, 6, 2], [1, 7, 8, 9, 2]]
IGNORE = -100


@dataclass
class Case:
    """A faulty batch, its mended twin, and what the finding must say."""

    problem: str
    text: str
    faulty: Any
    mended: Any
    known: dict[str, Any] = field(default_factory=dict)


def packed(**others: Any) -> dict[str, Any]:
    return {**one_row(SAMPLES, **varlen(SAMPLES)), **others}


def labeled(labels: list[int]) -> dict[str, Any]:
    return packed(labels=torch.tensor([labels]))


def two_rows(boundaries: list[int]) -> dict[str, Any]:
    """Four samples in two rows of six tokens, with one list of boundaries."""
    ids = torch.tensor([[1, 5, 2, 1, 6, 2], [1, 7, 2, 1, 8, 2]])
    return {"input_ids": ids, "cu_seqlens": int32(boundaries)}


def pairs_mask(leak: bool) -> dict[str, Any]:
    numbers = torch.tensor([0] * 4 + [1] * 5)
    mask = torch.ones(9, 9).tril().bool()
    if not leak:
        mask &= numbers[:, None] == numbers
    return {**one_row(SAMPLES), "attention_mask": mask[None, None]}


def rows_of_media(restart: bool) -> dict[str, Any]:
    text = [*range(4), *range(5)]
    other = text if restart else list(range(9))
    return packed(position_ids=torch.tensor([text, other, other, other])[:, None])


def padded_row(trained: bool) -> dict[str, Any]:
    labels = [IGNORE, 5, 6, 2, *[0 if trained else IGNORE] * 3]
    return {
        "input_ids": torch.tensor([[1, 5, 6, 2, 0, 0, 0]]),
        "labels": torch.tensor([labels]),
        "attention_mask": torch.tensor([[1, 1, 1, 1, 0, 0, 0]]),
    }


def answers(rejected: list[int], boundaries: list[int]) -> dict[str, Any]:
    """Two chosen answers and some rejected ones, each half in one row of nine tokens."""
    ends = int32([0, 4, 9])
    ids = torch.tensor([[token for sample in SAMPLES for token in sample]])
    return {
        "chosen_input_ids": ids,
        "chosen_cu_seq_lens_q": ends,
        "rejected_input_ids": torch.tensor([rejected]),
        "rejected_cu_seq_lens_q": int32(boundaries),
        "rejected_padding_mask": torch.tensor([[int(token == 0) for token in rejected]]),
    }


RIGHT = [IGNORE, 5, 6, 2, IGNORE, 7, 8, 9, 2]
CASES = {
    "words that contradict": Case(
        "boundaries_short",
        "contradict each other at 2 places",
        packed(cu_seq_lens_k=int32([0, 5, 9])),
        packed(),
    ),
    "no boundary between rows": Case(
        "boundaries_short",
        "no boundary at row 1, token 0",
        two_rows([0, 3, 9, 12]),
        two_rows([0, 3, 6, 9, 12]),
    ),
    "longest too short": Case(
        "boundaries_short",
        "max_length_q is 4, and the longest segment has 5",
        packed(max_length_q=4),
        packed(),
    ),
    "boundaries that fall": Case(
        "boundaries_short",
        "is not a running sum",
        packed(cu_seq_lens_q=int32([0, 5, 4, 9])),
        packed(),
    ),
    "mask of pairs that leaks": Case(
        "neighbors_seen",
        "lets 5 tokens see another sample: token 4 sees token 0",
        pairs_mask(leak=True),
        pairs_mask(leak=False),
    ),
    "mRoPE runs on": Case(
        "positions_run_on",
        "time, height and width",
        rows_of_media(restart=False),
        rows_of_media(restart=True),
    ),
    "first token trained": Case(
        "wrong_targets",
        "the first token of 1 sample is predicted from the last token of the sample before: token 4",
        labeled([IGNORE, 5, 6, 2, 1, 7, 8, 9, 2]),
        labeled(RIGHT),
    ),
    "padding trained": Case(
        "wrong_targets",
        "2 tokens of padding are trained",
        padded_row(trained=True),
        padded_row(trained=False),
    ),
    "labels shifted twice": Case(
        "wrong_targets",
        "100.0 % of labels are the token after the next one",
        labeled([6, 2, IGNORE, IGNORE, 8, 9, 2, IGNORE, IGNORE]),
        labeled([5, 6, 2, IGNORE, 7, 8, 9, 2, IGNORE]),
    ),
    "labels in the wrong direction": Case(
        "wrong_targets",
        "the token before",
        labeled([IGNORE, IGNORE, 5, 6, IGNORE, IGNORE, 7, 8, 9]),
        labeled(RIGHT),
    ),
    "labels that are not integers": Case(
        "wrong_targets",
        "labels are float32, not integers",
        packed(labels=torch.tensor([RIGHT], dtype=torch.float32)),
        packed(),
    ),
    "nothing trained": Case(
        "wrong_targets",
        "no token is trained: all 9 labels are -100",
        labeled([IGNORE] * 9),
        labeled(RIGHT),
    ),
    "mask of VeOmni with sdpa": Case(
        "mask_hides_packs",
        "sdpa takes it for a mask of padding",
        packed(attention_mask=torch.ones(1, 9), linear_attn_cu_seq_lens_q=int32([0, 4, 9])),
        packed(linear_attn_cu_seq_lens_q=int32([0, 4, 9])),
        {"config": {"attn_implementation": "sdpa"}},
    ),
    "boundaries of 64 bits": Case(
        "number_types",
        "cu_seq_lens_q is int64",
        packed(cu_seq_lens_q=torch.tensor([0, 4, 9])),
        packed(),
    ),
    "positions of 16 bits": Case(
        "number_types",
        "rounds positions above 256",
        packed(position_ids=one_row(SAMPLES)["position_ids"].bfloat16()),
        packed(),
    ),
    "answers that do not pair": Case(
        "samples_lost",
        "2 of chosen and 1 of rejected",
        answers([1, 5, 6, 2], [0, 4]),
        answers([1, 5, 6, 2, 1, 7, 2], [0, 4, 7]),
    ),
    "padding as an answer": Case(
        "padding_as_samples",
        "rejected_cu_seq_lens_q has 3 segments, and 2 of them hold a sample",
        answers([1, 5, 6, 2, 1, 7, 2, 0, 0], [0, 4, 7, 9]),
        answers([1, 5, 6, 2, 1, 7, 2, 0, 0], [0, 4, 7]),
    ),
    "divisor of the caller": Case(
        "divisor",
        "the divisor is 9, and the batch has 7 targets (all tokens are counted)",
        packed(),
        one_row([[*SAMPLES[0]], [*SAMPLES[1], 4, 4]]),
        {"num_items": 9},
    ),
    "segments of odd lengths": Case(
        "alignment",
        "2 segments of 2 have a length that is no multiple of 3, such as 4",
        packed(),
        one_row([[1, 5, 2], [1, 7, 8, 9, 9, 2]]),
        {"config": {"segment_multiple": 3}},
    ),
    "sample cut in two": Case(
        "boundaries_guessed",
        "sample 1 of 5 tokens into 2, the first at token 4",
        one_row([[1, 5, 6, 2], [1, 7, 8], [9, 2]]),
        packed(),
        {"samples": SAMPLES},
    ),
    "sample cut off": Case(
        "samples_cut",
        "sample 1 of 5 tokens with 3 of them, at token 4",
        one_row([[1, 5, 6, 2], [1, 7, 8]]),
        packed(),
        {"samples": SAMPLES},
    ),
    "samples merged": Case(
        "boundaries_missing",
        "2 samples share 1 segment",
        one_row([[*SAMPLES[0], *SAMPLES[1]]]),
        packed(),
        {"samples": SAMPLES},
    ),
    "sample missing": Case(
        "samples_lost",
        "1 sample of 2 are not in the batches: 1",
        one_row(SAMPLES[:1]),
        packed(),
        {"samples": SAMPLES, "is_whole": True},
    ),
    "sample twice": Case(
        "samples_repeated",
        "sample 0 2 times",
        [packed(), one_row(SAMPLES[:1])],
        packed(),
        {"samples": SAMPLES},
    ),
    "prompt trained": Case(
        "wrong_targets",
        "trained, and not in the labels of the samples alone: 1 of sample 0",
        packed(),
        labeled([IGNORE, IGNORE, 6, 2, IGNORE, 7, 8, 9, 2]),
        {"samples": [{"input_ids": SAMPLES[0], "labels": [IGNORE, IGNORE, 6, 2]}, {"input_ids": SAMPLES[1]}]},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_fault_is_found(name):
    case = CASES[name]
    findings = diagnose(case.faulty, **case.known).findings
    assert any(item.problem == case.problem and case.text in item.detail for item in findings), findings


@pytest.mark.parametrize("name", CASES)
def test_the_mended_twin_is_not_accused(name):
    case = CASES[name]
    report = diagnose(case.mended, **case.known)
    assert report.ok, str(report)


def test_more_than_three_places_are_counted():
    samples = [[1, 5, 2]] * 5
    batch = {**one_row(samples), "labels": torch.tensor([[1, 5, 2] * 5])}
    details = [finding.detail for finding in diagnose(batch).findings]
    assert any(text.endswith(": token 3; token 6; token 9 and 1 more") for text in details), details


@pytest.mark.parametrize("attention", [None, "veomni_flash_attention_2_with_sp"])
def test_own_attention_of_veomni_reads_boundaries_next_to_a_mask(attention):
    batch = packed(attention_mask=torch.ones(1, 9), linear_attn_cu_seq_lens_q=int32([0, 4, 9]))
    report = diagnose(batch, config={"attn_implementation": attention})
    assert report.ok, str(report)
