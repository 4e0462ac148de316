"""One rank of a pipeline of two stages in the way of Megatron, for ``test_megatron``; prints its report as JSON.

Hidden states are ``[S, B, H]``, layers have numbers in the whole model, and only the first and the last stage have data.
"""

import functools
import json
import os
import sys
from types import ModuleType

import torch
import torch.distributed as dist
from torch import nn

from brimful.doctor.probing.megatron import probed
from tests.doctor.faults.jobs import VOCAB, Attention, Block, StateSpace, batch

WIDTH = 32
LENGTHS = ((7, 9, 6, 10),)
STAGES = {"right": (True, True), "second": (True, False), "hybrid": (True, False), "both": (False, False)}
"""Stages that get boundaries."""


class Layer(Block):
    """A block of hidden states ``[S, B, H]``."""

    def __init__(self, number, mixer=Attention):
        super().__init__(WIDTH, mixer)
        self.layer_number = number

    def forward(self, x, document, mask=None):
        return super().forward(x.transpose(0, 1), document).transpose(0, 1)


class Stage(nn.Module):
    def __init__(self, stage, mixer=Attention):
        super().__init__()
        torch.manual_seed(stage)
        self.pre_process, self.post_process = stage == 0, stage == 1
        self.decoder = nn.Module()
        self.decoder.layers = nn.ModuleList(Layer(2 * stage + number + 1, mixer) for number in range(2))
        self.dropout = nn.Dropout(0.2)
        if self.pre_process:
            self.embedding = nn.Embedding(VOCAB, WIDTH)
        else:
            self.output_layer = nn.Linear(WIDTH, VOCAB)
        self.input = torch.empty(0)

    def set_input_tensor(self, tensor):
        self.input = tensor

    def forward(self, tokens, labels, cu_seqlens):
        x = self.embedding(tokens).transpose(0, 1) if self.pre_process else self.input
        document = torch.zeros(1, len(x), dtype=torch.int64)
        if cu_seqlens is not None:
            document = (torch.arange(len(x)) >= cu_seqlens[1:, None]).sum(0)[None]
        x = self.dropout(x)
        for layer in self.decoder.layers:
            x = layer(x, document)
        if not self.post_process:
            return x
        logits = self.output_layer(x).transpose(0, 1)
        return nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none").view_as(labels)


def forward_step(stages, data_iterator, model):
    """The fault: a stage that is not named here returns from get_batch before it has the boundaries."""
    one = next(data_iterator)
    bounds = one["cu_seqlens"] if stages[0 if model.pre_process else 1] else None
    output = model(one["tokens"], one["labels"], bounds)

    def loss_func(mask, tensor):
        loss = (tensor * mask).sum() / mask.sum()
        return loss, {"lm loss": loss.detach()}

    return output, functools.partial(loss_func, one["loss_mask"])


def schedule(*, forward_step_func, data_iterator, model, num_microbatches, seq_length, forward_only=False):
    """All micro-batches forward and backward, one after the other."""
    losses, other, shape = [], 1 - dist.get_rank(), (seq_length, 1, WIDTH)
    for _ in range(num_microbatches):
        received = torch.empty(shape)
        if model.post_process:
            dist.recv(received, other)
            received.requires_grad_(not forward_only)
        model.set_input_tensor(received)
        output, loss_func = forward_step_func(data_iterator, model)
        if model.post_process:
            loss, report = loss_func(output)
            losses.append(report["lm loss"].item())
            if not forward_only:
                (loss / num_microbatches).backward()
                dist.send(torch.as_tensor(received.grad), other)
        else:
            dist.send(output.detach(), other)
            if not forward_only:
                gradient = torch.empty(shape)
                dist.recv(gradient, other)
                output.backward(gradient)
    return losses


def micro_batches():
    for seed in range(100):
        one = batch(LENGTHS, seed=seed)
        labels = nn.functional.pad(one["labels"][:, 1:], (0, 1), value=-100)
        yield {
            "tokens": one["input_ids"],
            "labels": labels.clamp(min=0),
            "loss_mask": (labels >= 0).float(),
            "cu_seqlens": torch.tensor([0, 7, 16, 22, 32]).int(),
        }


def main(kind, rank, address):
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=2)
    state = ModuleType("parallel_state")
    state.__dict__.update(
        model_parallel_is_initialized=lambda: True,
        get_model_parallel_group=lambda: dist.group.WORLD,
        get_pipeline_model_parallel_world_size=lambda: 2,
        get_pipeline_model_parallel_rank=lambda: rank,
    )
    sys.modules["megatron.core.parallel_state"] = state
    runs = []
    probed_schedule = probed(schedule, timeout=5.0)
    for step in (schedule, probed_schedule):
        torch.manual_seed(rank)
        model = Stage(rank, StateSpace if kind == "hybrid" else Attention).train()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        data, losses = micro_batches(), []
        for _ in range(3):
            losses += step(
                forward_step_func=functools.partial(forward_step, STAGES[kind]),
                data_iterator=data,
                model=model,
                num_microbatches=2,
                seq_length=32,
            )
            optimizer.step()
            optimizer.zero_grad()
        runs.append(losses)
    print(json.dumps({"report": probed_schedule.report.as_dict(), "losses": runs}), flush=True)
    dist.destroy_process_group()
    # Gloo's threads may outlive the group; an interpreter that ends then aborts, also without a probe.
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
