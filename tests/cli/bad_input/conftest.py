"""What the tests of bad input are run on: a tokenizer of bytes, twenty chats, their plan, and their store."""

import shutil
from pathlib import Path

import pytest

from brimful.encode import ChatEncoder
from brimful.sources import open_source
from brimful.store import pack_dataset
from tests.cli.bad_input.tools import CHATS, TEMPLATE, done, write_rows
from tests.cli.tools import save_tokenizer


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tokenizer(tmp_path_factory.mktemp("tokenizer"), TEMPLATE)


@pytest.fixture(scope="session")
def plain_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tokenizer(tmp_path_factory.mktemp("plain_tokenizer"), None)


@pytest.fixture
def chats(tmp_path: Path) -> Path:
    return write_rows(tmp_path / "chats.jsonl", CHATS)


@pytest.fixture(scope="session")
def finished_store(tokenizer: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of 20 chats in packs of 64, in several shards."""
    home = tmp_path_factory.mktemp("finished")
    pack_dataset(
        open_source(str(write_rows(home / "chats.jsonl", CHATS)), cache_dir=home / "cache"),
        ChatEncoder(str(tokenizer)),
        home / "packs",
        capacity=64,
        shard_bytes=4 * 64 * 5,
        cache_dir=home / "cache",
        notes={"tokenizer": str(tokenizer)},
    )
    return home / "packs"


@pytest.fixture
def store(finished_store: Path, tmp_path: Path) -> Path:
    """A copy to damage."""
    return Path(shutil.copytree(finished_store, tmp_path / "packs"))


@pytest.fixture
def plan_file(chats: Path, tokenizer: Path, tmp_path: Path) -> Path:
    done("plan", chats, "--tokenizer", tokenizer, "--max-length", 64, "-o", tmp_path / "chats.plan", "--quiet")
    return tmp_path / "chats.plan"
