"""Two ranks with accumulation and packs train the weights that one process trains with one big batch and no packing.

Runs itself in two processes (gloo, CPU): the lines at the end.
"""

import os
import sys
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from brimful import PackLoader, plan_packs  # noqa: E402
from brimful.collate import lay_out  # noqa: E402
from brimful.collate.dialects.one_row import to_transformers  # noqa: E402
from brimful.collate.loss import token_weights  # noqa: E402
from brimful.collate.loss_torch import global_sum, packed_loss_sum, scale_for_ddp  # noqa: E402
from brimful.dynamic.composed_batches import TokenBudgetBatches  # noqa: E402
from brimful.dynamic.token_budget import TokenBudget  # noqa: E402
from brimful.encode.encoded import EncodedSample  # noqa: E402
from brimful.store.shards import assemble_pack  # noqa: E402
from brimful.testing.toys import ToyPacks  # noqa: E402
from tests.flow.parity import run_ranks  # noqa: E402

pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("ignore")]  # of torch

RANKS, MICRO_BATCHES, STEPS, VOCABULARY = 2, 2, 10, 48
CASES = {
    "packs, every target alike": ("packs", "token", "sgd"),
    "token budget, every sample alike": ("budget", "sample", "sgd"),
    "packs, every target alike, AdamW": ("packs", "token", "adamw"),
}


class Samples:
    """Of 2 to 14 tokens; answers of very different lengths, so that every wrong denominator shows."""

    def __init__(self):
        rng = np.random.default_rng(0)
        self.lengths = rng.integers(2, 15, 70)
        self.all = []
        for length in self.lengths.tolist():
            mask = np.zeros(length, dtype=bool)
            mask[-int(rng.integers(1, length + 1)) :] = True
            mask[0] = False
            self.all.append(EncodedSample(rng.integers(1, VOCABULARY, length).astype(np.int32), mask))

    def __len__(self):
        return len(self.all)

    def __getitem__(self, index):
        return self.all[index]


def loader(kind, rank):
    samples = Samples()
    options = {"dp_rank": rank, "dp_world_size": RANKS, "micro_batches": MICRO_BATCHES, "seed": 3}
    if kind == "budget":
        return TokenBudgetBatches(samples, TokenBudget(30, min_buffered=8), lengths=samples.lengths, **options)
    plan = plan_packs(samples.lengths, capacity=30)
    packs = []
    for number in range(plan.num_packs):
        of_pack = [segment.sample_id for segment in plan.pack(number)]
        ids, masks = [samples[i].input_ids for i in of_pack], [samples[i].loss_mask for i in of_pack]
        packs.append(assemble_pack(ids, masks, of_pack))
    return PackLoader(ToyPacks(packs), **options)


def steps(kind, rank):
    """Lists of the micro-batches of each step, over the end of the epoch, where a rank has packs without loss."""

    def forever(one):
        while True:
            yield from one

    stream = forever(loader(kind, rank))
    for _ in range(STEPS):
        yield [next(stream) for _ in range(MICRO_BATCHES)]


def new_model():
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=64, attn_implementation="sdpa",
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config).float().train()


def new_optimizer(name, model):
    if name == "sgd":
        return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return torch.optim.AdamW(model.parameters(), lr=1e-3, eps=1e-6)


def weights_of(model):
    return {name.replace("module.", ""): value.detach().numpy() for name, value in model.state_dict().items()}


