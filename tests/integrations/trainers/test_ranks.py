"""Trainers on two ranks, started by torchrun: no pack twice, none left out, and the weights of one process."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("accelerate")
pytest.importorskip("transformers")

from brimful import PackCollator
from brimful.integrations.trainers import evaluate_samples
from tests.integrations.trainers import tiny
from tests.integrations.trainers.ranks_run import (
    SCHEDULE,
    SCHEDULE_COSTS,
    SETTINGS,
    SOURCES,
    by_schedule,
    by_transformers,
    weights_of,
)

pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("ignore")]

ROOT = Path(__file__).resolve().parents[3]


def run(folder, which):
    """What each of two ranks saw and logged, and its weights."""
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [
        sys.executable,
        "-W",
        "ignore",
        *torchrun,
        "-m",
        "tests.integrations.trainers.ranks_run",
        str(folder),
        which,
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    names = ["0 of 2", "1 of 2"]
    return [
        (json.loads((folder / f"{name}.json").read_text()), dict(np.load(folder / f"{name}.npz"))) for name in names
    ]


def difference(one, other):
    assert set(one) == set(other)
    return max(float(np.abs(one[name] - other[name]).max()) for name in one)


def test_transformers_trainer(tmp_path):
    """Same packs in the same steps as one process that accumulates twice as many, so the same weights and logs."""
    _, model, logs = by_transformers(tmp_path, 1)
    expected = weights_of(model)
    ranks = run(tmp_path, "transformers")
    packs, per_epoch = SETTINGS["packs"] + 1, (SETTINGS["packs"] + 1) // 2
    for epoch in range(SETTINGS["epochs"]):
        part = slice(epoch * per_epoch, (epoch + 1) * per_epoch)
        of_ranks = [seen["seen"][part] for seen, _ in ranks]
        assert sorted(of_ranks[0] + of_ranks[1]) == list(range(0, 3 * packs, 3)), "every pack once"
    for seen, weights in ranks:
        assert difference(weights, expected) < 1e-6
        assert seen["logs"]["counts"] == [list(entry) for entry in logs["counts"]], "counts of all ranks"
        for entry, expected_entry in zip(seen["logs"]["sources"], logs["sources"], strict=True):
            assert entry == pytest.approx(expected_entry, rel=1e-4), "losses by source of all ranks"
    # Before the first step the model is known: the losses of its four packs, sample by sample.
    first = [pack // 3 for seen, _ in ranks for pack in seen["seen"][: SETTINGS["accumulation"]]]
    all_packs = tiny.packs(SETTINGS["packs"] + 1)
    alone = evaluate_samples(tiny.model(), [all_packs[pack] for pack in first], PackCollator()).by_source(SOURCES)
    assert set(alone) == set(SOURCES), "the first step has both"
    by_hand = [alone[source].loss for source in SOURCES] + [alone[source].token_acc for source in SOURCES]
    assert ranks[0][0]["logs"]["sources"][0] == pytest.approx(by_hand, rel=1e-5)


def waiting(costs):
    """Work of the slowest rank of each forward ÷ the mean of the ranks, over all forwards: ``float[ranks, forwards]``."""
    return float(costs.max(axis=0).sum() / costs.mean(axis=0).sum())


def test_transformers_trainer_in_the_schedule_of_packs(tmp_path):
    """Balanced ranks with equal steps, and a checkpoint from which two ranks go on exactly, and one with their batches."""
    ranks = run(tmp_path, "schedule")
    for seen, _ in ranks:
        assert seen["logs"]["steps"] == [SCHEDULE["steps"]] * 2
        assert seen["logs"]["change"] == 0, "the weights of a run that was not stopped"
        assert seen["logs"]["later"] == seen["seen"][2 * SCHEDULE["stop"] :], "the same packs in the same forwards"
    assert difference(ranks[0][1], ranks[1][1]) == 0
    forwards = np.array([seen["seen"] for seen, _ in ranks])
    assert forwards.shape == (2, 2 * SCHEDULE["steps"])
    for epoch in np.split(forwards, 2, axis=1):
        assert sorted(epoch[epoch >= 0].tolist()) == list(range(0, 3 * SCHEDULE["packs"], 3)), "every pack once"
        full = epoch[:, :-2]  # without the step that has an empty place
        assert waiting(SCHEDULE_COSTS[full // 3]) < 1.1
        by_chance = np.random.default_rng(0).permuted(np.tile(SCHEDULE_COSTS, (100, 1)), axis=1)[:, : full.size]
        assert np.mean([waiting(costs.reshape(full.shape)) for costs in by_chance]) > 1.35, "a step would wait as long"
    alone, _, _ = by_schedule(tmp_path, 1, tmp_path / "schedule" / f"checkpoint-{SCHEDULE['stop']}")
    steps = np.split(np.array(alone), len(alone) // 4)
    steps_of_two = np.split(forwards[:, 2 * SCHEDULE["stop"] :], len(steps), axis=1)
    assert [sorted(step.tolist()) for step in steps] == [sorted(step.ravel().tolist()) for step in steps_of_two]


def test_lightning(tmp_path):
    """Eleven packs on two ranks: the last step is filled with a pack without targets, which changes nothing."""
    pytest.importorskip("lightning.pytorch")
    ranks = run(tmp_path, "lightning")
    steps, losses = zip(*(seen["logs"] for seen, _ in ranks), strict=True)
    assert steps == (3 * SETTINGS["epochs"],) * 2
    assert np.isfinite(losses).all()
    assert np.count_nonzero(np.array(losses) == 0) == SETTINGS["epochs"], "the pack without targets"
    packs = sorted(sample for seen, _ in ranks for sample in seen["seen"])
    assert packs == sorted([*range(0, 3 * SETTINGS["packs"], 3)] * SETTINGS["epochs"]), "every pack once an epoch"
    assert all(np.isfinite(value).all() for value in ranks[0][1].values())
    assert difference(ranks[0][1], ranks[1][1]) == 0
