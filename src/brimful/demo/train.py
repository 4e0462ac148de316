"""Training of a tiny model twice on the same samples: packed, and padded the usual way.

Both runs start with the same weights and take the same samples at every step; each step's loss is the mean over
its targets. Only the layout differs, so the losses must agree: that is what packing without leaks means.
"""

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain, islice, pairwise, repeat
from typing import Any, TypeAlias

import numpy as np

from brimful.rng import generator
from brimful.serve import PackedDataset, PackLoader
from brimful.shards import Pack
from brimful.typing import IGNORE_INDEX, Labels, TokenIds

_LEARNING_RATE = 1e-2
"""Learning rate of AdamW; high, so that a few steps are enough to see the loss go down."""

Layout: TypeAlias = Callable[[Sequence[Pack], int], list[dict[str, Any]]]
"""From the packs of a step and its number to keyword arguments of the model, one for each forward."""


@dataclass
class TrainingRun:
    """Result of one training, up to the current step.

    Attributes:
        name: ``packed`` or ``padded``.
        losses: mean loss per target of each step, in nats.
        real_tokens: tokens of samples that went through the model.
        positions: positions that the model computed, the padding included.
        seconds: time of all steps.
    """

    name: str
    losses: list[float] = field(default_factory=list)
    real_tokens: int = 0
    positions: int = 0
    seconds: float = 0.0

    @property
    def fill_ratio(self) -> float:
        """Real tokens ÷ positions computed."""
        return self.real_tokens / self.positions

    @property
    def tokens_per_second(self) -> float:
        """Real tokens a second."""
        return self.real_tokens / self.seconds

    def as_dict(self) -> dict[str, Any]:
        """Return numbers for JSON, without the name."""
        fields = {key: value for key, value in asdict(self).items() if key != "name"}
        return {**fields, "fill_ratio": self.fill_ratio, "tokens_per_second": self.tokens_per_second}


def compare_training(
    directory: str | os.PathLike[str],
    *,
    vocab_size: int,
    steps: int = 12,
    packs_per_step: int = 4,
    samples_per_batch: int = 8,
) -> tuple[TrainingRun, TrainingRun]:
    """Train the same model on the same samples, packed and padded.

    Args:
        directory: directory of a pack store.
        vocab_size: entries of its tokenizer.
        steps: number of optimizer steps.
        packs_per_step: packs of one step, one a forward.
        samples_per_batch: samples of one padded forward; the samples of a step are shuffled and cut into such batches.

    Returns:
        The packed run and the padded one.
    """
    import torch

    from brimful.collate.torch import PackCollator

    dataset = PackedDataset(directory)
    collate = PackCollator()

    def lay_out_packed(packs: Sequence[Pack], _: int) -> list[dict[str, Any]]:
        return [collate([pack]) for pack in packs]

    def lay_out_padded(packs: Sequence[Pack], step: int) -> list[dict[str, Any]]:
        samples = [sample for pack in packs for sample in _samples(pack)]
        order = generator(seed=0, epoch=step, purpose="demo: padded batches").permutation(len(samples)).tolist()
        return [
            _pad([samples[index] for index in order[start : start + samples_per_batch]])
            for start in range(0, len(order), samples_per_batch)
        ]

    packed, padded = TrainingRun("packed"), TrainingRun("padded")
    trainings = []
    with torch.random.fork_rng(devices=[]):
        for run, layout in ((packed, lay_out_packed), (padded, lay_out_padded)):
            # The first step of a process is slow in any layout: a separate model warms up, and is not counted.
            make_training(make_model(vocab_size), layout, TrainingRun("warm-up"))([dataset[0]], 0)
            trainings.append(make_training(make_model(vocab_size), layout, run))
        take_turns(trainings, islice(steps_of(dataset, packs_per_step), steps))
    return packed, padded


def take_turns(trainings: Sequence[Callable[[Sequence[Pack], int], None]], steps: Iterable[Sequence[Pack]]) -> None:
    """Make every step in each training, so that other work on this machine slows all of them equally."""
    for step, packs in enumerate(steps):
        for training in trainings:
            training(packs, step)


def steps_of(dataset: PackedDataset, packs_per_step: int) -> Iterator[list[Pack]]:
    """Yield the packs of one optimizer step after another, epoch after epoch."""
    loader = PackLoader(dataset, micro_batches=packs_per_step, tail="repeat")
    micro_batches = chain.from_iterable(repeat(loader))
    while True:
        yield [pack for micro_batch in islice(micro_batches, packs_per_step) for pack in micro_batch]


