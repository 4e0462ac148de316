"""Losses of sources: by hand, in every dialect, and over two ranks."""

import pickle

import numpy as np
import pytest

from brimful import plan_packs
from brimful.errors import CollateError, SettingsError
from brimful.mixtures import Mixture
from brimful.store.shards import assemble_pack
from brimful.testing.toys import toy_pack

torch = pytest.importorskip("torch")

from brimful.collate.torch import PackCollator  # noqa: E402
from brimful.mixtures.source_losses import SourceLosses, SourceNames  # noqa: E402

SOURCES = {"chat": 2, "code": 2}


def packs():
    """Samples 0 and 2 in a pack, 1 and 3 in the other: each pack has both sources."""
    one = assemble_pack(
        [np.array([1, 2, 3]), np.array([4, 5])], [np.array([0, 1, 1], bool), np.array([0, 1], bool)], [0, 2]
    )
    other = assemble_pack(
        [np.array([6, 7]), np.array([1, 2, 3, 4])], [np.ones(2, bool), np.array([0, 0, 1, 1], bool)], [1, 3]
    )
    return [one, other]


def logits_of(input_ids):
    """Logits of 8 words: of the token that is read, so that every loss is known by its token alone."""
    return torch.nn.functional.one_hot(input_ids, 8).float() * 2 + torch.arange(8) / 10


def by_hand():
    """Loss of each source: the mean over its targets, of pairs (token, next token)."""
    pairs = {"chat": [(1, 2), (2, 3), (6, 7)], "code": [(4, 5), (2, 3), (3, 4)]}
    table = torch.log_softmax(logits_of(torch.arange(8)), dim=-1)
    return {f"loss/{name}": float(-sum(table[pair] for pair in of) / len(of)) for name, of in pairs.items()}


@pytest.mark.parametrize(
    "dialect",
    ["transformers", "llama_factory", "plain", "nemo_automodel", "torchtitan", "veomni", "megatron", "megatron_bridge"],
)
def test_means_over_the_targets_of_each_source(dialect):
    """Micro-batches of one pack and of both give one mean, in rows of every shape, and with shifted labels."""
    collator = PackCollator(dialect=dialect, pad_to=13)
    for micro_batches in ([packs()], [[pack] for pack in packs()]):
        losses = SourceLosses(SOURCES)
        for micro_batch in micro_batches:
            batch = losses.marking(collator)(micro_batch)
            source_ids = batch.pop("source_ids")
            inputs = batch.get("input_ids", batch.get("tokens", batch.get("input")))
            labels = batch["labels"]
            assert source_ids.shape == labels.shape
            losses.add(logits_of(inputs), labels, source_ids, labels_shifted=collator.dialect.labels_shifted)
        means = losses.means()
        assert {name: means[name] for name in by_hand()} == pytest.approx(by_hand(), rel=1e-6)
        assert losses.means() == {}, "taken: the next log begins anew"


def test_a_source_without_targets_is_left_out():
    losses = SourceLosses({"chat": 1, "code": 9})
    batch = losses.marking(PackCollator())([toy_pack([3])])
    losses.add(logits_of(batch["input_ids"] % 8), batch["labels"] % 8, batch.pop("source_ids"))
    assert list(losses.means()) == ["loss/chat", "token_acc/chat"]


def test_a_plan_with_a_mixture_knows_its_sources():
    mixture = Mixture(weights={"web": 9, "math": 1})
    plan = plan_packs([3, 3, 5, 6, 1, 1], capacity=8, draw=mixture, sources={"web": 4, "math": 2})
    names = SourceNames(plan)
    assert (names.names, names.of(np.arange(-1, 6)).tolist()) == (["web", "math"], [-1, 0, 0, 0, 0, 1, 1])
    assert pickle.loads(pickle.dumps(names)).names == names.names
    with pytest.raises(SettingsError, match="by_source has no sources, as a plan without a mixture"):
        SourceNames(plan_packs([3, 3], capacity=8))


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({}, "has no sources"),
        ([("b", 1), ("a", 1), ("a", 2)], "names a twice"),
        ({"a": -1}, "the number of samples of a"),
    ],
)
def test_wrong_sources_are_refused(parts, message):
    with pytest.raises(SettingsError, match=message):
        SourceNames(parts)


def test_an_empty_place_counts_for_no_source():
    """A rank without a pack at the end of an epoch logs nothing of its own."""
    batch = SourceLosses(SOURCES).marking(PackCollator(pad_to=9))([packs()[0].without_loss()])
    assert set(batch["source_ids"].reshape(-1).tolist()) == {-1}


def test_samples_of_no_source_are_refused():
    collator = SourceLosses({"chat": 2}).marking(PackCollator())
    with pytest.raises(SettingsError, match="sample 3 is of no source: the 1 sources have 2 samples together"):
        collator(packs())
    losses = SourceLosses(SOURCES)
    with pytest.raises(CollateError, match="4 sources were given for 5 tokens"):
        losses.add(torch.zeros(5, 8), torch.zeros(5, dtype=torch.int64), torch.zeros(4, dtype=torch.int32))


def test_the_sums_of_all_ranks_are_divided_once(monkeypatch):
    """A source that only another rank has is logged too."""
    losses = SourceLosses(SOURCES)
    others = torch.tensor([[0.0, 6.0], [0.0, 4.0], [0.0, 1.0]], dtype=torch.float64)
    # The second token is not a target, and the third one is of no source.
    targets, sources = torch.tensor([True, False, True]), torch.tensor([0, 0, -1])
    losses.add_tokens(torch.tensor([2.0, 9.0, 7.0]), targets, torch.ones(3, dtype=bool), sources)
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda sums, group: sums.add_(others.to(sums.dtype)))
    means = losses.means(over_ranks=True)
    assert means == {"loss/chat": 2.0, "token_acc/chat": 1.0, "loss/code": 1.5, "token_acc/code": 0.25}
