"""Weights that are not 1: a trainer of a library that ignores them gets no batch, a loop does."""

import pickle
from threading import Thread

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("accelerate")
transformers = pytest.importorskip("transformers", minversion="5.20")

from brimful import PackCollator  # noqa: E402
from brimful.errors import SettingsError  # noqa: E402
from brimful.integrations.trainers import collator_for, use_loss_weights, use_tree_attention  # noqa: E402
from brimful.integrations.trainers.transformers import log_packing  # noqa: E402
from brimful.testing.toys import ToyPacks, toy_tree  # noqa: E402
from brimful.verify.models import tiny_model  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")

REFUSED = r"the loss of the trainer ignores them: call .*use_loss_weights\(trainer\)"
SHARED = toy_tree([[5, 6, 7], [5, 6, 8]])
"""Token 6 is a target of two samples."""
APART = toy_tree([[5, 6, 7], [5, 6, 8]], [[False, False, True]] * 2)
FLAT = toy_tree([[5, 6, 7, 8], [9, 4]]).flat()


def as_spawned(collator):
    """The collator as a worker has it that a trainer spawned: unpickled, and without the trainer on its stack."""

    def collate(features):
        found = []

        def work(sent):
            try:
                found.append(pickle.loads(sent)(features))
            except SettingsError as error:
                found.append(error)

        worker = Thread(target=work, args=[pickle.dumps(collator)])
        worker.start()
        worker.join()
        if isinstance(found[0], Exception):
            raise found[0]
        return found[0]

    return collate


def trainer_of(folder, pack, collator, *, kind=transformers.Trainer, **options):
    """A trainer of two steps, whose model computes any mask."""
    model = tiny_model("qwen3")
    if collator is None:
        use_tree_attention(model)
        collator = collator_for(model, quiet=True)
    model.config.max_position_embeddings = 64
    settings = {"max_steps": 2, "per_device_train_batch_size": 1, "report_to": "none", "use_cpu": True}
    settings |= {"save_strategy": "no", "disable_tqdm": True, "remove_unused_columns": False, **options}
    arguments = transformers.TrainingArguments(str(folder), **settings)
    return kind(model, arguments, train_dataset=ToyPacks([pack] * 2), data_collator=collator)


COLLATORS = {
    "collator_for": lambda: None,
    "transformers_tree": lambda: PackCollator(dialect="transformers_tree"),
    "dense_mask": lambda: PackCollator(dialect="dense_mask"),
    "dense_mask_additive": lambda: PackCollator(dialect="dense_mask_additive"),
    "flex_attention": lambda: PackCollator(dialect="flex_attention"),
    "spawned": lambda: as_spawned(PackCollator(dialect="dense_mask")),
}


@pytest.mark.parametrize("name", COLLATORS)
def test_shared_targets_are_refused_unless_the_trainer_weighs(name, tmp_path):
    """Whatever the model and the dialect are: the collator sees the weights, and who asks."""
    collator = COLLATORS[name]()
    with pytest.raises(SettingsError, match=REFUSED):
        trainer_of(tmp_path, SHARED, collator).train()
    if name != "flex_attention":  # which the CPU does not train
        trainer = trainer_of(tmp_path, SHARED, collator)
        if name == "transformers_tree":
            use_tree_attention(trainer.model)
        use_loss_weights(trainer)
        assert trainer.train().global_step == 2


@pytest.mark.parametrize("wrap", [lambda collator: collator, as_spawned])
def test_weights_of_flat_samples_are_refused_too(wrap, tmp_path):
    collator = wrap(PackCollator(loss_weights="sample"))
    with pytest.raises(SettingsError, match=REFUSED):
        trainer_of(tmp_path, FLAT, collator).train()
    with pytest.raises(SettingsError, match=REFUSED):
        trainer_of(tmp_path, FLAT, collator).evaluate(ToyPacks([FLAT]))


def test_a_wrapped_loss_is_still_the_one_of_the_library(tmp_path):
    """Metrics wrap the loss of a trainer, and do not make it another."""
    trainer = trainer_of(tmp_path, FLAT, PackCollator(loss_weights="sample"))
    log_packing(trainer)
    with pytest.raises(SettingsError, match=REFUSED):
        trainer.train()


@pytest.mark.parametrize("options", [{"loss_weights": "token"}, {}])
def test_weights_of_1_are_not_refused(options, tmp_path):
    packs = [FLAT] if options else [FLAT, APART]
    for pack in packs:
        collator = PackCollator(dialect="dense_mask", **options)
        assert trainer_of(tmp_path, pack, collator).train().global_step == 2


def test_a_loop_and_a_trainer_with_a_loss_of_its_own_are_not_refused(tmp_path):
    """They may use the weights."""

    class OwnLoss(transformers.Trainer):  # type: ignore[name-defined]
        def compute_loss(self, model, inputs, **options):
            weights = inputs.pop("loss_weights")
            losses = model(**inputs).logits.logsumexp(-1)
            return (losses * weights).sum() / weights.sum()

    collator = PackCollator(dialect="dense_mask")
    for one in (collator, as_spawned(collator)):
        assert one([SHARED])["loss_weights"].tolist() == [[0, 2, 1, 0, 1]]
        assert trainer_of(tmp_path, SHARED, one, kind=OwnLoss).train().global_step == 2


@pytest.mark.long
@pytest.mark.parametrize("context", ["fork", "forkserver", "spawn"])
def test_workers_refuse_as_the_trainer_does(context, tmp_path):
    """In processes of their own."""
    options = {"dataloader_num_workers": 1, "dataloader_multiprocessing_context": context}
    for collator in (PackCollator(dialect="dense_mask"), None):
        with pytest.raises(SettingsError, match=REFUSED):
            trainer_of(tmp_path, SHARED, collator, **options).train()
        trainer = trainer_of(tmp_path, SHARED, collator, **options)
        use_loss_weights(trainer)
        assert trainer.train().global_step == 2
