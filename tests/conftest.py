"""Fixtures that all tests share: real data, the real tokenizer, and a cache of their own."""

from __future__ import annotations

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # before transformers is imported: no test asks the network
# Before torch is imported: its threads wait by spinning, and two processes of pytest with several threads each take three
# times the processor time that they need. Processes that tests start inherit it.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Memory that MKL keeps for each thread is of no use to a forked process, which then waits in it for ever.
os.environ.setdefault("MKL_DISABLE_FAST_MM", "1")

import contextlib
import gc
import itertools
import json
import logging
import re
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Iterator
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from brimful.base.blobs import interface
from brimful.base.locks import lock, try_lock
from brimful.clusters import remote_blobs as remote
from tests.contract import CONTRACT

interface._LATE_PAUSES = (0.001, 0.001)  # no test waits half a minute for a file that it has deleted

for module in ("brimful.testing.contracts", "tests.cli.tools", "tests.cli.bad_input.tools"):
    pytest.register_assert_rewrite(module)  # what they assert is explained as in a test

settings.register_profile("brimful", deadline=None, derandomize=True, database=None, max_examples=40)
# `make test-all`: the same cases and as many more.
settings.register_profile("all", deadline=None, derandomize=True, database=None, max_examples=100)
# `make chaos`: other cases every time. A failure prints the line that repeats it.
settings.register_profile("chaos", deadline=None, derandomize=False, database=None, max_examples=1000, print_blob=True)
settings.load_profile("brimful")

_MEMORY = Path("/dev/shm")
_SECONDS_TO_LOCK = 60
"""Age of a folder that another process has made and surely locked."""
_ROOM = 4 << 30
"""Bytes that a file system in memory has to have free: all tests together write a tenth of it."""


def _use_memory() -> None:
    """Let tests write their files into memory while it has room: they make forty thousand, each of which takes a disk's time.

    Files of an earlier run that was killed go first. ``--basetemp=DIR`` keeps the files of a test elsewhere.
    """
    if "PYTEST_XDIST_WORKER" in os.environ or "PYTEST_DEBUG_TEMPROOT" in os.environ or not _MEMORY.is_dir():
        return
    for old in _MEMORY.glob("brimful-tests-*"):
        with contextlib.suppress(OSError):
            if time.time() - old.stat().st_mtime < _SECONDS_TO_LOCK:
                continue
            with open(old / "lock", "wb") as file:
                if try_lock(file):
                    shutil.rmtree(old)
    if shutil.disk_usage(_MEMORY).free < _ROOM:
        return
    root = tempfile.mkdtemp(prefix="brimful-tests-", dir=_MEMORY)
    file = open(Path(root) / "lock", "wb")  # noqa: SIM115, it is held until the process ends
    lock(file)

    def remove(pid: int = os.getpid()) -> None:
        if os.getpid() == pid:
            shutil.rmtree(root, ignore_errors=True)
            file.close()

    Finalize(None, remove, exitpriority=-200)  # after the folder of multiprocessing in it, which has -100
    os.environ["PYTEST_DEBUG_TEMPROOT"] = os.environ["TMPDIR"] = tempfile.tempdir = root


_use_memory()

if folder := os.environ.get("BRIMFUL_TORCHVISION"):
    # A copy made for another torch. Before any test imports transformers, which looks for it once. Its compiled operators
    # do not load; it asks only that these two are known by name, as long as the library lives.
    import torch

    _torchvision_operators = torch.library.Library("torchvision", "DEF")
    for operator in ("nms", "qnms"):
        _torchvision_operators.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    sys.path.append(folder)


# ── what costs seconds, once for all tests ────────────────────────────────────────────────────────────────────────


def pytest_configure() -> None:
    """Collect no garbage while test modules import: they make a million objects, and nearly all of them stay."""
    gc.disable()
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # Started behind ``&`` by a script: tests of Ctrl-C would wait for ever, in processes that inherit it.
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection() -> Generator[None, object, object]:
    """Let one process after the other import the test modules.

    In a fresh clone the first compiles them and rewrites their assertions, for as long as all imports take, and the
    others find that done: at the same time each would do it.
    """
    if sys.dont_write_bytecode:
        return (yield)
    with open(__file__, "rb") as file:
        lock(file)
        return (yield)


