"""One of two ranks without a process group, each a process of its own, in one case after another.

python -m tests.clusters.unlike_rank RANK FOLDER
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from brimful import PlanSettings
from brimful.base.progress import Progress
from brimful.clusters import shared_plan
from brimful.errors import BrimfulError
from brimful.testing.toys import toy_chat_encoder
from tests.clusters.builds import QUICK

CASES = ("nothing", "source", "encoder", "capacity", "seed")
"""What is another on rank 1."""


def share(rank, folder, case):
    """Return the first tokens that a rank is served, or its error."""
    other = case if rank else "nothing"
    data = folder / f"node {rank}" / "chats.jsonl"  # each node has a copy of its own
    data.parent.mkdir(exist_ok=True)
    letter = "b" if other == "source" else "a"
    data.write_text("".join(json.dumps({"text": letter * (3 + number)}) + "\n" for number in range(20)))
    settings = PlanSettings(capacity=96 if other == "capacity" else 64, seed=int(other == "seed"))
    options = {"directory": folder, "job": "one", "name": case, "rank": rank, "world_size": 2}
    encoder = toy_chat_encoder(version=int(other == "encoder"))
    try:
        shared = shared_plan(data, encoder, settings, num_epochs=1, waiting=QUICK, progress=Progress(), **options)
        return shared.dataset()[0].input_ids[:3].tolist()
    except BrimfulError as error:
        return f"{type(error).__name__}: {error}"


def main(rank, folder):
    folder = Path(folder)
    results = {}
    for case in CASES:
        results[case] = share(int(rank), folder, case)
        (folder / f"{case} {rank}").touch()
        while len(list(folder.glob(f"{case} *"))) < 2:  # rank 0 ends last
            time.sleep(0.02)
    (folder / f"seen {rank}.json").write_text(json.dumps(results))


if __name__ == "__main__":
    main(*sys.argv[1:])
