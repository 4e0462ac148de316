"""Losses by sample, and the denominator of a step."""

import numpy as np
import pytest

from brimful.collate import lay_out
from brimful.collate.loss import segment_weights, token_weights
from brimful.collate.padding import Padding
from brimful.errors import CollateError, SettingsError
from brimful.store.shards import assemble_pack
from brimful.testing.toys import toy_pack

torch = pytest.importorskip("torch")

from brimful.collate import loss_torch  # noqa: E402
from brimful.collate.loss_torch import aggregate, global_sum, packed_loss_sum, per_sample_loss, scale_for_ddp  # noqa: E402


def packed_case(dtype=None, vocabulary=23):
    """A batch of four segments with padding, and logits that are wrong at random."""
    rng = np.random.default_rng(0)
    lengths = [5, 1, 7, 4]
    ids = [rng.integers(1, vocabulary, length).astype(np.int32) for length in lengths]
    masks = [rng.random(length) < 0.7 for length in lengths]
    masks[3][:] = False
    batch = lay_out([assemble_pack(ids, masks, range(4))], padding=Padding(to=24), pad_token_id=0)
    torch.manual_seed(0)
    logits = torch.randn(24, vocabulary, dtype=dtype) * 3
    return batch, logits


def alone(batch, logits, number):
    """Loss, targets and hits of one segment by plain PyTorch."""
    start, stop = batch.cu_seqlens[number : number + 2].tolist()
    rows, labels = logits[start:stop].float(), torch.from_numpy(batch.labels[start:stop])
    if stop - start == 1:
        return 0.0, 0, 0
    nll = torch.nn.functional.cross_entropy(rows[:-1], labels[1:], ignore_index=-100, reduction="sum")
    correct = ((rows[:-1].argmax(-1) == labels[1:]) & (labels[1:] != -100)).sum()
    return nll.item(), (labels[1:] != -100).sum().item(), correct.item()


@pytest.fixture(params=[1, 100, 1 << 27], ids=["a row at a time", "4 rows", "all at once"])
def chunked(request, monkeypatch):
    monkeypatch.setattr(loss_torch, "_CHUNK_LOGITS", request.param)


@pytest.mark.usefixtures("chunked")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shifted", [False, True])
def test_losses_by_sample_are_those_of_each_alone(dtype, shifted):
    """Per-sample metrics back from a packed batch; the padding is in none of them."""
    batch, logits = packed_case(dtype)
    labels = torch.from_numpy(batch.labels)
    labels = torch.cat([labels[1:], torch.tensor([-100])]) if shifted else labels
    losses = per_sample_loss(logits[None], labels[None], batch.cu_seqlens, batch.num_segments, labels_shifted=shifted)
    expected = [alone(batch, logits, number) for number in range(4)]
    assert losses.nll_sum.tolist() == pytest.approx([nll for nll, _, _ in expected], rel=1e-5)
    assert losses.num_targets.tolist() == [count for _, count, _ in expected]
    assert losses.num_correct.tolist() == [hits for _, _, hits in expected]
    assert losses.nll_sum.dtype == torch.float32
    total = packed_loss_sum(logits[None], labels[None], labels_shifted=shifted)
    assert total.item() == pytest.approx(sum(nll for nll, _, _ in expected), rel=1e-5)


def test_no_loss_across_a_boundary():
    """Even where a label asks for it: the last token of a sample predicts nothing."""
    batch, logits = packed_case()
    labels = torch.from_numpy(np.where(batch.labels == -100, 3, batch.labels))
    for shifted in (False, True):
        losses = per_sample_loss(logits, labels, batch.cu_seqlens, batch.num_segments, labels_shifted=shifted)
        assert losses.num_targets.tolist() == [4, 0, 6, 3]
    whole = packed_loss_sum(logits, labels, cu_seqlens=batch.cu_seqlens)
    parts = per_sample_loss(logits, labels, batch.cu_seqlens)
    assert whole.item() == pytest.approx(parts.nll_sum.sum().item())


@pytest.mark.usefixtures("chunked")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_are_those_of_cross_entropy(dtype):
    """With weights, through the chunks, in the type of the logits."""
    batch, logits = packed_case(dtype)
    weights = torch.from_numpy(token_weights(batch.labels, batch.cu_seqlens, batch.num_segments, "sample"))
    labels = torch.from_numpy(batch.labels)
    mine, theirs = logits.clone().requires_grad_(), logits.clone().requires_grad_()
    (packed_loss_sum(mine, labels, loss_weights=weights) * 0.5).backward()
    nll = torch.nn.functional.cross_entropy(theirs[:-1].float(), labels[1:], ignore_index=-100, reduction="none")
    ((nll * weights[1:]).sum() * 0.5).backward()
    assert mine.grad.dtype == dtype
    torch.testing.assert_close(mine.grad, theirs.grad)


