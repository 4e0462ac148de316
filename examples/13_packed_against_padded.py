"""Training of a tiny model twice on the same samples: packed, and padded the usual way.

    python examples/13_packed_against_padded.py [DIRECTORY] [--steps N] [--json]

DIRECTORY is what ``brimful demo -o DIRECTORY`` or ``examples/drawn_chats.py DIRECTORY`` made; a small one is made if none is given.
Both runs start with the same weights and take the same samples at every step; the loss of a step is the mean over its
targets. Only the layout differs, so the losses must agree: that is what packing without leaks means.
"""

from __future__ import annotations

import argparse
import copy
import json
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice, pairwise, repeat
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    Qwen2VLConfig,
    Qwen2VLForConditionalGeneration,
)

from brimful import PackCollator, PackedDataset, PackLoader
from brimful.cli.demo import run_demo
from brimful.media.collate import MediaFeatures
from brimful.serve import Pack

LEARNING_RATE = 1e-2  # high, so that a few steps are enough to see the loss go down
SAMPLES_PER_BATCH = 8  # of one padded forward
IGNORE_INDEX = -100

Layout = Callable[[Sequence[Pack], int], list[dict[str, torch.Tensor]]]
"""From the packs of a step and its number to keyword arguments of the model, one for each forward."""


@dataclass
class Run:
    """One training, up to the current step: losses in nats per target, seconds of all steps."""

    name: str
    model: torch.nn.Module
    layout: Layout
    losses: list[float] = field(default_factory=list)
    real_tokens: int = 0
    positions: int = 0
    seconds: float = 0.0

    def __post_init__(self) -> None:
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=LEARNING_RATE)

    def step(self, packs: Sequence[Pack], number: int) -> None:
        """Make one optimizer step on some packs."""
        start = time.perf_counter()
        batches = self.layout(packs, number)
        targets = sum(int((batch["labels"] != IGNORE_INDEX).sum()) for batch in batches)
        loss = 0.0
        for batch in batches:
            # Sums of forwards ÷ targets of the whole step: gradients add up to the gradients of the step's mean.
            batch_loss = self.model(**batch, num_items_in_batch=targets).loss
            batch_loss.backward()
            loss += float(batch_loss.detach())
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.seconds += time.perf_counter() - start
        self.losses.append(loss)
        self.real_tokens += sum(len(pack) for pack in packs)
        self.positions += sum(batch["input_ids"].numel() for batch in batches)

    def as_dict(self) -> dict[str, Any]:
        names = ("losses", "real_tokens", "positions", "seconds")
        return {name: getattr(self, name) for name in names} | {
            "fill_ratio": self.real_tokens / self.positions
        }


def compare(home: Path, *, steps: int = 12, packs_per_step: int = 4) -> tuple[Run, Run]:
    """Train on the packs of a demo; return the packed run and the padded one."""
    dataset = PackedDataset(home / "packs")
    micro_batches = chain.from_iterable(
        repeat(PackLoader(dataset, micro_batches=packs_per_step, tail="repeat"))
    )
    chosen = [
        [pack for micro_batch in islice(micro_batches, packs_per_step) for pack in micro_batch]
        for _ in range(steps)
    ]
    make_model, extras_of = (
        model_of_images(home, dataset, chosen)
        if (home / "processor").exists()
        else text_model(home)
    )
    collate = PackCollator(media=extras_of)

    def lay_out_packed(packs: Sequence[Pack], _: int) -> list[dict[str, torch.Tensor]]:
        return [collate([pack]) for pack in packs]

    def lay_out_padded(packs: Sequence[Pack], step: int) -> list[dict[str, torch.Tensor]]:
        samples = [
            sample for pack in packs for sample in samples_of(pack, extras_of and extras_of(pack))
        ]
        order = np.random.default_rng(step).permutation(len(samples)).tolist()
        return [
            pad([samples[index] for index in order[start : start + SAMPLES_PER_BATCH]])
            for start in range(0, len(order), SAMPLES_PER_BATCH)
        ]

    # The first step of a process is slow in any layout: separate models warm up, and are not counted.
    for layout in (lay_out_packed, lay_out_padded):
        Run("warm-up", make_model(), layout).step(chosen[0], 0)
    packed, padded = (
        Run("packed", make_model(), lay_out_packed),
        Run("padded", make_model(), lay_out_padded),
    )
    for number, packs in enumerate(chosen):
        # In turns, so that other work on this machine slows both equally.
        packed.step(packs, number)
        padded.step(packs, number)
    return packed, padded


def text_model(home: Path) -> tuple[Callable[[], torch.nn.Module], None]:
    """Return what loads the model of the demo; text needs nothing else."""
    model = AutoModelForCausalLM.from_pretrained(home / "model").train()
    return lambda: copy.deepcopy(model), None


