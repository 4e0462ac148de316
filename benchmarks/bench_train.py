"""Training on packs against padded batches, against ``DataCollatorWithFlattening`` of ``transformers``, and the limit.

A small Llama trains on the same samples in every layout: forward, backward, one optimizer step. What counts is useful
tokens a second, those of samples and not of padding, with collating and the way to the device inside the time. On a
GPU that is a Llama of 0.6 billion parameters in bf16 with rows of 16,384 tokens; without one, a tiny one in fp32 with
rows of 1,024, and what needs a GPU is named on stderr as not measured. Before anything is timed, ``verify_packing``
reports on each attention (on stderr; the first row counts those that pass), and all layouts must give the same loss.

padded
    samples in random order, as many in a batch as fit into T positions with the longest of them, at most; and the same
    with the samples of the step sorted by length first, which is the best that padding can do. SDPA with its mask.
``DataCollatorWithFlattening``
    once with the samples of our packs, which shows the collator alone, and once as it is used: a fixed number of
    samples in random order, whose rows differ in length. Same attention as ours.
dense
    the limit: one sample of T tokens in each row, causal SDPA, made in advance. Packs can be faster: tokens of other
    segments need no attention. The aim on a GPU is 0.9 of it with every attention that goes by boundaries.

SDPA alone does not: for packed rows it gets a dense mask of T × T and computes all of it, so its rows have no aim.
What a GPU offers is tried: ``flash_attn`` where installed, the kernel for segments of torch itself, flex attention
(compiled). On a CPU there is SDPA called once for each segment, which has no kernel of its own.

Lengths: real ones (T0 prompts, with a heavy tail; SGD dialogues) where the data is at hand, else drawn; longer ones
than T are left out, tokens are random, and all are targets.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from inspect import signature
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from compare import SHARED_DATA, Row, in_turn, main_of
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from brimful import PackCollator, plan_packs
from brimful.base.typing import IGNORE_INDEX
from brimful.collate.padding import Padding
from brimful.store.shards import Pack, assemble_pack
from brimful.verify import verify_packing
from brimful.verify.drawn_samples import random_samples
from brimful.verify.models import tiny_model

__all__ = ["measure"]

_LENGTHS = {
    "T0": "t0_50k_self_instruct__qwen25_chat",
    "SGD": "sgd_train_text_only__qwen25_chat",
}
_BY_SEGMENT, _TORCH_VARLEN = "sdpa_by_segment", "torch_varlen"
_ATTENTION = {
    "flash_attention_2": "flash_attn",
    _TORCH_VARLEN: "varlen of torch",
    "flex_attention": "flex attention",
    _BY_SEGMENT: "SDPA segment by segment",
    "sdpa": "SDPA with a dense T × T mask",
}
"""By the names of Transformers, ours registered there; the last one does not go by boundaries."""

_TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1e-2}
"""Most by which the summed losses of two layouts may differ. In bf16 a leak could hide below: see ``verify_packing``."""


@dataclass(frozen=True)
class _Size:
    """What is trained, on how much."""

    capacity: int
    packs: int
    vocab: int
    hidden: int
    layers: int
    heads: int
    samples: int
    repetitions: int


_SIZES = {
    ("cuda", False): _Size(16_384, 4, 32_000, 2048, 12, 16, 50_000, 5),
    ("cuda", True): _Size(4096, 2, 32_000, 1024, 4, 8, 2000, 2),
    ("cpu", False): _Size(1024, 6, 1024, 128, 2, 4, 20_000, 3),
    ("cpu", True): _Size(512, 6, 256, 64, 1, 4, 1000, 1),
}

_PEERS = {
    "padded": "padded",
    "padded, sorted": "padded, sorted in the step",
    "same": "DataCollatorWithFlattening, our packs",
    "fixed": "DataCollatorWithFlattening, fixed number",
    "dense": "dense rows (limit)",
}


@dataclass(frozen=True)
class _Contestant:
    """A way to train on the samples of a step: which attention, and the batches, made anew at every call."""

    attention: str
    batches: Callable[[], Iterator[dict[str, Any]]]


class _Training:
    """The model, which all contestants share, and its optimizer."""

    def __init__(self, size: _Size, device: str) -> None:
        from transformers import LlamaConfig, LlamaForCausalLM

        torch.manual_seed(0)
        config = LlamaConfig(
            vocab_size=size.vocab,
            hidden_size=size.hidden,
            intermediate_size=size.hidden * 11 // 4,
            num_hidden_layers=size.layers,
            num_attention_heads=size.heads,
            num_key_value_heads=size.heads // 2,
            max_position_embeddings=size.capacity,
            tie_word_embeddings=True,
            initializer_range=0.1,  # wider than for training, so that a leak between samples shows in the loss
            use_cache=False,  # DataCollatorWithFlattening does not say so, and with a cache its samples see each other
        )
        self.dtype = torch.bfloat16 if device == "cuda" else torch.float32
        self.device = device
        self._model = LlamaForCausalLM(config).to(device=device, dtype=self.dtype).train()
        self._optimizer = torch.optim.AdamW(
            self._model.parameters(), lr=1e-5, fused=device == "cuda"
        )

    def step(self, contestant: _Contestant, update: bool = True) -> float:
        """Train on all batches of a contestant; its loss, summed over all targets."""
        self._model.set_attn_implementation(contestant.attention)
        total = torch.zeros((), device=self.device)
        for batch in contestant.batches():
            loss = self._model(
                **self._on_device(batch), num_items_in_batch=1
            ).loss  # the sum over its targets
            loss.backward()
            total += loss.detach()
        if update:
            self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        return float(
            total
        )  # waits for the device, so the wall clock holds its work and that of the host

    def peak(self, contestant: _Contestant) -> float:
        """GiB that training on it takes at most, with weights and optimizer."""
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        self.step(contestant)
        return torch.cuda.max_memory_allocated() / 2**30

    def _on_device(self, batch: dict[str, Any]) -> dict[str, Any]:
        return {
            key: value.to(self.device, non_blocking=True) if isinstance(value, Tensor) else value
            for key, value in batch.items()
        }


def _by_segment(
    module: Any, query: Tensor, key: Tensor, value: Tensor, mask: None, **options: Any
) -> tuple[Tensor, None]:
    """Attention for Transformers: SDPA on one segment after the other. ``[1, H, T, D]`` to ``[1, T, H, D]``."""
    boundaries = options.get("cu_seq_lens_q")
    edges = [0, query.shape[2]] if boundaries is None else boundaries.tolist()
    settings = {"is_causal": True, "scale": options["scaling"], "enable_gqa": True}
    parts = [
        scaled_dot_product_attention(
            *(tensor[:, :, a:b] for tensor in (query, key, value)), **settings
        )
        for a, b in pairwise(edges)
    ]
    return torch.cat(parts, dim=2).transpose(1, 2), None


def _by_varlen(
    module: Any, query: Tensor, key: Tensor, value: Tensor, mask: None, **options: Any
) -> tuple[Tensor, None]:
    """Attention for Transformers: the kernel of torch for rows of segments. ``[1, H, T, D]`` to ``[1, T, H, D]``."""
    from torch.nn.attention.varlen import varlen_attn

    edges, longest = options.get("cu_seq_lens_q"), options.get("max_length_q")
    if edges is None or longest is None:  # a sample by itself
        longest = query.shape[2]
        edges = torch.tensor([0, longest], dtype=torch.int32, device=query.device)
    tokens = [tensor[0].transpose(0, 1) for tensor in (query, key, value)]
    settings: dict[str, Any] = {"scale": options["scaling"]}
    known = signature(varlen_attn).parameters  # torch 2.10 had other words than 2.13
    settings |= {"window_size": (-1, 0)} if "window_size" in known else {"is_causal": True}
    if "enable_gqa" in known:
        settings["enable_gqa"] = True
    else:
        groups = query.shape[1] // key.shape[1]
        tokens[1:] = [tensor.repeat_interleave(groups, 1) for tensor in tokens[1:]]
    return varlen_attn(*tokens, edges, edges, longest, longest, **settings)[None], None


def _attentions(device: str) -> list[str]:
    """What this machine may have, the dense mask last; ours are made known to Transformers."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import flash_attention_mask

    for name, function in ((_BY_SEGMENT, _by_segment), (_TORCH_VARLEN, _by_varlen)):
        AttentionInterface.register(name, function)
        AttentionMaskInterface.register(
            name, flash_attention_mask
        )  # none for packed rows: boundaries say it all
    if device == "cpu":
        return [_BY_SEGMENT, "sdpa"]
    modules = {"flash_attention_2": "flash_attn", _TORCH_VARLEN: "torch.nn.attention.varlen"}
    present = [name for name, module in modules.items() if find_spec(module) is not None]
    for name in modules.keys() - set(present):
        _not_measured(f"{modules[name]} is not installed")
    return [*present, "flex_attention", "sdpa"]


