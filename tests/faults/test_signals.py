"""Ctrl-C and SIGTERM, at every stage and at random moments: the program ends at once, and the same command goes on."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import brimful.cli.jobs as pack_command
import brimful.cli.option_values as cli_arguments
from brimful import pack_dataset
from brimful.cli import main
from brimful.testing.toys import toy_chat_encoder
from tests.cli.bad_input.tools import write_rows
from tests.store.stores import tree

ROOT = Path(__file__).parents[2]
PYTHON_STARTS = ("Could not import runpy module", "Fatal Python error: init_import_site")
"""What Python itself says of a Ctrl-C before the first line of a program."""

LINE = "stopped; what was finished is kept, run the same command to go on"

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals to process groups")

# ── a program that stands still where it is told to ───────────────────────────────────────────────────────────────

DRIVER = """
from functools import partial
from brimful.__main__ import main
from tests.faults.stalls import solve, stall, stalling

import brimful.cli.option_values as arguments, brimful.cli.jobs as command, brimful.store.packing_job as job
from brimful.encode.encoder import EncoderEngine
from brimful.testing.toys import toy_chat_encoder

class Libraries(EncoderEngine):
    preload = {"transformers": {}}  # imported in the server of worker processes; here a stub

class Encoder(type(toy_chat_encoder())):
    def __init__(self):
        super().__init__()
        from of_workers import stalling_in
        self.needs = stalling_in  # a module that workers import to have the encoder

    @property
    def engine(self):
        return Libraries(lambda: self)

    def encode_batch(self, samples):
        if stalling("measuring"):
            stall()
        return super().encode_batch(samples)

from of_workers import stalling_in
arguments.encoder_for = lambda *_, **__: Encoder()
command.pack_dataset = partial(command.pack_dataset, shard_bytes=1 << 12)
if stalling("solving"):
    job.plan_with = lambda *_, **options: solve()
job.plan_with = stalling_in(job.plan_with, "planning")

if __name__ == "__main__":
    main()
"""

OF_WORKERS = """
import multiprocessing
from tests.faults.stalls import hold, stall, stalling

if stalling("worker importing") and multiprocessing.current_process().name == "brimful worker":
    hold()

def stalling_in(function, stage):
    def stalled(*arguments, **options):
        if stalling(stage):
            stall()
        return function(*arguments, **options)
    return stalled

import brimful.store.writing as shard_task
shard_task._gather_rows = stalling_in(shard_task._gather_rows, "writing")
"""
"""Module next to the driver, which workers import: they do not run the driver itself."""

IMPORTED = {
    "loading": ("click", "stall"),
    "server importing": ("transformers", "stall"),
    "server importing for a while": ("transformers", "nap"),
}
"""What is imported at a stage, and what is done in its place."""


def program(folder: Path, *arguments: Any, stage: str = "") -> tuple[list[str], dict[str, str]]:
    """Command and environment of ``brimful`` with an encoder of bytes, standing still at a stage."""
    stubs = folder / f"stubs for {stage}"
    stubs.mkdir()
    (stubs / "transformers.py").write_text("")  # worker processes import it first, and these need not
    if stage in IMPORTED:
        module, how = IMPORTED[stage]
        (stubs / f"{module}.py").write_text(f"from tests.faults.stalls import {how}\n{how}()\n")
    (folder / "driver.py").write_text(DRIVER)
    (stubs / "of_workers.py").write_text(OF_WORKERS)
    started = ["-m", "brimful"] if stage == "loading" else [str(folder / "driver.py")]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(stubs), str(ROOT / "src"), str(ROOT)]),
        "STALL": stage,
        "STALLED": str(folder / "stalled"),
    }
    return [sys.executable, *started, *map(str, arguments)], environment


# ── signalling it ─────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Ended:
    """How a program ended: exit code, standard error, seconds until it and all of its processes were gone."""

    code: int
    err: str
    seconds: float
    gone: float


def signalled(
    command: list[str],
    environment: dict[str, str],
    log: Path,
    *,
    when: Callable[[subprocess.Popen[bytes]], None],
    signum: signal.Signals,
    to_group: bool,
    again_after: float | None,
) -> Ended:
    """Start a program, signal it at a moment, alone or with its group as a terminal does, and again if asked."""
    with open(log, "wb") as err:
        process = subprocess.Popen(
            command,
            env=environment,
            cwd=log.parent,
            stdout=subprocess.DEVNULL,
            stderr=err,
            start_new_session=True,  # and with Ctrl-C as it is by default: tests run with a handler of Python (``conftest``)
        )
    try:
        when(process)
        send = os.killpg if to_group else os.kill
        began = time.monotonic()
        with contextlib.suppress(ProcessLookupError):
            send(process.pid, signum)
            if again_after is not None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(again_after)
                send(process.pid, signum)
        code = process.wait(30)
        seconds = time.monotonic() - began
        while group_lives(process.pid):
            assert time.monotonic() - began < 30, "processes were left behind"
            time.sleep(0.01)
        return Ended(code, log.read_text(), seconds, time.monotonic() - began)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def group_lives(group: int) -> bool:
    """Whether a process group has a process, but for dead ones that were not waited for."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    listed = subprocess.run(["ps", "-A", "-o", "pgid=,stat="], capture_output=True, text=True, check=True).stdout
    states = [line.split() for line in listed.splitlines()]
    return any(int(pgid) == group and not state.startswith("Z") for pgid, state in states)


