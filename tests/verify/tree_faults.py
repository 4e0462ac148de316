"""Broken batches of trees, each a small re-creation of a fault that another project had, or could have."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import torch

from brimful import PackCollator
from brimful.testing.toys import toy_tree
from brimful.trees.pack_tree import tree_of
from brimful.trees.packs import assemble_tree

IGNORE = -100
SIZE = 112
"""Tokens of each row, with room for padding."""


class Trees:
    """The right batch of packs of trees, and a fault after it."""

    def __init__(self, fault=lambda batch, packs: batch, branch="fork", dialect="transformers_tree"):
        self.right, self.fault = PackCollator(branch=branch, dialect=dialect, pad_to=SIZE), fault
        self.__name__ = getattr(fault, "__name__", "right")

    def __call__(self, packs):
        return self.fault(self.right(packs), packs)


def without(batch, *names):
    return {name: value for name, value in batch.items() if not name.startswith(names)}


def with_mask(batch, visible):
    """The batch of a collator that gives a mask of all pairs instead of runs."""
    size = batch["input_ids"].shape[1]
    mask = torch.as_tensor(visible) | torch.eye(size, dtype=torch.bool)
    return {**without(batch, "tree", "parents"), "attention_mask": mask[None, None]}


def pairs(batch):
    """What each token sees, as ``tree_in`` and ``tree_out`` say it."""
    places = torch.arange(len(batch["tree_out"]))
    return (places <= places[:, None]) & (places[:, None] < batch["tree_out"])


def segments_of(batch):
    """Begin and end of each segment of a forked row, and its parent; the padding is the last."""
    places = batch["position_ids"][0].tolist()
    outs = batch["tree_out"].tolist()
    begins = [at for at in range(len(outs)) if at == 0 or outs[at] != outs[at - 1] or places[at] != places[at - 1] + 1]
    return [*pairwise([*begins, len(outs)])]


def positions_run_on(batch, packs):
    """A trie that is flattened by a collator of plain packs."""
    return {**batch, "position_ids": torch.arange(SIZE)[None]}


def positions_begin_again(batch, packs):
    """A branch is numbered like a sample of its own: its trunk is farther away than it seems."""
    positions = batch["position_ids"].clone()
    for begin, end in segments_of(batch):
        positions[0, begin:end] = torch.arange(end - begin)
    return {**batch, "position_ids": positions}


def siblings_visible(batch, packs):
    """One sample id for the whole tree: everything below a root is one document."""
    visible = pairs(batch)
    roots = [begin for begin, _ in segments_of(batch) if int(batch["position_ids"][0, begin]) == 0]
    for begin, end in pairwise([*roots, SIZE]):
        visible[begin:end, begin:end] = True
    return with_mask(batch, visible.tril())


def trunk_of_the_trunk_invisible(batch, packs):
    """verl#6689: the mask knows a prefix and its leaves, and is wrong below depth 1."""
    visible = pairs(batch)
    segments = segments_of(batch)
    for begin, end in segments:
        path = [own for own in segments if own[0] < begin and bool(visible[begin, own[0]])]
        for first, last in path[:-1]:
            visible[begin:end, first:last] = False
    return with_mask(batch, visible)


def mask_by_causality_alone(batch, packs):
    """No mask at all: the row is one sample."""
    return with_mask(batch, torch.ones(SIZE, SIZE, dtype=torch.bool).tril())


def trunks_invisible(batch, packs):
    """A mask of documents, where each segment is one."""
    visible = torch.zeros(SIZE, SIZE, dtype=torch.bool)
    for begin, end in segments_of(batch):
        visible[begin:end, begin:end] = True
    return with_mask(batch, visible.tril())


def first_token_of_branches_untrained(batch, packs):
    """Automodel 0.7: "inherent", says its docstring."""
    keep = torch.ones(len(batch["loss_index"]), dtype=torch.bool)
    seen = {}
    for number, place in enumerate(batch["loss_index"].tolist()):
        seen.setdefault(place, []).append(number)
    # A place that predicts several targets is the end of a trunk.
    for numbers in seen.values():
        if len(numbers) > 1:
            keep[numbers] = False
    return {name: value[keep] if name.startswith("loss_") else value for name, value in batch.items()}


def branches_predicted_by_siblings(batch, packs):
    """A row without forks and with labels: the model shifts them, and the place before is a sibling's."""
    row = PackCollator(dialect="transformers_tree", branch="index", pad_to=SIZE)(packs)
    (laid,) = PackCollator(dialect="transformers_tree", branch="index", pad_to=SIZE).rows(packs)
    labels = np.where(laid.loss_weights > 0, laid.input_ids, IGNORE)
    weights = torch.from_numpy(laid.loss_weights)[None]
    return {**without(row, "loss"), "labels": torch.from_numpy(labels)[None], "loss_weights": weights}


