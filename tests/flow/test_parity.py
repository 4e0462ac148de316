"""A pack gives what its samples give one by one: logits, loss, gradients. And a collator without boundaries does not."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from brimful import PackCollator  # noqa: E402
from brimful.store.shards import assemble_pack  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # of torch and its compiler; as errors they would break it

LENGTHS = [7, 12, 1, 5]
TOLERANCE = 1e-5
# The first call of flex attention loads the compiler of torch, which takes most of a minute.
ATTENTION = ["sdpa", "eager", pytest.param("flex_attention", marks=pytest.mark.long)]


@pytest.fixture(autouse=True)
def flex_backward_on_cpu(monkeypatch):
    """PyTorch refuses the backward of flex attention on a CPU, for speed. Its dense form has one: same mask, same math.

    The compiled form is tested without gradients below.
    """
    import torch.nn.attention.flex_attention as flex
    import transformers.integrations.flex_attention as integration

    monkeypatch.setattr(flex, "_validate_device", lambda *tensors: None)

    def uncompiled(query, key, value, training=False, **options):
        return flex.flex_attention(query, key, value, **options)

    monkeypatch.setattr(integration, "compile_friendly_flex_attention", uncompiled)


def model(attention):
    torch.manual_seed(0)
    config = transformers.Qwen2Config(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
    )
    built = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=attention)
    return built.float().eval()


def samples():
    rng = np.random.default_rng(0)
    ids = [rng.integers(1, 64, length).astype(np.int32) for length in LENGTHS]
    masks = [rng.random(length) < 0.7 for length in LENGTHS]
    return ids, masks


def one_by_one(net, ids, masks):
    """Logits of each sample alone, and the gradient of the mean loss over all their target tokens."""
    net.zero_grad()
    logits, total, count = [], 0.0, 0
    for tokens, mask in zip(ids, masks, strict=True):
        out = net(input_ids=torch.from_numpy(tokens.astype(np.int64))[None], use_cache=False).logits[0]
        labels = torch.from_numpy(np.where(mask, tokens, -100).astype(np.int64))
        total = total + torch.nn.functional.cross_entropy(out[:-1], labels[1:], ignore_index=-100, reduction="sum")
        count += int((labels[1:] != -100).sum())
        logits.append(out.detach())
    loss = total / count
    loss.backward()  # type: ignore[attr-defined]
    return torch.cat(logits), loss.detach(), [parameter.grad.clone() for parameter in net.parameters()]  # type: ignore[attr-defined]


def packed(net, batch):
    net.zero_grad()
    out = net(**batch)
    out.loss.backward()
    return out.logits[0].detach(), out.loss.detach(), [parameter.grad.clone() for parameter in net.parameters()]


def largest_differences(expected, got, tokens):
    logits = (expected[0] - got[0][:tokens]).abs().max().item()
    loss = (expected[1] - got[1]).abs().item()
    gradient = max((a - b).abs().max().item() for a, b in zip(expected[2], got[2], strict=True))
    return logits, loss, gradient


@pytest.mark.parametrize("pad_to", [None, 32])
@pytest.mark.parametrize("attention", ATTENTION)
def test_packed_equals_one_by_one(attention, pad_to):
    """The promise of the whole library, in fp32 below 1e-5, with and without padding at the end."""
    net = model(attention)
    ids, masks = samples()
    expected = one_by_one(net, ids, masks)
    batch = PackCollator(pad_to=pad_to)([assemble_pack(ids, masks, range(4))])
    differences = largest_differences(expected, packed(net, batch), sum(LENGTHS))
    assert max(differences) < TOLERANCE, differences


@pytest.mark.parametrize("attention", ATTENTION)
def test_two_packs_in_one_micro_batch_equal_one_by_one(attention):
    """Several packs of one forward are as isolated as the segments of one."""
    net = model(attention)
    ids, masks = samples()
    expected = one_by_one(net, ids, masks)
    packs = [assemble_pack(ids[:2], masks[:2], [0, 1]), assemble_pack(ids[2:], masks[2:], [2, 3])]
    differences = largest_differences(expected, packed(net, PackCollator()(packs)), sum(LENGTHS))
    assert max(differences) < TOLERANCE, differences


def without_boundaries(packs):
    batch = PackCollator()(packs)
    total = batch["input_ids"].shape[1]
    ends = torch.tensor([0, total], dtype=torch.int32)
    return {
        **{key: batch[key] for key in ("input_ids", "labels")},
        "position_ids": torch.arange(total)[None],
        "cu_seq_lens_q": ends,
        "cu_seq_lens_k": ends,
        "max_length_q": total,
        "max_length_k": total,
        "seq_idx": torch.zeros(1, total, dtype=torch.int32),
    }


def with_whole_row_labels(packs):
    batch = PackCollator()(packs)
    pack = packs[0]
    batch["labels"] = torch.from_numpy(pack.input_ids.astype(np.int64))[None]
    return batch


def with_a_cache(packs):
    return {**PackCollator()(packs), "use_cache": True}


@pytest.mark.parametrize("attention", ATTENTION)
@pytest.mark.parametrize("broken", [without_boundaries, with_whole_row_labels, with_a_cache])
def test_a_broken_collator_fails_this_test(attention, broken):
    """A check that passes whatever the collator does would prove nothing: here it must see the fault."""
    net = model(attention)
    ids, masks = samples()
    expected = one_by_one(net, ids, masks)
    differences = largest_differences(
        expected, packed(net, broken([assemble_pack(ids, masks, range(4))])), sum(LENGTHS)
    )
    assert max(differences) > 100 * TOLERANCE, differences


@pytest.mark.long
def test_compiled_flex_attention_gives_the_same_logits(monkeypatch):
    """The form that runs in training, forward only, as far as a CPU can."""
    monkeypatch.undo()
    net = model("flex_attention")
    ids, masks = samples()
    with torch.no_grad():
        alone = [net(input_ids=torch.from_numpy(row.astype(np.int64))[None], use_cache=False).logits[0] for row in ids]
        together = net(**PackCollator(pad_to=32)([assemble_pack(ids, masks, range(4))])).logits[0]
    assert (torch.cat(alone) - together[: sum(LENGTHS)]).abs().max() < TOLERANCE


def test_other_samples_do_not_move_ones_logits():
    """Perturb the first sample: the others must not notice, to the last bit."""
    net = model("sdpa")
    ids, masks = samples()
    changed = [np.where(np.arange(LENGTHS[0]) < 7, (ids[0] + 5) % 64, ids[0]).astype(np.int32), *ids[1:]]
    with torch.no_grad():
        before = net(**PackCollator()([assemble_pack(ids, masks, range(4))])).logits[0, LENGTHS[0] :]
        after = net(**PackCollator()([assemble_pack(changed, masks, range(4))])).logits[0, LENGTHS[0] :]
    assert torch.equal(before, after)
