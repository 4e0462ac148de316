"""Small trainers that do what the tabulated threads did, each with its mended twin.

A job is a model, batches of its loader, and a step of its loop. ``JOBS`` has a wrong and a right one for each number of the
table of faults that a probe shows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

IGNORE = -100
VOCAB = 64
LENGTHS = ((7, 9, 6, 10), (12, 8, 12))
"""Tokens of each sample, row by row."""


def documents(lengths=LENGTHS):
    """Number of the sample of each token: ``int64[B, T]``."""
    return torch.stack([torch.repeat_interleave(torch.arange(len(row)), torch.tensor(row)) for row in lengths])


def positions(lengths=LENGTHS):
    return torch.stack([torch.cat([torch.arange(size) for size in row]) for row in lengths])


def batch(lengths=LENGTHS, *, seed=0, **words):
    """Tokens, labels and positions of rows of samples; the first label of each sample is not a target."""
    generator = torch.Generator().manual_seed(seed)
    place = positions(lengths)
    ids = torch.randint(3, VOCAB, place.shape, generator=generator)
    return {"input_ids": ids, "labels": ids.masked_fill(place == 0, IGNORE), "position_ids": place, **words}


def boundaries(lengths):
    return torch.tensor([0, *[size for row in lengths for size in row]]).cumsum(0).int()


def pairs(document, causal=True):
    """Mask of the pairs of tokens of one sample: ``bool[B, T, T]``."""
    same = document[:, :, None] == document[:, None]
    return same.tril() if causal else same


class Attention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.inputs, self.output = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x, document, mask=None):
        query, key, value = self.inputs(x)[:, None].chunk(3, dim=-1)
        seen = pairs(document) if mask is None else mask
        return self.output(F.scaled_dot_product_attention(query, key, value, attn_mask=seen[:, None])[:, 0])


class LinearAttention(nn.Module):
    """A state that decays, and begins again with each sample."""

    def __init__(self, width):
        super().__init__()
        self.inputs, self.output = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x, document, mask=None):
        query, key, value = self.inputs(x).chunk(3, dim=-1)
        state = torch.zeros(len(x), x.shape[-1], x.shape[-1])
        outputs = []
        for index in range(x.shape[1]):
            if index:
                goes_on = document[:, index] == document[:, index - 1]
                state = 0.9 * state * goes_on[:, None, None]
            state = state + key[:, index, :, None] * value[:, index, None, :]
            outputs.append((query[:, index, :, None] * state).sum(1))
        return self.output(torch.stack(outputs, dim=1)) / 8


class StateSpace(nn.Module):
    """A diagonal recurrence."""

    def __init__(self, width):
        super().__init__()
        self.input, self.decay = nn.Linear(width, width), nn.Parameter(torch.full((width,), 0.8))

    def forward(self, x, document, mask=None):
        value, state, outputs = self.input(x), torch.zeros(len(x), x.shape[-1]), []
        for index in range(x.shape[1]):
            goes_on = document[:, index] == document[:, index - 1] if index else torch.zeros(len(x), dtype=torch.bool)
            state = self.decay * state * goes_on[:, None] + value[:, index]
            outputs.append(state)
        return torch.stack(outputs, dim=1)


class ShortConv(nn.Module):
    """Each token with the two before it, of the same sample."""

    def __init__(self, width):
        super().__init__()
        self.taps = nn.Parameter(torch.randn(3, width) / 2)

    def forward(self, x, document, mask=None):
        output = self.taps[0] * x
        for shift in (1, 2):
            same = document[:, shift:] == document[:, :-shift]
            earlier = F.pad(x[:, :-shift] * same[..., None], (0, 0, shift, 0))
            output = output + self.taps[shift] * earlier
        return output


class Block(nn.Module):
    def __init__(self, width, mixer):
        super().__init__()
        self.norm, self.mixer = nn.LayerNorm(width), mixer(width)
        self.feed = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )

    def forward(self, x, document, mask=None):
        x = x + self.mixer(self.norm(x), document, mask)
        return x + self.feed(x)


class Body(nn.Module):
    """Tokens to hidden states, through blocks.

    Args:
        mixers: one for each block.
        leaky: blocks that never get to know where samples begin.
    """

    width = 32

    def __init__(self, mixers=(Attention, Attention, Attention), leaky=()):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.place = nn.Embedding(VOCAB, self.width), nn.Embedding(64, self.width)
        self.layers = nn.ModuleList(Block(self.width, mixer) for mixer in mixers)
        self.head = nn.Linear(self.width, VOCAB)
        self.leaky = tuple(leaky)
        self.config = SimpleNamespace(vocab_size=VOCAB, hidden_size=self.width, eos_token_id=2, pad_token_id=0)

    def hidden(self, x, document, mask=None):
        for number, layer in enumerate(self.layers):
            x = layer(x, torch.zeros_like(document) if number in self.leaky else document, mask)
        return x

    def embedded(self, ids, place):
        return self.embed(ids) + self.place(place)


class Decoder(Body):
    """Tokens to logits; loss with labels."""

    def forward(self, input_ids, position_ids, labels=None, num_items_in_batch=None):
        document = (position_ids == position_ids[:, :1]).cumsum(1)
        logits = self.head(self.hidden(self.embedded(input_ids, position_ids), document))
        return SimpleNamespace(logits=logits, loss=loss_of(logits, labels, num_items_in_batch))


def loss_of(logits, labels, num_items=None):
    """Mean over targets, or their sum divided by what a trainer counted."""
    if labels is None:
        return None
    losses = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), reduction="sum")
    return losses / ((labels[:, 1:] != IGNORE).sum() if num_items is None else num_items)


def own_loss(model, batch):
    output = model(**batch)
    return output["loss"] if isinstance(output, dict) else output.loss


@dataclass
class Job:
    """A training loop.

    Attributes:
        model: it trains.
        batches: of its loader.
        step: from model and batch to a loss.
        expected: what the first loss must be, if that is known.
        tells: the loop tells its loss to the probe, as the model returns none.
    """

    model: nn.Module
    batches: list[dict[str, Any]]
    step: Callable[[nn.Module, dict[str, Any]], torch.Tensor] = own_loss
    expected: float | None = None
    tells: bool = False

    def run(self, check):
        """Train on all batches, and return the losses."""
        self.model.train()
        optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        losses = []
        with check:
            for one in check.watch(self.batches):
                loss = self.step(self.model, one)
                if self.tells or self.expected is not None:
                    check.tell_loss(loss, expected=self.expected)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                losses.append(loss.item())
        return losses


@dataclass(frozen=True)
class Case:
    """A fault and its twin.

    Attributes:
        wrong, right: make a job.
        problem: that the probe names.
        layer: in which a neighbor moves first; empty if the fault does not leak.
    """

    wrong: Callable[[], Job]
    right: Callable[[], Job]
    problem: str
    layer: str = ""


def job(model, *words, seeds=(0, 1), lengths=LENGTHS, step=own_loss, **options):
    """A job over two batches, with more words in each."""
    batches = [
        batch(lengths, seed=seed, **{key: value for word in words for key, value in word.items()}) for seed in seeds
    ]
    return Job(model, batches, step, **options)


# 1: get_batch returns early on middle stages, so layers there get no boundaries.
def pipeline(leaky):
    return lambda: job(Decoder([Attention] * 4, leaky))


# 2, 3: boundaries lie in a nested dictionary that the model of this registry never opens.
class Nested(Body):
    def __init__(self, opens, mixers=(Attention, Attention)):
        super().__init__(mixers)
        self.opens = opens

    def forward(self, input_ids, position_ids=None, flash_attn_kwargs=None, labels=None):
        document = torch.zeros_like(input_ids)
        if self.opens:
            bounds = flash_attn_kwargs["cu_seqlens"]
            document = (torch.arange(input_ids.shape[1]) >= bounds[1:, None]).sum(0)[None]
        logits = self.head(self.hidden(self.embedded(input_ids, position_ids), document))
        return {"logits": logits, "loss": loss_of(logits, labels)}


def nested(opens, mixers=(Attention, Attention)):
    row = LENGTHS[:1]
    return lambda: job(Nested(opens, mixers), {"flash_attn_kwargs": {"cu_seqlens": boundaries(row)}}, lengths=row)


# 4: the kernel of the training branch knows causality alone.
class CausalKernel(Attention):
    def forward(self, x, document, mask=None):
        return super().forward(x, torch.zeros_like(document) if self.training else document)


class Numbered(Body):
    """Words of JAX trainers: targets are shifted, and samples are numbered."""

    def forward(self, inputs, inputs_position, inputs_segmentation):
        return self.head(self.hidden(self.embedded(inputs, inputs_position), inputs_segmentation))


def numbered(mixer):
    def make():
        one = batch()
        targets = F.pad(one["labels"][:, 1:], (0, 1), value=IGNORE)
        words = {
            "inputs": one["input_ids"],
            "inputs_position": one["position_ids"],
            "inputs_segmentation": documents() + 1,
        }

        def step(model, loaded):
            logits = model(**{key: value for key, value in loaded.items() if key != "shift_labels"})
            return F.cross_entropy(logits.flatten(0, 1), loaded["shift_labels"].flatten())

        return Job(Numbered([mixer, mixer]), [{**words, "shift_labels": targets}], step, tells=True)

    return make


# 5: boundaries count placeholders, and the model puts four places for each of them.
class Expanding(Body):
    image, size = 63, 4

    def __init__(self, expands_boundaries):
        super().__init__()
        self.config.image_token_id = self.image
        self.expands_boundaries = expands_boundaries

    def forward(self, input_ids, position_ids, images, cu_seqlens):
        sizes = torch.where(input_ids[0] == self.image, self.size, 1)
        x = self.embedded(input_ids, position_ids).repeat_interleave(sizes, dim=1)
        at = (input_ids[0] == self.image).repeat_interleave(sizes)
        x = x.masked_scatter(at[None, :, None], images)
        if self.expands_boundaries:
            cu_seqlens = F.pad(sizes.cumsum(0), (1, 0))[cu_seqlens]
        document = (torch.arange(x.shape[1]) >= cu_seqlens[1:, None]).sum(0)[None]
        return self.head(self.hidden(x, document))


def expanding(expands_boundaries):
    def make():
        row = LENGTHS[:1]
        images = torch.randn(12, Decoder.width, generator=torch.Generator().manual_seed(0))
        one = batch(row, cu_seqlens=boundaries(row), images=images)
        one["input_ids"][one["input_ids"] == Expanding.image] = 5
        one["input_ids"][0, [2, 10, 11]] = Expanding.image
        del one["labels"]
        return Job(Expanding(expands_boundaries), [one], lambda model, loaded: model(**loaded).square().mean())

    return make


# 8, 12: a mask over tokens switches off what positions say, or numbers samples and is read as ones.
def tiny(kind, **changes):
    from brimful.verify.models import tiny_model

    model = tiny_model(kind)
    for name, value in changes.items():
        setattr(model.config, name, value)
    return model


def transformers_job(kind, **words):
    def make():
        return job(tiny(kind), {"use_cache": False, **{key: value() for key, value in words.items()}})

    return make


def ones():
    return torch.ones(2, 32, dtype=torch.int64)


class Masked(Body):
    """Takes the numbers of samples as its mask; or takes any number for a one."""

    def __init__(self, knows_numbers):
        super().__init__()
        self.knows_numbers = knows_numbers

    def forward(self, input_ids, position_ids, attention_mask, labels):
        document = attention_mask if self.knows_numbers else (attention_mask > 0).long()
        logits = self.head(self.hidden(self.embedded(input_ids, position_ids), document))
        return {"loss": loss_of(logits, labels), "logits": logits}


def masked(knows_numbers):
    return lambda: job(Masked(knows_numbers), {"attention_mask": documents() + 1})


# 9, 3: layers with a state run on through the row.
HYBRID = (LinearAttention, Attention, StateSpace, ShortConv)


def hybrid(leaky):
    return lambda: job(Decoder(HYBRID, leaky))


# 10: attention is patched for packed rows of training, and not for evaluation.
class PatchedTraining(Attention):
    def forward(self, x, document, mask=None):
        return super().forward(x, document, None if self.training else pairs(document, causal=False))


# 11: ring attention lets each part of the row see all earlier parts whole.
class Ring(Attention):
    obeys = False

    def forward(self, x, document, mask=None):
        query, key, value = self.inputs(x)[:, None].chunk(3, dim=-1)
        half = x.shape[1] // 2
        document = document if self.obeys else torch.zeros_like(document)
        outputs = []
        for start in (0, half):
            part = slice(start, start + half)
            # What comes from an earlier part is merged by its log-sum-exp, which a mask of all pairs says at once.
            seen = pairs(document)[:, None, part, : start + half]
            outputs.append(
                F.scaled_dot_product_attention(
                    query[:, :, part], key[:, :, : start + half], value[:, :, : start + half], attn_mask=seen
                )
            )
        return self.output(torch.cat(outputs, dim=2)[:, 0])


class RingOfDocuments(Ring):
    obeys = True


# 13: sliding layers build their window over the row.
class Window(Attention):
    obeys = False

    def forward(self, x, document, mask=None):
        index = torch.arange(x.shape[1])
        near = (index[:, None] - index < 4) & (index[:, None] >= index)
        seen = pairs(document) & near if self.obeys else near.expand(len(x), -1, -1)
        return super().forward(x, document, seen)


class WindowOfDocuments(Window):
    obeys = True


# 14: a model that looks both ways attends to padding.
class Diffusion(Body):
    def __init__(self, sees_padding):
        super().__init__()
        self.sees_padding = sees_padding

    def forward(self, input_ids, position_ids, attention_mask, labels):
        real = torch.ones_like(attention_mask) if self.sees_padding else attention_mask
        seen = real[:, None, :].bool().expand(-1, input_ids.shape[1], -1)
        logits = self.head(self.hidden(self.embedded(input_ids, position_ids), attention_mask, seen))
        return {"loss": loss_of(logits, labels), "logits": logits}


def diffusion(sees_padding):
    def make():
        real = torch.arange(32) < torch.tensor([[32], [20]])
        one = batch(((32,), (32,)), attention_mask=real.long())
        one["input_ids"][~real], one["labels"][~real] = 0, IGNORE
        return Job(Diffusion(sees_padding), [one])

    return make


# 15: what the collator left out is subtracted from the divisor once more.
def counting(subtracted):
    def make():
        made = job(Decoder())
        for one in made.batches:
            targets = int((one["labels"][:, 1:] != IGNORE).sum())
            one["num_items_in_batch"] = targets - subtracted * sum(map(len, LENGTHS))
        return made

    return make


# 17: a fallback computes each batch once more.
def twice(number):
    def step(model, loaded):
        for _ in range(number):
            loss = model(**loaded).loss
        return loss

    return lambda: job(Decoder(), step=step)


# 18: the balance of experts is lost for packed rows.
class Balanced(nn.Module):
    def __init__(self, loses):
        super().__init__()
        self.model, self.loses = tiny("qwen3_moe"), loses
        self.config = self.model.config

    def forward(self, input_ids, position_ids, labels, output_router_logits=False):
        output = self.model(
            input_ids,
            position_ids=position_ids,
            labels=labels,
            output_router_logits=output_router_logits,
            use_cache=False,
        )
        if self.loses:
            output.loss = output.loss - self.config.router_aux_loss_coef * output.aux_loss
            output.aux_loss = None
        return output


def balanced(loses):
    return lambda: job(Balanced(loses), {"output_router_logits": True})


# 19: a loss that makes logits of hidden states gets logits.
class Fused(Body):
    def __init__(self, gives_logits):
        super().__init__()
        self.gives_logits = gives_logits

    def forward(self, input_ids, position_ids):
        document = (position_ids == 0).cumsum(1)
        hidden = self.hidden(self.embedded(input_ids, position_ids), document)
        return {"hidden_states": self.head(hidden) if self.gives_logits else hidden}


def fused(gives_logits):
    def step(model, loaded):
        hidden = model(loaded["input_ids"], loaded["position_ids"])["hidden_states"]
        weight = model.head.weight
        return loss_of(hidden[..., : weight.shape[1]] @ weight.T, loaded["labels"])

    return lambda: job(Fused(gives_logits), step=step)


# 21, 38: nothing that the model gets says where samples begin; the loader knew it.
class Plain(Body):
    def forward(self, tokens, doc_lens=None):
        document = torch.zeros_like(tokens)
        if doc_lens is not None:
            document = documents(doc_lens)
        place = torch.zeros_like(tokens)  # positions of this model are relative
        return self.head(self.hidden(self.embedded(tokens, place), document))


def plain(passes):
    def step(model, loaded):
        lengths = [[size for size in row if size] for row in loaded["doc_lens"].tolist()]
        logits = model(loaded["input_ids"], lengths if passes else None)
        return loss_of(logits, loaded["labels"])

    def make():
        words = {"doc_lens": torch.tensor([[7, 9, 6, 10], [12, 8, 12, 0]])}
        made = job(Plain(), words, step=step, tells=True)
        for one in made.batches:
            del one["position_ids"]
        return made

    return make


# 22: the policy's boundaries are summed over padded lengths, so at step 0 it is not the reference.
class Preference(Body):
    def forward(self, input_ids, position_ids, cu_seq_lens):
        document = (torch.arange(input_ids.shape[1]) >= cu_seq_lens[1:, None]).sum(0)[None]
        return self.head(self.hidden(self.embedded(input_ids, position_ids), document))


def preference(padded):
    def sums(logits, labels, bounds):
        scores = -F.cross_entropy(logits[0, :-1], labels[0, 1:], reduction="none")
        return torch.stack([scores[start : stop - 1].sum() for start, stop in pairwise(bounds.tolist())])

    def step(model, loaded):
        ids, place, labels = loaded["input_ids"], loaded["position_ids"], loaded["labels"]
        bounds = boundaries(LENGTHS[:1])
        with torch.no_grad():
            reference = sums(model(ids, place, bounds), labels, bounds)
        given = torch.tensor([0, 10, 20, 30, 32]) if padded else bounds
        policy = sums(model(ids, place, given), labels, bounds)
        margins = (policy - reference)[0::2] - (policy - reference)[1::2]
        return -F.logsigmoid(5 * margins).mean()

    def make():
        return job(Preference(), lengths=LENGTHS[:1], step=step, expected=math.log(2))

    return make


# 23: policy and reference see neighbors alike, so that the first loss is ln 2 all the same.
class Pairwise(Body):
    def forward(self, input_ids, position_ids, cu_seqlens=None):
        document = torch.zeros_like(input_ids)
        if cu_seqlens is not None:
            document = (torch.arange(input_ids.shape[1]) >= cu_seqlens[1:, None]).sum(0)[None]
        return self.head(self.hidden(self.embedded(input_ids, position_ids), document))


def pairwise_job(passes):
    row = LENGTHS[:1]
    bounds = boundaries(row)

    def margins(logits, labels):
        scores = -F.cross_entropy(logits[0, :-1], labels[0, 1:], reduction="none")
        sums = torch.stack([scores[start : stop - 1].sum() for start, stop in pairwise(bounds.tolist())])
        return sums[0::2] - sums[1::2]

    def step(model, loaded):
        place = loaded["position_ids"] if passes else torch.arange(sum(row[0]))[None]
        words = (loaded["input_ids"], place, loaded["cu_seqlens"] if passes else None)
        with torch.no_grad():
            reference = margins(model(*words), loaded["labels"])
        return -F.logsigmoid(margins(model(*words), loaded["labels"]) - reference).mean()

    return lambda: job(Pairwise(), {"cu_seqlens": bounds}, lengths=row, step=step, expected=math.log(2))


# 26: masks are made of a token, and the tokenizer has another one.
class EndOfText(Body):
    def __init__(self, token):
        super().__init__()
        self.token = token

    def forward(self, tokens, positions):
        ends = F.pad((tokens == self.token).long(), (1, 0))[:, :-1]
        return self.head(self.hidden(self.embedded(tokens, positions), ends.cumsum(1)))


def end_of_text(token):
    def step(model, loaded):
        return loss_of(model(loaded["input_ids"], loaded["position_ids"]), loaded["labels"])

    def make():
        made = job(EndOfText(token), step=step, tells=True)
        for one in made.batches:
            one["input_ids"][F.pad(one["position_ids"][:, 1:], (0, 1)) == 0] = 2
            one["labels"] = one["input_ids"].masked_fill(one["position_ids"] == 0, IGNORE)
        return made

    return make


# 27: the default attention of a model has no mask; another one of its attentions makes it of positions.
class Causal(Attention):
    def forward(self, x, document, mask=None):
        query, key, value = self.inputs(x)[:, None].chunk(3, dim=-1)
        return self.output(F.scaled_dot_product_attention(query, key, value, is_causal=True)[:, 0])


# 38: an end of text between samples is all that keeps them apart.
def ends_only(passes):
    def make():
        made = plain(passes)()
        for one in made.batches:
            place = positions()
            one["input_ids"][F.pad(place[:, 1:], (0, 1)) == 0] = 2
            one["labels"] = one["input_ids"].masked_fill(place == 0, IGNORE)
        return made

    return make


# 29: the wrong object gets the attention flag, so the model takes no notice of cu_seq_lens.
def flag(with_positions):
    def make():
        row = LENGTHS[:1]
        bounds = boundaries(row)
        words = {
            "cu_seq_lens_q": bounds,
            "cu_seq_lens_k": bounds,
            "max_length_q": 10,
            "max_length_k": 10,
            "use_cache": False,
        }
        made = job(tiny("qwen2"), words, lengths=row)
        for one in made.batches:
            if not with_positions:
                del one["position_ids"]
        return made

    return make


# 34: the head that predicts two tokens ahead reads the first token of the next sample.
class TwoAhead(Body):
    def __init__(self, crosses):
        super().__init__()
        self.crosses = crosses
        self.heads = nn.ModuleList([nn.Linear(2 * self.width, self.width)])

    def forward(self, input_ids, position_ids, labels):
        x = self.embedded(input_ids, position_ids)
        document = (position_ids == 0).cumsum(1)
        hidden = self.hidden(x, document)
        following = F.pad(x[:, 1:], (0, 0, 0, 1))
        if not self.crosses:
            following = following * (F.pad(document[:, 1:], (0, 1)) == document)[..., None]
        ahead = self.head(self.heads[0](torch.cat([hidden, following], dim=-1)))
        logits = self.head(hidden)
        mtp_loss = F.cross_entropy(ahead[:, :-2].flatten(0, 1), labels[:, 2:].flatten())
        return {"loss": loss_of(logits, labels) + 0.1 * mtp_loss, "logits": logits, "mtp_loss": mtp_loss}


# 40: a library puts its own causal mask in place of the one that it was given.
class Replacing(Body):
    def __init__(self, replaces):
        super().__init__()
        self.replaces = replaces

    def forward(self, input_ids, position_ids, attention_mask, labels):
        seen = attention_mask[:, 0]
        if self.replaces:
            seen = torch.ones_like(seen).tril()
        logits = self.head(self.hidden(self.embedded(input_ids, position_ids), position_ids, seen))
        return {"loss": loss_of(logits, labels), "logits": logits}


def replacing(replaces):
    return lambda: job(Replacing(replaces), {"attention_mask": pairs(documents())[:, None]})


def decoder(mixer, first=Attention):
    return lambda: job(Decoder([first, mixer, mixer]))


JOBS = {
    1: Case(pipeline([2, 3]), pipeline([]), "boundaries_lost", "layers.2"),
    2: Case(nested(False), nested(True), "boundaries_ignored", "layers.0"),
    3: Case(nested(False, [StateSpace, Attention]), nested(True, [StateSpace, Attention]), "state_crosses", "layers.0"),
    4: Case(numbered(CausalKernel), numbered(Attention), "boundaries_ignored", "layers.0"),
    5: Case(expanding(False), expanding(True), "boundaries_ignored", "layers.0"),
    8: Case(
        transformers_job("qwen2", attention_mask=ones), transformers_job("qwen2"), "mask_hides_packs", "model.layers.0"
    ),
    9: Case(hybrid([0, 2, 3]), hybrid([]), "state_crosses", "layers.0"),
    10: Case(decoder(PatchedTraining), decoder(Attention), "evaluation_differs"),
    11: Case(decoder(Ring), decoder(RingOfDocuments), "boundaries_ignored", "layers.1"),
    12: Case(masked(False), masked(True), "boundaries_ignored", "layers.0"),
    13: Case(decoder(Window), decoder(WindowOfDocuments), "boundaries_ignored", "layers.1"),
    14: Case(diffusion(True), diffusion(False), "padding_seen", "layers.0"),
    15: Case(counting(1), counting(0), "divisor"),
    17: Case(twice(2), twice(1), "computed_twice"),
    18: Case(balanced(True), balanced(False), "auxiliary_loss"),
    19: Case(fused(True), fused(False), "wrong_output"),
    21: Case(plain(False), plain(True), "boundaries_missing", "layers.0"),
    22: Case(preference(True), preference(False), "padding_as_samples"),
    23: Case(pairwise_job(False), pairwise_job(True), "boundaries_missing", "layers.0"),
    26: Case(end_of_text(1), end_of_text(2), "boundaries_ignored", "layers.0"),
    27: Case(decoder(Causal, first=Causal), decoder(Attention), "boundaries_ignored", "layers.0"),
    29: Case(flag(False), flag(True), "boundaries_ignored", "model.layers.0"),
    34: Case(lambda: job(TwoAhead(True)), lambda: job(TwoAhead(False)), "boundaries_lost", "heads.0"),
    38: Case(ends_only(False), ends_only(True), "boundaries_missing", "layers.0"),
    40: Case(replacing(True), replacing(False), "mask_replaced", "layers.0"),
}
"""By number in the table."""
