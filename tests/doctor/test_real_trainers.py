"""Real trainers for three steps on real chats: which depth tells a run with a fault from the right one."""

import importlib.util
import json

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("accelerate")

import torch

from brimful.doctor import diagnose, examine
from tests.doctor.jobs_of_trainers import JOBS, STEPS, Place, lightning_run, real_chats, watched, write_model

pytestmark = pytest.mark.filterwarnings("ignore")

CASES: dict[tuple[str, str], dict[str, str]] = {
    ("trl", ""): {},
    ("trl", "attention"): {"probe": "boundaries_ignored"},
    ("trl", "wrapped"): {"config": "neighbors_seen", "batch": "boundaries_missing", "probe": "boundaries_missing"},
    ("trl", "seq_lengths"): {"batch": "boundaries_missing", "probe": "boundaries_missing"},
    ("transformers", ""): {},
    ("transformers", "mask"): {"batch": "mask_hides_packs", "probe": "mask_hides_packs"},
    ("transformers", "divisor"): {"probe": "divisor"},
    ("swift", ""): {},
    ("swift", "attention"): {"probe": "boundaries_ignored"},
    ("swift", "ramp"): {"batch": "boundaries_missing"},
    ("llamafactory", ""): {},
    ("llamafactory", "packing"): {
        "config": "neighbors_seen",
        "batch": "mask_hides_packs",
        "probe": "mask_hides_packs",
    },
    # Axolotl 0.17 to 0.19 gives each micro-batch the same weight, and both jobs accumulate two.
    ("axolotl", ""): {"config": "divisor"},
    ("axolotl", "mask"): {"config": "divisor", "batch": "mask_hides_packs", "probe": "mask_hides_packs"},
}
"""Problem that each depth finds, by module and fault; all other depths find nothing."""

PARAMETERS = [
    pytest.param(*case, id=" ".join(case).strip(), marks=[] if case[0] == "transformers" else pytest.mark.long)
    for case in CASES
]


@pytest.fixture(scope="module")
def place(data_dir, small_qwen, tmp_path_factory):
    folder = tmp_path_factory.mktemp("trainers")
    write_model(folder / "model", small_qwen)
    chats = folder / "chats.jsonl"
    chats.write_text("".join(f"{json.dumps(chat)}\n" for chat in real_chats(data_dir, 80)), encoding="utf-8")
    return Place(folder / "model", chats, folder)


def problems(**reports):
    """Return the problems of each depth that found any."""
    return {
        depth: ", ".join(finding.problem for finding in report.findings)
        for depth, report in reports.items()
        if report.findings
    }


def trained(place, module, fault, folder, *, is_probed):
    folder.mkdir()
    torch.manual_seed(0)
    with watched(is_probed) as run:
        job = JOBS[module](Place(place.model, place.chats, folder), fault)
        job.start()
    return job, run


@pytest.mark.parametrize(("module", "fault"), PARAMETERS)
def test_a_trainer_built_on_transformers(module, fault, place, tmp_path):
    """Losses of all micro-batches are the same to the bit without the probe.

    A probe exchanges samples that something tells apart; where nothing does, it says so.
    """
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is not installed")
    job, run = trained(place, module, fault, tmp_path / "probed", is_probed=True)
    _, other = trained(place, module, fault, tmp_path / "plain", is_probed=False)
    reports = {
        "config": examine(job.config, trainer=job.trainer),
        "batch": diagnose(run.batch, tokenizer=run.tokenizer, config={"packing": True}),
        "probe": run.report,
    }
    text = "\n".join(map(str, reports.values()))
    assert problems(**reports) == CASES[module, fault], text
    is_told = "boundaries_missing" not in CASES[module, fault].values()
    assert run.report.isolation.value == ("shown" if is_told else "unknown")
    assert run.losses == other.losses
    assert len(run.losses) == 2 * STEPS


@pytest.mark.parametrize(
    ("fault", "expected"),
    [("", {}), ("cache", {"probe": "neighbors_seen"}), ("ramp", {"batch": "boundaries_missing"})],
)
def test_lightning(fault, expected, place, tmp_path):
    pytest.importorskip("lightning.pytorch")
    target = Place(place.model, place.chats, tmp_path)
    run, other = (lightning_run(target, fault, is_probed=is_probed) for is_probed in (True, False))
    report = diagnose(run.batch, tokenizer=run.tokenizer)
    assert problems(batch=report, probe=run.report) == expected, f"{report}\n{run.report}"
    assert run.losses == other.losses
    assert len(run.losses) == STEPS
