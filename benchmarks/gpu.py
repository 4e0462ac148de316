"""What only a GPU can show, in order of worth and in at most eight minutes: ``make gpu``.

Each stage is a process of its own with a time limit, since a failed kernel leaves a device that nothing else can use.
The file is written again after each row: a stage that fails or takes too long costs its own rows, and is named.

verify
    ``verify_packing`` on tiny models of ten architectures, with each attention that goes by boundaries.
train
    packs against padded batches and dense rows: the rows of ``bench_train.py``, with peak memory.
trees
    a step of groups of answers as trees, gathered and with flex attention, against flat packs of the same samples and
    TRL's kernel: seconds of a forward and backward, losses, peak memory.
probe
    two training steps under ``brimful.doctor.probe``, against two without.

Nothing is downloaded: what is not installed is named as not measured. Without a GPU, ``--tiny`` runs all of it on a CPU.
"""

from __future__ import annotations

import argparse
import json
import queue
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent))

from compare import describe_machine, in_turn

__all__ = ["STAGES", "main", "run"]

FAMILIES = (
    *("llama", "qwen2", "qwen3", "mistral", "gemma2", "gemma3_text", "phi3", "olmo2", "qwen3_moe"),
    "gpt_oss",
)
"""Architectures of ``verify``: plain, with windows, softcaps, norms of queries, experts and attention sinks."""

_ROOT = Path(__file__).resolve().parents[1]


class Table(NamedTuple):
    """One stage: its columns, and its share of the time."""

    columns: tuple[str, ...]
    share: float


STAGES = {
    "verify": Table(("model", "attention", "verdict", "seconds", "peak GiB"), 0.34),
    "train": Table(("what", "ours", "compared with", "theirs", "unit", "ratio"), 0.30),
    "trees": Table(
        ("layout", "tokens", "packs", "seconds", "times flat", "loss", "peak GiB"), 0.22
    ),
    "probe": Table(("what", "seconds", "times plain", "peak GiB", "verdict"), 0.14),
}
"""In order of worth. A stage that ends early leaves its time to the next."""


def run(stage: str, tiny: bool) -> Iterator[Sequence[str]]:
    """Measure a stage; yield its rows as cells, or one cell that says what was not measured."""
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    return {"verify": _verify, "train": _train, "trees": _trees, "probe": _probe}[stage](
        device, tiny
    )


def _verify(device: str, tiny: bool) -> Iterator[Sequence[str]]:
    """Families in turn for each attention, so that a short time still tells something of all."""
    from bench_train import _attentions

    from brimful import PackCollator
    from brimful.verify import verify_packing
    from brimful.verify.models import tiny_model

    dtype = "bfloat16" if device == "cuda" else "float32"
    for attention in [name for name in _attentions(device) if name != "sdpa"]:
        for family in FAMILIES[: 2 if tiny else None]:
            start, before = time.perf_counter(), _reset_peak(device)
            try:
                model = tiny_model(family, dtype=dtype, device=device)
                collator = PackCollator(pad_to=128)
                verdict = verify_packing(model, collator, attention=attention).verdict
            except Exception as error:
                verdict = _failure(error)
            yield (
                family,
                attention,
                verdict,
                f"{time.perf_counter() - start:.1f}",
                _peak(device, before),
            )


def _train(device: str, tiny: bool) -> Iterator[Sequence[str]]:
    import bench_train

    size = replace(bench_train._SIZES[device, tiny], repetitions=1 if tiny else 3)
    training = bench_train._Training(size, device)
    attentions = bench_train._attentions(device)
    for name in list(bench_train._LENGTHS)[: 1 if tiny else None]:
        for row in bench_train._rows(name, size, training, attentions):
            yield (
                row.name,
                f"{row.ours:,.3g}",
                row.peer_name,
                f"{row.peer:,.3g}",
                row.unit,
                f"{row.ratio:.2f}",
            )


