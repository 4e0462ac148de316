"""Cases of resuming that loaders of other projects pass, by the kit of ``brimful.testing.resume``, beside ours.

Each is set up as its own documentation says, over 40 samples on 2 ranks, 2 batches of 2 samples a step; the first epoch has 5
steps and the second is begun. What serves packs serves them of 24 tokens. Other projects are used where they are installed::

    pip install --no-deps --target libs torchdata webdataset braceexpand
    PYTHONPATH=libs python benchmarks/resume_peers.py
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import sys
import tempfile
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch.utils.data

from brimful import PackLoader, TokenBudgetBatches
from brimful.dynamic import TokenBudget, Window, WindowBatches
from brimful.dynamic.request_sampler import RequestSampler
from brimful.serve.worker_loader import WorkerLoader
from brimful.testing.resume import ResumeTable, RunRank, check_resume, resume_cases
from brimful.testing.toys import toy_pack, toy_packs

NUM_SAMPLES, BATCH = 40, 2
LENGTHS = np.random.default_rng(0).integers(2, 15, NUM_SAMPLES)


class Rows(torch.utils.data.Dataset[int]):
    """Samples by index: their own numbers."""

    def __len__(self) -> int:
        return NUM_SAMPLES

    def __getitem__(self, index: int) -> int:
        return index


def streamed(place: RunRank, *, shuffled: bool) -> Any:
    """Hugging Face ``IterableDataset`` in 8 shards, split by node, in the loader of torchdata."""
    import datasets
    from datasets.distributed import split_dataset_by_node
    from torchdata.stateful_dataloader import StatefulDataLoader

    rows = datasets.Dataset.from_dict({"id": list(range(NUM_SAMPLES))})
    stream = rows.to_iterable_dataset(num_shards=8)
    if shuffled:
        stream = stream.shuffle(seed=0, buffer_size=8)
    stream = split_dataset_by_node(stream, place.dp_rank, place.dp_world_size)
    return StatefulDataLoader(
        stream, batch_size=BATCH, num_workers=place.num_workers, collate_fn=list
    )


def of_rows(batch: Any) -> list[int]:
    """Return the samples of rows of a stream."""
    return [row["id"] for row in batch]


def by_sampler(place: RunRank) -> Any:
    """Samples by index, with torchdata's own distributed sampler."""
    from torchdata.stateful_dataloader import StatefulDataLoader
    from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

    rows = Rows()
    sampler = StatefulDistributedSampler(rows, place.dp_world_size, place.dp_rank, shuffle=True)
    return StatefulDataLoader(
        rows, batch_size=BATCH, sampler=sampler, num_workers=place.num_workers
    )


def web(place: RunRank, folder: Path) -> Any:
    """Tars of WebDataset, split by node and by worker."""
    import webdataset

    paths = sorted(map(str, folder.glob("*.tar")))

    def of_rank(urls: Any) -> Any:
        return list(urls)[place.dp_rank :: place.dp_world_size]

    rows = webdataset.WebDataset(
        paths, shardshuffle=False, nodesplitter=of_rank, empty_check=False
    ).decode()
    return webdataset.WebLoader(
        rows, batch_size=BATCH, num_workers=place.num_workers, collate_fn=list
    )


def written_tars(folder: Path) -> Path:
    """Write the samples in 8 tars."""
    import webdataset

    for shard in range(8):
        with webdataset.TarWriter(str(folder / f"{shard}.tar")) as tar:
            for sample in range(shard * 5, shard * 5 + 5):
                tar.write({"__key__": str(sample), "id.json": {"id": sample}})
    return folder


def of_tars(batch: Any) -> list[int]:
    """Return the samples of rows of tars."""
    return [row["id.json"]["id"] for row in batch]


def ours(place: RunRank, *, kind: str) -> Any:
    """Our loaders, without workers."""
    ranks: dict[str, Any] = {"dp_rank": place.dp_rank, "dp_world_size": place.dp_world_size}
    ranks["micro_batches"] = place.micro_batches
    packs = [toy_pack([int(length)], first_sample=number) for number, length in enumerate(LENGTHS)]
    if kind == "packs":
        loader: Any = PackLoader(
            toy_packs(NUM_SAMPLES), numbers, packs_per_micro_batch=BATCH, **ranks
        )
    elif kind == "window":
        loader = WindowBatches(packs, Window(24, size=10), numbers, lengths=LENGTHS, **ranks)
    else:
        loader = TokenBudgetBatches(
            packs, TokenBudget(24, min_buffered=5), numbers, lengths=LENGTHS, **ranks
        )
    return loader


def ours_in_workers(place: RunRank, *, kind: str) -> Any:
    """Our loaders in workers."""
    return WorkerLoader(ours(place, kind=kind), num_workers=place.num_workers)