def _not_measured(reason: str) -> None:
    print(f"not measured: {reason}", file=sys.stderr, flush=True)


def _lengths(name: str, size: _Size) -> np.ndarray:
    """Real lengths in random order, for files come sorted by task; or drawn ones."""
    rng = np.random.default_rng(0)
    path = SHARED_DATA / "lengths" / f"{_LENGTHS[name]}.npy"
    lengths = (
        rng.permutation(np.load(path))
        if path.exists()
        else 8 + rng.lognormal(5.0, 1.0, size.samples)
    )
    lengths = lengths[: size.samples].astype(np.int64)
    return lengths[lengths <= size.capacity]


def _packs(name: str, size: _Size) -> list[Pack]:
    """The first packs of the plan, with random tokens."""
    lengths = _lengths(name, size)
    plan = plan_packs(lengths, capacity=size.capacity, seed=0)
    rng = np.random.default_rng(0)
    packs = []
    for number in range(min(size.packs, plan.num_packs)):
        ids = plan.sample_ids[plan.offsets[number] : plan.offsets[number + 1]]
        tokens = [
            rng.integers(3, size.vocab, length, dtype=np.int32) for length in lengths[ids].tolist()
        ]
        packs.append(assemble_pack(tokens, [np.ones(len(row), dtype=bool) for row in tokens], ids))
    return packs


