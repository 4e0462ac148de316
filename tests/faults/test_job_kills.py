"""Jobs of every kind on samples of every kind, in several processes that are killed until all are done: the bytes of one run."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet  # noqa: F401, once, and not in every process that exports to Parquet
import pytest

pytest.importorskip("torch", reason="reference columns need the extra brimful[torch]")

import torch

from brimful import PackCollator, measure_lengths, open_packs, open_source, pack_dataset, plan_packs, write_packs
from brimful.base.blobs import crash_points
from brimful.base.execute import Execution
from brimful.base.fingerprint import fingerprint_of
from brimful.errors import UnfinishedSharesError
from brimful.integrations.export import LAYOUTS, export_packs
from brimful.media.collate import MediaFeatures
from brimful.media.encode.media_chat import MediaChatEncoder
from brimful.media.families import open_family
from brimful.plan import Plan, PlanSettings
from brimful.preferences import PreferenceCollator, ReferenceLogps, compute_references, references
from brimful.report.store_check import check_store
from brimful.store.shards import Pack
from brimful.testing.toys import toy_chat_encoder
from tests.faults.planted import die_at
from tests.faults.processes import forked
from tests.faults.test_stream_kills import batches_of_one_run, train
from tests.faults.test_stream_kills import survive as survive_training
from tests.flow.test_media import png
from tests.marks import long_but
from tests.store.pictures import PictureEncoder, chat, write_pictures

# ── samples ───────────────────────────────────────────────────────────────────────────────────────────────────────


CAPACITY = 64


@dataclass(frozen=True)
class Samples:
    """Rows in files, and how they are packed."""

    folder: Path
    encoder: Any
    storage: str = "references"

    def source(self, home: Path) -> Any:
        media: dict[str, Any] = {} if self.storage == "references" else {"media": True, "media_dir": self.folder}
        return open_source(self.folder / "rows", cache_dir=home / "cache", **media)

    @property
    def options(self) -> dict[str, Any]:
        """Two packs a shard, in one process."""
        return {"shard_bytes": 4 * CAPACITY * 2, "num_proc": 1, "media_storage": self.storage}


def rows_of_texts() -> list[dict[str, Any]]:
    return [{"text": chr(97 + number % 26) * (5 + number * 7 % 40)} for number in range(48)]


def rows_of_pairs() -> list[dict[str, Any]]:
    return [
        {"prompt": "q" * (number % 5), "chosen": chr(97 + number % 26) * 6, "rejected": "n" * (1 + number % 3)}
        for number in range(32)
    ]


def rows_of_chats() -> list[dict[str, Any]]:
    return [
        {
            "messages": [
                {"role": role, "content": text}
                for role, text in (
                    ("system", "s"),
                    ("user", "q" * (1 + n % 4)),
                    ("assistant", chr(97 + n % 26) * (1 + n % 5)),
                )
            ]
        }
        for n in range(32)
    ]


def rows_of_pictures() -> list[dict[str, Any]]:
    return [
        chat("ab" * (n % 4), *[f"p{n % 6}.png"] * (n % 3 > 0), *[f"p{n % 4}.png"] * (n % 4 == 0)) for n in range(40)
    ]


def written(folder: Path, rows: list[dict[str, Any]]) -> Path:
    """Rows in three files: several blocks, which shares divide."""
    (folder / "rows").mkdir(parents=True)
    for number in range(3):
        lines = [json.dumps(row) + "\n" for row in rows[number::3]]
        (folder / "rows" / f"{number}.jsonl").write_text("".join(lines))
    return folder


@pytest.fixture(scope="module")
def samples(media_home: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Samples]:
    """Texts, preferences, chats, pictures as bytes, and pictures as features."""
    home = tmp_path_factory.mktemp("samples")
    pictures = written(home / "bytes", rows_of_pictures())
    write_pictures(pictures, range(6))
    features = written(home / "features", rows_of_pictures())
    for number in range(6):
        (features / f"p{number}.png").write_bytes(png(56, 56 + 28 * (number % 2), number))
    processor = media_home / "processor"
    encoder = MediaChatEncoder(processor, open_family("qwen2-vl", processor), compare_media=False)
    return {
        "texts": Samples(written(home / "texts", rows_of_texts()), toy_chat_encoder()),
        "pairs": Samples(written(home / "pairs", rows_of_pairs()), toy_chat_encoder()),
        "chats": Samples(written(home / "chats", rows_of_chats()), toy_chat_encoder()),
        "bytes": Samples(pictures, PictureEncoder(), "bytes"),
        "features": Samples(features, encoder, "features"),
    }


# ── jobs ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def pack(some: Samples, home: Path, task: int, num_tasks: int) -> None:
    """The whole job in one call, which every process makes."""
    settings = PlanSettings(capacity=CAPACITY)
    pack_dataset(some.source(home), some.encoder, home / "out", settings, cache_dir=home / "cache", **some.options)


def write(some: Samples, home: Path, task: int, num_tasks: int, *, in_shares: bool = False) -> None:
    """Measure, plan and write, which every process does, or each its share."""
    execution = Execution(task_index=task, num_tasks=num_tasks) if in_shares else Execution()
    source = some.source(home)
    options: dict[str, Any] = {"cache_dir": home / "cache", "execution": execution}
    table = joined(partial(measure_lengths, source, some.encoder, num_proc=1, **options))
    plan = plan_packs(table, capacity=CAPACITY)
    joined(partial(write_packs, plan, source, some.encoder, home / "out", **some.options, **options))


def joined(call: Callable[[], Any]) -> Any:
    """Make a call of a share until the other shares are done."""
    while True:
        with contextlib.suppress(UnfinishedSharesError):
            return call()
        time.sleep(0.005)


def export(
    some: Samples, home: Path, task: int, num_tasks: int, *, packs: Path, to: str, in_shares: bool = False
) -> None:
    """Export packs to a layout, which every process does, or each its share."""
    execution = Execution(task_index=task, num_tasks=num_tasks) if in_shares else Execution()
    options: dict[str, Any] = {"packs_per_shard": 2, "num_proc": 1, "execution": execution}
    if LAYOUTS[to].takes_source:
        options["source"] = some.source(home)
    joined(partial(export_packs, packs, to=to, directory=home / "out", **options))


class TinyModel(torch.nn.Module):
    """Logits of the next byte."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = torch.nn.Embedding(256, 256)

    def forward(self, input_ids: Any, **_: Any) -> Any:
        return self.table(input_ids)