def test_gradients_of_single_samples():
    """What a preference loss needs: the log probability of each response, differentiable."""
    batch, logits = packed_case()
    logits.requires_grad_()
    per_sample_loss(logits, torch.from_numpy(batch.labels), batch.cu_seqlens, batch.num_segments).nll_sum[2].backward()
    touched = logits.grad.abs().sum(dim=1).nonzero()[:, 0]
    start, stop = batch.cu_seqlens[2:4].tolist()
    assert len(touched)
    assert start <= int(touched.min()) <= int(touched.max()) < stop - 1


def test_a_batch_without_targets():
    """A rank without a pack of its own still takes part in the backward, with zeros and no NaN."""
    batch, logits = packed_case()
    logits.requires_grad_()
    total = packed_loss_sum(logits, torch.full((24,), -100))
    scale_for_ddp(total, denominator=global_sum([0, 0]), dp_world_size=4).backward()
    assert total.item() == 0.0
    assert logits.grad.tolist() == torch.zeros_like(logits).tolist()
    losses = per_sample_loss(logits, torch.full((24,), -100), batch.cu_seqlens, batch.num_segments)
    assert aggregate(losses) == {}


def test_no_float32_copy_of_the_logits(monkeypatch):
    """At 150k words and 8k tokens it would be 5 GB, and a second one in the backward."""
    from torch.utils._python_dispatch import TorchDispatchMode

    largest = [0]

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            for tensor in out if isinstance(out, (tuple, list)) else [out]:
                if isinstance(tensor, torch.Tensor) and tensor.dtype != torch.bfloat16:
                    largest[0] = max(largest[0], tensor.numel())
            return out

    monkeypatch.setattr(loss_torch, "_CHUNK_LOGITS", 2 * 500)
    logits = torch.randn(64, 500, dtype=torch.bfloat16, requires_grad=True)
    labels = torch.randint(0, 500, (64,))
    with Watch():
        packed_loss_sum(logits, labels).backward()
        per_sample_loss(logits, labels, torch.tensor([0, 40, 64], dtype=torch.int32))
    assert 500 <= largest[0] <= 1000


def test_losses_for_people():
    """Over batches, by target and not by batch; by source on request, where the source has targets."""
    batch, logits = packed_case()
    losses = per_sample_loss(logits, torch.from_numpy(batch.labels), batch.cu_seqlens, batch.num_segments)
    nll, targets, correct = (column.tolist() for column in losses)
    assert aggregate(losses) == {
        "loss": pytest.approx(sum(nll) / sum(targets)),
        "token_acc": pytest.approx(sum(correct) / sum(targets)),
    }
    got = aggregate([losses, losses], sources=[0, 2, 2, 1, 0, 2, 2, 1], source_names=["code", "chat", "web"])
    assert set(got) == {"loss", "token_acc", "loss/code", "token_acc/code", "loss/web", "token_acc/web"}
    assert got["loss"] == pytest.approx(sum(nll) / sum(targets))
    assert got["loss/code"] == pytest.approx(nll[0] / targets[0])
    assert got["token_acc/web"] == pytest.approx(correct[2] / targets[2])


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda b, x: packed_loss_sum(x, torch.zeros(3, dtype=torch.int64)), CollateError, "24 tokens and 3 labels"),
        (
            lambda b, x: packed_loss_sum(x, torch.zeros(24, dtype=torch.int64), loss_weights=torch.ones(2)),
            CollateError,
            "2 loss weights were given for 24 tokens",
        ),
        (lambda b, x: aggregate([]), SettingsError, "at least one batch"),
        (
            lambda b, x: aggregate(
                per_sample_loss(x, torch.from_numpy(b.labels), b.cu_seqlens, 4),
                sources=[0, 0, 0, 5],
                source_names=["a"],
            ),
            CollateError,
            "source 5 has no name: 1 source_names",
        ),
        (
            lambda b, x: aggregate(
                per_sample_loss(x, torch.from_numpy(b.labels), b.cu_seqlens, 4), sources=[0], source_names=["a"]
            ),
            CollateError,
            "1 sources were given for 4 segments",
        ),
    ],
)
def test_what_does_not_fit(call, error, message):
    """One line with both numbers."""
    with pytest.raises(error, match=message):
        call(*packed_case())


