"""An evaluation says the same of samples packed, one by one, and several packs at a time."""

import datetime
import json
import os

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from brimful import PackCollator  # noqa: E402
from brimful.errors import SettingsError  # noqa: E402
from brimful.integrations.trainers import SampleLosses, evaluate_samples, one_by_one  # noqa: E402
from brimful.mixtures.source_losses import SourceNames  # noqa: E402
from brimful.testing.toys import ToyPacks, toy_tree  # noqa: E402
from tests.faults.processes import forked  # noqa: E402
from tests.integrations.trainers import tiny  # noqa: E402


def test_every_sample_has_the_loss_it_has_alone():
    """Whole output against the model's own loss, sample by sample."""
    packs, model = tiny.packs(3), tiny.model()
    found = evaluate_samples(model, packs, PackCollator(pad_to=24))
    alone = evaluate_samples(model, one_by_one(packs), PackCollator())
    two = evaluate_samples(model, packs, PackCollator(), packs_per_batch=2)
    assert found.sample_ids.tolist() == list(range(9))
    assert found.num_targets.tolist() == [8, 5, 2, 3, 11, 1, 6, 6, 4]
    for other in (alone, two):
        assert other.sample_ids.tolist() == found.sample_ids.tolist()
        np.testing.assert_allclose(other.nll_sum, found.nll_sum, rtol=1e-5)
        assert other.num_correct.tolist() == found.num_correct.tolist()
    model.eval()
    with torch.no_grad():
        for sample, pack in enumerate(one_by_one(packs)):
            ids = torch.from_numpy(pack.input_ids.astype(np.int64))[None]
            assert float(model(input_ids=ids, labels=ids).loss) == pytest.approx(found.loss_by_sample[sample], rel=1e-5)
    assert found.loss == pytest.approx(found.nll_sum.sum() / 46)


def test_one_by_one_keeps_tokens_and_targets():
    packs = tiny.packs(2)
    alone = one_by_one(packs)
    assert [len(pack) for pack in alone] == [9, 6, 3, 4, 12, 2]
    assert np.concatenate([pack.input_ids for pack in alone]).tolist() == [
        token for index in range(2) for token in packs[index].input_ids.tolist()
    ]
    assert [pack.num_loss_tokens for pack in alone] == [8, 5, 2, 3, 11, 1]
    with pytest.raises(IndexError, match="sample 6 is not in 0 … 5"):
        alone[6]


def test_samples_of_a_tree_have_the_losses_that_they_have_alone():
    """The trunk that two samples share is in the loss of both."""
    samples, masks = [[5, 6, 7, 8], [5, 6, 7, 9, 9], [4, 4]], [[True] * 4, [False] * 3 + [True] * 2, [True] * 2]
    trees = ToyPacks([toy_tree(samples, masks), toy_tree(samples[:1])])
    found = evaluate_samples(tiny.model(), trees, PackCollator())
    alone = evaluate_samples(tiny.model(), one_by_one(trees), PackCollator())
    assert found.sample_ids.tolist() == alone.sample_ids.tolist() == [2, 0, 1, 0]
    assert found.num_targets.tolist() == [1, 3, 2, 3]
    np.testing.assert_allclose(alone.nll_sum, found.nll_sum, rtol=1e-5)
    assert [pack.input_ids.tolist() for pack in one_by_one(trees)] == [samples[2], samples[0], samples[1], samples[0]]


def test_losses_of_sources_refuse_trees():
    """A token of a trunk may be of several sources."""
    with pytest.raises(SettingsError, match=r"samples of trees share theirs: use evaluate_samples"):
        SourceNames({"a": 1, "b": 1}).marked(PackCollator().rows([toy_tree([[5, 6], [5, 7]])]))


@pytest.mark.parametrize("is_training", [True, False])
def test_the_model_is_left_in_its_mode(is_training):
    """Without it training goes on without dropout, or a model that only answers goes on with it."""
    model = tiny.model().train(is_training)
    evaluate_samples(model, tiny.packs(1), PackCollator())
    assert model.training == is_training


@pytest.mark.parametrize("dialect", ["megatron", "axolotl", "plain", "verl"])
def test_a_dialect_that_is_no_row_of_transformers_is_refused(dialect):
    with pytest.raises(SettingsError, match=f"{dialect!r} does not fit: use PackCollator"):
        evaluate_samples(tiny.model(), tiny.packs(1), PackCollator(dialect=dialect))
    with pytest.raises(SettingsError, match="dp_rank"):
        evaluate_samples(tiny.model(), tiny.packs(1), PackCollator(), dp_rank=2, dp_world_size=2)
    with pytest.raises(SettingsError, match="no packs"):
        evaluate_samples(tiny.model(), tiny.packs(0), PackCollator())


