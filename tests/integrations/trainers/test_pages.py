"""The code of every page in docs/trainers runs as it stands, where its trainer is installed."""

import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers", minversion="5.0")
pytest.importorskip("accelerate")

from brimful import PackCollator, PackLoader, open_packs  # noqa: E402
from brimful.collate import Padding  # noqa: E402
from brimful.integrations.trainers import attention  # noqa: E402
from tests.integrations.trainers.demo_folder import make_demo_folder  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")

PAGES = Path(__file__).parents[3] / "docs" / "trainers"
NEEDS = {"trl.md": "trl", "lightning.md": "lightning.pytorch", "olmo_core.md": "olmo_core.data"}


def blocks(page):
    return re.findall(
        r"^```python\n(.*?)^```$", (PAGES / page).read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL
    )


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A directory as ``brimful demo`` leaves it: ``chats.jsonl``, ``model`` and ``packs``."""
    here = tmp_path_factory.mktemp("pages")
    make_demo_folder(here)
    return here


def test_every_page_is_run():
    assert sorted(path.name for path in PAGES.glob("*.md")) == sorted(
        [
            "README.md",
            "pytorch.md",
            "transformers.md",
            "trl.md",
            "lightning.md",
            "torchtitan.md",
            "ms_swift.md",
            "veomni.md",
            "megatron_lm.md",
            "megatron_bridge.md",
            "nemo_automodel.md",
            "llama_factory.md",
            "axolotl.md",
            "verl.md",
            "slime.md",
            "olmo_core.md",
            "unsloth.md",
            "xtuner.md",
            "lmms_engine.md",
        ]
    )
    assert all(blocks(path.name) for path in PAGES.glob("*.md"))


TRAINED_FOR_LONG = ("README.md", "axolotl.md", "transformers.md")
"""Pages for ``make test-all``; that of TRL trains in every run."""


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(path.name, marks=[pytest.mark.long] * (path.name in TRAINED_FOR_LONG))
        for path in sorted(PAGES.glob("*.md"))
    ],
)
def test_the_page_runs_as_shown(page, made, monkeypatch, capsys):
    if page in NEEDS:
        try:
            importlib.import_module(NEEDS[page])
        except ImportError as error:
            pytest.skip(f"{page} needs {NEEDS[page]}: {error}")
    monkeypatch.chdir(made)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    attention._print.cache_clear()
    names = {}
    for code in blocks(page):
        if "# goes on from" not in code:
            names = {}
        if page == "ms_swift.md":  # which changes every Trainer of the process that imports it
            done = subprocess.run([sys.executable, "-c", code], capture_output=True, encoding="utf-8", check=False)
            if done.returncode:
                assert "ModuleNotFoundError" in done.stderr, done.stderr
                pytest.skip(done.stderr.strip().splitlines()[-1])
            continue
        exec(compile(code, page, "exec"), names)


# What the code of a page leaves, for each page whose trainer need not be installed: the dialect it shows and the packs.
SHOWN = {
    "megatron_lm.md": ("megatron", "tokens"),
    "megatron_bridge.md": ("megatron_bridge", "input_ids"),
    "nemo_automodel.md": ("nemo_automodel", "input_ids"),
    "llama_factory.md": ("llama_factory", "input_ids"),
    "axolotl.md": ("axolotl", "input_ids"),
    "unsloth.md": ("unsloth", "input_ids"),
}


@pytest.mark.parametrize("page", SHOWN)
def test_the_page_of_a_trainer_that_is_not_needed_ends_in_its_batch(page, made, monkeypatch, capsys):
    """A page whose code makes the batch of another dialect, or an empty one, teaches what its trainer cannot read."""
    dialect, key = SHOWN[page]
    monkeypatch.chdir(made)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    before = set(sys.modules)
    names = {}
    for code in blocks(page):
        exec(compile(code, page, "exec"), names)
    batch = names["batch"]
    packs = open_packs("packs")
    rows = 2 if page in ("nemo_automodel.md", "axolotl.md") else 1
    chosen = [packs[number] for number in range(rows)] if "megatron" not in page else None
    if chosen is None:  # of a loader in its own order: some pack, padded to 2048
        order = PackLoader(packs, dp_rank=0, dp_world_size=2)
        chosen = next(iter(order))
    padding = Padding(to=2048)
    expected = PackCollator(dialect=dialect, padding=padding)(chosen)
    assert batch.keys() == expected.keys()
    assert torch.equal(batch[key], expected[key])
    assert torch.equal(batch["labels"], expected["labels"])
    framework = {"llama_factory.md": "llamafactory", "axolotl.md": "axolotl", "nemo_automodel.md": "nemo_automodel"}
    loaded = {name.split(".")[0] for name in set(sys.modules) - before}
    assert framework.get(page, "megatron") not in loaded
    assert "Runs on a CPU and without" in (PAGES / page).read_text()
    assert capsys.readouterr().out


@pytest.mark.parametrize("page", SHOWN)
def test_the_page_says_what_was_run_and_what_was_not(page):
    """Without it a reader takes a sketch for a recipe that was trained with."""
    text = (PAGES / page).read_text()
    assert re.search(r"^\| run against .* own code.*on a CPU \| not run \|$", text, flags=re.MULTILINE)
    for block in re.findall(r"^ *```text\n", text, flags=re.MULTILINE):
        assert "(a sketch" in text, block


def test_links_lead_somewhere():
    for path in PAGES.glob("*.md"):
        for target in re.findall(r"\]\(([^)#]+)", path.read_text(encoding="utf-8")):
            assert (PAGES / target).exists(), f"{path.name}: {target}"