def make_model(vocab_size: int) -> Any:
    """Make a Qwen2 of 32 dimensions with random weights, the same every time."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=vocab_size,
        hidden_size=32,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=2048,  # the capacity of the demo's packs
        tie_word_embeddings=True,
        attn_implementation="sdpa",
        bos_token_id=None,
        eos_token_id=None,
        use_cache=False,  # training needs no cache, and the padded run must not pay for one
    )
    return Qwen2ForCausalLM(config).train()


def make_training(model: Any, layout: Layout, run: TrainingRun) -> Callable[[Sequence[Pack], int], None]:
    """Return the function that makes one optimizer step on some packs, and counts it in the run."""
    import torch

    optimizer = torch.optim.AdamW(model.parameters(), lr=_LEARNING_RATE)

    def step(packs: Sequence[Pack], number: int) -> None:
        start = time.perf_counter()
        batches = layout(packs, number)
        targets = sum(int((batch["labels"] != IGNORE_INDEX).sum()) for batch in batches)
        loss = 0.0
        for batch in batches:
            # Sums of forwards ÷ targets of the whole step: gradients add up to the gradients of the step's mean.
            batch_loss = model(**batch, num_items_in_batch=targets).loss
            batch_loss.backward()
            loss += float(batch_loss.detach())
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        run.seconds += time.perf_counter() - start
        run.losses.append(loss)
        run.real_tokens += sum(len(pack) for pack in packs)
        run.positions += sum(batch["input_ids"].numel() for batch in batches)

    return step


def _samples(pack: Pack) -> list[tuple[TokenIds, Labels]]:
    """Return tokens and labels of the segments of a pack, each a sample of its own."""
    labels = pack.labels
    return [(pack.input_ids[start:end], labels[start:end]) for start, end in pairwise(pack.cu_seqlens.tolist())]


def _pad(samples: Sequence[tuple[TokenIds, Labels]]) -> dict[str, Any]:
    """Return a usual batch: one sample a row, padded on the right to the longest of them."""
    import torch

    shape = len(samples), max(len(ids) for ids, _ in samples)
    # Padding is token 0, which the mask hides, and has no label.
    paddings = {"input_ids": 0, "attention_mask": 0, "labels": IGNORE_INDEX}
    arrays = {name: np.full(shape, padding, dtype=np.int64) for name, padding in paddings.items()}
    for row, (ids, labels) in enumerate(samples):
        for name, values in (("input_ids", ids), ("attention_mask", 1), ("labels", labels)):
            arrays[name][row, : len(ids)] = values
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def draw_comparison(packed: TrainingRun, padded: TrainingRun) -> list[str]:
    """Draw both runs as a table, and state the difference.

    >>> runs = TrainingRun("packed", [9.0, 7.5], 1000, 1000, 1.0), TrainingRun("padded", [9.0, 7.5], 1000, 2500, 2.0)
    >>> print("\\n".join(draw_comparison(*runs)))
                 steps   real tokens    positions       fill   seconds   real tokens/s   loss first -> last
    packed           2         1,000        1,000    100.0 %       1.0           1,000       9.000 -> 7.500
    padded           2         1,000        2,500     40.0 %       2.0             500       9.000 -> 7.500
    Packed, the same tokens took 2.0 times less time. At no step are the two losses more than 0e+00 apart.
    """
    lines = [
        f"{'':<11}{'steps':>7}{'real tokens':>14}{'positions':>13}{'fill':>11}{'seconds':>10}{'real tokens/s':>16}"
        f"{'loss first -> last':>21}"
    ]
    for run in (packed, padded):
        losses = f"{run.losses[0]:.3f} -> {run.losses[-1]:.3f}"
        lines.append(
            f"{run.name:<11}{len(run.losses):>7}{run.real_tokens:>14,}{run.positions:>13,}"
            f"{100 * run.fill_ratio:>9.1f} %{run.seconds:>10.1f}{run.tokens_per_second:>16,.0f}{losses:>21}"
        )
    difference = max(abs(a - b) for a, b in zip(packed.losses, padded.losses, strict=True))
    lines.append(
        f"Packed, the same tokens took {padded.seconds / packed.seconds:.1f} times less time. "
        f"At no step are the two losses more than {difference:.0e} apart."
    )
    return lines