def ours_in_torchdata(place: RunRank, *, kind: str) -> Any:
    """Our loaders in torchdata's, which asks for their batches by a sampler."""
    from torchdata.stateful_dataloader import StatefulDataLoader

    sampler = RequestSampler(ours(place, kind=kind))
    loader = StatefulDataLoader(
        sampler.dataset, sampler=sampler, batch_size=None, num_workers=place.num_workers
    )
    return AnyWorkers(loader, sampler)


class AnyWorkers:
    """torchdata's loader and state; the state goes to the sampler, which takes that of any number of workers."""

    def __init__(self, loader: Any, sampler: RequestSampler) -> None:
        self._loader, self._sampler = loader, sampler

    def __iter__(self) -> Any:
        return iter(self._loader)

    def state_dict(self) -> Any:
        """Return the state of torchdata's loader."""
        return self._loader.state_dict()

    def load_state_dict(self, state: Any) -> None:
        """Go to a state."""
        self._sampler.load_state_dict(state)


def numbers(packs: Any) -> list[int]:
    """Return the samples of packs with targets."""
    return [int(sample) for pack in packs if pack.num_loss_tokens for sample in pack.sample_ids]


def version(*packages: str) -> str:
    """Return packages with their versions."""
    return ", ".join(f"{package} {importlib.metadata.version(package)}" for package in packages)


def tables(folder: Path, word: str) -> list[ResumeTable]:
    """Return the table of each loader that is installed here and has a word in its title."""

    def flat(batch: Any) -> list[int]:
        return batch.tolist() if isinstance(batch, torch.Tensor) else list(batch)

    def in_torchdata() -> str:
        return f"in {version('torchdata')}"

    loaders: list[
        tuple[
            str,
            Callable[[], str],
            Callable[[], Callable[[RunRank], Any]],
            Callable[[Any], list[int]],
        ]
    ] = [
        (
            "brimful packs",
            lambda: "in WorkerLoader",
            lambda: partial(ours_in_workers, kind="packs"),
            flat,
        ),
        (
            "brimful window",
            lambda: "in WorkerLoader",
            lambda: partial(ours_in_workers, kind="window"),
            flat,
        ),
        (
            "brimful token budget",
            lambda: "in WorkerLoader",
            lambda: partial(ours_in_workers, kind="budget"),
            flat,
        ),
        ("brimful packs", in_torchdata, lambda: partial(ours_in_torchdata, kind="packs"), flat),
        ("brimful window", in_torchdata, lambda: partial(ours_in_torchdata, kind="window"), flat),
        (
            "brimful token budget",
            in_torchdata,
            lambda: partial(ours_in_torchdata, kind="budget"),
            flat,
        ),
        (
            "StatefulDataLoader over a stream",
            lambda: version("torchdata", "datasets"),
            lambda: partial(streamed, shuffled=False),
            of_rows,
        ),
        (
            "the same, shuffled in a buffer",
            lambda: version("torchdata", "datasets"),
            lambda: partial(streamed, shuffled=True),
            of_rows,
        ),
        ("StatefulDistributedSampler", lambda: version("torchdata"), lambda: by_sampler, flat),
        (
            "WebLoader",
            lambda: version("webdataset"),
            lambda: partial(web, folder=written_tars(folder)),
            of_tars,
        ),
    ]
    results = []
    for title, versions, make, samples_of in loaders:
        if word not in title:
            continue
        try:
            shown, maker = versions(), make()
        except (ImportError, importlib.metadata.PackageNotFoundError) as error:
            print(f"{title}: left out ({error})", file=sys.stderr)
            continue
        print(f"{title} …", file=sys.stderr, flush=True)
        cases = [case for case in resume_cases(2, (0, 2)) if case.name != "half the ranks and back"]
        results.append(
            check_resume(
                maker,
                samples_of,
                title=f"{title} ({shown})",
                num_steps=7,
                cases=cases,
                stops=[2, 6],
            )
        )
        print(results[-1], flush=True)
    return results


def print_markdown(results: list[ResumeTable]) -> None:
    """Print one row for each loader and one column for each case."""
    names = [row.case.name for row in results[0].rows]
    print("| loader | " + " | ".join(names) + " |")
    print("|---|" + "---|" * len(names))
    for table in results:
        print(f"| {table.title} | " + " | ".join(row.verdict for row in table.rows) + " |")


def main() -> None:
    """Print the tables, and all of them as one."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument(
        "word", nargs="?", default="", help="only loaders with this word in their title"
    )
    word = parser.parse_args().word
    warnings.simplefilter("ignore")
    os.environ["PYTHONWARNINGS"] = "ignore"
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        results = tables(Path(folder), word)
    print()
    print_markdown(results)


if __name__ == "__main__":
    main()
