"""The ranks of ``test_processes``: every case in one process each, forked from one, since importing PyTorch costs more
than all of them.

python -m tests.clusters.gloo_rank FOLDER WORLD PORT
"""

from __future__ import annotations

import datetime
import json
import os
import signal
import sys
import time
from pathlib import Path

import numpy as np
import torch
import torch.distributed as distributed

from brimful import LengthTable, PlanSettings, open_source, plan_packs
from brimful.base.progress import Progress
from brimful.clusters import SharedPlan, broadcast_plan, find_ranks, shared_plan
from brimful.errors import BrimfulError
from brimful.testing.toys import toy_chat_encoder
from tests.clusters.builds import LENGTHS, QUICK, Build, die
from tests.faults.processes import forked

TIMEOUT_SECONDS = 4.0
"""Of every collective; the slow build takes longer."""


def cases(folder, rank):
    """Name of each case and what this rank saw."""
    ranks = find_ranks()
    yield "ranks", [ranks.rank, ranks.world_size]

    def shared(name, build, directory, **options):
        return SharedPlan(build, directory / f"{name}.json", ranks, directory, waiting=QUICK, **options)

    build = Build(folder, seconds=TIMEOUT_SECONDS + 1.0)
    with shared("slow", build, folder, ahead=False) as plan:
        total = torch.ones(1)
        distributed.all_reduce(total)
        yield "slow", [plan.plan.fingerprint, int(total), build.epochs]

    build = Build(folder / "epochs", seconds=0.1)
    with shared("epochs", build, folder / "epochs", num_epochs=4) as plan:
        seen = []
        for epoch in range(4):
            plan.set_epoch(epoch)
            seen.append([plan.plan.fingerprint, plan.plan.settings.epoch])
            for _ in range(5):  # training: collectives and builds at the same time
                distributed.all_reduce(torch.ones(1000))
            time.sleep(0.02 * rank)  # slow ranks
        yield "epochs", [seen, build.epochs]

    def fault(epoch):
        raise ValueError("row 7 is malformed")

    begin = time.monotonic()
    try:
        shared("fault", Build(folder, fault=fault), folder)
    except (ValueError, BrimfulError) as error:
        yield "fault", [type(error).__name__, str(error), time.monotonic() - begin < 5]
    distributed.barrier()

    lengths = LengthTable({"tokens": LENGTHS.astype(np.int32)}) if rank == 0 else None
    options = {"lengths": lengths, "directory": folder / "one call", "waiting": QUICK, "progress": Progress()}
    with shared_plan(None, toy_chat_encoder(), PlanSettings(capacity=128), ahead=False, **options) as plan:
        yield "one call", [plan.plan.fingerprint, plan.metadata.fingerprint, plan.identity]
        distributed.barrier()

    # Ranks 2 and 3 have other texts of equal lengths, or another encoder.
    chats = [{"prompt": f"{number}{'!' if rank == 2 else '?'}", "completion": "b"} for number in range(9)]
    encoder = toy_chat_encoder(version=int(rank == 3))
    samples = open_source(chats, cache_dir=folder / "cache"), encoder
    unlike = []
    for share in (
        lambda: shared_plan(*samples, PlanSettings(capacity=128), ahead=False, **options | {"lengths": None}),
        lambda: broadcast_plan(plan_packs(LENGTHS, capacity=128) if rank == 0 else None, samples=samples),
    ):
        try:
            share()
            unlike.append("")
        except BrimfulError as error:
            unlike.append(f"{type(error).__name__}: {error}")
        distributed.barrier()
    yield "unlike", unlike

    plan = plan_packs(LENGTHS, capacity=128, epoch=9) if rank == 1 else None
    sent = broadcast_plan(plan, src=1)
    yield "broadcast", [sent.fingerprint, [segment.sample_id for segment in sent.pack(5)]]
    try:
        broadcast_plan(None, src=0)
    except BrimfulError as error:
        yield "broadcast of nothing", str(error)
    distributed.barrier()


def run_rank(folder, rank, world_size, port):
    """Run every case on one rank and keep what it saw; does not return."""
    torch.set_num_threads(1)
    # Everybody is here before the short timeout begins to count.
    (folder / f"here {rank}").touch()
    while len(list(folder.glob("here *"))) < world_size:
        time.sleep(0.02)
    store = distributed.TCPStore("127.0.0.1", port, world_size, is_master=rank == 0)  # type: ignore[attr-defined]
    timeout = datetime.timedelta(seconds=TIMEOUT_SECONDS)
    distributed.init_process_group("gloo", store=store, rank=rank, world_size=world_size, timeout=timeout)
    (folder / f"rank {rank}.json").write_text(json.dumps(dict(cases(folder, rank))))
    distributed.barrier()
    killed = folder / "killed"
    begin = time.monotonic()
    try:
        # The last case.
        ranks = find_ranks()
        SharedPlan(Build(killed, 0.3, die), killed / "killed.json", ranks, killed, waiting=QUICK, ahead=False)
    except BrimfulError as error:
        seconds = time.monotonic() - begin
        (folder / f"killed {rank}.json").write_text(json.dumps([type(error).__name__, str(error), seconds]))
    # Gloo's threads sometimes abort a process that takes its interpreter down while they live.
    os._exit(0)


def main():
    folder, world_size, port = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    ranks = [forked(run_rank, folder, rank, world_size, port) for rank in range(world_size)]
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in ranks]
    sys.exit(codes != [-signal.SIGKILL] + [0] * (world_size - 1))


if __name__ == "__main__":
    main()