def test_the_count_of_transformers_is_ours_and_needs_no_correction():
    """Its Trainer counts labels[..., 1:] != -100. unsloth-zoo#1066 took packed boundaries off once more: 6 instead of 8."""
    batches = [
        lay_out([toy_pack([3, 2, 4])], padding=Padding(to=12), pad_token_id=0),
        lay_out([toy_pack([3])], pad_token_id=0),
    ]
    theirs = sum(int((batch.labels[1:] != -100).sum()) for batch in batches)
    solo = sum(length - 1 for length in [3, 2, 4, 3])
    assert theirs == solo == global_sum(batch.num_loss_tokens for batch in batches) == 8
    assert theirs - sum(batch.num_segments - 1 for batch in batches) == 6


def preference_gradient(packing, normalise):
    """Gradient of sigmoid DPO (β 0.1, policy = reference) of four pairs with one target token a response.

    The log probability of the chosen response over the rejected one is θ times -2, 1, 1, 1.
    """
    theta = torch.zeros(1, requires_grad=True)
    features, pairs = [-2.0, 1.0, 1.0, 1.0], iter(range(4))
    parts = [[next(pairs) for _ in range(size)] for size in packing]
    count = global_sum(len(part) for part in parts)
    for part in parts:
        # Words 0 (prompt), 1 (rejected) and 2 (chosen); each pair is two segments of the pack.
        words = torch.tensor([[0, 2, 0, 1]] * len(part)).reshape(-1)
        labels = torch.where(words == 0, -100, words)
        boundaries = np.arange(0, 4 * len(part) + 1, 2, dtype=np.int32)
        rows = [theta * torch.tensor([0.0, 0.0, features[pair]]) for pair in part for _ in range(4)]
        log_probs = -per_sample_loss(torch.stack(rows), labels, boundaries).nll_sum.reshape(-1, 2)
        losses = torch.nn.functional.softplus(-0.1 * (log_probs[:, 0] - log_probs[:, 1]))
        if normalise == "step":
            scale_for_ddp(losses.sum(), denominator=count, dp_world_size=1).backward()
        else:
            (losses.mean() / len(parts)).backward()
    return theta.grad.item()


def test_pairs_count_the_same_in_any_packing():
    """ms-swift#10144: packs of one and three pairs weighted them 1/2, 1/6, 1/6, 1/6, and the gradient changed its sign."""
    assert preference_gradient([4], "mean of means") == pytest.approx(-0.0125)
    assert preference_gradient([1, 3], "mean of means") == pytest.approx(0.025)
    for packing in ([4], [1, 3], [2, 2], [1, 1, 1, 1]):
        assert preference_gradient(packing, "step") == pytest.approx(-0.0125)


def test_pair_weights_count_the_same_in_any_packing():
    """The same as weights of tokens: four pairs of unequal length, in packs of one and three, are a quarter each."""
    targets, groups = np.array([4, 2, 1, 1, 9, 3, 2, 5]), np.array([0, 0, 1, 1, 2, 2, 3, 3])
    parts = [slice(0, 2), slice(2, 8)]
    weights = [segment_weights(targets[part], "pair", groups=groups[part]) for part in parts]
    denominator = global_sum((each * targets[part]).sum() for each, part in zip(weights, parts, strict=True))
    shares = np.bincount(groups, np.concatenate(weights) * targets) / denominator
    assert shares == pytest.approx([0.25] * 4)


def test_a_label_below_zero_is_an_error_and_no_token():
    """A data set that ignores with -1 would train on token 0."""
    with pytest.raises((IndexError, RuntimeError)):
        packed_loss_sum(torch.zeros(4, 8), torch.full((4,), -1))


def test_ranks_are_summed():
    """Two ranks, played by one: every number is the sum over both."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.distributed, "is_initialized", lambda: True)
        patch.setattr(torch.distributed, "all_reduce", lambda tensor, group=None: tensor.mul_(2))
        assert global_sum([3, 4.5]) == 15.0
        one = aggregate(per_sample_loss(torch.zeros(2, 3), torch.tensor([-100, 1]), [0, 2]), over_ranks=True)
    assert one["loss"] == pytest.approx(np.log(3))
    assert global_sum([3, 4.5]) == 7.5
    assert global_sum([]) == 0.0


def test_a_step_without_targets_has_a_loss_of_zero():
    assert float(scale_for_ddp(torch.tensor(6.0), denominator=4.0, dp_world_size=2)) == 3.0
    assert float(scale_for_ddp(torch.tensor(6.0), denominator=0.5, dp_world_size=2)) == 24.0
    assert float(scale_for_ddp(torch.tensor(0.0), denominator=0.0, dp_world_size=2)) == 0.0