def model_of_images(
    home: Path, dataset: PackedDataset, steps: list[list[Pack]]
) -> tuple[Callable[[], Any], Callable[[Pack], Any]]:
    """Return what makes a Qwen2-VL of random weights, and the pixels and positions of a pack.

    Pixels are made before, as the workers of a loader would make them, so that times measure only the model.
    """
    torch.set_num_threads(1)  # operations are so small that threads mostly wait for each other
    tokenizer = AutoTokenizer.from_pretrained(home / "processor")
    features = MediaFeatures(home / "processor", "qwen2-vl")
    # A pack is identified by its samples: loaders return new objects.
    extras = {tuple(pack.sample_ids.tolist()): features(pack) for packs in steps for pack in packs}
    tokens = {"vision_start": "<|vision_start|>", "vision_end": "<|vision_end|>"}
    tokens |= {"image": "<|image_pad|>", "video": "<|video_pad|>"}
    text = {
        "vocab_size": len(tokenizer),
        "hidden_size": 128,
        "intermediate_size": 512,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": max(len(pack) for pack in dataset),
        "rope_parameters": {
            "rope_type": "default",
            "mrope_section": [4, 6, 6],
            "rope_theta": 10_000.0,
        },
        "bos_token_id": None,
        "eos_token_id": None,
        "use_cache": False,  # training needs no cache, and the padded run must not pay for one
    }
    vision = {
        "depth": 2,
        "embed_dim": 32,
        "hidden_size": 128,
        "num_heads": 2,
        "mlp_ratio": 2,
        "patch_size": 14,
    }
    ids = {
        f"{name}_token_id": tokenizer.convert_tokens_to_ids(token) for name, token in tokens.items()
    }
    config = Qwen2VLConfig(text_config=text, vision_config=vision, tie_word_embeddings=True, **ids)

    def make_model() -> torch.nn.Module:
        torch.manual_seed(0)
        return Qwen2VLForConditionalGeneration(config).train()

    return make_model, lambda pack: extras[tuple(pack.sample_ids.tolist())]


def samples_of(pack: Pack, extras: Any) -> Iterator[dict[str, Any]]:
    """Yield the segments of a pack, each as a sample of its own: tokens, labels, positions and pixels."""
    pictures = extras.attached[0] if extras and extras.attached else None
    if pictures is not None:
        grids, pixels = pictures.arrays["image_grid_thw"], pictures.arrays["pixel_values"]
        # Pixels of all images are concatenated; an image has as many rows as its grid has patches.
        pixels_of_images = np.split(pixels, np.cumsum(grids.prod(axis=1))[:-1])
    for segment, (start, end) in enumerate(pairwise(pack.cu_seqlens.tolist())):
        images = [] if pictures is None else np.flatnonzero(pictures.segments == segment).tolist()
        yield {
            "input_ids": pack.input_ids[start:end],
            "labels": pack.labels[start:end],
            "position_ids": None if extras is None else extras.rope_positions[:, start:end],
            "pixel_values": [pixels_of_images[index] for index in images],
            "image_grid_thw": [grids[index] for index in images],
        }


def pad(samples: Sequence[dict[str, Any]]) -> dict[str, torch.Tensor]:
    """Return a usual batch: one sample a row, padded on the right to the longest of them."""
    shape = len(samples), max(len(sample["input_ids"]) for sample in samples)
    # Padding is token 0, which the mask hides, and has no label.
    arrays = {
        "input_ids": np.zeros(shape, dtype=np.int64),
        "attention_mask": np.zeros(shape, dtype=np.int64),
        "labels": np.full(shape, IGNORE_INDEX, dtype=np.int64),
    }
    if samples[0]["position_ids"] is not None:
        arrays["position_ids"] = np.zeros((3, *shape), dtype=np.int64)
    for row, sample in enumerate(samples):
        length = len(sample["input_ids"])
        for name, array in arrays.items():
            array[..., row, :length] = 1 if name == "attention_mask" else sample[name]
    pixels = [array for sample in samples for array in sample["pixel_values"]]
    if pixels:
        arrays["pixel_values"] = np.concatenate(pixels)
        arrays["image_grid_thw"] = np.stack(
            [grid for sample in samples for grid in sample["image_grid_thw"]]
        )
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def show(packed: Run, padded: Run) -> None:
    print(
        f"{'':<9}{'real tokens':>12}{'positions':>12}{'fill':>10}{'seconds':>9}{'loss, first and last':>24}"
    )
    for run in (packed, padded):
        losses = f"{run.losses[0]:.3f} -> {run.losses[-1]:.3f}"
        fill = 100 * run.real_tokens / run.positions
        print(
            f"{run.name:<9}{run.real_tokens:>12,}{run.positions:>12,}{fill:>8.1f} %{run.seconds:>9.1f}{losses:>24}"
        )
    difference = max(abs(a - b) for a, b in zip(packed.losses, padded.losses, strict=True))
    print(f"Packed, the same tokens took {padded.seconds / packed.seconds:.1f} times less time.")
    print(f"At no step are the two losses more than {difference:.0e} apart.")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path, nargs="?")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        if options.directory is None:
            run_demo(temporary, lambda line: None, limit=300)
        runs = compare(options.directory or Path(temporary), steps=options.steps)
    if options.json:
        print(json.dumps({run.name: run.as_dict() for run in runs}))
    else:
        show(*runs)


if __name__ == "__main__":
    main()
