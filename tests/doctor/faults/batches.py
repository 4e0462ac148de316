"""Batches with the faults of public threads that one batch shows, and their mended twins.

Each entry is made by a small collator that does what the thread did; the number is from the table of silent faults.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import accumulate
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

IGNORE = -100
BOS, EOS, PAD, IMAGE = 1, 2, 0, 99


@dataclass
class Fault:
    """A faulty batch and its mended twin.

    Attributes:
        thread: that told it.
        problem: name that the finding must have.
        faulty, mended: batches, or lists of batches.
        known: keyword arguments of ``diagnose``, the same for both.
    """

    thread: str
    problem: str
    faulty: Any
    mended: Any
    known: dict[str, Any] = field(default_factory=dict)


class Tokens:
    """A tokenizer of words: each token is one."""

    bos_token_id, eos_token_id, pad_token_id = BOS, EOS, PAD

    def __init__(self, words: dict[int, str] | None = None) -> None:
        self.words = {BOS: "<s>", EOS: "</s>", PAD: "<pad>", **(words or {})}

    def decode(self, ids: list[int]) -> str:
        return " ".join(self.words.get(token, f"w{token}") for token in ids)


def documents(lengths: tuple[int, ...] = (7, 4, 9), seed: int = 0) -> list[list[int]]:
    """Samples that begin with BOS and end with EOS."""
    rng = np.random.default_rng(seed)
    return [[BOS, *rng.integers(3, 90, length - 2).tolist(), EOS] for length in lengths]


def flat(samples: list[list[int]]) -> list[int]:
    return [token for sample in samples for token in sample]


def ramps(samples: list[list[int]]) -> list[int]:
    return [place for sample in samples for place in range(len(sample))]


def labels_of(samples: list[list[int]]) -> list[int]:
    return [label for sample in samples for label in [IGNORE, *sample[1:]]]


def ends_of(samples: list[list[int]]) -> list[int]:
    return [0, *accumulate(map(len, samples))]


def int32(values: Any) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def row(values: list[int]) -> torch.Tensor:
    return torch.tensor([values])


def one_row(samples: list[list[int]], **others: Any) -> dict[str, Any]:
    """Tokens, labels and positions of samples in one row."""
    return {
        "input_ids": row(flat(samples)),
        "labels": row(labels_of(samples)),
        "position_ids": row(ramps(samples)),
        **others,
    }


def padded(samples: list[list[int]], multiple: int = 1) -> dict[str, Any]:
    """A row for each sample, padded to the longest."""
    width = -(-max(map(len, samples)) // multiple) * multiple
    rest = [width - len(sample) for sample in samples]
    return {
        "input_ids": torch.tensor([sample + [PAD] * n for sample, n in zip(samples, rest, strict=True)]),
        "labels": torch.tensor([sample + [IGNORE] * n for sample, n in zip(samples, rest, strict=True)]),
        "attention_mask": torch.tensor([[1] * len(sample) + [0] * n for sample, n in zip(samples, rest, strict=True)]),
    }


def varlen(samples: list[list[int]]) -> dict[str, Any]:
    """Boundaries with the names of Transformers."""
    ends, longest = int32(ends_of(samples)), max(map(len, samples))
    return {"cu_seq_lens_q": ends, "cu_seq_lens_k": ends, "max_length_q": longest, "max_length_k": longest}


def without(batch: dict[str, Any], *names: str) -> dict[str, Any]:
    return {key: value for key, value in batch.items() if key not in names}


def boundaries_before_images(expand: bool) -> dict[str, Any]:
    """LLaVA of Megatron: images take several tokens each, and boundaries are those of the text before."""
    collapsed = [[*sample[:2], IMAGE, *sample[2:]] for sample in documents()]
    expanded = [[token for one in sample for token in [one] * (5 if one == IMAGE else 1)] for sample in collapsed]
    batch = without(one_row(expanded), "position_ids")
    return {**batch, "packed_seq_params": {"cu_seqlens_q": int32(ends_of(expanded if expand else collapsed))}}


def metadata_skipped(skip: bool) -> dict[str, Any]:
    """Nemotron Omni of Megatron-Bridge: all samples in one row, and what tells them apart stays in the collator."""
    samples = documents()
    tokens = {"input_ids": row(flat(samples)), "labels": row(labels_of(samples))}
    if skip:
        return {**tokens, "position_ids": torch.arange(len(flat(samples)))[None]}
    return {**tokens, "position_ids": row(ramps(samples)), "cu_seqlens_q": int32(ends_of(samples))}


def argmin_missing(missing: bool) -> dict[str, Any]:
    """Megatron-Bridge: readers of two lists of boundaries, and the end of one of them."""
    samples = documents((7, 5, 10))
    aligned = [sample + [PAD] * (-len(sample) % 4) for sample in samples]
    shifted = [token for sample in aligned for token in [*sample[1:], PAD]]
    real = [1.0 if j + 1 < len(s) else 0.0 for s, a in zip(samples, aligned, strict=True) for j in range(len(a))]
    batch = {
        "tokens": row(flat(aligned)),
        "labels": row(shifted),
        "loss_mask": torch.tensor([real]),
        "position_ids": row(ramps(aligned)),
        "cu_seqlens": int32([*ends_of(aligned), -1])[None],
        "cu_seqlens_argmin": torch.tensor([[4]]),
        "cu_seqlens_unpadded": int32(ends_of(samples))[None],
    }
    return batch if missing else {**batch, "cu_seqlens_unpadded_argmin": torch.tensor([[4]])}


def mask_of_ones() -> dict[str, Any]:
    """Positions that begin again, and a mask of ones that stops Transformers from looking at them."""
    samples = documents()
    return one_row(samples, attention_mask=torch.ones(1, len(flat(samples)), dtype=torch.int64))


def multipack_mask() -> dict[str, Any]:
    """Axolotl: the mask numbers the samples of each row for a patched flash attention."""
    samples = documents()
    numbers = [index + 1 for index, sample in enumerate(samples) for _ in sample]
    return one_row(samples, attention_mask=row(numbers))


def padded_pack() -> dict[str, Any]:
    """Axolotl: a pack that is padded to the length of the sequence, with a mask of the padding."""
    samples, rest = documents(), 12
    return {
        "input_ids": row(flat(samples) + [PAD] * rest),
        "labels": row(labels_of(samples) + [IGNORE] * rest),
        "position_ids": row(ramps(samples) + list(range(rest))),
        "attention_mask": row([1] * len(flat(samples)) + [0] * rest),
    }


def bidirectional(sees_padding: bool) -> dict[str, Any]:
    """Diffusion of Axolotl: a mask of all pairs of tokens replaces that of the padding."""
    batch = padded(documents())
    real = batch.pop("attention_mask").bool()
    rows, width = real.shape
    visible = torch.ones(rows, width, width, dtype=torch.bool) if sees_padding else real[:, None] & real[:, :, None]
    visible = visible | torch.eye(width, dtype=torch.bool)
    return {**batch, "attention_mask": visible[:, None], "padding_mask": ~real}


def divisor(boundaries_twice: bool) -> dict[str, Any]:
    """unsloth-zoo: the first labels are -100 already, and the number of boundaries is taken off again."""
    samples = documents()
    batch = one_row(samples, packed_seq_lengths=int32([len(sample) for sample in samples]))
    targets = int((batch["labels"] != IGNORE).sum())
    return {**batch, "num_items_in_batch": torch.tensor(targets - len(samples) if boundaries_twice else targets)}


def merged_by_eos(by_eos: bool) -> dict[str, Any]:
    """open-instruct: boundaries are sought by EOS; some documents have none at their end, others one inside."""
    samples = [sample if index % 2 else sample[:-1] for index, sample in enumerate(MIXED)]
    ids = flat(samples)
    edges = ends_of(samples)
    if by_eos:
        edges = sorted({0, *(place + 1 for place, token in enumerate(ids) if token == EOS), len(ids)})
    lengths = np.diff(edges).tolist()
    return {
        "input_ids": row(ids),
        "label_mask": torch.ones(1, len(ids), dtype=torch.bool),
        "doc_lens": int32(lengths)[None],
    }


MIXED = documents((8, 6, 7, 9), seed=3)
MIXED_SAMPLES = [sample if index % 2 else sample[:-1] for index, sample in enumerate(MIXED)]


def concatenated_pairs(padding_inside: bool) -> dict[str, Any]:
    """open-instruct: the boundaries of rejected answers are moved by the padded length of the chosen ones."""
    chosen, rejected, width = documents((6, 5)), documents((7, 4), seed=1), 24
    ids, labels = [], []
    for samples in (chosen, rejected):
        rest = [] if not padding_inside and samples is chosen else [PAD] * (width - len(flat(samples)))
        ids += flat(samples) + rest
        labels += labels_of(samples) + [IGNORE] * len(rest)
    start = width if padding_inside else len(flat(chosen))
    ends = [*ends_of(chosen), *(start + end for end in ends_of(rejected)[1:])]
    return {
        "concatenated_input_ids": row(ids),
        "concatenated_labels": row(labels),
        "concatenated_cu_seq_lens_q": int32(ends),
        "concatenated_cu_seq_lens_k": int32(ends),
    }


WORDS = Tokens({10: "<|im_start|>user", 11: "<|im_start|>assistant", 12: "<|im_start|>tool", 13: "<|im_end|>"})


def tool_outputs(trained: bool) -> dict[str, Any]:
    """open-instruct: what a tool returns is trained like an answer."""
    turns = [([10, 30, 31, 13], False), ([11], False), ([40, 41, 13], True), ([12, 50, 51, 13], trained), ([11], False)]
    turns += [([42, 43, 13, EOS], True)]
    sample = [BOS, *(token for tokens, _ in turns for token in tokens)]
    targets = [False, *(flag for tokens, flag in turns for _ in tokens)]
    labels = [token if flag else IGNORE for token, flag in zip(sample, targets, strict=True)]
    samples = [sample, sample]
    return {**one_row(samples, **varlen(samples)), "labels": row(labels * 2)}


def flat_positions(reset: bool) -> dict[str, Any]:
    """torchtitan: documents have a mask of their own, and positions count through the row."""
    samples = documents()
    ids = flat(samples)
    return {
        "input": torch.tensor(ids),
        "labels": torch.tensor([label for sample in samples for label in [*sample[1:], IGNORE]]),
        "positions": torch.tensor(ramps(samples)) if reset else torch.arange(len(ids)),
        "document_ids": torch.tensor([index for index, sample in enumerate(samples) for _ in sample]),
    }


def masks_by_eos(eos: int | None) -> dict[str, Any]:
    """torchtitan: documents are told by a token, and two sources of truth disagree which one it is."""
    samples = documents()
    samples[2][4] = 77
    ids = torch.tensor([flat(samples)])
    numbers = torch.tensor([[index for index, sample in enumerate(samples) for _ in sample]])
    if eos is not None:
        numbers = torch.cat([torch.zeros(1, 1, dtype=torch.int64), torch.cumsum(ids == eos, dim=1)[:, :-1]], dim=1)
    return {"input_ids": ids, "labels": row(labels_of(samples)), "document_ids": numbers}


def lengths_removed(removed: bool) -> dict[str, Any]:
    """TRL: the column ``seq_lengths`` of the packs is dropped as unused, and each pack becomes one sample."""
    samples = documents()
    if removed:
        return one_row([flat(samples)], **varlen([flat(samples)]))
    return one_row(samples, **varlen(samples))


def naive_packing(neat: bool) -> dict[str, Any]:
    """LLaMA-Factory: ``packing`` alone fills rows and gives all tokens one number in the mask."""
    samples, width = documents(), 24
    rest = width - len(flat(samples))
    numbers = [index + 1 if neat else 1 for index, sample in enumerate(samples) for _ in sample]
    return {
        "input_ids": row(flat(samples) + [PAD] * rest),
        "labels": row(labels_of(samples) + [IGNORE] * rest),
        "position_ids": row(ramps(samples) + [0] * rest),
        "attention_mask": row(numbers + [0 if neat else 1] * rest),
    }


def neat_mask_in_bf16(empty_rows: bool) -> dict[str, Any]:
    """LLaMA-Factory: padding sees nothing, by the lowest number of bf16."""
    samples, rest = documents(), 4
    numbers = torch.tensor([index + 1 for index, sample in enumerate(samples) for _ in sample] + [0] * rest)
    visible = (numbers[:, None] == numbers[None]).tril() & ((numbers > 0)[:, None] | (not empty_rows))
    mask = torch.where(visible, 0.0, torch.finfo(torch.bfloat16).min).to(torch.bfloat16)
    return {
        "input_ids": row(flat(samples) + [PAD] * rest),
        "labels": row(labels_of(samples) + [IGNORE] * rest),
        "position_ids": row(ramps(samples) + list(range(rest))),
        "attention_mask": mask[None, None],
    }


def aligned_row(multiple: int) -> dict[str, Any]:
    """ms-swift: the row is padded to a multiple of TP·16, and MXFP8 needs TP·32."""
    samples = documents((40, 30, 25))
    samples = [*samples, [PAD] * (-len(flat(samples)) % multiple)]
    batch = one_row(samples, **varlen(samples))
    batch["labels"][:, -len(samples[-1]) :] = IGNORE
    return batch


def epoch(whole: bool) -> list[dict[str, Any]]:
    """VeOmni: of each batch of samples the collator passes on the first."""
    batches = [documents(seed=seed) for seed in range(5)]
    return [
        one_row(samples if whole else samples[:1], **varlen(samples if whole else samples[:1])) for samples in batches
    ]


def positions_cut(right_axis: bool) -> dict[str, Any]:
    """Qwen3-VL: positions of mRoPE are cut as if they had two dimensions."""
    longest = 12
    batch = padded([[BOS, *range(30, 42), EOS], [BOS, *range(50, 60), EOS]])
    batch = {key: value[:, :longest] for key, value in batch.items()}
    positions = torch.arange(14).expand(3, 2, 14)
    batch["position_ids"] = positions[:, :, :longest] if right_axis else positions[:, :longest]
    return batch


def boundaries_as_mask(as_mask: bool) -> dict[str, Any]:
    """Qwen3-VL: the mask of the flattened batch holds its boundaries."""
    samples = documents()
    batch = one_row(samples)
    return {**batch, "attention_mask": int32(ends_of(samples))} if as_mask else {**batch, **varlen(samples)}


def no_isolation(told: bool) -> dict[str, Any]:
    """Open-Qwen2VL: samples follow each other in a row, with EOS between them."""
    samples = documents()
    batch = one_row(samples)
    return batch if told else without(batch, "position_ids")


def special_tokens(doubled: bool, dropped: bool = False) -> dict[str, Any]:
    """Soup: the template writes BOS and the tokenizer another; without the tokenizer's, EOS is gone as well."""
    samples = [[BOS] * doubled + (sample[:-1] if dropped else sample) for sample in documents()]
    rest = [PAD] * 3
    batch = one_row(samples, **varlen(samples))
    batch["input_ids"] = row(flat(samples) + rest)
    batch["labels"] = row(labels_of(samples) + [IGNORE] * 3)
    batch["position_ids"] = row(ramps(samples) + list(range(3)))
    return batch


