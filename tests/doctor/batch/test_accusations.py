"""Each accusation of the batch checks, by its text, and the nearest right neighbor, which is accused of nothing.

A batch and its neighbor differ in one number or one word. ``test_each_accusation_has_a_case`` reads the checks for calls of
``wrong`` and ``suspect``: a new one without a case fails.
"""

import ast
import inspect
import sys
from dataclasses import dataclass, field
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from brimful.doctor.batch import checks  # noqa: E402
from brimful.doctor.batch.diagnose import diagnose  # noqa: E402
from tests.doctor.faults.batches import IGNORE, Tokens, int32, one_row, padded, row, varlen, without  # noqa: E402

SAMPLES = [[1, 5, 6, 2], [1, 7, 8, 9, 2]]
IDS = [1, 5, 6, 2, 1, 7, 8, 9, 2]
LABELS = [IGNORE, 5, 6, 2, IGNORE, 7, 8, 9, 2]
RAMPS = [0, 1, 2, 3, 0, 1, 2, 3, 4]
TOKENS = Tokens({10: "<|im_start|>user", 11: "<|im_start|>assistant"})


@dataclass
class Case:
    """A batch, what is said of it, its neighbor, and what both know; ``other`` is what the neighbor knows instead.

    ``more`` is the number of further accusations that the same fault causes.
    """

    text: str
    faulty: Any
    right: Any
    known: dict[str, Any] = field(default_factory=dict)
    other: dict[str, Any] | None = None
    more: int = 0


def packed(**others: Any) -> dict[str, Any]:
    return {**one_row(SAMPLES, **varlen(SAMPLES)), **others}


def flat(**others: Any) -> dict[str, Any]:
    """Two samples in one row, told by positions alone."""
    return {**one_row(SAMPLES), **others}


def bare(ids: list[int] = IDS, **others: Any) -> dict[str, Any]:
    """Tokens without labels and positions."""
    return {"input_ids": row(ids), **others}


def filled(ids: list[int], **others: Any) -> dict[str, Any]:
    """Two samples and padding at either end, with labels that are not shifted."""
    labels = [IGNORE if token == 0 or token == 1 else token for token in ids]
    return {"input_ids": row(ids), "labels": row(labels), **others}


def pairs(*, leak: bool = False, padding: bool = False, empty: bool = False, kind: Any = torch.bool) -> Any:
    """A mask of all pairs of two samples and one token of padding, which sees itself."""
    numbers = torch.tensor([0] * 4 + [1] * 5 + [2])
    mask = (numbers[:, None] == numbers) & torch.ones(10, 10).tril().bool()
    if leak:
        mask[4, 0] = True
    if padding:
        mask[8, 9] = True
    if empty:
        mask[9, 9] = False
    if kind is not torch.bool:
        mask = torch.where(mask, 0.0, torch.finfo(torch.float32).min).to(kind)
    return {
        "input_ids": row([*IDS, 0]),
        "labels": row([*LABELS, IGNORE]),
        "position_ids": row([*RAMPS, 0]),
        "attention_mask": mask[None, None],
    }


def blind(sees: bool) -> dict[str, Any]:
    """A mask of all pairs in which token 4, the first of its sample, sees itself or nothing."""
    batch = pairs()
    batch["attention_mask"][0, 0, 4, 4] = sees
    return batch


def halves(rejected: list[list[int]], *ends: int) -> dict[str, Any]:
    """Two chosen answers and some rejected ones, each half in a row of its own."""
    ids = [token for sample in rejected for token in sample]
    return {
        "chosen_input_ids": row(IDS),
        "chosen_cu_seq_lens_q": int32([0, 4, 9]),
        "rejected_input_ids": row(ids),
        "rejected_cu_seq_lens_q": int32(ends),
        "rejected_padding_mask": row([int(token == 0) for token in ids]),
    }


def rope(start: int) -> dict[str, Any]:
    other = [*range(4), *range(start, start + 5)]
    return packed(position_ids=torch.tensor([RAMPS, other, other, other])[:, None])