def one_big_batch(kind, normaliser, optimizer_name):
    """The definition, written out: all samples of the step in one padded batch, plain PyTorch."""
    model = new_model()
    optimizer = new_optimizer(optimizer_name, model)
    samples = Samples()
    for micro_batches in zip(*(steps(kind, rank) for rank in range(RANKS)), strict=True):
        served = [pack for rank in micro_batches for micro_batch in rank for pack in micro_batch]
        ids = [i for pack in served if pack.num_loss_tokens for i in pack.sample_ids.tolist()]
        assert len(ids) == len(set(ids)) > 0
        width = max(len(samples[i]) for i in ids)
        tokens, attention = (
            torch.zeros(len(ids), width, dtype=torch.int64),
            torch.zeros(len(ids), width, dtype=torch.int64),
        )
        labels = torch.full((len(ids), width), -100)
        for row, i in enumerate(ids):
            length = len(samples[i])
            tokens[row, :length] = torch.from_numpy(samples[i].input_ids.astype(np.int64))
            labels[row, :length] = torch.from_numpy(samples[i].labels)
            attention[row, :length] = 1
        logits = model(input_ids=tokens, attention_mask=attention, use_cache=False).logits[:, :-1]
        nll = torch.nn.functional.cross_entropy(
            logits.transpose(1, 2), labels[:, 1:], ignore_index=-100, reduction="none"
        )
        if normaliser == "token":
            loss = nll.sum() / (labels[:, 1:] != -100).sum()
        else:
            targets = (labels[:, 1:] != -100).sum(dim=1)
            loss = (nll.sum(dim=1)[targets > 0] / targets[targets > 0]).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return weights_of(model)


def train_one_rank(rank, kind, normaliser, optimizer_name, mean_of_means):
    """What a trainer does, with the three functions that matter: global_sum, packed_loss_sum, scale_for_ddp."""
    model = torch.nn.parallel.DistributedDataParallel(new_model())
    optimizer = new_optimizer(optimizer_name, model)
    for micro_batches in steps(kind, rank):
        batches = [lay_out(packs, pad_token_id=0) for packs in micro_batches]
        weights = [token_weights(b.labels, b.cu_seqlens, b.num_segments, normaliser) for b in batches]
        denominator = global_sum(each.sum(dtype=np.float64) for each in weights)
        for number, (batch, each) in enumerate(zip(batches, weights, strict=True)):
            model.require_backward_grad_sync = number == len(batches) - 1
            inputs = to_transformers(batch)
            labels = inputs.pop("labels")
            total = packed_loss_sum(model(**inputs).logits, labels, loss_weights=torch.from_numpy(each))
            if mean_of_means:
                loss = total / max(float(each.sum()), 1.0) / MICRO_BATCHES
            else:
                loss = scale_for_ddp(total, denominator=denominator, dp_world_size=RANKS)
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return weights_of(model.module)


def largest_difference(expected, got):
    assert set(expected) == set(got)
    return max(float(np.abs(expected[name] - got[name]).max()) for name in expected)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Weights of both ranks for each case, and for the wrong denominator."""
    folder = tmp_path_factory.mktemp("ranks")
    run_ranks(__name__, folder, RANKS)
    return lambda case, rank: dict(np.load(folder / f"{case} {rank}.npz"))


@pytest.mark.parametrize("case", CASES)
def test_ten_steps_give_the_same_weights(trained, case):
    """In fp32 below 1e-5, through packing, accumulation, two ranks and the end of an epoch."""
    expected = one_big_batch(*CASES[case])
    assert largest_difference(expected, weights_of(new_model())) > 5e-3, "nothing was learnt, so nothing is compared"
    for rank in range(RANKS):
        assert largest_difference(expected, trained(case, rank)) < 1e-5


def test_the_mean_of_means_gives_other_weights(trained):
    """The planted fault: each micro-batch divided by its own targets. This test must be able to see it."""
    expected = one_big_batch("packs", "token", "sgd")
    assert largest_difference(expected, trained("mean of means", 0)) > 1e-3


if __name__ == "__main__":
    folder, rank = Path(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(1)
    rendezvous = f"file://{folder / 'rendezvous'}"
    torch.distributed.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=RANKS)
    runs = {name: (*case, False) for name, case in CASES.items()} | {"mean of means": ("packs", "token", "sgd", True)}
    for name, run in runs.items():
        np.savez(folder / f"{name} {rank}.npz", **train_one_rank(rank, *run))
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
    # The weights are on disk. Gloo's threads sometimes abort a process that takes its interpreter down while they live.
    os._exit(0)