def _trees(device: str, tiny: bool) -> Iterator[Sequence[str]]:
    """Flat packs first: the others are compared with them, in seconds and in the loss."""
    import torch
    from bench_train import _BY_SEGMENT, _SIZES, _TORCH_VARLEN, _attentions, _Training

    from brimful import PackCollator
    from brimful.integrations.trainers import use_tree_attention
    from brimful.rl import find_step_prefixes, pack_step, plan_step
    from brimful.trees.attention import TREE_ATTENTION, weighted_loss

    prompt, answer, num_answers, groups = (48, 16, 4, 3) if tiny else (4096, 1024, 8, 4)
    size = _SIZES[device, tiny]
    draw = torch.Generator().manual_seed(0)
    samples = []
    for _ in range(groups):
        trunk = torch.randint(3, size.vocab, (prompt,), generator=draw)
        for _ in range(num_answers):
            samples.append(
                torch.cat([trunk, torch.randint(3, size.vocab, (answer,), generator=draw)]).numpy()
            )
    masks = [[place >= prompt for place in range(len(sample))] for sample in samples]
    capacity = max(size.capacity, prompt + num_answers * answer)
    step = partial(
        plan_step, [len(sample) for sample in samples], capacity=capacity, dp_world_size=1
    )
    plans = {"flat": step(), "trees": step(prefixes=find_step_prefixes(samples, least=16))}
    packs = {
        name: [pack for pack, _ in pack_step(plan, samples, dp_rank=0, loss_masks=masks)]
        for name, plan in plans.items()
    }
    training = _Training(size, device)
    model = training._model
    flat = _TORCH_VARLEN if _TORCH_VARLEN in _attentions(device) else _BY_SEGMENT

    def switch(attention: str) -> None:
        if attention == TREE_ATTENTION:
            use_tree_attention(model)
        else:
            model.set_attn_implementation(attention)
            model.loss_function = weighted_loss

    layouts = {
        "flat packs": (flat, "flat", PackCollator()),
        "trees, gathered": (TREE_ATTENTION, "trees", _tree_collator(model)),
        "trees, flex": ("flex_attention", "trees", PackCollator(dialect="flex_attention")),
        "trees, TRL's kernel": ("tree_fa3", "trees", PackCollator(dialect="trl_tree")),
    }
    flat_seconds = 0.0
    for name, (attention, kind, collator) in layouts.items():
        try:
            if attention == "tree_fa3":
                from trl.experimental.async_grpo.packing import _flash_attn, register_tree_attention

                _flash_attn()  # of the hub, or of a folder that has it
                register_tree_attention()
            switch(attention)
            before = _reset_peak(device)
            loss = [0.0]

            def forward_backward(
                kind: str = kind, collator: Any = collator, loss: list[float] = loss
            ) -> None:
                loss[0] = sum(_loss_sum(training, collator([pack])) for pack in packs[kind])

            seconds = in_turn({name: forward_backward}, repetitions=1 if tiny else 3)[name]
        except Exception as error:
            yield (f"not measured: {name}: {_failure(error)}",)
            continue
        flat_seconds = flat_seconds or seconds
        tokens = sum(len(pack) for pack in packs[kind])
        yield (
            *(
                name,
                f"{tokens:,}",
                str(len(packs[kind])),
                f"{seconds:.3f}",
                f"{flat_seconds / seconds:.2f}",
            ),
            *(f"{loss[0]:.4f}", _peak(device, before)),
        )


def _tree_collator(model: Any) -> Any:
    """The collator for the model with the attention of trees."""
    from brimful.integrations.trainers import collator_for, use_tree_attention

    before = model.config._attn_implementation
    use_tree_attention(model)
    collator = collator_for(model)
    model.set_attn_implementation(before)
    return collator


def _loss_sum(training: Any, batch: dict[str, Any]) -> float:
    """Run forward and backward of a batch; return the sum of its losses."""
    batch = training._on_device(batch)
    if "tree_max_seqlens" in batch:
        loss = _loss_of_trl(training._model, batch)
    else:
        loss = training._model(**batch, num_items_in_batch=1).loss
    loss.backward()
    training._optimizer.zero_grad(set_to_none=True)
    return float(loss.detach())


def _loss_of_trl(model: Any, batch: dict[str, Any]) -> Any:
    """Call the model as TRL's asynchronous trainer does, and sum the losses at its places."""
    from torch.nn.functional import cross_entropy

    longest_q, longest_k = batch["tree_max_seqlens"].tolist()
    tree = {name: batch[f"tree_{name}"] for name in ("kv_index", "cu_seqlens_q", "cu_seqlens_k")}
    tree |= {"max_seqlen_q": longest_q, "max_seqlen_k": longest_k}
    logits = model(
        input_ids=batch["input_ids"][None],
        position_ids=batch["position_ids"][None],
        **{f"tree_{name}": value for name, value in tree.items()},
    ).logits[0, batch["token_index"]]
    return cross_entropy(
        logits.float(), batch["shift_labels"][batch["token_index"]], reduction="sum"
    )


