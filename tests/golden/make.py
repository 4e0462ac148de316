"""Write the golden files: one of each format, as one version of brimful writes it.

    python tests/golden/make.py FOLDER

Each format has one version, and its files are frozen here. A format that changes after the first release gets a folder of
its own next to ``formats_1``, made by the version that introduces it; the files of released versions stay as they are.
"""

import hashlib
import json
import os
import random
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

CAPACITY = 256
PLANS: dict[str, dict[str, Any]] = {
    "auto": {"capacity": 400},
    "unshuffled": {"capacity": 400, "algorithm": "best_fit_decreasing", "seed": None},
    "split": {"capacity": 150, "overflow": "split", "seed": 7, "epoch": 2},
    "truncate": {"capacity": 150, "overflow": "truncate", "algorithm": "first_fit_decreasing", "no_target": "drop"},
    "truncate_left": {"capacity": 150, "overflow": "truncate_left", "algorithm": "worst_fit", "no_target": "keep"},
    "drop": {"capacity": 200, "overflow": "drop", "algorithm": "next_fit"},
    "concat_split": {"capacity": 128, "overflow": "split", "algorithm": "concat_split"},
    "budgets": {"capacity": 500, "budgets": {"samples": 4, "squares": 120_000, "loss_tokens": 400}},
    "groups": {"capacity": 700, "groups": "threes", "overflow": "drop"},
    "aligned_filled": {"capacity": 512, "alignment": 8, "min_fill": 0.9},
    "phased": {"capacity": 400, "algorithm": "phased", "phases": "powers_of_two; half(min_fill=0.9); finish"},
}
"""Options of ``plan_packs`` by the name of the file."""
JOB: dict[str, Any] = {
    "shard_bytes": 8_000,
    "on_bad_sample": "skip",
    "num_proc": 1,
}
"""Options of ``pack_dataset`` for both stores, beside those of the plan."""
WORDS = [
    "packs",
    "hold",
    "samples",
    "of",
    "any",
    "length",
    "and",
    "every",
    "token",
    "is",
    "counted",
    "once",
    "so",
    "nothing",
    "is",
    "lost",
    "on",
    "the",
    "way",
]


def rows() -> list[dict[str, Any]]:
    """Conversations and one row that no encoder takes."""
    chance = random.Random(11)

    def text(most: int) -> str:
        return " ".join(chance.choice(WORDS) for _ in range(chance.randint(1, most)))

    made: list[dict[str, Any]] = []
    for number in range(80):
        turns = [{"role": "system", "content": "Count."}] if number % 7 == 0 else []
        for _ in range(chance.randint(1, 3)):
            turns += [{"role": "user", "content": text(9)}, {"role": "assistant", "content": text(14)}]
        made.append({"messages": turns})
    made[33] = {"messages": [{"role": "user", "content": "refuse me"}, {"role": "assistant", "content": "no"}]}
    return made


def options_of(name: str, num_samples: int) -> dict[str, Any]:
    """The options of a plan; groups of three samples are made of their number."""
    options = dict(PLANS[name])
    if options.get("groups") == "threes":
        options["groups"] = [index // 3 if index < 60 else -1 for index in range(num_samples)]
    return options


def digest(*arrays: Any) -> str:
    """A hash of whole numbers, whatever their dtype."""
    hasher = hashlib.sha256()
    for array in arrays:
        hasher.update(json.dumps([int(number) for number in array]).encode())
    return hasher.hexdigest()[:32]


def contents_of_plan(plan: Any) -> dict[str, Any]:
    """What must be found in a plan, whichever version opens it."""
    truncated = [] if plan.truncated is None else [plan.truncated.sample_ids, plan.truncated.lengths]
    return {
        "fingerprint": plan.fingerprint,
        "length_fingerprint": plan.length_fingerprint,
        "num_packs": plan.num_packs,
        "bound": plan.bound,
        "ledger": plan.ledger.as_dict(),
        "first_pack": [list(segment) for segment in plan[0]],
        "arrays": digest(plan.offsets, plan.sample_ids, plan.starts, plan.lengths, plan.dropped_ids, *truncated),
    }


def contents_of_table(table: Any) -> dict[str, Any]:
    """What must be found in a length table."""
    runs = None if table.targets.runs is None else digest(table.targets.runs.offsets, table.targets.runs.values)
    return {
        "fingerprint": table.fingerprint,
        "budgets": {name: column.tolist() for name, column in table.budgets.items()},
        "rejects": table.rejects,
        "targets": table.targets.counts.tolist(),
        "target_runs": runs,
        "provenance": table.provenance,
    }


def contents_of_store(packs: Any) -> dict[str, Any]:
    """What must be found in a pack store."""
    parts = [
        (pack.input_ids, pack.loss_mask, pack.cu_seqlens, pack.sample_ids, pack.starts)
        for pack in (packs[index] for index in range(len(packs)))
    ]
    return {
        "fingerprint": packs.fingerprint,
        "num_packs": len(packs),
        "first_pack": packs[0].input_ids.tolist(),
        "arrays": digest(*(array for part in parts for array in part)),
    }


def pack(directory: str) -> None:
    """Make or finish a store, in the folder of ``rows.jsonl``."""
    from brimful import PlanSettings, pack_dataset
    from brimful.testing.toys import toy_chat_encoder

    pack_dataset("rows.jsonl", toy_chat_encoder(), directory, PlanSettings(capacity=CAPACITY, overflow="split"), **JOB)


def main(folder: Path) -> None:
    """Write everything into a new folder."""
    import brimful
    from brimful import LengthTable, measure_lengths, open_packs, open_source, plan_packs
    from brimful.testing.toys import toy_chat_encoder

    folder.mkdir(parents=True)
    os.chdir(folder)
    os.environ["BRIMFUL_CACHE"] = os.path.join(os.environ.get("TMPDIR", "/tmp"), f"golden-cache-{os.getpid()}")
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows()))
    source, encoder = open_source("rows.jsonl"), toy_chat_encoder()
    expected: dict[str, Any] = {"made_by": brimful.__version__, "plans": {}}

    table = measure_lengths(source, encoder, budgets=("tokens", "loss_tokens"), on_bad_sample="skip", num_proc=1)
    table.save("lengths.arrow")
    expected["table"] = contents_of_table(table)
    texts = measure_lengths(open_source([{"text": "a" * number} for number in range(2, 40)]), encoder, num_proc=1)
    texts.save("text_lengths.arrow")
    expected["text_table"] = contents_of_table(texts)

    for name in PLANS:
        plan = plan_packs(LengthTable.open("lengths.arrow"), **options_of(name, len(table)))
        plan.save(f"{name}.plan")
        expected["plans"][name] = contents_of_plan(plan)

    pack("finished")
    expected["store"] = contents_of_store(open_packs("finished"))
    # A job that is killed right after it committed its third shard, as a power cut would.
    code = "import sys; sys.path[:0] = sys.argv[1:]; import make; from tests.faults.planted import die_at; "
    code += "die_at('after-commit', 3); make.pack('interrupted')"
    subprocess.run([sys.executable, "-c", code, *map(str, Path(__file__).parents[:3])], check=False)
    for record in Path().glob("*/log/*.json"):  # without the name of the machine
        record.write_text(re.sub(r'"producer_id": "[^"]*"', '"producer_id": "golden-1-00000000"', record.read_text()))
    Path("expected.json").write_text(json.dumps(expected, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