def _samples(pack: Pack) -> list[dict[str, Any]]:
    """The segments of a pack, as the collators of others take them."""
    labels = pack.labels
    return [
        {"input_ids": pack.input_ids[a:b].tolist(), "labels": labels[a:b].tolist()}
        for a, b in pairwise(pack.cu_seqlens.tolist())
    ]


def _padded_groups(samples: Sequence[dict[str, Any]], capacity: int) -> list[list[dict[str, Any]]]:
    """In their order, as many in a batch as make at most ``capacity`` positions with the longest."""
    groups: list[list[dict[str, Any]]] = [[]]
    longest = 0
    for sample in samples:
        longest = max(longest, len(sample["input_ids"]))
        if (len(groups[-1]) + 1) * longest > capacity:
            groups.append([])
            longest = len(sample["input_ids"])
        groups[-1].append(sample)
    return groups


def _pad(samples: Sequence[dict[str, Any]]) -> dict[str, Tensor]:
    """A usual batch: one sample a row, padded on the right to the longest."""
    from torch.nn.utils.rnn import pad_sequence

    ids = [torch.tensor(sample["input_ids"]) for sample in samples]
    return {
        "input_ids": pad_sequence(ids, batch_first=True),
        "labels": pad_sequence(
            [torch.tensor(sample["labels"]) for sample in samples], True, IGNORE_INDEX
        ),
        "attention_mask": pad_sequence([torch.ones_like(row) for row in ids], batch_first=True),
    }