_MANY_MODULES = 100
"""Modules that a library brings along."""
_num_modules = 0


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that explain the product."""
    names = {name for group in CONTRACT.values() for name in group}
    for item in items:
        if getattr(item, "originalname", None) in names:
            item.add_marker(pytest.mark.contract)


def pytest_collection_finish() -> None:
    """Collect garbage again, but among what tests make alone, and never among all of that: modules, mostly."""
    _leave_modules_out()
    gc.set_threshold(400_000, 10, 1_000)
    gc.enable()


def pytest_runtest_logfinish() -> None:
    """Leave the modules of a library out that a test imported: each training of Transformers collects garbage at its end."""
    if len(sys.modules) >= _num_modules + _MANY_MODULES:
        _leave_modules_out()


def _leave_modules_out() -> None:
    """Collect no garbage among the objects of now."""
    global _num_modules
    gc.freeze()
    _num_modules = len(sys.modules)


@pytest.hookimpl(wrapper=True)
def pytest_report_to_serializable(report: object) -> Generator[None, Any, Any]:
    """Leave the keywords out of what one process of pytest tells the other, three times for each test.

    They are the largest part of the message, and the process that counts results selects no tests.
    """
    message = yield
    if isinstance(report, pytest.TestReport) and report.passed:
        message["keywords"] = {}
    return message


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, object, object]:
    """Skip a test for which the C++ compiler of this machine failed: torch builds a kernel for each shape of flex attention."""
    try:
        return (yield)
    except Exception as error:
        if "CppCompileError" not in str(error):
            raise
        lines = [line for line in str(error).splitlines() if line.strip() and not line.startswith("Set TORCHDYNAMO")]
        told = [line for line in lines if "error" in line.lower()][1:] or lines
        pytest.skip(f"the C++ compiler failed for torch: {told[-1].strip()[:300]}")


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """Return a folder that ``make`` filled, once for all processes of pytest: the first makes it, the others wait."""
    base = factory.getbasetemp()
    root = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    folder, finished = root / name, root / f"{name}.finished"
    with open(root / f"{name}.lock", "wb") as file:
        lock(file)
        if not finished.exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            make(folder)
            finished.touch()
    return folder


_COMPARISONS = ("proofs", "tokenizers")


@pytest.fixture(scope="session")
def _comparisons(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Comparisons of tokenizers and templates with their references, made once for all tests."""

    def make(folder: Path) -> None:
        for name in _COMPARISONS:
            (folder / name).mkdir()

    return made_once(tmp_path_factory, "comparisons", make)


@pytest.fixture(scope="session", autouse=True)
def _few_hard_texts() -> Iterator[None]:
    """The first two hundred hard texts: the reference takes seconds for all of them, and tests make many tokenizers.

    All of them are compared in ``tests/encode/test_tokenizer.py``.
    """
    from brimful.fast import fast_tokenizer
    from brimful.fast.fast_tokenizer import hard_texts

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fast_tokenizer, "hard_texts", lambda: itertools.islice(hard_texts(), 200))
        yield


@pytest.fixture(scope="session", autouse=True)
def _no_flush() -> Iterator[None]:
    """Bytes need not reach the device: where a test cuts the power, it keeps book of what was flushed itself."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture(scope="session")
def _folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Paths of directories that do not exist, numbered."""
    home = tmp_path_factory.mktemp("tests")
    return (home / str(number) for number in itertools.count())


@pytest.fixture
def tmp_path(_folders: Iterator[Path], request: pytest.FixtureRequest) -> Path:
    """A directory of the test. pytest's would look through the directories of all tests before it names one."""
    number, name = next(_folders), re.sub(r"\W", "_", request.node.name)[:30]
    folder = number.with_name(f"{number.name}-{name}")
    folder.mkdir()
    return folder


@pytest.fixture(scope="session")
def _caches(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Paths of directories that do not exist. ``mktemp`` would look through the paths of all tests before it names one."""
    folder = tmp_path_factory.mktemp("caches")
    return (folder / str(number) for number in itertools.count())


@pytest.fixture(autouse=True)
def _own_cache(_caches: Iterator[Path], _comparisons: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Derived files go to a directory of the test: nothing touches the home directory."""
    cache = next(_caches)
    cache.mkdir()
    for name in _COMPARISONS:
        (cache / name).symlink_to(_comparisons / name, target_is_directory=True)
    monkeypatch.setenv("BRIMFUL_CACHE", str(cache))


@pytest.fixture
def fresh_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache without the comparisons of other tests."""
    cache = tmp_path_factory.mktemp("fresh")
    monkeypatch.setenv("BRIMFUL_CACHE", str(cache))
    return cache


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """Real data, if this checkout has it."""
    path = Path(__file__).parents[2] / "shared" / "data"
    if not path.is_dir():
        pytest.skip(f"no real data at {path}")
    return path


@pytest.fixture(scope="session")
def qwen_tokenizer(data_dir: Path) -> Path:
    """Directory of the Qwen2.5 tokenizer."""
    path = data_dir / "tokenizers" / "qwen2.5"
    if not path.is_dir():
        pytest.skip(f"no tokenizer at {path}")
    pytest.importorskip("transformers", reason="the tokenizer needs the extra brimful[text]")
    return path


@pytest.fixture(scope="session")
def small_qwen(qwen_tokenizer: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory of the Qwen2.5 tokenizer with its first 10,000 merges: it loads in milliseconds, the whole in seconds.

    Its special tokens follow at once: 10,256 ends a text, 10,268 is a picture.
    """

    def cut(folder: Path) -> None:
        state = json.loads((qwen_tokenizer / "tokenizer.json").read_bytes())
        config = json.loads((qwen_tokenizer / "tokenizer_config.json").read_bytes())
        model, num_merges = state["model"], 10_000
        num_tokens, lost = 256 + num_merges, len(model["vocab"]) - 256 - num_merges
        model["merges"] = model["merges"][:num_merges]
        model["vocab"] = {token: number for token, number in model["vocab"].items() if number < num_tokens}
        for added in state["added_tokens"]:
            added["id"] -= lost
        decoder = config["added_tokens_decoder"]
        config["added_tokens_decoder"] = {str(int(number) - lost): token for number, token in decoder.items()}
        (folder / "tokenizer.json").write_text(json.dumps(state))
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
        for name in ("preprocessor_config.json", "chat_template_vl.jinja"):
            shutil.copyfile(qwen_tokenizer / name, folder / name)

    return made_once(tmp_path_factory, "small-qwen", cut)


@pytest.fixture(scope="session")
def small_tokenizer(small_qwen: Path) -> Any:
    """The tokenizer of ``small_qwen``, loaded once for all tests."""
    from brimful.encode.tokenizer import Tokenizer

    return Tokenizer(small_qwen)


@pytest.fixture(scope="session")
def qwen(qwen_tokenizer: Path) -> Any:
    """The Qwen2.5 tokenizer, loaded once for all tests: for tests of its whole vocabulary, as loading takes seconds."""
    from brimful.encode.tokenizer import Tokenizer

    return Tokenizer(qwen_tokenizer)


@pytest.fixture(scope="session")
def stdlib_chats(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, list[dict[str, str]]]]:
    """All chats of the demo: reading the standard library takes seconds."""
    from brimful.cli.demo.docstring_chats import make_chats

    home = made_once(
        tmp_path_factory, "stdlib-chats", lambda folder: (folder / "chats.json").write_text(json.dumps(make_chats()))
    )
    chats: list[dict[str, list[dict[str, str]]]] = json.loads((home / "chats.json").read_bytes())
    return chats