@pytest.mark.parametrize("num_packs", [1, 3, 4])
def test_ranks_have_equal_steps_and_count_each_sample_once(num_packs):
    """Also a set of one pack on three ranks: a sharded model hangs where ranks run it unequally often."""
    packs, model = tiny.packs(num_packs), tiny.model()
    calls = []
    hook = model.register_forward_hook(
        lambda model, _, inputs, output: calls.append(inputs["input_ids"]), with_kwargs=True
    )
    alone = evaluate_samples(model, packs, PackCollator())
    calls.clear()
    parts, steps = [], []
    for dp_rank in range(3):
        parts.append(evaluate_samples(model, packs, PackCollator(), dp_rank=dp_rank, dp_world_size=3))
        steps.append(len(calls))
        if 0 < num_packs % 3 <= dp_rank:
            assert calls[-1].tolist() == [packs[0].input_ids.tolist()], "a rank without a pack repeats the first"
        calls.clear()
    hook.remove()
    assert steps == [-(-num_packs // 3)] * 3
    joined = SampleLosses.joined(parts)
    assert sorted(joined.sample_ids.tolist()) == alone.sample_ids.tolist()
    assert joined.loss_by_sample == pytest.approx(alone.loss_by_sample)
    assert joined.num_targets.dtype == np.int64
    assert joined.nll_sum.dtype == np.float64


def test_losses_of_each_source():
    losses = evaluate_samples(tiny.model(), tiny.packs(3), PackCollator())
    parts = losses.by_source([("chat", 4), ("none", 0), ("code", 5)])
    assert {name: part.sample_ids.tolist() for name, part in parts.items()} == {
        "chat": [0, 1, 2, 3],
        "code": [4, 5, 6, 7, 8],
    }
    assert sum(part.nll_sum.sum() for part in parts.values()) == pytest.approx(losses.nll_sum.sum())
    with pytest.raises(SettingsError, match="sample 8 is of no source"):
        losses.by_source([("chat", 4)])


class _Bigrams(torch.nn.Module):  # type: ignore[name-defined]
    """Logits that depend on the token alone; counts its calls."""

    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(1000, 1000)
        torch.nn.init.normal_(self.table.weight, generator=torch.Generator().manual_seed(0))
        self.num_calls = 0

    def forward(self, input_ids, **_):
        self.num_calls += 1
        return self.table(input_ids)


def _evaluate_on_rank(rank, folder):
    """Sets of one, three and five packs on four ranks, and on groups of two with sets of their own, in one start."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=4,
        timeout=datetime.timedelta(seconds=60),
    )  # fmt: skip
    pairs = [torch.distributed.new_group(ranks, backend="gloo") for ranks in ([0, 1], [2, 3])]
    model, results = _Bigrams(), {}
    for world_size, group in ((4, None), (2, pairs[rank // 2])):
        for num_packs in (1, 3, 5):
            model.num_calls = 0
            losses = evaluate_samples(
                model, tiny.packs(num_packs), PackCollator(), dp_rank=rank % world_size, dp_world_size=world_size, group=group
            )  # fmt: skip
            results[f"{world_size} {num_packs}"] = [
                model.num_calls, losses.sample_ids.tolist(), losses.nll_sum.tolist(), losses.num_targets.tolist()
            ]  # fmt: skip
    (folder / f"{rank}.json").write_text(json.dumps(results))


@pytest.mark.skipif(not torch.distributed.is_gloo_available(), reason="gloo is missing")
def test_every_process_gets_the_losses_of_all(tmp_path):
    """Also of sets of fewer packs than ranks: ranks without a pack run the model as often, and count nothing."""
    pids = [forked(_evaluate_on_rank, rank, tmp_path) for rank in range(4)]
    assert [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids] == [0] * 4
    ranks = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(4)]
    for world_size in (2, 4):
        for num_packs in (1, 3, 5):
            alone = evaluate_samples(_Bigrams(), tiny.packs(num_packs), PackCollator())
            expected = dict(
                zip(alone.sample_ids.tolist(), zip(alone.nll_sum, alone.num_targets, strict=True), strict=True)
            )
            for rank in ranks:
                num_calls, sample_ids, nll_sum, num_targets = rank[f"{world_size} {num_packs}"]
                assert num_calls == -(-num_packs // world_size)
                assert sorted(sample_ids) == list(range(3 * num_packs)), "each sample once"
                assert nll_sum == pytest.approx([expected[sample][0] for sample in sample_ids], rel=1e-5)
                assert num_targets == [expected[sample][1] for sample in sample_ids]
