"""Training of a tiny vision-language model twice on the same samples: packed, and padded the usual way."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import islice, pairwise
from typing import Any, NamedTuple

import numpy as np

from brimful.demo.train import TrainingRun, make_training, steps_of, take_turns
from brimful.rng import generator
from brimful.serve import PackedDataset
from brimful.shards import Pack
from brimful.typing import IGNORE_INDEX, Int64Array, Labels, TokenIds

TOKENS = {
    "vision_start_token_id": "<|vision_start|>",
    "vision_end_token_id": "<|vision_end|>",
    "image_token_id": "<|image_pad|>",
    "video_token_id": "<|video_pad|>",
}
"""Marks of Qwen2-VL around and in place of images, by the model's setting."""


class _Sample(NamedTuple):
    """One segment of a pack, alone: its tokens, labels, positions ``int64[3, length]``, pixels and grids."""

    ids: TokenIds
    labels: Labels
    positions: Int64Array
    pixels: Any
    grids: Any


def compare_media_training(
    directory: str | os.PathLike[str],
    processor: str | os.PathLike[str],
    *,
    steps: int = 10,
    packs_per_step: int = 4,
    samples_per_batch: int = 8,
) -> tuple[TrainingRun, TrainingRun]:
    """Train the same model on the same samples with images, packed and padded.

    Pixels are made beforehand, as loader workers would make them, so that times measure only the model.

    Args:
        directory: directory of a pack store of the family ``qwen2-vl``.
        processor: directory of its processor and tokenizer.
        steps: number of optimizer steps.
        packs_per_step: packs of one step, one a forward.
        samples_per_batch: samples of one padded forward; the samples of a step are shuffled and cut into such batches.

    Returns:
        The packed run and the padded one.
    """
    import torch

    from brimful.collate.torch import PackCollator
    from brimful.media.collate import MediaFeatures

    dataset = PackedDataset(directory)
    features = MediaFeatures(processor, "qwen2-vl")
    choice = list(islice(steps_of(dataset, packs_per_step), steps))
    # A pack is identified by its samples: loaders return new objects.
    by_samples = {tuple(pack.sample_ids.tolist()): pack for step in [*choice, [dataset[0]]] for pack in step}
    extras = {key: features(pack) for key, pack in by_samples.items()}

    def extras_of(pack: Pack) -> Any:
        return extras[tuple(pack.sample_ids.tolist())]

    collate = PackCollator(media=extras_of)

    def lay_out_packed(packs: Sequence[Pack], _: int) -> list[dict[str, Any]]:
        return [collate([pack]) for pack in packs]

    def lay_out_padded(packs: Sequence[Pack], step: int) -> list[dict[str, Any]]:
        samples = [sample for pack in packs for sample in _samples(pack, extras_of(pack))]
        order = generator(seed=0, epoch=step, purpose="demo: padded batches").permutation(len(samples)).tolist()
        batches = (order[start : start + samples_per_batch] for start in range(0, len(order), samples_per_batch))
        return [_pad([samples[index] for index in batch]) for batch in batches]

    packed, padded = TrainingRun("packed"), TrainingRun("padded")
    trainings = []
    with torch.random.fork_rng(devices=[]), _one_thread():
        for run, layout in ((packed, lay_out_packed), (padded, lay_out_padded)):
            # The first step of a process is slow in any layout: a separate model warms up, and is not counted.
            make_training(_make_model(processor, dataset), layout, TrainingRun("warm-up"))([dataset[0]], 0)
            trainings.append(make_training(_make_model(processor, dataset), layout, run))
        take_turns(trainings, choice)
    return packed, padded


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Let PyTorch compute in one thread: operations are so small that threads mostly wait for each other."""
    import torch

    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(num_threads)


def _make_model(processor: str | os.PathLike[str], dataset: PackedDataset) -> Any:
    """Make a Qwen2-VL with random weights, the same every time."""
    import torch
    from transformers import AutoTokenizer, Qwen2VLConfig, Qwen2VLForConditionalGeneration

    tokenizer = _cached_tokenizer(os.fspath(processor), AutoTokenizer)
    torch.manual_seed(0)
    text = {
        "vocab_size": len(tokenizer),
        "hidden_size": 128,
        "intermediate_size": 512,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": max(len(pack) for pack in dataset),
        "rope_parameters": {"rope_type": "default", "mrope_section": [4, 6, 6], "rope_theta": 10_000.0},
        "bos_token_id": None,
        "eos_token_id": None,
        "use_cache": False,  # training needs no cache, and the padded run must not pay for one
    }
    vision = {"depth": 2, "embed_dim": 32, "hidden_size": 128, "num_heads": 2, "mlp_ratio": 2, "patch_size": 14}
    ids = {name: tokenizer.convert_tokens_to_ids(token) for name, token in TOKENS.items()}
    config = Qwen2VLConfig(text_config=text, vision_config=vision, tie_word_embeddings=True, **ids)
    return Qwen2VLForConditionalGeneration(config).train()


@cache
def _cached_tokenizer(directory: str, loader: Any) -> Any:
    return loader.from_pretrained(directory)


def _samples(pack: Pack, extras: Any) -> Iterator[_Sample]:
    """Yield the segments of a pack, each as a sample of its own."""
    labels = pack.labels
    pictures = extras.media[0] if extras.media else None
    grids, pixels = np.zeros((0, 3), dtype=np.int64), np.zeros((0, 1), dtype=np.float32)
    owners = np.zeros(0, dtype=np.int32)
    if pictures is not None:
        grids, pixels, owners = pictures.arrays["image_grid_thw"], pictures.arrays["pixel_values"], pictures.segments
    # Pixels of all images are concatenated; an image has as many rows as its grid has patches.
    ends = np.append(0, np.cumsum(grids.prod(axis=1)))
    for segment, (start, end) in enumerate(pairwise(pack.cu_seqlens.tolist())):
        indices = np.flatnonzero(owners == segment).tolist()
        yield _Sample(
            pack.input_ids[start:end],
            labels[start:end],
            extras.rope_positions[:, start:end],
            [pixels[ends[index] : ends[index + 1]] for index in indices],
            [grids[index] for index in indices],
        )


def _pad(samples: Sequence[_Sample]) -> dict[str, Any]:
    """Return a usual batch: one sample a row, padded on the right to the longest of them."""
    import torch

    shape = len(samples), max(len(sample.ids) for sample in samples)
    # Padding is token 0, which the mask hides, and has no label.
    paddings = {"input_ids": 0, "attention_mask": 0, "labels": IGNORE_INDEX}
    arrays = {name: np.full(shape, padding, dtype=np.int64) for name, padding in paddings.items()}
    arrays["position_ids"] = np.zeros((3, *shape), dtype=np.int64)
    for row, sample in enumerate(samples):
        length = len(sample.ids)
        for name, values in (("input_ids", sample.ids), ("attention_mask", 1), ("labels", sample.labels)):
            arrays[name][row, :length] = values
        arrays["position_ids"][:, row, :length] = sample.positions
    pixels = [array for sample in samples for array in sample.pixels]
    if pixels:
        arrays["pixel_values"] = np.concatenate(pixels)
        arrays["image_grid_thw"] = np.stack([grid for sample in samples for grid in sample.grids])
    return {name: torch.from_numpy(array) for name, array in arrays.items()}