@pytest.fixture(scope="session")
def media_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What ``examples/drawn_chats.py`` draws, smaller: chats.jsonl, pictures, tones.jsonl, tones, and two processors."""
    pytest.importorskip("PIL", reason="pictures need the extra brimful[media]")
    pytest.importorskip("soundfile", reason="sounds need the extra brimful[media]")
    pytest.importorskip("transformers", reason="the tokenizer needs the extra brimful[text]")
    from examples.drawn_chats import write_media_chats

    def make(home: Path) -> None:
        write_media_chats(home, num_chats=16, num_tones=3)

    return made_once(tmp_path_factory, "media", make)


@pytest.fixture(scope="session")
def media_packs(media_home: Path, _comparisons: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Packs of the chats of ``media_home``, by the command: 16 chats with 20 pictures, limited in patches too."""
    from tests.cli.tools import run

    def pack(folder: Path) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(media_home)
            patch.setenv("BRIMFUL_CACHE", str(folder / "cache"))
            options = ["--processor", "processor", "--max-length", 512, "--max-patches", 768, "--num-proc", 1]
            run("pack", "chats.jsonl", "-o", media_home / "packs", *options, "--quiet")

    made_once(tmp_path_factory, "media-packs", pack)
    return media_home / "packs"


@pytest.fixture
def logged() -> Iterator[list[str]]:
    """Messages of warnings that the library logs in the test.

    ``caplog`` comes with handlers on every logger, three times for each test: its plugin is off.
    """
    messages: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("brimful")
    logger.addHandler(handler)
    yield messages
    logger.removeHandler(handler)


@pytest.fixture
def put(tmp_path: Path) -> Callable[[str, bytes | str], str]:
    """``put("a.jsonl", b"…")`` writes a file and returns its path."""

    def write(name: str, data: bytes | str) -> str:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data.encode() if isinstance(data, str) else data)
        return str(path)

    return write


@pytest.fixture(scope="session")
def torchvision() -> Any:
    """The library torchvision, installed or a copy in the folder BRIMFUL_TORCHVISION: video processors need it."""
    return pytest.importorskip(
        "torchvision",
        reason="video processors need torchvision, or a copy in BRIMFUL_TORCHVISION",
        exc_type=ImportError,
    )


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print the number of processes that each fault test killed, and of all of them."""
    kills = [
        (number, report.nodeid)
        for report in terminalreporter.stats.get("passed", ())
        for name, number in report.user_properties
        if name == "kills"
    ]
    if kills:
        terminalreporter.section("kills")
        for number, test in [*kills, (sum(number for number, _ in kills), "in all")]:
            terminalreporter.write_line(f"{number:7,} {test}")


@pytest.fixture(scope="session", autouse=True)
def _memory_is_an_object_store() -> Iterator[None]:
    """``memory://`` of fsspec, which is refused because it ends with its process, creates names as object stores do."""
    import fsspec

    memory, one_at_a_time = type(fsspec.filesystem("memory")), threading.Lock()
    pipe_file = memory.pipe_file

    def locked_pipe_file(self: Any, *args: Any, **options: Any) -> Any:
        with one_at_a_time:
            return pipe_file(self, *args, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memory, "pipe_file", locked_pipe_file)
        patch.setitem(remote.CONDITIONAL, "memory", "a lock of this process")
        yield
