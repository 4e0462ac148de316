"""The same job by processes of one machine and by a Ray cluster of two nodes on it, with the same number of workers.

``brimful measure`` as a command, in turn: local, then Ray, on fresh caches. The nodes are of ``ray.cluster_utils.Cluster``. Processor time is that of all processes of a command, those of the cluster included, sampled
twice a second; on a busy machine it says more than the clock.

    PYTHONPATH=src:RAY python benchmarks/bench_ray.py [--repetitions 1] DATA.jsonl TOKENIZER [-- --no-fast …]
"""

from __future__ import annotations

import argparse
import filecmp
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil


def processor_seconds(roots: list[psutil.Process], times: dict[tuple[int, float], float]) -> None:
    """Note the processor time of all descendants by process number and start."""
    for root in roots:
        try:
            processes = [root, *root.children(recursive=True)]
        except psutil.Error:
            continue
        for process in processes:
            try:
                used = process.cpu_times()
                times[process.pid, process.create_time()] = used.user + used.system
            except psutil.Error:
                continue


def timed(command: list[str], cluster: list[psutil.Process]) -> tuple[float, float]:
    """Run a command; return its seconds by the clock and of the processor."""
    before: dict[tuple[int, float], float] = {}
    processor_seconds(cluster, before)
    times = dict(before)
    begin = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-m", "brimful", *command], stdout=subprocess.DEVNULL
    )
    root = psutil.Process(process.pid)
    while process.poll() is None:
        processor_seconds([root, *cluster], times)
        time.sleep(0.5)
    if process.returncode:
        raise SystemExit(f"brimful {' '.join(command)} ended with {process.returncode}")
    seconds = time.monotonic() - begin
    processor_seconds(cluster, times)
    return seconds, sum(times.values()) - sum(before.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("data")
    parser.add_argument("tokenizer")
    parser.add_argument("--repetitions", type=int, default=1)
    parser.add_argument("options", nargs="*")
    arguments = parser.parse_args()
    from ray.cluster_utils import Cluster

    os.environ.update(RAY_worker_niceness="0")  # else 15: other work on this machine would go first
    cluster = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False}
    )
    node = cluster.add_node(num_cpus=1)
    os.environ["RAY_ADDRESS"] = cluster.address
    nodes = [
        psutil.Process(info.process.pid)
        for one in (cluster.head_node, node)
        for infos in one.all_processes.values()
        for info in infos
    ]
    home = Path(tempfile.mkdtemp(prefix="bench_ray-"))
    os.environ["BRIMFUL_CACHE"] = str(home / "cache")
    base = [arguments.data, "--tokenizer", arguments.tokenizer, "--quiet", *arguments.options]
    # What is known of the tokenizer is made once, before both.
    small = home / "small.jsonl"
    with open(arguments.data, "rb") as file:
        small.write_bytes(b"".join(file.readline() for _ in range(4000)))
    timed(["measure", str(small), *base[1:]], [])
    rows = []
    for repetition in range(arguments.repetitions):
        for engine in ("local", "ray") if repetition % 2 == 0 else ("ray", "local"):
            workers = (
                ["--num-proc", "2"] if engine == "local" else ["--engine", "ray", "--num-proc", "2"]
            )
            folder = home / f"{engine}-{repetition}"
            cache = ["--cache-dir", str(folder / "cache")]
            folder.mkdir()
            # The index is made before, for it is no task.
            subprocess.run(
                [
                    sys.executable,
                    "-c",
                    f"import brimful; brimful.open_source({arguments.data!r}, cache_dir={cache[1]!r})",
                ],
                check=True,
            )
            output = ["-o", str(folder / "lengths.arrow")]
            row: dict[str, float | str] = {"engine": engine, "load": os.getloadavg()[0]}
            row["seconds"], row["processor seconds"] = timed(
                ["measure", *base, *cache, *workers, *output], nodes
            )
            rows.append(row)
            print(
                json.dumps(
                    {
                        name: value if isinstance(value, str) else round(value, 1)
                        for name, value in row.items()
                    }
                ),
                flush=True,
            )
        one, other = (home / f"{engine}-{repetition}" for engine in ("local", "ray"))
        assert filecmp.cmp(one / "lengths.arrow", other / "lengths.arrow", shallow=False)
    for clock in ("seconds", "processor seconds"):
        sums = {
            name: sum(float(row[clock]) for row in rows if row["engine"] == name)
            for name in ("local", "ray")
        }
        print(f"{clock}: Ray / local = {sums['ray'] / sums['local']:.3f}")
    cluster.shutdown()
    shutil.rmtree(home)


if __name__ == "__main__":
    main()