def _contestants(
    packs: list[Pack], size: _Size, attentions: Sequence[str], device: str
) -> dict[str, _Contestant]:
    """All layouts of the same samples, and the dense rows."""
    from transformers import DataCollatorWithFlattening

    ours = PackCollator(padding=Padding(to=size.capacity))
    theirs = DataCollatorWithFlattening(return_flash_attn_kwargs=True)
    of_packs = [_samples(pack) for pack in packs]
    samples = [sample for group in of_packs for sample in group]
    drawn = [
        samples[place] for place in np.random.default_rng(1).permutation(len(samples)).tolist()
    ]
    inside = -(-len(drawn) // len(packs))
    fixed = [drawn[begin : begin + inside] for begin in range(0, len(drawn), inside)]
    by_length = sorted(drawn, key=lambda sample: len(sample["input_ids"]))
    dense = torch.randint(3, size.vocab, (len(packs), 1, size.capacity), device=device)

    found = {
        "dense": _Contestant("sdpa", lambda: ({"input_ids": row, "labels": row} for row in dense)),
        "padded": _Contestant("sdpa", partial(map, _pad, _padded_groups(drawn, size.capacity))),
        "padded, sorted": _Contestant(
            "sdpa", partial(map, _pad, _padded_groups(by_length, size.capacity))
        ),
    }
    for name in attentions:
        found[f"ours, {name}"] = _Contestant(name, lambda: (ours([pack]) for pack in packs))
        if name == "sdpa":
            continue  # slow, and says the same again
        found[f"same, {name}"] = _Contestant(name, partial(map, theirs, of_packs))
        found[f"fixed, {name}"] = _Contestant(name, partial(map, theirs, fixed))
    return found


def _warm_up(training: _Training, contestants: dict[str, _Contestant]) -> dict[str, _Contestant]:
    """Those that run here; all give the loss of the padded one, or nothing is worth timing."""
    losses, running = {}, {}
    for name, contestant in contestants.items():
        try:
            losses[name] = training.step(contestant, update=False)
            running[name] = contestant
        except Exception as error:  # kernels and compilers refuse a dtype, a shape or a machine in any way they like
            training.step(
                contestants["dense"], update=False
            )  # and if the device itself is gone, this says so
            _not_measured(f"{name}: {type(error).__name__}: {' '.join(str(error).split())[:200]}")
    losses.pop("dense")  # has other tokens
    expected = losses["padded"]
    for name, loss in losses.items():
        apart = abs(loss / expected - 1)
        assert apart < _TOLERANCE[training.dtype], (
            f"{name}: loss {loss:,.3f} nats, padded {expected:,.3f}"
        )
    most = max(abs(loss / expected - 1) for loss in losses.values())
    print(
        f"loss of all samples: {expected:,.2f} nats padded, the others within {most:.0e}",
        file=sys.stderr,
        flush=True,
    )
    return running


def _rows(name: str, size: _Size, training: _Training, attentions: Sequence[str]) -> list[Row]:
    """One data set."""
    packs = _packs(name, size)
    contestants = _warm_up(training, _contestants(packs, size, attentions, training.device))
    calls = {name: partial(training.step, contestant) for name, contestant in contestants.items()}
    seconds = in_turn(calls, repetitions=size.repetitions)
    real = sum(len(pack) for pack in packs)
    limit = len(packs) * size.capacity
    rates = {key: (limit if key == "dense" else real) / time for key, time in seconds.items()}
    on_gpu = training.device == "cuda"
    peaks = (
        {key: training.peak(contestant) for key, contestant in contestants.items()}
        if on_gpu
        else {}
    )
    title = f"train {name}, {len(packs)} × {size.capacity:,}, {str(training.dtype).removeprefix('torch.')}"
    title += f" on {torch.cuda.get_device_name()}" if on_gpu else " on CPU"
    rows = []
    for key in ("padded", "padded, sorted"):
        positions = sum(batch["input_ids"].numel() for batch in contestants[key].batches())
        rows.append(
            Row(
                f"{title}: positions that are real",
                "%",
                100 * real / limit,
                _PEERS[key],
                100 * real / positions,
            )
        )
    fixed = (
        contestants[f"fixed, {attentions[0]}"].batches()
        if f"fixed, {attentions[0]}" in contestants
        else ()
    )
    longest = [batch["input_ids"].numel() for batch in fixed]
    if longest:
        rows.append(
            Row(
                f"{title}: longest row",
                "tokens",
                size.capacity,
                _PEERS["fixed"],
                max(longest),
                True,
            )
        )
    for attention in attentions:
        ours = f"ours, {attention}"
        if ours not in contestants:
            continue
        what = f"{title}: {_ATTENTION[attention]}"
        aims = {} if attention == "sdpa" else {"padded": 1.0, "dense": 0.9 if on_gpu else None}
        peers = {
            short: f"{short}, {attention}" if short in ("same", "fixed") else short
            for short in _PEERS
        }
        peers = {short: key for short, key in peers.items() if key in contestants}
        rows += [
            Row(
                what, "useful tokens/s", rates[ours], _PEERS[short], rates[key], aim=aims.get(short)
            )
            for short, key in peers.items()
        ]
        rows += [
            Row(
                f"{what}, peak memory",
                "GiB",
                peaks[ours],
                _PEERS[short],
                peaks[key],
                less_is_better=True,
            )
            for short, key in peers.items()
            if on_gpu and short in ("padded", "fixed")
        ]
    return rows


def _verify(training: _Training, attentions: Sequence[str]) -> Row:
    """``verify_packing`` on a tiny Llama, in the type that was trained in. The report goes to stderr."""
    dtype = str(training.dtype).removeprefix("torch.")
    model = tiny_model("llama", dtype=dtype, device=training.device)
    report = verify_packing(
        model, PackCollator(pad_to=128), random_samples(128), attention=attentions
    )
    print(report, file=sys.stderr, flush=True)
    passed = {found.attention for found in report.findings if found.check == "isolation"}
    passed -= {found.attention for found in report.failures}
    clean = 0 if any(not found.attention for found in report.failures) else len(passed)
    return Row(
        f"verify_packing, {dtype}",
        "attentions that pass",
        clean,
        "attentions tried",
        len(attentions),
        aim=1,
    )


def measure(quick: bool) -> list[Row]:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu":
        for what in (
            "flash_attn and varlen of torch",
            "flex attention (its backward)",
            "peak memory",
            "bf16",
        ):
            _not_measured(f"no CUDA device: {what}")
    size = _SIZES[device, quick]
    attentions = _attentions(device)
    training = _Training(size, device)
    rows = [_verify(training, attentions)]
    for name in list(_LENGTHS)[: 1 if quick else None]:
        rows += _rows(name, size, training, attentions)
    return rows


if __name__ == "__main__":
    main_of(measure, __doc__)
