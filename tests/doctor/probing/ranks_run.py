"""What one rank does in ``test_ranks``: started with its number, it trains, and prints its report as JSON."""

import json
import os
import sys
import time

import torch
import torch.distributed as dist

from brimful.doctor.probing.probe import Probe
from tests.doctor.faults.jobs import Attention, Decoder, batch, documents, pairs, positions

CONTEXT = ((7, 12, 6, 7),)
"""Samples of a row that two ranks share: the second one lies on both."""


class Sharded(Attention):
    """Each rank has a part of the row, and gathers keys and values of all: context parallelism."""

    obeys = True

    def forward(self, x, document, mask=None):
        query, key, value = self.inputs(x).chunk(3, dim=-1)
        parts = [[torch.empty_like(key) for _ in range(2)] for _ in range(2)]
        dist.all_gather(parts[0], key.contiguous())
        dist.all_gather(parts[1], value.contiguous())
        keys, values = (torch.cat(part, dim=1)[:, None] for part in parts)
        size, rank = x.shape[1], dist.get_rank()
        whole = documents(CONTEXT)
        seen = pairs(whole if self.obeys else torch.zeros_like(whole))[:, None, rank * size : (rank + 1) * size]
        output = torch.nn.functional.scaled_dot_product_attention(query[:, None], keys, values, attn_mask=seen)
        return self.output(output[:, 0])


class ShardedRow(Sharded):
    obeys = False


class Failing(Decoder):
    """Refuses a batch of other tokens."""

    def forward(self, input_ids, position_ids, labels=None, num_items_in_batch=None):
        if not torch.is_grad_enabled() and not torch.equal(input_ids, batch(seed=1)["input_ids"]):
            raise RuntimeError("no such tokens")
        return super().forward(input_ids, position_ids, labels)


def model_of(kind, rank):
    leaky = [1, 2] if kind in ("ddp-leak", "fsdp-leak") and rank == 1 else []
    if kind.startswith("fsdp"):
        leaky = [1] if kind == "fsdp-leak" else []
    if kind.startswith("context"):
        return Decoder([Sharded if kind == "context" else ShardedRow] * 2)
    model = (Failing if kind == "failing" and rank == 1 else Decoder)(leaky=leaky)
    if kind.startswith("ddp"):
        return torch.nn.parallel.DistributedDataParallel(model)
    if kind.startswith("fsdp"):
        from torch.distributed.fsdp import fully_shard

        for layer in model.layers:
            fully_shard(layer)
        fully_shard(model)
    return model


def main(kind, rank, address):
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=2)
    torch.manual_seed(rank)
    model = model_of(kind, rank).train()
    check = Probe(model, timeout=3.0)
    one = batch(seed=rank)
    if kind.startswith("context"):
        one = batch(CONTEXT)
        one = {name: value[:, 16 * rank : 16 * rank + 16] for name, value in one.items()}
    if kind == "unequal" and rank == 1:
        one = batch(((32,), (32,)))
        one["labels"][:, 20:23] = -100  # as many targets as on the other rank, or means would be uneven
    if kind == "ddp-uneven" and rank == 1:
        one["labels"][:, 8:] = -100
    if kind == "dead" and rank == 1:
        sys.exit(0)
    if kind == "refusing" and rank == 1:
        one["position_ids"], one["words"] = positions(), one.pop("input_ids")
        model = torch.nn.Sequential(torch.nn.Identity()).train()
        check = Probe(model, timeout=3.0)
    losses, started = [], time.monotonic()
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1)), *model.parameters()], lr=0.1)
    with check:
        for _ in range(2):
            if kind == "refusing" and rank == 1:
                model(torch.zeros(1))
                optimizer.step()
                continue
            output = model(one["input_ids"], one["position_ids"], one["labels"])
            output.loss.backward()
            losses.append(output.loss.item())
            optimizer.step()
            optimizer.zero_grad()
    seconds = time.monotonic() - started
    print(json.dumps({"report": check.report.as_dict(), "losses": losses, "seconds": seconds}), flush=True)
    dist.destroy_process_group()
    # Gloo's threads may outlive the group; an interpreter that ends then aborts, also without a probe.
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
