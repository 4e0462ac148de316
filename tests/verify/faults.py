"""Broken collators and models, each a small re-creation of a public bug. ``right`` is what they should have been."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace

import torch

IGNORE = -100


def right(samples):
    """One row of all samples, then four tokens of padding as a last segment; what Transformers models take."""
    lengths = [len(sample["input_ids"]) for sample in samples] + [4]
    ids = [token for sample in samples for token in sample["input_ids"]] + [0] * 4
    labels = [label for sample in samples for label in [IGNORE, *sample["labels"][1:]]] + [IGNORE] * 4
    positions = [position for length in lengths for position in range(length)]
    boundaries = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)
    return {
        "input_ids": torch.tensor([ids]),
        "labels": torch.tensor([labels]),
        "position_ids": torch.tensor([positions]),
        "cu_seq_lens_q": boundaries,
        "cu_seq_lens_k": boundaries,
        "max_length_q": max(lengths),
        "max_length_k": max(lengths),
        "seq_idx": torch.tensor([[index for index, length in enumerate(lengths) for _ in range(length)]]).int(),
        "use_cache": False,
    }


def without(batch, *names):
    return {key: value for key, value in batch.items() if not key.startswith(names)}


def whole_pack_label_shift(samples):
    """torchtune#2613, Megatron SFTDataset: the row is shifted by one, samples and all."""
    batch = right(samples)
    flat = torch.tensor([[label for sample in samples for label in sample["labels"]] + [IGNORE] * 5])
    del batch["labels"]
    return {**batch, "shift_labels": flat[:, 1:]}


def first_label_kept(samples):
    """trl#3692: which collator masks the first token? This one does not."""
    batch = right(samples)
    batch["labels"] = torch.tensor([[label for sample in samples for label in sample["labels"]] + [IGNORE] * 4])
    return batch


def double_shift(samples):
    """Labels for Megatron or torchtitan, shifted already, given to a model that shifts."""
    batch = right(samples)
    batch["labels"] = torch.cat([batch["labels"][:, 1:], torch.full((1, 1), IGNORE)], dim=1)
    return batch


def not_shifted(samples):
    """The other way round: plain labels under the name of shifted ones."""
    batch = right(samples)
    batch["shift_labels"] = batch.pop("labels")
    return batch


def prompts_trained_on(samples):
    """Labels are copied from the tokens; what was masked is trained on."""
    batch = right(samples)
    batch["labels"] = torch.where(batch["position_ids"] == 0, IGNORE, batch["input_ids"])
    batch["labels"][:, -4:] = IGNORE
    return batch


def pad_told_by_token(samples):
    """Megatron: loss_mask[labels == pad] = 0 also drops a real token, where pad = EOS."""
    batch = right(samples)
    batch["labels"] = torch.where(batch["labels"] == 5, IGNORE, batch["labels"])
    return batch


def padding_trained_on(samples):
    """Labels are made from the padded row."""
    batch = right(samples)
    batch["labels"][:, -4:] = batch["input_ids"][:, -4:]
    return batch


def pad_at_position_0(samples):
    """TRL, torchtitan: every padding token is a sample of its own."""
    batch = right(samples)
    batch["position_ids"][:, -4:] = 0
    return batch


def padding_joined_to_a_sample(samples):
    """Padding before the first sample and not kept apart from it."""
    batch = right(samples)
    length = batch["input_ids"].shape[1] - 4
    for key, fill in (("input_ids", 0), ("labels", IGNORE), ("seq_idx", 0)):
        front = torch.full((1, 4), fill, dtype=batch[key].dtype)
        batch[key] = torch.cat([front, batch[key][:, :length]], dim=1)
    front = torch.arange(-4, 0)[None]
    batch["position_ids"] = torch.cat([front, batch["position_ids"][:, :length]], dim=1)
    return without(batch, "cu_seq", "max_length", "seq_idx")