def refer(some: Samples, home: Path, task: int, num_tasks: int, *, packs: Path) -> None:
    """Compute the reference column of packs, each rank its files."""
    ranks: dict[str, Any] = {"dp_rank": task, "dp_world_size": num_tasks}
    compute_references(TinyModel(), open_packs(packs), PackCollator(), home / "out", model_id="tiny", **ranks)


def everything(folder: Path) -> dict[str, Any]:
    """Every file that a finished job leaves, with its bytes; records and the summary as JSON."""
    files: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        # Locks stay, and so do files of killed processes without a name, until somebody writes the same file.
        if path.is_dir() or path.suffix in (".lock", ".tmp"):
            continue
        files[name] = path.read_bytes()
        # Equal but for names and seconds of a run.
        if name.startswith("log/") or name == "summary.json":
            files[name] = {key: value for key, value in json.loads(files[name]).items() if key not in OF_A_RUN}
    return files


OF_A_RUN = ("producer_id", "seconds", "directory")

# ── kills ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Whole:
    """One job that was not killed: its files, the crash points that it passed, and its processor time."""

    files: dict[str, Any]
    points: Counter[str]
    seconds: float


def run_whole(job: Callable[..., None], some: Samples, home: Path) -> Whole:
    """Do a job once, in a process of its own."""
    home.mkdir(parents=True)

    def watched() -> None:
        points: Counter[str] = Counter()
        crash_points.reach = lambda label: points.update([label])
        before = time.process_time()
        job(some, home, 0, 1)
        (home / "watched").write_text(json.dumps([points, time.process_time() - before]))

    assert os.waitpid(forked(watched), 0)[1] == 0
    points, seconds = json.loads((home / "watched").read_text())
    return Whole(everything(home / "out"), Counter(points), seconds)


def doomed(job: Callable[..., None], fault: tuple[str, int] | float | None, *arguments: Any) -> None:
    """Do a job, and die at the n-th passing of a crash point, or after some processor time."""
    if isinstance(fault, tuple):
        die_at(*fault)
    elif fault is not None:
        # The system ends a process by this signal as by SIGKILL, in the middle of any instruction and without clean-up.
        signal.setitimer(signal.ITIMER_PROF, fault)
    job(*arguments)
    signal.setitimer(signal.ITIMER_PROF, 0)


MOST_KILLS = 12
"""Kills of one job, after which its processes are left alone."""