def _probe(device: str, tiny: bool) -> Iterator[Sequence[str]]:
    from bench_train import _BY_SEGMENT, _SIZES, _TORCH_VARLEN, _attentions, _packs, _Training

    from brimful import PackCollator
    from brimful.doctor import probe

    size = _SIZES[device, tiny]
    training = _Training(size, device)
    most_segments = sorted(_packs("SGD", size), key=lambda pack: -len(pack.cu_seqlens))
    packs = most_segments[:2]  # one sample alone says nothing
    attention = _TORCH_VARLEN if _TORCH_VARLEN in _attentions(device) else _BY_SEGMENT
    training._model.set_attn_implementation(attention)
    collator = PackCollator()

    def steps() -> list[float]:
        seconds = []
        for pack in packs:
            start = time.perf_counter()
            batch = training._on_device(collator([pack]))
            training._model(**batch).loss.backward()
            training._optimizer.step()
            training._optimizer.zero_grad(set_to_none=True)
            _wait(device)
            seconds.append(time.perf_counter() - start)
        return seconds

    steps()  # kernels are loaded, and the optimizer has its states
    before = _reset_peak(device)
    plain = steps()
    peak = _peak(device, before)
    yield "two steps", f"{sum(plain):.3f}", "1.00", peak, ""
    before = _reset_peak(device)
    with probe(training._model) as check:
        probed = steps()
    peak = _peak(device, before)
    for what, ours, theirs in zip(
        ("first step, with the probe", "second step"), probed, plain, strict=True
    ):
        yield what, f"{ours:.3f}", f"{ours / theirs:.2f}", peak, check.report.verdict


def _wait(device: str) -> None:
    import torch

    if device == "cuda":
        torch.cuda.synchronize()


def _reset_peak(device: str) -> float:
    """Forget the peak of before; return the GiB that are taken now."""
    import torch

    if device != "cuda":
        return 0.0
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    return torch.cuda.memory_allocated() / 2**30


def _peak(device: str, before: float) -> str:
    """GiB that were taken at most, over what was taken before."""
    import torch

    return f"{torch.cuda.max_memory_allocated() / 2**30 - before:.2f}" if device == "cuda" else "–"


def _failure(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"


def _rows_of(stage: str, tiny: bool, seconds: float) -> Iterator[list[str]]:
    """Rows of a stage as they come from its process, which is killed after ``seconds``."""
    command = [sys.executable, __file__, "--stage", stage, *(["--tiny"] if tiny else [])]
    lines: queue.Queue[str | None] = queue.Queue()
    with subprocess.Popen(command, cwd=_ROOT, stdout=subprocess.PIPE, text=True) as process:

        def read() -> None:
            assert process.stdout is not None
            for line in process.stdout:
                lines.put(line)
            lines.put(None)

        threading.Thread(target=read, daemon=True).start()
        end = time.monotonic() + seconds
        try:
            while (line := lines.get(timeout=max(0.0, end - time.monotonic()))) is not None:
                if line.startswith("["):
                    yield json.loads(line)
            if process.wait():
                yield [
                    f"not measured: the rest of {stage}: its process ended with status {process.returncode}"
                ]
        except queue.Empty:
            yield [f"not measured: the rest of {stage}: its {seconds:.0f} seconds were over"]
        finally:
            process.kill()


def _write(path: Path, tables: dict[str, list[list[str]]], machine: Sequence[str]) -> None:
    """Write the page with all rows so far."""
    lines = [
        f"# On a GPU, {date.today():%d %B %Y}".replace(" 0", " "),
        "",
        *(f"    {line}" for line in machine),
        "",
    ]
    for stage, rows in tables.items():
        columns = STAGES[stage].columns
        lines += [f"## {stage}", "", f"| {' | '.join(columns)} |", "|" + "---|" * len(columns)]
        lines += [
            "| " + " | ".join(cell.replace("|", "/") for cell in row) + " |"
            for row in rows
            if len(row) > 1
        ]
        lines += ["", *(f"- {row[0]}" for row in rows if len(row) == 1), ""]
    path.write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--tiny", action="store_true", help="small models: does it run at all?")
    parser.add_argument("--minutes", type=float, default=8.0, help="of all stages together")
    parser.add_argument(
        "--folder", type=Path, help="of the file; benchmarks/results, with --tiny build"
    )
    parser.add_argument("--stage", choices=STAGES, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.stage:
        for row in run(options.stage, options.tiny):
            print(json.dumps(list(row)), flush=True)
        return 0
    import torch

    if not (options.tiny or torch.cuda.is_available()):
        parser.error("torch sees no GPU: --tiny runs all of it on a CPU")
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    folder = options.folder or _ROOT / ("build" if options.tiny else "benchmarks/results")
    folder.mkdir(parents=True, exist_ok=True)
    name = re.sub(r"[^a-z0-9]+", "_", device.lower().removeprefix("nvidia ")).strip("_")
    path = folder / f"gpu_{name}_{date.today():%Y%m}.md"
    machine = [f"device    {device}", *describe_machine()]
    tables: dict[str, list[list[str]]] = {}
    end = time.monotonic() + 60 * options.minutes
    shares = sum(table.share for table in STAGES.values())
    for stage, table in STAGES.items():
        print(f"{stage} …", file=sys.stderr, flush=True)
        left = end - time.monotonic()
        tables[stage] = []
        for row in _rows_of(stage, options.tiny, left * table.share / shares):
            tables[stage].append(row)
            _write(path, tables, machine)
        shares -= table.share
    print(path.read_text(encoding="utf-8"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