def positions_not_reset(samples):
    """trl#805, nanoVLM#201: samples follow each other and positions run on."""
    batch = without(right(samples), "cu_seq", "max_length", "seq_idx")
    batch["position_ids"] = torch.arange(batch["input_ids"].shape[1])[None]
    return batch


def no_boundaries_at_all(samples):
    """trl#805, functionary#265: an EOS between samples was said to be enough."""
    return without(right(samples), "cu_seq", "max_length", "seq_idx", "position_ids")


def mask_present(samples):
    """TRL's comment in its collator: with a mask Transformers looks neither at positions nor at cu_seq_lens."""
    batch = right(samples)
    return {**batch, "attention_mask": torch.ones_like(batch["input_ids"])}


def cache_left_on(samples):
    """use_cache=False is not set, and the configuration says True."""
    return without(right(samples), "use_cache")


def cp_rounding(samples):
    """TransformerEngine#1930: 7 tokens on 2 ranks become 6."""
    batch = right(samples)
    lengths = [len(sample["input_ids"]) // 2 * 2 for sample in samples]
    total = batch["input_ids"].shape[1]
    ends = torch.tensor([0, *lengths]).cumsum(0)
    batch["cu_seq_lens_q"] = batch["cu_seq_lens_k"] = torch.cat([ends, torch.tensor([total])]).to(torch.int32)
    return batch


def padding_in_no_segment(samples):
    """TransformerEngine: boundaries that end before the row does."""
    batch = right(samples)
    return {**batch, "cu_seq_lens_q": batch["cu_seq_lens_q"][:-1], "cu_seq_lens_k": batch["cu_seq_lens_k"][:-1]}


def max_length_too_small(samples):
    """Megatron RL: a maximum kept from another batch."""
    return {**right(samples), "max_length_q": 8, "max_length_k": 8}


def one_seq_idx(samples):
    """lmms-engine#167: seq_idx is there, and the same for all."""
    batch = right(samples)
    return {**batch, "seq_idx": torch.zeros_like(batch["seq_idx"])}


def in_place_labels(samples):
    """VeOmni: the first label is overwritten in the sample itself."""
    for sample in samples:
        sample["labels"][0] = IGNORE
    return right(samples)


def repeated_sample(samples):
    """trl#6669: the first is there twice, another one never; row and token counts do not change."""
    twice = [*samples[:-1], samples[0]]
    return right(twice)


def lost_sample(samples):
    """open-instruct#1271: what does not fill a step is dropped."""
    return right(samples[:-1])


def mrope_over_the_whole_row(samples):
    """miles#1272: the rope index is computed for the packed row."""
    batch = without(right(samples), "cu_seq", "max_length", "seq_idx")
    length = batch["input_ids"].shape[1]
    batch["position_ids"] = torch.arange(length).expand(3, 1, length)
    return batch


def mrope_without_a_text_row(samples):
    """axolotl#3817: three rows, each right, and isolation is silently off."""
    batch = right(samples)
    batch["position_ids"] = batch["position_ids"].expand(3, *batch["position_ids"].shape)
    return batch


def mrope_right(samples):
    batch = right(samples)
    batch["position_ids"] = batch["position_ids"].expand(4, *batch["position_ids"].shape)
    return batch


def no_boundaries_for_recurrent_layers(samples):
    """slime#1686, Automodel#2147: positions are right, and the delta rule knows nothing of them."""
    return without(right(samples), "cu_seq", "max_length", "seq_idx")


class PerMicroBatchMean(torch.nn.Module):
    """Transformers before October 2024, unsloth-zoo#348: each micro-batch is divided by its own targets."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, num_items_in_batch=None, **batch):
        return self.inner(**batch)


class PerPackMean(torch.nn.Module):
    """ms-swift#10144: samples of a pack share one weight, so samples of large packs count less."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, labels=None, num_items_in_batch=None, **batch):
        out = self.inner(**batch)
        if labels is None:
            return out
        losses = torch.nn.functional.cross_entropy(out.logits[0, :-1], labels[0, 1:], reduction="none")
        segment, valid = batch["seq_idx"][0, 1:].long(), labels[0, 1:] != IGNORE
        means = [losses[valid & (segment == index)].mean() for index in segment[valid].unique()]
        return {"logits": out.logits, "loss": torch.stack(means).mean()}


def labels_dropped(samples):
    """A collator for inference, or of a trainer that makes its labels elsewhere: nothing is trained."""
    return without(right(samples), "labels")


def boundaries_one_late(samples):
    """Half-open intervals read as closed ones: every boundary lies one token after the beginning."""
    batch = right(samples)
    late = batch["cu_seq_lens_q"].clone()
    late[1:-1] += 1
    return {**batch, "cu_seq_lens_q": late, "cu_seq_lens_k": late}


def lengths_of_shifted_labels(samples):
    """Lengths are counted after the shift, so each is one short and the boundaries run away."""
    batch = right(samples)
    lengths = [len(sample["input_ids"]) - 1 for sample in samples]
    ends = torch.tensor([0, *lengths]).cumsum(0)
    short = torch.cat([ends, torch.tensor([batch["input_ids"].shape[1]])]).int()
    return {**batch, "cu_seq_lens_q": short, "cu_seq_lens_k": short}


def seq_idx_one_late(samples):
    """The number of the sample is counted up after its first token."""
    batch = right(samples)
    late = torch.cat([batch["seq_idx"][:, :1], batch["seq_idx"][:, :-1]], dim=1)
    return {**batch, "seq_idx": late}


def positions_one_late(samples):
    """Positions start again at the second token of each sample: the first one sees the sample before."""
    batch = without(right(samples), "cu_seq", "max_length", "seq_idx")
    lengths = [len(sample["input_ids"]) for sample in samples]
    lengths = [lengths[0] + 1, *lengths[1:], 3]
    return {**batch, "position_ids": torch.tensor([[at for length in lengths for at in range(length)]])}


class Around(torch.nn.Module):
    """A module around a model; ``change`` is what the fault does to its logits, from logits and tokens."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, labels=None, num_items_in_batch=None, **batch):
        out = self.inner(**batch)
        logits = self.change(out.logits, batch)
        if labels is None:
            return SimpleNamespace(logits=logits)
        loss = self.loss(logits, labels, {**batch, "count": num_items_in_batch})
        return SimpleNamespace(logits=logits, loss=loss)

    def change(self, logits, batch):
        return logits

    def loss(self, logits, labels, batch):
        flat = logits[:, :-1].reshape(-1, logits.shape[-1]).float()
        total = torch.nn.functional.cross_entropy(flat, labels[:, 1:].reshape(-1), ignore_index=IGNORE, reduction="sum")
        return total / (batch["count"] or (labels[:, 1:] != IGNORE).sum())


class LeakOf(Around):
    """Each token also sees a little of the one before it, whosever it is."""

    def __init__(self, inner, size, only_in_training=False):
        super().__init__(inner)
        self.size, self.only_in_training = size, only_in_training

    def change(self, logits, batch):
        if self.only_in_training and not self.training:
            return logits
        before = torch.nn.functional.pad(logits[:, :-1], (0, 0, 1, 0)) * (batch["input_ids"] >= 0)[..., None]
        return logits + self.size * before


class _OnlyBackward(torch.autograd.Function):
    """The tokens as they are, and gradients that also reach the token before."""

    @staticmethod
    def forward(ctx, values):
        return values.clone()

    @staticmethod
    def backward(ctx, gradients):
        return gradients + 0.1 * torch.nn.functional.pad(gradients[:, 1:], (0, 0, 0, 1))


class BackwardLeak(Around):
    """A kernel whose mask is right in the forward and missing in the backward."""

    def change(self, logits, batch):
        return _OnlyBackward.apply(logits)


class DropoutLeftOn(Around):
    """torch.nn.functional.dropout without training=self.training."""

    def change(self, logits, batch):
        return torch.nn.functional.dropout(logits, 0.1)


class DropoutInTraining(Around):
    """Nothing wrong: dropout as it should be, under an unguessable name."""

    def change(self, logits, batch):
        return torch.nn.functional.dropout(logits, 0.1, training=self.training)


class DividedByPaddedTokens(Around):
    """The sum over targets is divided by labels.numel()."""

    def loss(self, logits, labels, batch):
        return super().loss(logits, labels, batch) * (labels[:, 1:] != IGNORE).sum() / labels.numel()


class LabelsNotShifted(Around):
    """A decoder of an encoder-decoder: its caller shifts the tokens, so it does not shift the labels."""

    def loss(self, logits, labels, batch):
        return super().loss(
            torch.cat([logits, logits[:, -1:]], dim=1), torch.cat([labels[:, :1], labels], dim=1), batch
        )


class ZLoss(Around):
    """Nothing wrong: PaLM's z-loss with the language-model loss."""

    def loss(self, logits, labels, batch):
        return super().loss(logits, labels, batch) + 0.1 * torch.logsumexp(logits, dim=-1).square().mean()


class MultiTokenPrediction(Around):
    """Nothing wrong: the token after the next is predicted too, within each sample."""

    def loss(self, logits, labels, batch):
        positions = batch.get("position_ids", torch.arange(labels.shape[1])[None])
        ahead = torch.where(positions[:, 2:] >= 2, labels[:, 2:], IGNORE)
        flat = logits[:, :-2].reshape(-1, logits.shape[-1]).flip(-1)
        extra = torch.nn.functional.cross_entropy(flat, ahead.reshape(-1), ignore_index=IGNORE)
        return super().loss(logits, labels, batch) + 0.3 * torch.nan_to_num(extra)


class ZLossAndPerSampleMean(ZLoss):
    """A wrong weighing that an auxiliary loss could hide."""

    def loss(self, logits, labels, batch):
        extra = 0.1 * torch.logsumexp(logits, dim=-1).square().mean()
        begins = (batch["position_ids"] == 0).cumsum(-1)[0, 1:] if "position_ids" in batch else labels[0, 1:] * 0
        losses = torch.nn.functional.cross_entropy(logits[0, :-1], labels[0, 1:], reduction="none")
        valid = labels[0, 1:] != IGNORE
        return torch.stack([losses[valid & (begins == one)].mean() for one in begins[valid].unique()]).mean() + extra


class StatisticsOverTheBatch(Around):
    """Samples see each other wherever they stand: experts of limited capacity, batch norm."""

    def change(self, logits, batch):
        return logits + logits.mean(dim=(0, 1), keepdim=True)


class RoundsByTheBatch(Around):
    """Nothing wrong: what experts do in groups, where rounding depends on all tokens of the batch."""

    def change(self, logits, batch):
        factor = 1 + (batch["input_ids"].sum() % 7) / 10
        return logits * factor.to(logits.dtype) / factor.to(logits.dtype)


# Faults of long samples alone, as a counter of 14 bits or a loop over blocks has them.


def positions_of_few_bits(samples):
    batch = right(samples)
    return {**batch, "position_ids": batch["position_ids"] % 16_384}


def labels_of_a_first_block(samples):
    batch = right(samples)
    return {**batch, "labels": torch.where(batch["position_ids"] < 16_384, batch["labels"], IGNORE)}


def boundaries_of_blocks(samples):
    batch = right(samples)
    ends = batch["cu_seq_lens_q"].tolist()
    edges = sorted({*ends, *(edge for start, end in pairwise(ends) for edge in range(start, end, 16_384))})
    boundaries = torch.tensor(edges, dtype=torch.int32)
    return {**batch, "cu_seq_lens_q": boundaries, "cu_seq_lens_k": boundaries}


def tokens_beyond_a_block_lost(samples):
    return right([{name: row[:16_384] for name, row in sample.items()} for sample in samples])
