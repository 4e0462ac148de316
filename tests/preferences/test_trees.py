"""Preferences whose answers share their prompt: the loss and gradients of the same pairs in flat packs."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from brimful import CompletionEncoder, PackCollator, PackedDataset, measure_lengths, open_source, plan_packs  # noqa: E402
from brimful.preferences import KtoCollator, ReferenceLogps, compute_references  # noqa: E402
from brimful.preferences.dpo import PreferenceCollator, packed_preference_loss, train_on_preferences  # noqa: E402
from brimful.testing.toys import ToyPacks  # noqa: E402
from tests.preferences import preference_pairs as tiny  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")


def tree_packs(capacity=96):
    """The same pairs, in trees; both answers of row 2 begin alike, and are trained there by both."""
    rows = tiny.rows()
    rows[2]["rejected"] = rows[2]["chosen"] + rows[2]["rejected"]
    source, encoder = open_source(rows), CompletionEncoder(tiny.tokenizer())
    table = measure_lengths(source, encoder, share="prefixes", least_shared=1)
    plan = plan_packs(table, capacity=capacity, share="prefixes")
    plan.validate(table)
    return PackedDataset.from_plan(source, encoder, plan)


def losses_and_gradients(packs, collator, reference=None):
    model = tiny.model(0)
    losses = {}
    for pack in packs:
        batch = collator([pack])
        result = packed_preference_loss(model, batch, reference_model=reference, beta=0.3)
        result.losses.sum().backward()
        evens = np.sort(pack.flat().sample_ids[pack.flat().sample_ids % 2 == 0])
        pairs = batch["preference"]["pairs"][:, 0].numpy()
        names = pack.flat().sample_ids[pairs]
        assert sorted(names.tolist()) == evens.tolist()
        losses |= dict(zip(names.tolist(), result.losses.tolist(), strict=True))
    return losses, {name: weight.grad for name, weight in model.named_parameters()}


@pytest.mark.parametrize("branch", ["fork", "index"])
def test_pairs_that_share_their_prompt_have_the_loss_of_flat_pairs(branch, tmp_path):
    trees = list(tree_packs())
    flat = [pack.flat() for pack in trees]
    assert all(pack.sharing is not None for pack in trees)
    assert sum(map(len, trees)) < sum(map(len, flat))
    # A pair is in one pack.
    assert all(set(pack.sample_ids.tolist()) == {i ^ 1 for i in pack.sample_ids.tolist()} for pack in flat)
    reference = tiny.model(1)
    expected, gradients = losses_and_gradients(flat, PreferenceCollator(PackCollator()), reference)
    collator = PackCollator(dialect="dense_mask", branch=branch)
    losses, found = losses_and_gradients(trees, PreferenceCollator(collator), reference)
    assert losses == pytest.approx(expected, abs=1e-5)
    for name, gradient in gradients.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-4, atol=1e-5)
    # References of flat packs are found in trees, by content; and the reverse.
    compute_references(reference, ToyPacks(flat), PackCollator(), tmp_path / "flat")
    compute_references(reference, ToyPacks(trees), PackCollator(), tmp_path / "trees")
    for folder in ("flat", "trees"):
        references = ReferenceLogps.open(tmp_path / folder)
        stored, _ = losses_and_gradients(trees, PreferenceCollator(collator, references))
        assert stored == pytest.approx(expected, abs=1e-5)


def test_a_pack_that_only_completes_a_step_has_no_pairs():
    packs = tree_packs()
    batch = PreferenceCollator(PackCollator(dialect="dense_mask"))([packs[0].without_loss()])
    assert len(batch["preference"]["pairs"]) == 0


def test_trainer_trains_on_trees(tmp_path):
    """Two steps of Trainer on trees and on their flat packs give the same weights."""
    transformers = pytest.importorskip("transformers")
    trees = list(tree_packs(capacity=200))

    def trained(packs, collator):
        model = tiny.model(0)
        arguments = transformers.TrainingArguments(
            str(tmp_path), max_steps=2, per_device_train_batch_size=1, report_to="none", use_cpu=True,
            save_strategy="no", disable_tqdm=True, learning_rate=1e-2, remove_unused_columns=False,
        )  # fmt: skip
        trainer = transformers.Trainer(model, arguments, train_dataset=packs, data_collator=collator)
        train_on_preferences(trainer, reference_model=tiny.model(1), beta=0.3)
        trainer.train()
        return dict(model.named_parameters())

    expected = trained([pack.flat() for pack in trees], PreferenceCollator(PackCollator()))
    found = trained(trees, PreferenceCollator(PackCollator(dialect="dense_mask")))
    for name, weight in expected.items():
        torch.testing.assert_close(found[name], weight, rtol=1e-4, atol=1e-5)


def test_answers_and_mismatches_of_kto_are_taken_apart():
    from brimful.testing.toys import toy_tree

    tree = toy_tree([[5, 6, 7], [5, 6, 8, 9]], [[False, True, True], [False] * 4])
    one, other = (KtoCollator(PackCollator())([pack]) for pack in (tree, tree.flat()))
    assert one["input_ids"].tolist() == other["input_ids"].tolist() == [[5, 6, 7]]
    assert one["kto"]["mismatches"]["input_ids"].tolist() == [[5, 6, 8, 9]]
