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

from brimful import open_packs, open_source, pack_dataset  # noqa: E402
from brimful.trainers import attention  # noqa: E402
from tests.trainers import tiny  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")

PAGES = Path(__file__).parents[2] / "docs" / "trainers"
NEEDS = {"trl.md": "trl", "lightning.md": "lightning.pytorch"}


def blocks(page):
    return re.findall(
        r"^```python\n(.*?)^```$", (PAGES / page).read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL
    )


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A directory with ``model`` and ``packs``."""
    from transformers import AutoTokenizer

    from brimful import ChatEncoder
    from brimful.demo import make_chats, train_tokenizer

    here = tmp_path_factory.mktemp("pages")
    chats = make_chats(limit=60)
    train_tokenizer([turn["content"] for chat in chats for turn in chat["messages"]], here / "model", vocab_size=900)
    tiny.model().save_pretrained(here / "model")
    encoder = ChatEncoder(AutoTokenizer.from_pretrained(here / "model"))
    pack_dataset(open_source(chats), encoder, here / "packs", capacity=512, overflow="drop", cache_dir=here / "cache")
    assert len(open_packs(here / "packs")) > 4
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
        ]
    )
    assert all(blocks(path.name) for path in PAGES.glob("*.md"))


@pytest.mark.parametrize("page", sorted(path.name for path in PAGES.glob("*.md")))
def test_the_page_runs_as_shown(page, made, monkeypatch, capsys):
    if page in NEEDS:
        try:
            importlib.import_module(NEEDS[page])
        except ImportError as error:
            pytest.skip(f"{page} needs {NEEDS[page]}: {error}")
    monkeypatch.chdir(made)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(attention, "_told", set())
    names = {"module": lightning_module()} if page == "lightning.md" else {}
    for code in blocks(page):
        if page == "ms_swift.md":  # which changes every Trainer of the process that imports it
            done = subprocess.run([sys.executable, "-c", code], capture_output=True, encoding="utf-8", check=False)
            if done.returncode:
                assert "ModuleNotFoundError" in done.stderr, done.stderr
                pytest.skip(done.stderr.strip().splitlines()[-1])
            continue
        exec(compile(code, page, "exec"), names)


def lightning_module():
    import lightning.pytorch as pl

    class Module(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = tiny.model()

        def training_step(self, batch, index):
            return self.model(**batch).loss

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=1e-2)

    return Module()


def test_links_lead_somewhere():
    for path in PAGES.glob("*.md"):
        for target in re.findall(r"\]\(([^)#]+)", path.read_text(encoding="utf-8")):
            assert (PAGES / target).exists(), f"{path.name}: {target}"