def trl_preferences() -> dict[str, Any]:
    """TRL's DPO: ``padding_free`` has no effect, chosen and rejected answers are padded rows."""
    batch = padded(documents((9, 5)) + documents((4, 7), seed=1))
    mask = batch.pop("labels") != IGNORE
    mask[:, :3] = False
    return {**batch, "completion_mask": mask.long()}


def flattened_preferences() -> dict[str, Any]:
    """Chosen and rejected answers in one row, as ``padding_free`` made them."""
    batch = one_row(documents((9, 5)) + documents((4, 7), seed=1))
    mask = batch.pop("labels") != IGNORE
    return {**batch, "completion_mask": mask.long()}


def repository(name: str, number: int, kind: str = "issues") -> str:
    return f"https://github.com/{name}/{kind}/{number}"


TOKENS = Tokens()

FAULTS: dict[int, Fault] = {
    5: Fault(
        repository("NVIDIA/Megatron-LM", 3427),
        "boundaries_short",
        boundaries_before_images(expand=False),
        boundaries_before_images(expand=True),
    ),
    6: Fault(
        repository("NVIDIA-NeMo/Megatron-Bridge", 4234),
        "boundaries_missing",
        metadata_skipped(skip=True),
        metadata_skipped(skip=False),
        {"tokenizer": TOKENS},
    ),
    7: Fault(
        repository("NVIDIA-NeMo/Megatron-Bridge", 4400, "pull"),
        "boundaries_short",
        argmin_missing(missing=True),
        argmin_missing(missing=False),
    ),
    8: Fault(
        repository("huggingface/transformers", 46634, "pull"),
        "mask_hides_packs",
        mask_of_ones(),
        without(mask_of_ones(), "attention_mask"),
    ),
    12: Fault(
        repository("axolotl-ai-cloud/axolotl", 3796, "pull"),
        "mask_hides_packs",
        multipack_mask(),
        without(multipack_mask(), "attention_mask"),
        {"config": {"attn_implementation": "sdpa"}},
    ),
    13: Fault(
        repository("axolotl-ai-cloud/axolotl", 3301),
        "mask_hides_packs",
        padded_pack(),
        without(padded_pack(), "attention_mask"),
    ),
    14: Fault(
        repository("axolotl-ai-cloud/axolotl", 3735, "pull"),
        "padding_seen",
        bidirectional(sees_padding=True),
        bidirectional(sees_padding=False),
    ),
    15: Fault(
        repository("unslothai/unsloth-zoo", 1066),
        "divisor",
        divisor(boundaries_twice=True),
        divisor(boundaries_twice=False),
    ),
    16: Fault(
        repository("unslothai/unsloth-zoo", 1279),
        "packing_off",
        padded(documents((9, 5))),
        one_row(documents((9, 5))),
        {"config": {"padding_free": True}},
    ),
    20: Fault(
        repository("allenai/open-instruct", 1855, "pull"),
        "boundaries_missing",
        merged_by_eos(by_eos=True),
        merged_by_eos(by_eos=False),
        {"samples": MIXED_SAMPLES},
    ),
    22: Fault(
        repository("allenai/open-instruct", 1900, "pull"),
        "padding_as_samples",
        concatenated_pairs(padding_inside=True),
        concatenated_pairs(padding_inside=False),
    ),
    24: Fault(
        repository("allenai/open-instruct", 1202, "pull"),
        "wrong_targets",
        tool_outputs(trained=True),
        tool_outputs(trained=False),
        {"tokenizer": WORDS},
    ),
    25: Fault(
        repository("pytorch/torchtitan", 2559),
        "positions_run_on",
        flat_positions(reset=False),
        flat_positions(reset=True),
    ),
    26: Fault(
        repository("pytorch/torchtitan", 1438),
        "boundaries_guessed",
        masks_by_eos(eos=77),
        masks_by_eos(eos=None),
        {"tokenizer": TOKENS},
    ),
    28: Fault(
        repository("huggingface/trl", 3705),
        "boundaries_missing",
        lengths_removed(removed=True),
        lengths_removed(removed=False),
        {"tokenizer": TOKENS},
    ),
    30: Fault(
        "trl/trainer/dpo_trainer.py",
        "packing_off",
        trl_preferences(),
        flattened_preferences(),
        {"config": SimpleNamespace(padding_free=True, packing=False)},
    ),
    31: Fault(
        repository("hiyouga/LLaMA-Factory", 8277),
        "mask_hides_packs",
        naive_packing(neat=False),
        naive_packing(neat=True),
    ),
    32: Fault(
        repository("hiyouga/LLaMA-Factory", 9269),
        "packing_off",
        padded(documents((20, 5, 7)), multiple=16),
        naive_packing(neat=True),
        {"config": {"packing": True}},
    ),
    33: Fault(
        repository("hiyouga/LLaMA-Factory", 7318, "pull"),
        "masked_rows",
        neat_mask_in_bf16(empty_rows=True),
        neat_mask_in_bf16(empty_rows=False),
    ),
    35: Fault(
        repository("modelscope/ms-swift", 9722, "pull"),
        "alignment",
        aligned_row(4 * 16 - 32),
        aligned_row(4 * 32),
        {"config": {"row_multiple": 4 * 32}},
    ),
    36: Fault(
        repository("ByteDance-Seed/VeOmni", 17, "pull"),
        "samples_lost",
        epoch(whole=False),
        epoch(whole=True),
        {"samples": 15, "is_whole": True},
    ),
    37: Fault(
        repository("QwenLM/Qwen3-VL", 1229),
        "positions_cut",
        positions_cut(right_axis=False),
        positions_cut(right_axis=True),
    ),
    38: Fault(
        "https://github.com/Victorwz/Open-Qwen2VL/issues/2",
        "boundaries_missing",
        no_isolation(told=False),
        no_isolation(told=True),
        {"tokenizer": TOKENS},
    ),
    39: Fault(
        repository("MakazhanAlpamys/Soup", 785),
        "doubled_bos",
        special_tokens(doubled=True),
        special_tokens(doubled=False),
        {"tokenizer": TOKENS},
    ),
}
"""Faults by their number in the table."""

OTHER_FAULTS: dict[str, Fault] = {
    "mask that is boundaries": Fault(
        repository("QwenLM/Qwen3-VL", 1221),
        "mask_is_boundaries",
        boundaries_as_mask(as_mask=True),
        boundaries_as_mask(as_mask=False),
    ),
    "lost EOS": Fault(
        repository("MakazhanAlpamys/Soup", 788),
        "lost_eos",
        special_tokens(doubled=False, dropped=True),
        special_tokens(doubled=False),
        {"tokenizer": TOKENS},
    ),
    "epoch with the samples": Fault(
        repository("ByteDance-Seed/VeOmni", 17, "pull"),
        "samples_lost",
        epoch(whole=False),
        epoch(whole=True),
        {"samples": [sample for seed in range(5) for sample in documents(seed=seed)], "is_whole": True},
    ),
}
"""Second halves of entries that tell two faults."""