def when_stalled(folder: Path) -> Callable[[subprocess.Popen[bytes]], None]:
    """Waits for the program to stand still."""

    def wait(process: subprocess.Popen[bytes]) -> None:
        until = time.monotonic() + 60
        while not (folder / "stalled").exists():
            assert process.poll() is None, "the stage was not reached: the test proves nothing"
            assert time.monotonic() < until, "the stage was not reached: the test proves nothing"
            time.sleep(0.01)

    return wait


PACK = ("pack", "--max-length", 64, "--quiet")


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Several files, and so several blocks, that workers have something to do."""
    folder = tmp_path_factory.mktemp("rows")
    for name in "abcd":
        write_rows(folder / f"{name}.jsonl", [{"text": name * (2 + number % 18)} for number in range(60)])
    return folder


def finish(*arguments: Any) -> None:
    """Run the same command to its end, in this process, which has imported all of it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cli_arguments, "encoder_for", lambda *_, **__: toy_chat_encoder())
        patch.setattr(pack_command, "pack_dataset", partial(pack_dataset, shard_bytes=1 << 12))
        with pytest.raises(SystemExit) as left:
            main([str(word) for word in arguments])
    assert not left.value.code


@pytest.fixture(scope="module")
def never_stopped(rows: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The files of a job that was not stopped."""
    folder = tmp_path_factory.mktemp("whole")
    finish(*PACK, rows, "-o", folder / "packs", "--num-proc", 1, "--cache-dir", folder / "cache")
    return tree(folder / "packs")


INT, TERM = signal.SIGINT, signal.SIGTERM


@pytest.mark.parametrize(
    ("stage", "num_proc", "signum", "to_group", "again_after"),
    [
        ("loading", 1, INT, False, None),
        ("measuring", 2, INT, True, None),
        pytest.param("writing", 2, TERM, False, 0.1, marks=pytest.mark.long),
        pytest.param("server importing", 2, INT, True, 0.1, marks=pytest.mark.long),
        pytest.param("worker importing", 2, INT, True, None, marks=pytest.mark.long),
        pytest.param("measuring", 2, TERM, True, None, marks=pytest.mark.long),
        pytest.param("measuring", 1, INT, False, 0.0, marks=pytest.mark.long),
        pytest.param("planning", 1, TERM, False, None, marks=pytest.mark.long),
        pytest.param("solving", 1, INT, False, None, marks=pytest.mark.long),
        pytest.param("writing", 1, INT, True, None, marks=pytest.mark.long),
    ],
)
def test_a_signal_ends_the_program_at_every_stage_and_the_same_command_goes_on(
    rows: Path,
    never_stopped: dict[str, str],
    tmp_path: Path,
    stage: str,
    num_proc: int,
    signum: signal.Signals,
    to_group: bool,
    again_after: float | None,
) -> None:
    """Without it Ctrl-C waits for the tokenizer, a second one hangs, and workers print their tracebacks."""
    if stage == "solving":
        pytest.importorskip("highspy", reason="solving needs the extra brimful[optimal]")
    arguments = (*PACK, rows, "-o", tmp_path / "packs", "--num-proc", num_proc)
    command, environment = program(tmp_path, *arguments, stage=stage)
    with tempfile.TemporaryDirectory() as temporary:  # of a short name, which a socket needs
        ended = signalled(
            command,
            {**environment, "TMPDIR": temporary},
            tmp_path / "log",
            when=when_stalled(tmp_path),
            signum=signum,
            to_group=to_group,
            again_after=again_after,
        )
        assert (ended.code, ended.err) == (128 + signum, LINE + "\n")
        assert os.listdir(temporary) == [], "the folder of the socket of a server"
    finish(*arguments[:-1], 1)  # the number of processes never changes a byte
    assert tree(tmp_path / "packs") == never_stopped


SCRIPT = """
import os, signal, sys
from brimful import open_source, pack_dataset
from brimful.encode.encoder import EncoderEngine
from brimful.testing.toys import toy_chat_encoder
from tests.faults.stalls import stall, stalling

class Libraries(EncoderEngine):
    preload = {"transformers": {}}  # imported in the server of worker processes; here a stub

class Encoder(type(toy_chat_encoder())):
    def __init__(self):
        super().__init__()
        from of_workers import stalling_in
        self.needs = stalling_in  # a module that workers import to have the encoder

    @property
    def engine(self):
        return Libraries(lambda: self)

    def encode_batch(self, samples):
        if stalling("measuring"):
            stall()
        return super().encode_batch(samples)

def pack(num_proc):
    pack_dataset(open_source(sys.argv[1]), Encoder(), sys.argv[2], capacity=64, shard_bytes=1 << 12, num_proc=num_proc)

if __name__ == "__main__":
    try:
        pack(2)
    except KeyboardInterrupt:
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        os.environ["STALL"] = ""
        pack(1)
        sys.exit(7)
"""


@pytest.mark.parametrize("stage", [pytest.param("server importing for a while", marks=pytest.mark.long), "measuring"])
def test_ctrl_c_in_the_script_of_a_user_is_a_keyboard_interrupt_and_the_workers_are_gone(
    rows: Path, never_stopped: dict[str, str], tmp_path: Path, stage: str
) -> None:
    """Without it a script or notebook is ended from below, or hangs at its end for workers that print tracebacks."""
    command, environment = program(tmp_path, rows, tmp_path / "packs", stage=stage)
    (tmp_path / "driver.py").write_text(SCRIPT)
    ended = signalled(
        command,
        environment,
        tmp_path / "log",
        when=when_stalled(tmp_path),
        signum=INT,
        to_group=True,
        again_after=None,
    )
    assert (ended.code, ended.err) == (7, "")
    packs, whole = tree(tmp_path / "packs"), dict(never_stopped)
    del packs["stream.json"], whole["stream.json"]  # where the command line notes its tokenizer
    assert packs == whole


# ── random moments ────────────────────────────────────────────────────────────────────────────────────────────────

MOMENTS = range(200)
"""Seeds of the moments."""

JOB = {
    "pack": "pack {rows} -o {out} --mode text --tokenizer {here} --max-length 2048 --num-proc {num_proc} --quiet",
    "measure": "measure {rows} -o {out}/lengths.arrow --mode text --tokenizer {here} --num-proc {num_proc} --quiet",
    "write": "write {plan} {rows} -o {out} --mode text --tokenizer {here} --num-proc {num_proc} --quiet",
}

TRANSFORMERS = """
from pathlib import Path

import tokenizers


class AutoTokenizer:
    is_fast, split_special_tokens, bos_token_id, eos_token_id = True, False, None, 0

    def __init__(self, path):
        self.backend_tokenizer = tokenizers.Tokenizer.from_file(str(Path(path) / "tokenizer.json"))

    added_tokens_decoder = special_tokens_map = {}
    all_special_tokens, chat_template = [], None

    from_pretrained = classmethod(lambda cls, path: cls(path))
"""
"""A tokenizer in Rust, without the seconds that the real package takes to import: most moments would lie in them."""


@dataclass(frozen=True)
class Moment:
    """One stop: of which command, when (as a share of the time it takes), how."""

    command: str
    num_proc: int
    share: float
    signum: signal.Signals
    to_group: bool
    again_after: float | None

    @classmethod
    def of(cls, seed: int) -> Moment:
        """The moment of a seed; every other one is signalled twice."""
        draw = random.Random(seed)
        return cls(
            command=draw.choice(list(JOB)),
            num_proc=draw.choice([1, 2]),
            share=draw.random(),
            signum=draw.choice([INT, TERM]),
            to_group=draw.random() < 0.5,
            again_after=draw.choice([0.0, 0.05, 0.3]) if seed % 2 else None,
        )


@pytest.mark.chaos
def test_signalled_at_random_moments_the_same_command_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], record_property: Callable[[str, object], None]
) -> None:
    """Two hundred stops of real commands; prints how long the ends took. A signal before our first line is Python's."""
    save_bytes_tokenizer(tmp_path)
    (tmp_path / "stubs" / "transformers").mkdir(parents=True)
    (tmp_path / "stubs" / "transformers" / "__init__.py").write_text(TRANSFORMERS)
    (tmp_path / "stubs" / "transformers" / "utils.py").write_text("chat_template_utils = None\n")
    (tmp_path / "rows").mkdir()
    for first in range(0, 4_800, 200):  # a file is a block at least, and a block a task
        rows = [text(number) for number in range(first, first + 200)]
        write_rows(tmp_path / "rows" / f"{first:05}.jsonl", rows)
    names = {"rows": tmp_path / "rows", "here": tmp_path, "plan": tmp_path / "whole" / "plan.arrow"}
    path = os.pathsep.join([str(tmp_path / "stubs"), str(ROOT / "src")])

    def run(command: str, out: Path, num_proc: int) -> tuple[list[str], dict[str, str]]:
        words = JOB[command].format(out=out, num_proc=num_proc, **names).split()
        environment = {**os.environ, "PYTHONPATH": path, "BRIMFUL_CACHE": f"{out}-cache"}
        return [sys.executable, "-m", "brimful", *words], environment

    def finish(command: str, out: Path) -> float:
        words, environment = run(command, out, 1)  # the number of processes never changes a byte
        began = time.monotonic()
        subprocess.run(words, env=environment, check=True, stdout=subprocess.DEVNULL, timeout=120)
        return time.monotonic() - began

    homes = {name: tmp_path / ("whole" if name == "pack" else f"whole-{name}") for name in JOB}
    seconds = {name: finish(name, home) for name, home in homes.items()}
    whole = {name: committed(home) for name, home in homes.items()}
    gone: list[float] = []
    wrong: list[str] = []
    for seed in MOMENTS:
        moment, out = Moment.of(seed), tmp_path / f"{seed}"
        command, environment = run(moment.command, out, moment.num_proc)
        delay, ended = moment.share * seconds[moment.command], Ended(0, "", 0, 0)
        while ended.code == 0:  # the job was quicker than the one that was timed: an earlier moment
            shutil.rmtree(out, ignore_errors=True)
            shutil.rmtree(f"{out}-cache", ignore_errors=True)
            ended = signalled(
                command,
                environment,
                tmp_path / "log",
                when=lambda _, delay=delay: time.sleep(delay),
                signum=moment.signum,
                to_group=moment.to_group,
                again_after=moment.again_after,
            )
            delay *= 0.8
        gone.append(ended.gone)
        # Python was starting, before any line of ours, or had ended.
        by_python = ended.code == -moment.signum or ended.err.startswith(PYTHON_STARTS)
        early = by_python and "brimful" not in ended.err
        if not early and (ended.code, ended.err) != (128 + moment.signum, LINE + "\n"):
            wrong.append(f"{seed} {moment}: {ended}")
        finish(moment.command, out)
        if committed(out) != whole[moment.command]:
            wrong.append(f"{seed} {moment}: {ended}, then other bytes")
        shutil.rmtree(out)
        shutil.rmtree(f"{out}-cache", ignore_errors=True)
        with capsys.disabled():
            print(seed, moment, ended, flush=True)
    with capsys.disabled():
        gone.sort()
        print(f"{len(gone)} ends: median {gone[len(gone) // 2]:.3f} s, longest {gone[-5:]} s; the jobs take {seconds}")
    assert not wrong, "\n".join(wrong)
    record_property("kills", len(gone))


def save_bytes_tokenizer(directory: Path) -> None:
    """One token a byte."""
    tokenizers = pytest.importorskip("tokenizers", reason="tokenizing needs the extra brimful[text]")
    letters = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    model = tokenizers.models.BPE(vocab={letter: number for number, letter in enumerate(letters)}, merges=[])
    backend = tokenizers.Tokenizer(model)
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.save(str(directory / "tokenizer.json"))


def text(number: int) -> dict[str, str]:
    """A row of its own length."""
    draw = random.Random(number)
    return {"text": "".join(draw.choices("abcdefgh ", k=draw.randrange(20, 400)))}


def committed(directory: Path) -> dict[str, str]:
    """What a job leaves, without half-written files of a job that was stopped."""
    return {name: digest for name, digest in tree(directory).items() if not name.endswith(".tmp")}