def chat(*trained: int) -> dict[str, Any]:
    """A question and an answer in one segment, of which some places are trained."""
    ids = [4, 10, 5, 6, 12, 11, 7, 8]
    labels = [token if place in trained else IGNORE for place, token in enumerate(ids)]
    return {"input_ids": row(ids), "labels": row(labels), "position_ids": row(list(range(8)))}


def ended(*labels: int) -> dict[str, Any]:
    """Two samples and padding, with other labels at the ends of both."""
    own = LABELS.copy()
    own[3], own[8] = labels
    return {"input_ids": row([*IDS, 0]), "labels": row([*own, IGNORE]), "cu_seqlens": int32([0, 4, 9])}


def table(*rows: list[int], **others: Any) -> dict[str, Any]:
    return {"input_ids": torch.tensor(rows), **others}


SAME = {"samples": SAMPLES, "is_whole": True}
CASES = {
    # ---- alignment
    "row that is not a multiple": Case(
        "the row has 9 tokens, which is no multiple of 4: 1 too many",
        flat(),
        one_row([SAMPLES[0], [1, 7, 8, 2]]),
        {"config": {"row_multiple": 4}},
    ),
    "segment that is not a multiple": Case(
        "1 segment of 2 have a length that is no multiple of 4, such as 5",
        flat(),
        one_row([SAMPLES[0], [1, 7, 8, 2]]),
        {"config": {"segment_multiple": 4}},
    ),
    # ---- ends of boundaries
    "boundaries that are empty": Case(
        "cu_seqlens is empty: attention gets no boundaries at all",
        bare(cu_seqlens=int32([])),
        bare(cu_seqlens=int32([0, 4, 9])),
    ),
    "boundaries that fall": Case(
        "cu_seqlens falls: [0, 4, 3, 9] is not a running sum of lengths",
        bare(cu_seqlens=int32([0, 4, 3, 9])),
        bare(cu_seqlens=int32([0, 4, 4, 9])),
    ),
    "boundaries that begin late": Case(
        "cu_seqlens begins at 2: the tokens before belong to no sample",
        filled([0, 1, *IDS[:-1]], cu_seqlens=int32([2, 6, 10])),
        filled([0, 0, *IDS[:-1]], cu_seqlens=int32([2, 6, 10])),
    ),
    "boundaries that end beyond the row": Case(
        "cu_seqlens ends at 10, and the row has 9 tokens",
        bare(cu_seqlens=int32([0, 4, 10])),
        bare(cu_seqlens=int32([0, 4, 9])),
    ),
    "lengths that end beyond the row": Case(
        "seq_lengths ends at 10, and the row has 9 tokens",
        bare(seq_lengths=int32([[4, 6]])),
        bare(seq_lengths=int32([[4, 5]])),
    ),
    "boundaries that end before the tokens do": Case(
        "cu_seqlens ends at 9, and the 2 tokens after it are not padding (the row of 11 is 1.22 times as long)",
        filled([*IDS, 3, 0], cu_seqlens=int32([0, 4, 9])),
        filled([*IDS, 0, 0], cu_seqlens=int32([0, 4, 9])),
    ),
    "boundaries of a row that end beyond it": Case(
        "cu_seqlens of row 1 ends at 5, and the row has 4 tokens",
        table([1, 5, 1, 6], [1, 7, 1, 8], cu_seqlens=int32([[0, 2, 4], [0, 2, 5]])),
        table([1, 5, 1, 6], [1, 7, 1, 8], cu_seqlens=int32([[0, 2, 4], [0, 2, 4]])),
    ),
    "end mark that is missing": Case(
        "cu_seqlens_unpadded_argmin is in the batch and cu_seqlens_argmin is not: readers take the place of the least "
        "number of cu_seqlens, the 0 at the beginning, and no boundary remains",
        bare(
            cu_seqlens=int32([0, 4, 9]),
            cu_seqlens_unpadded=int32([0, 4, 9]),
            cu_seqlens_unpadded_argmin=int32([3]),
        ),
        bare(
            cu_seqlens=int32([0, 4, 9]),
            cu_seqlens_unpadded=int32([0, 4, 9]),
            cu_seqlens_unpadded_argmin=int32([3]),
            cu_seqlens_argmin=int32([3]),
        ),
    ),
    "end mark at another place": Case(
        "cu_seqlens_argmin is 2, and cu_seqlens ends at place 3: readers cut it to [0, 4]",
        bare(cu_seqlens=int32([[0, 4, 9, -1]]), cu_seqlens_argmin=int32([[2]])),
        bare(cu_seqlens=int32([[0, 4, 9, -1]]), cu_seqlens_argmin=int32([[3]])),
    ),
    # ---- boundaries and each other
    "words that contradict": Case(
        "cu_seq_lens_q and position_ids contradict each other at 2 places: cu_seq_lens_q begins a sample at token 5, "
        "position_ids begins a sample at token 4",
        packed(cu_seq_lens_q=int32([0, 5, 9]), cu_seq_lens_k=int32([0, 5, 9]), max_length_q=5),
        packed(),
        more=2,
    ),
    "keys in one piece": Case(
        "cu_seq_lens_q and cu_seq_lens_k contradict each other at 1 place: cu_seq_lens_q begins a sample at token 4",
        packed(cu_seq_lens_k=int32([0, 9])),
        packed(cu_seq_lens_k=int32([0, 4, 9])),
    ),
    "no boundary between rows": Case(
        "cu_seqlens has no boundary at row 1, token 0: kernels see the 2 rows as one, and a sample goes on in the next row",
        table([1, 5, 1, 6], [1, 7, 1, 8], cu_seqlens=int32([0, 2, 6, 8])),
        table([1, 5, 1, 6], [1, 7, 1, 8], cu_seqlens=int32([0, 2, 4, 6, 8])),
    ),
    "boundaries of the first row alone": Case(
        "cu_seqlens ends at 4, and the 4 tokens after it are not padding (the row of 8 is 2.00 times as long)",
        table([1, 5, 1, 6], [1, 7, 1, 8], cu_seqlens=int32([0, 2, 4])),
        table([1, 5, 1, 6], [0, 0, 0, 0], cu_seqlens=int32([0, 2, 4])),
    ),
    "longest that is too short": Case(
        "max_length_q is 4, and the longest segment has 5 tokens: kernels leave out its end",
        packed(max_length_q=4),
        packed(max_length_q=5),
    ),
    "mask that holds boundaries": Case(
        "attention_mask holds the boundaries [0, 4, 9], and models expect one value for each token",
        bare(attention_mask=int32([0, 4, 9])),
        bare(attention_mask=int32([1] * 9)),
    ),
    # ---- masks
    "mask of ones, with attention that believes it": Case(
        "attention_mask is all ones, and position_ids begins 2 samples in 1 row: sdpa takes it for a mask of padding, and "
        "looks no further",
        flat(attention_mask=row([1] * 9)),
        flat(),
        {"config": {"attn_implementation": "sdpa"}},
    ),
    "mask of numbers, with attention that believes it": Case(
        "attention_mask numbers the samples, and attention_mask begins 2 samples in 1 row: eager takes it for a mask of "
        "padding, and looks no further",
        flat(attention_mask=row([1] * 4 + [2] * 5)),
        flat(attention_mask=row([1] * 4 + [2] * 5)),
        {"config": {"attn_implementation": "eager"}},
        {"config": {"attn_implementation": "flash_attention_2"}},
    ),
    "mask of ones": Case(
        "attention_mask is all ones, and position_ids begins 2 samples in 1 row: attention that gets a mask does not look "
        "there",
        flat(attention_mask=row([1] * 9)),
        packed(attention_mask=row([1] * 9)),
    ),
    "mask of VeOmni, with attention that believes it": Case(
        "attention_mask is all ones, and cu_seq_lens_q begins 2 samples in 1 row: sdpa takes it for a mask of "
        "padding, and looks no further",
        packed(linear_attn_cu_seq_lens_q=int32([0, 4, 9]), attention_mask=row([1] * 9)),
        packed(linear_attn_cu_seq_lens_q=int32([0, 4, 9]), attention_mask=row([1] * 9)),
        {"config": {"attn_implementation": "sdpa"}},
        {"config": {"attn_implementation": "veomni_flash_attention_2_with_sp"}},
    ),
    "mask of padding": Case(
        "attention_mask marks padding alone, and cu_seq_lens_q begins 2 samples in 1 row: attention that gets a mask does "
        "not look there",
        {**filled([*IDS, 0], **varlen(SAMPLES)), "attention_mask": row([1] * 9 + [0])},
        filled([*IDS, 0], **varlen(SAMPLES)),
    ),
    "mask of pairs that leaks": Case(
        "attention_mask lets 1 token see another sample: token 4 sees token 0, and by attention_mask its sample begins at 4",
        pairs(leak=True),
        pairs(),
    ),
    "mask of pairs with padding": Case(
        "attention_mask lets 1 token of samples see padding",
        pairs(padding=True),
        pairs(),
    ),
    "token that sees nothing": Case(
        "attention_mask lets 1 token of samples see nothing",
        blind(sees=False),
        blind(sees=True),
    ),
    "padding that sees nothing": Case(
        "attention_mask lets 1 token of padding see nothing, in bfloat16",
        pairs(empty=True, kind=torch.bfloat16),
        pairs(empty=True, kind=torch.float32),
    ),
    # ---- positions
    "positions that run on": Case(
        "position_ids run on through the row: cu_seq_lens_q begins 2 samples, and 1 of them at a position other than 0, "
        "such as 4 at token 4",
        packed(position_ids=row(list(range(9)))),
        packed(),
    ),
    "positions that begin late": Case(
        "position_ids do not begin again: cu_seq_lens_q begins 2 samples, and 1 of them at a position other than 0, such "
        "as 1 at token 4",
        packed(position_ids=row([0, 1, 2, 3, 1, 2, 3, 4, 5])),
        packed(position_ids=row([1, 2, 3, 4, 1, 2, 3, 4, 5])),
    ),
    "positions of another shape": Case(
        "position_ids has the shape [1, 8], and the tokens have [1, 9]",
        packed(position_ids=row(RAMPS[:-1])),
        packed(),
    ),
    "positions cut on another axis": Case(
        "position_ids has the shape [3, 1, 8], and the tokens have [1, 9]: another axis than the last one was cut",
        packed(position_ids=torch.zeros(3, 1, 8, dtype=torch.int64)),
        packed(position_ids=torch.tensor([RAMPS] * 3)[:, None]),
    ),
    "rows of mRoPE that run on": Case(
        "the rows for time, height and width of position_ids do not begin again at token 4, and cu_seq_lens_q begins a "
        "sample there",
        rope(start=1),
        rope(start=0),
    ),
    "row for text that runs on in mRoPE": Case(
        "the row for text of position_ids does not begin again at token 4, and its rows for time, height and width do",
        flat(position_ids=torch.tensor([list(range(9)), RAMPS, RAMPS, RAMPS])[:, None]),
        flat(position_ids=torch.tensor([RAMPS] * 4)[:, None]),
    ),
    "rows of mRoPE that run on, without one for text": Case(
        "the rows for time, height and width of position_ids do not begin again at token 4, and cu_seq_lens_q begins a "
        "sample there",
        packed(position_ids=torch.tensor([RAMPS, RAMPS, list(range(9))])[:, None]),
        packed(position_ids=torch.tensor([RAMPS, RAMPS, RAMPS])[:, None]),
    ),
    # ---- targets
    "first token that is trained": Case(
        "the first token of 1 sample is predicted from the last token of the sample before: token 4",
        packed(labels=row([*LABELS[:4], 1, *LABELS[5:]])),
        packed(),
    ),
    "padding that is trained": Case(
        "1 token of padding are trained",
        {**padded(SAMPLES, 8), "labels": torch.tensor([[1, 5, 6, 2, 0, 0] + [IGNORE] * 2, [1, 7, 8, 9, 2] + [IGNORE] * 3])},
        {**padded(SAMPLES, 8), "labels": torch.tensor([[1, 5, 6, 2, 0] + [IGNORE] * 3, [1, 7, 8, 9, 2] + [IGNORE] * 3])},
    ),
    "labels of another kind": Case(
        "labels are float32, not integers",
        packed(labels=row(LABELS).float()),
        packed(labels=row(LABELS).int()),
    ),
    "labels that were shifted twice": Case(
        "100.0 % of labels are the token after the next one: they were shifted twice",
        packed(labels=row([6, 2, IGNORE, IGNORE, 8, 9, 2, IGNORE, IGNORE])),
        packed(labels=row([5, 6, 2, IGNORE, 7, 8, 9, 2, IGNORE])),
    ),
    "labels that were shifted back": Case(
        "100.0 % of labels are the token before: they were shifted in the wrong direction",
        packed(labels=row([IGNORE, IGNORE, 5, 6, IGNORE, IGNORE, 7, 8, 9])),
        packed(),
    ),
    "labels that are not shifted, and their name says so": Case(
        "100.0 % of shift_labels are the token itself, and the name says that they are shifted",
        without(packed(shift_labels=row(LABELS)), "labels"),
        without(packed(shift_labels=row([5, 6, 2, IGNORE, 7, 8, 9, 2, IGNORE])), "labels"),
        more=1,
    ),
    "question that is trained": Case(
        "turns of user are trained, and other tokens are not: '<|im_start|>user w5 w6'",
        chat(1, 2, 3, 6, 7),
        chat(1, 6, 7),
        {"tokenizer": TOKENS},
    ),
    "nothing that is trained": Case(
        "no token is trained: all 9 labels are -100",
        packed(labels=row([IGNORE] * 9)),
        packed(labels=row([IGNORE] * 8 + [2])),
    ),
    # ---- tokens
    "BOS twice": Case(
        "1 sample of 2 begin with BOS (1) twice: token 4",
        one_row([SAMPLES[0], [1, 1, 8, 9, 2]]),
        one_row([SAMPLES[0], [1, 7, 1, 9, 2]]),
        {"config": {"bos_token_id": 1}},
    ),
    "EOS that is not trained": Case(
        "2 samples end with EOS, and it is not trained in any of them: token 3; token 8",
        ended(IGNORE, IGNORE),
        ended(2, IGNORE),
        {"config": {"eos_token_id": 2}},
    ),
    "EOS that is not there": Case(
        "none of 2 samples ends with a trained EOS (3)",
        ended(2, 2),
        ended(2, 2),
        {"config": {"eos_token_id": 3}},
        {"config": {"eos_token_id": 2}},
    ),
    "EOS inside a segment, with boundaries elsewhere": Case(
        "EOS or BOS stands inside 1 segment, 1 time: token 4, and cu_seqlens has no boundary there",
        bare([*IDS, 1, 5, 2], cu_seqlens=int32([0, 9, 12])),
        bare([*IDS, 1, 5, 2], cu_seqlens=int32([0, 4, 9, 12])),
        {"tokenizer": Tokens()},
    ),
    "EOS inside a segment, without boundaries": Case(
        "EOS or BOS stands inside 1 segment, 1 time: token 4, and nothing in the batch tells samples apart (a row that is "
        "one sample of several turns may look the same)",
        bare(),
        bare(position_ids=row(RAMPS)),
        {"tokenizer": Tokens()},
    ),
    # ---- padding
    "packing that is padded": Case(
        "packing is on, and the batch of shape [2, 9] has one sample in each row: 50.0 % of its positions are tokens, the "
        "others padding",
        padded(SAMPLES, 9),
        padded(SAMPLES, 8),
        {"config": {"packing": True}},
    ),
    "padding that is a segment": Case(
        "the segment of cu_seqlens at token 4 is 2 tokens of padding (0); 1 of 3 segments are like it",
        bare([1, 5, 6, 2, 0, 0, 1, 7, 2], labels=row([IGNORE, 5, 6, 2, IGNORE, IGNORE, IGNORE, 7, 2]), cu_seqlens=int32([0, 4, 6, 9])),
        bare([1, 5, 6, 2, 0, 0, 1, 7, 2], labels=row([IGNORE, 5, 6, 2, IGNORE, IGNORE, IGNORE, 7, 2]), cu_seqlens=int32([0, 6, 9])),
        {"config": {"pad_token_id": 0}},
    ),
    "padding that begins a segment": Case(
        "the segment of cu_seqlens at token 4 begins with 2 tokens of padding (0) out of 5; 1 of 2 segments are like it",
        bare([1, 5, 6, 2, 0, 0, 8, 9, 2], labels=row([IGNORE, 5, 6, 2, IGNORE, IGNORE, 8, 9, 2]), cu_seqlens=int32([0, 4, 9])),
        bare([1, 5, 6, 2, 0, 7, 8, 9, 2], labels=row([IGNORE, 5, 6, 2, IGNORE, 7, 8, 9, 2]), cu_seqlens=int32([0, 4, 9])),
        {"config": {"pad_token_id": 0}},
    ),
    "padding that is an answer": Case(
        "rejected_cu_seq_lens_q has 3 segments, and 2 of them hold a sample: the others are padding",
        halves([SAMPLES[0], [1, 7, 2], [0, 0]], 0, 4, 7, 9),
        halves([SAMPLES[0], [1, 7, 2], [0, 0]], 0, 4, 7),
    ),
    "answers that do not pair": Case(
        "chosen and rejected answers do not pair: 2 of chosen and 1 of rejected",
        halves([SAMPLES[0]], 0, 4),
        halves([SAMPLES[0], [1, 7, 2]], 0, 4, 7),
    ),
    # ---- divisor
    "divisor of the batch, below its own targets": Case(
        "num_items_in_batch is 6, and this batch has 7 targets (one target of each batch is left out)",
        packed(num_items_in_batch=torch.tensor(6)),
        packed(num_items_in_batch=torch.tensor(8)),
    ),
    "divisor of the caller": Case(
        "the divisor is 8, and the batch has 7 targets: the loss is 1.143 times as small",
        packed(),
        packed(),
        {"num_items": 8},
        {"num_items": 7},
    ),
    "divisor of two batches": Case(
        "the divisor is 18, and the 2 batches have 14 targets (all tokens are counted): the loss is 1.286 times as small",
        [packed(), packed()],
        [packed(), packed()],
        {"num_items": 18},
        {"num_items": 14},
    ),
    # ---- types of numbers
    "boundaries of 64 bits": Case(
        "cu_seq_lens_q is int64, and flash attention reads boundaries of 32 bits",
        packed(cu_seq_lens_q=torch.tensor([0, 4, 9])),
        packed(linear_attn_cu_seq_lens_q=torch.tensor([0, 4, 9])),
    ),
    "boundaries that are not integers": Case(
        "cu_seq_lens_q is torch.float32",
        packed(cu_seq_lens_q=torch.tensor([0.0, 4.0, 9.0])),
        packed(),
    ),
    "positions of bfloat16": Case(
        "position_ids are bfloat16, which rounds positions above 256",
        packed(position_ids=row(RAMPS).bfloat16()),
        packed(position_ids=row(RAMPS).float()),
    ),
    "positions of float16": Case(
        "position_ids are float16, which rounds positions above 2,048",
        packed(position_ids=row(RAMPS).half()),
        packed(position_ids=row(RAMPS).int()),
    ),
    # ---- samples
    "fewer segments than samples": Case(
        "3 samples were given, and the batches have 2 segments: 1 samples are missing, or merged with others",
        packed(),
        packed(),
        {"samples": 3, "is_whole": True},
        {"samples": 3},
    ),
    "more segments than samples": Case(
        "1 sample were given, and the batches have 2 segments: samples are cut, or come more than once",
        packed(),
        packed(),
        {"samples": 1},
        {"samples": 2, "is_whole": True},
    ),
    "samples that are merged": Case(
        "2 samples share 1 segment: samples 0, 1 are in one, without a boundary between them",
        one_row([IDS]),
        flat(),
        SAME,
    ),
    "sample with other tokens": Case(
        "1 sample stand in a segment with other tokens, which belong to no sample that was given: 0",
        one_row([[*SAMPLES[0], 4], SAMPLES[1]]),
        one_row([[*SAMPLES[0], 0], SAMPLES[1]]),
        SAME,
    ),
    "sample in two segments": Case(
        "1 sample are cut into several segments: sample 1 of 5 tokens into 2, the first at token 4",
        one_row([SAMPLES[0], [1, 7, 8], [9, 2]]),
        flat(),
        SAME,
    ),
    "sample that is cut": Case(
        "1 sample are in the batches in part: sample 1 of 5 tokens with 4 of them, at token 4",
        one_row([SAMPLES[0], [1, 7, 8, 9]]),
        flat(),
        SAME,
    ),
    "sample that is lost": Case(
        "1 sample of 3 are not in the batches: 2",
        flat(),
        flat(),
        {"samples": [*SAMPLES, [1, 3, 2]], "is_whole": True},
        {"samples": [*SAMPLES, [1, 3, 2]]},
    ),
    "sample that comes twice": Case(
        "1 sample of 2 come more than once: sample 0 2 times",
        [flat(), one_row(SAMPLES[:1])],
        [flat(), one_row(SAMPLES[:1])],
        SAME,
        {"samples": [*SAMPLES, SAMPLES[0]], "is_whole": True},
    ),
    "prompt that is trained": Case(
        "1 token of 1 sample are trained, and not in the labels of the samples alone: 1 of sample 0",
        packed(),
        packed(labels=row([IGNORE, IGNORE, 6, 2, *LABELS[4:]])),
        {"samples": [{"input_ids": SAMPLES[0], "labels": [IGNORE, IGNORE, 6, 2]}, SAMPLES[1]]},
    ),
    "answer that is not trained": Case(
        "1 token of 1 sample are not trained, and are in the labels of the samples alone: 1 of sample 0",
        packed(labels=row([IGNORE, IGNORE, 6, 2, *LABELS[4:]])),
        packed(),
        {"samples": [{"input_ids": SAMPLES[0], "labels": SAMPLES[0]}, SAMPLES[1]]},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_the_accusation_has_this_text(name):
    case = CASES[name]
    findings = diagnose(case.faulty, **case.known).findings
    details = [finding.detail for finding in findings]
    assert case.text in details, "\n".join(details)
    assert len(details) == 1 + case.more
    assert all(finding.meaning for finding in findings)


def test_more_than_three_places_are_counted():
    samples = [[1, 5, 2]] * 5
    batch = {**one_row(samples), "labels": torch.tensor([[1, 5, 2] * 5])}
    details = [finding.detail for finding in diagnose(batch).findings]
    assert any(text.endswith(": token 3; token 6; token 9 and 1 more") for text in details), details


@pytest.mark.parametrize("name", CASES)
def test_its_neighbor_is_accused_of_nothing(name):
    case = CASES[name]
    report = diagnose(case.right, **(case.known if case.other is None else case.other))
    assert report.ok, str(report)


LEFT = [1, 5, 6, 2, 0, 1, 7, 8, 9, 2, 0, 0]
"""Two samples, each with padding after it."""

RIGHT: dict[str, tuple[Any, dict[str, Any]]] = {
    "boundaries of real tokens, next to their places": (
        bare(LEFT, cu_seqlens=int32([0, 4, 9]), cu_seqlens_padded=int32([0, 5, 12])),
        {},
    ),
    "boundaries of real tokens in two rows": (
        table(
            [1, 5, 2, 0], [1, 7, 8, 2], cu_seqlens=int32([0, 3, 7]), cu_seqlens_padded=int32([0, 4, 8])
        ),
        {},
    ),
    "end mark without boundaries": (bare(cu_seqlens=int32([0, 4, 9]), cu_seqlens_argmin=int32([])), {}),
    "longest of a mask that numbers samples": (
        bare(attention_mask=row([1] * 4 + [2] * 5), max_length_q=4),
        {},
    ),
    "divisor that is the batch's own": (packed(num_items_in_batch=torch.tensor(7)), {}),
    "divisor of each rank": (packed(num_items_in_batch=torch.tensor([3, 4])), {}),
    "divisor of a batch without labels": (bare(num_items_in_batch=torch.tensor(0)), {}),
    "packing of one row": (padded(SAMPLES[:1], 9), {"config": {"packing": True}}),
    "packing of full rows": (
        table([1, 5, 6, 2], [1, 8, 9, 2], labels=torch.tensor([[IGNORE, 5, 6, 2], [IGNORE, 8, 9, 2]])),
        {"config": {"padding_free": True}},
    ),
    "packing of a long sample": (
        {
            **table([1, 5, 1, 6, 0, 0], [1, 7, 8, 9, 9, 2]),
            "attention_mask": torch.tensor([[1, 1, 2, 2, 0, 0], [1, 1, 1, 1, 1, 1]]),
        },
        {"config": {"padding_free": True}},
    ),
    "padding at the end as one segment": (
        bare([*IDS, 0, 0], labels=row([*LABELS, IGNORE, IGNORE]), cu_seqlens=int32([0, 4, 9, 11])),
        {},
    ),
    "padding whose token is not known": (
        bare([1, 5, 6, 2, 0, 0, 8, 9, 2], labels=row([IGNORE, 5, 6, 2, IGNORE, IGNORE, 8, 9, 2]), cu_seqlens=int32([0, 4, 9])),
        {},
    ),
    "answers of one half": (without(halves([SAMPLES[0]], 0, 4), "chosen_input_ids", "chosen_cu_seq_lens_q"), {}),
    "rows of mRoPE of images": (
        bare(position_ids=torch.tensor([[0, 0, 0, 1, 0, 0, 1, 1, 2], [0, 0, 1, 1, 0, 0, 1, 1, 2], [0, 1, 2, 3, 0, 1, 1, 2, 2]])[:, None]),
        {},
    ),
    "samples after a BOS": (
        packed(),
        {"samples": [[5, 6, 2], [7, 8, 9, 2]], "is_whole": True, "config": {"bos_token_id": 1}},
    ),
    "sample of one token": (one_row([SAMPLES[0], [3], SAMPLES[1]]), {"samples": [*SAMPLES, [3]], "is_whole": True}),
    "samples with masks of answers": (
        packed(labels=row([IGNORE, IGNORE, 6, 2, *LABELS[4:]])),
        {"samples": [{"input_ids": SAMPLES[0], "completion_mask": [0, 0, 1, 1]}, SAMPLES[1]], "is_whole": True},
    ),
    "samples with the padding of their row": (padded(SAMPLES, 7), SAME),
}  # fmt: skip
"""Batches that one condition of a check keeps from an accusation."""


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_batch_is_accused_of_nothing(name):
    batch, known = RIGHT[name]
    report = diagnose(batch, **known)
    assert report.ok, str(report)


REASONS = {
    5: " (the 2 boundaries are taken off a second time)",
    6: " (one target of each batch is left out)",
    9: " (all tokens are counted)",
    10: " (padding is counted as well)",
    2: " (samples are counted)",
    3: " (42.9 % of them)",
    4: " (57.1 % of them)",
    8: "",
}


@pytest.mark.parametrize("number", REASONS)
def test_another_divisor_is_explained_by_a_number_of_the_batch(number):
    """7 targets, 9 tokens, 2 samples, and a token of padding."""
    (detail,) = (finding.detail for finding in diagnose(ended(2, 2), num_items=number).findings)
    size = f"{7 / number:.3f} times as large" if number < 7 else f"{number / 7:.3f} times as small"
    assert detail == f"the divisor is {number}, and the batch has 7 targets{REASONS[number]}: the loss is {size}"


def test_a_divisor_of_nothing_has_no_ratio():
    (detail,) = (finding.detail for finding in diagnose(ended(2, 2), num_items=0).findings)
    assert detail == "the divisor is 0, and the batch has 7 targets (0.0 % of them)"


def test_each_accusation_has_a_case(monkeypatch):
    """A call of ``wrong`` or ``suspect`` that no case reaches has no text that is known to be right."""
    modules = [import_module(f"{checks.__name__}.{info.name}") for info in iter_modules(checks.__path__)]
    calls = {
        (module.__name__, node.lineno, node.end_lineno)
        for module in modules
        for node in ast.walk(ast.parse(inspect.getsource(module)))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("wrong", "suspect")
    }
    assert len(calls) > 40
    reached = set()

    def noting(made):
        def make(*arguments):
            frame = sys._getframe(1)
            reached.add((frame.f_globals["__name__"], frame.f_lineno))
            return made(*arguments)

        return make

    for module in modules:
        for name in {"wrong", "suspect"} & vars(module).keys():
            monkeypatch.setattr(module, name, noting(getattr(module, name)))
    for case in CASES.values():
        diagnose(case.faulty, **case.known)
    missed = {
        call for call in calls if not any(call[0] == name and call[1] <= line <= call[2] for name, line in reached)
    }
    assert missed == set()