def weights_of_a_micro_batch(batch, packs):
    """A mean over the targets of a pack, where a micro-batch has one pack."""
    weights = batch["loss_weights"]
    return {**batch, "loss_weights": weights / weights.sum() if len(packs) == 1 else weights}


def shared_target_counts_once(batch, packs):
    """The loss of a trie: one term for each token of the row."""
    weights = batch["loss_weights"]
    return {**batch, "loss_weights": (weights > 0).to(weights.dtype)}


def fork_without_its_weight(batch, packs):
    """Each copy of a repeated token keeps the weight of its own branch, and only the first has a label."""
    weights, ids = batch["loss_weights"].clone(), batch["input_ids"][0]
    positions = batch["position_ids"][0].tolist()
    begins = [begin for begin, _ in segments_of(batch)]
    for begin in begins:
        copies = [other for other in begins if positions[other] == positions[begin] and ids[other] == ids[begin]]
        if len(copies) > 1 and begin == copies[0] and float(weights[0, begin]) > 1:
            weights[0, begin] -= 1
    return {**batch, "loss_weights": weights}


def copies_keep_their_labels(batch, packs):
    """Labels are made from the forked tokens: the last token of a branch is trained to predict the trunk's."""
    labels = batch["labels"].clone()
    for begin, _ in segments_of(batch):
        if int(batch["position_ids"][0, begin]) and int(labels[0, begin]) == IGNORE:
            labels[0, begin] = batch["input_ids"][0, begin]
    weights = torch.where((labels != IGNORE) & (batch["loss_weights"] == 0), 1.0, batch["loss_weights"])
    return {**batch, "labels": labels, "loss_weights": weights}


def padding_inside_a_path(batch, packs):
    """Each segment is padded to a multiple of four: tree_in and tree_out count the padding as a part of the trunk."""
    values = {name: batch[name][0] for name in ("input_ids", "labels", "position_ids", "loss_weights")}
    parts = {name: [] for name in values}
    places, ends = np.zeros(SIZE + 1, dtype=int), 0
    for begin, end in segments_of(batch)[:-1]:
        room = -(end - begin) % 4
        for name, fill in (("input_ids", 0), ("labels", IGNORE), ("position_ids", 0), ("loss_weights", 0)):
            parts[name] += [values[name][begin:end], torch.full((room,), fill, dtype=values[name].dtype)]
        places[begin:end] = np.arange(ends, ends + end - begin)
        ends += end - begin + room
        places[end] = ends
    real = segments_of(batch)[-1][0]
    outs = torch.arange(1, ends + 1, dtype=torch.int32)
    for place in range(real):
        outs[places[place]] = int(places[int(batch["tree_out"][place])])
    for place in range(1, ends):  # padding belongs to the segment before it
        if place not in places[:real]:
            outs[place] = outs[place - 1]
    rows = {name: torch.cat(several)[None] for name, several in parts.items()}
    return {**rows, "tree_in": torch.arange(ends, dtype=torch.int32), "tree_out": outs, "use_cache": False}


def insertion_order(batch, packs):
    """AReaL's trie: segments in the order of arrival, and a mask of one range for each."""
    segments = segments_of(batch)
    real = segments[:-1]
    depths = [int(batch["position_ids"][0, begin]) for begin, _ in real]
    order = [real[index] for index in sorted(range(len(real)), key=lambda index: (depths[index] > 0, depths[index]))]
    places = torch.cat([torch.arange(begin, end) for begin, end in [*order, segments[-1]]])
    moved = {name: batch[name][:, places] for name in ("input_ids", "labels", "position_ids", "loss_weights")}
    sizes = batch["tree_out"] - torch.arange(SIZE)
    outs = (torch.arange(SIZE) + sizes[places]).clamp(max=SIZE).int()
    return {**moved, "tree_in": torch.arange(SIZE).int(), "tree_out": outs, "use_cache": False}


def sample_lost(batch, packs):
    """A group that is split over ranks, and whose last branch no rank has."""
    return Trees().right([packs[0], without_last_branch(packs[1])])


def without_last_branch(pack):
    flat = pack.flat()
    edges = flat.cu_seqlens.tolist()
    samples = [flat.input_ids[begin:end].tolist() for begin, end in pairwise(edges)][:-1]
    masks = [flat.loss_mask[begin:end].tolist() for begin, end in pairwise(edges)][:-1]
    return toy_tree(samples, masks)