def survive(job: Callable[..., None], some: Samples, home: Path, whole: Whole, rng: np.random.Generator) -> int:
    """Do a job in one to three processes, each of which is begun again when it was killed; return the kills."""
    num_tasks, kills, running = int(rng.integers(1, 4)), 0, {}
    home.mkdir()

    def fault() -> tuple[str, int] | float | None:
        """Die early, as most of the job is done by others, or was done by killed ones."""
        if kills >= MOST_KILLS or rng.random() < 0.1:
            return None
        parts = num_tasks + kills
        if rng.random() < 0.4 or not whole.points:
            return max(1e-3, float(rng.random() * whole.seconds * 2 / (1 + parts)))
        point = sorted(whole.points)[rng.integers(len(whole.points))]
        return point, int(rng.integers(1, 2 + whole.points[point] // parts))

    def start(task: int) -> None:
        running[forked(doomed, job, fault(), some, home, task, num_tasks)] = task

    for task in range(num_tasks):
        start(task)
    while running:
        pid, status = os.wait()
        if pid not in running:  # a process of an earlier test
            continue
        task, code = running.pop(pid), os.waitstatus_to_exitcode(status)
        assert code in (0, -signal.SIGKILL, -signal.SIGPROF), code
        if code:
            kills += 1
            start(task)
    files = everything(home / "out")
    different = sorted(name for name in files | whole.files if files.get(name) != whole.files.get(name))
    assert not different, "lost, twice, or other bytes"
    return kills


def layouts_of(kind: str) -> list[str]:
    """The layouts that take these packs.

    Captions are written as chats are, and want one picture in each sample; conversations of Megatron want a system
    message in each, as the chats here have.
    """
    takes: dict[str, Callable[[Any], bool]] = {
        "texts": lambda layout: not layout.takes_source,
        "pairs": lambda layout: True,
        "bytes": lambda layout: layout.takes_media,
        "features": lambda layout: False,
    }
    if kind == "chats":
        return ["megatron-sft"]
    others = ("packed-captions", "megatron-sft")
    return [name for name, layout in LAYOUTS.items() if takes[kind](layout) and name not in others]


@dataclass(frozen=True)
class Jobs:
    """Jobs by name, and what each leaves if it is not killed."""

    packs: Path
    """Packs of each kind of samples, in its folder, and the references of pairs."""
    jobs: dict[str, tuple[Callable[..., None], Samples]]
    wholes: dict[str, Whole]

    def kill(self, name: str, folder: Path, seed: int) -> int:
        job, some = self.jobs[name]
        if name not in self.wholes:
            self.wholes[name] = run_whole(job, some, self.packs / "jobs" / name)
        kills = survive(job, some, folder / str(seed), self.wholes[name], np.random.default_rng(seed))
        shutil.rmtree(folder / str(seed))
        return kills


@pytest.fixture(scope="module")
def jobs(samples: dict[str, Samples], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Jobs]:
    """Every job on every kind of samples that it takes; references and exports are of packs of unbroken jobs."""
    home = tmp_path_factory.mktemp("whole")
    named: dict[str, tuple[Callable[..., None], Samples]] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(references, "_PACKS_PER_FILE", 2)
        for kind, some in samples.items():
            packs = home / kind / "out"
            pack(some, home / kind, 0, 1)
            num_samples = len(some.source(home / kind))
            assert check_store(packs, plan=Plan.open(packs / "plan.arrow")).samples == num_samples
            assert sorted(i for one in open_packs(packs) for i in one.sample_ids.tolist()) == list(range(num_samples))
            named[f"pack {kind}"] = pack, some
            named[f"write {kind}"] = write, some
            named[f"write {kind} in shares"] = partial(write, in_shares=True), some
            for to in layouts_of(kind):
                one = partial(export, packs=packs, to=to)
                named[f"export {kind} to {to}"] = one, some
                named[f"export {kind} to {to} in shares"] = partial(one, in_shares=True), some
        named["refer to pairs"] = partial(refer, packs=home / "pairs" / "out"), samples["pairs"]
        # Libraries that are imported at the first call: a process for each kill would import them again.
        refer(samples["pairs"], home / "references", 0, 1, packs=home / "pairs" / "out")
        yield Jobs(home, named, {})


def kill_jobs(jobs: Jobs, folder: Path, names: Iterable[str], enough: int) -> int:
    """Kill jobs in turn, each with a seed of its own, until there were enough kills; return them."""
    kills: Counter[str] = Counter()
    for seed, name in enumerate(names):
        if kills.total() >= enough:
            break
        kills[name] += jobs.kill(name, folder, seed)
    print(*(f"{number:6} kills: {name}" for name, number in kills.items()), sep="\n")
    return kills.total()


SHORT = ("pack features", "write pairs in shares", "export bytes to energon", "export texts to megatron in shares")


def test_jobs_that_are_killed_leave_the_bytes_of_one_run(jobs: Jobs, tmp_path: Path) -> None:
    """Nothing is lost and nothing comes twice, in several processes at once and in shares."""
    assert kill_jobs(jobs, tmp_path, SHORT, 1 << 30) > len(SHORT)


@pytest.mark.long
def test_every_job_that_is_killed_leaves_the_bytes_of_one_run(jobs: Jobs, tmp_path: Path) -> None:
    assert kill_jobs(jobs, tmp_path, jobs.jobs, 1 << 30) > len(jobs.jobs)


@pytest.mark.chaos
@pytest.mark.parametrize("work", ["pack", "write", "export", "refer"])
def test_many_kills_of_jobs(
    jobs: Jobs, tmp_path: Path, work: str, record_property: Callable[[str, object], None]
) -> None:
    """Half as many kills of each as BRIMFUL_KILLS says."""
    names = itertools.cycle(name for name in jobs.jobs if name.startswith(work))
    record_property("kills", kill_jobs(jobs, tmp_path, names, int(os.environ.get("BRIMFUL_KILLS", "1000")) // 2))


# ── training meanwhile ────────────────────────────────────────────────────────────────────────────────────────────


def produce(some: Samples, packs: Path, home: Path, stream: Path, point: str | None, occurrence: int) -> None:
    """Write the packs of a plan, or some of them until a crash."""
    if point is not None:
        die_at(point, occurrence)
    plan = Plan.open(packs / "plan.arrow")
    write_packs(plan, some.source(home), some.encoder, stream, cache_dir=home / "cache", **some.options)


def begin(packs: Path, stream: Path) -> None:
    """Begin a stream, which ranks follow from its first shard."""
    stream.mkdir()
    shutil.copyfile(packs / "stream.json", stream / "stream.json")


def describe(collator: Callable[[list[Pack]], dict[str, Any]], pack: Pack) -> str:
    """The samples of a pack, and a fingerprint of its batch with all columns."""
    batch = collator([pack])
    columns = {**batch.pop("preference", {}), **batch}
    numbers = {name: value.numpy().tobytes() if torch.is_tensor(value) else value for name, value in columns.items()}
    return f"{pack.sample_ids.tolist()} {fingerprint_of(numbers)}"


def kill_training(jobs: Jobs, kind: str, folder: Path, seeds: Iterable[int], enough: int) -> int:
    """Two processes write packs that ranks train on, with the reference column or with features; return the kills."""
    some, packs = jobs.jobs[f"pack {kind}"][1], jobs.packs / kind / "out"
    collator: Any
    if kind == "pairs":
        collator = PreferenceCollator(PackCollator(), ReferenceLogps.open(jobs.packs / "references" / "out"))
    else:
        collator = PackCollator(media=MediaFeatures.of_packs(open_packs(packs)))
    of_pack = partial(describe, collator)
    expected, kills = batches_of_one_run(packs, of_pack), 0
    assert sum(map(len, expected)) == len(open_packs(packs))
    for seed in seeds:
        if kills >= enough:
            break
        home = folder / f"{kind} {seed}"
        home.mkdir()
        roles = partial(produce, some, packs, home), partial(train, describe=of_pack)
        num_kills, trained = survive_training(home, seed, *roles, begin=partial(begin, packs))
        assert [trained[step] for step in sorted(trained)] == expected, "lost, twice, or other columns"
        kills += num_kills
        shutil.rmtree(home)
    return kills


WITH_COLUMNS = ("pairs", "features")


@pytest.mark.parametrize("kind", long_but({"features"}, WITH_COLUMNS))
def test_columns_are_trained_on_as_without_kills(jobs: Jobs, tmp_path: Path, kind: str) -> None:
    """Every pack once, in the order of a run without kills, with its reference column or its features."""
    assert kill_training(jobs, kind, tmp_path, [0], 1 << 30)


@pytest.mark.chaos
@pytest.mark.parametrize("kind", WITH_COLUMNS)
def test_many_kills_of_training_with_columns(
    jobs: Jobs, tmp_path: Path, kind: str, record_property: Callable[[str, object], None]
) -> None:
    """Half as many kills of each as BRIMFUL_KILLS says."""
    enough = int(os.environ.get("BRIMFUL_KILLS", "1000")) // 2
    record_property("kills", kill_training(jobs, kind, tmp_path, itertools.count(1000), enough))