def sample_twice(batch, packs):
    """A group that two ranks have, and both train."""
    return PackCollator(dialect="transformers_tree")([*packs, packs[-1]])


def window_along_the_row(batch, packs, window=8):
    """A kernel of one row with a window: siblings in between take its place."""
    places = torch.arange(SIZE)
    return with_mask(batch, pairs(batch) & (places[:, None] - places < window))


def no_window(batch, packs):
    """A mask of the tree alone replaces the windows of Mistral's layers."""
    return with_mask(batch, pairs(batch))


class LossOfLabels(torch.nn.Module):
    """A model whose loss is a mean over labels: it reads no weights."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, labels=None, loss_weights=None, num_items_in_batch=None, **batch):
        out = self.inner(**batch)
        if labels is None:
            return {"logits": out.logits}
        losses = torch.nn.functional.cross_entropy(out.logits[0, :-1], labels[0, 1:], ignore_index=IGNORE)
        return {"logits": out.logits, "loss": losses}


class OtherKernelInTraining(torch.nn.Module):
    """The log-probabilities come from a kernel of lower precision than the training pass."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, **batch):
        out = self.inner(**batch)
        if not torch.is_grad_enabled():
            out.logits = out.logits * (1 + 1e-6)
        return out


class LeakOfSiblings(torch.nn.Module):
    """Gradients of a branch reach the token before it in the row, which a sibling may have."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, **batch):
        out = self.inner(**batch)
        out.logits = _OnlyBackward.apply(out.logits)
        return out


class _OnlyBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, values):
        return values.clone()

    @staticmethod
    def backward(ctx, gradients):
        return gradients + 0.1 * torch.nn.functional.pad(gradients[:, 1:], (0, 0, 0, 1))


class RowsOfSegments(PackCollator):
    """Values of tokens are brought back by segments, as if each were a sample of its own."""

    def rows(self, features):
        (batch,) = super().rows(features)
        tree = tree_of(batch)
        return [replace(batch, sharing=replace(tree, parents=tree.parents * 0 - 1))]


# Collators that make trees of plain samples themselves.


def trie_of(samples):
    """A right collator of samples: it compares tokens, and the rest is ours."""
    masks = [[label != IGNORE for label in sample["labels"]] for sample in samples]
    return PackCollator(dialect="transformers_tree", pad_to=SIZE)(
        [toy_tree([sample["input_ids"] for sample in samples], masks)]
    )


def trie_without_a_sample(samples):
    """What does not fit is dropped in silence."""
    return trie_of(samples[: max(1, len(samples) - 1)])


def trie_that_ends_at_a_shared_token(samples):
    """A trie whose leaves alone are samples: one that ends where others go on is lost, and its targets too."""
    ids = [tuple(sample["input_ids"]) for sample in samples]
    kept = [
        n for n, one in enumerate(ids) if not any(other[: len(one)] == one for m, other in enumerate(ids) if m != n)
    ]
    return trie_of([samples[n] for n in kept])


def as_tree(packs, key):
    """A tree of the samples of flat packs, which share what their keys share; media are of the first that has the key."""
    ids, masks, media, names = [], [], [], []
    for pack in packs:
        for segment, (begin, end) in enumerate(pairwise(pack.cu_seqlens.tolist())):
            ids.append(pack.input_ids[begin:end])
            masks.append(pack.loss_mask[begin:end])
            names.append(int(pack.sample_ids[segment]))
            media.append(
                [
                    replace(item, start=item.start - begin, segment=0)
                    for item in pack.attachments
                    if item.segment == segment
                ]
            )
    shape = toy_tree([key(one, items) for one, items in zip(ids, media, strict=True)], masks)
    owners = shape.sample_ids.tolist()
    return assemble_tree(
        [ids[owner] for owner in owners],
        [masks[owner] for owner in owners],
        [names[owner] for owner in owners],
        np.diff(shape.cu_seqlens),
        tree_of(shape).parents,
        [media[owner] for owner in owners],
    )


def tokens_alone(ids, media):
    """The key of a trie that compares no pictures."""
    return ids.tolist()


def tokens_and_pictures(ids, media):
    """The key of a right trie: a picture stands for all of its tokens."""
    keys = ids.astype(np.int64)
    for item in media:
        keys[item.start : item.start + item.length] = 10_000 + sum(item.read()) % 99_991
    return keys.tolist()
