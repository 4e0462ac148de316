"""Importing brimful is cheap, and what is missing says how to get it."""

import subprocess
import sys

HEAVY = [
    "numpy",
    "torch",
    "transformers",
    "tokenizers",
    "numba",
    "pyarrow",
    "datasets",
    "pandas",
    "scipy",
    "fsspec",
    "click",
]


def run(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test_import_loads_nothing_heavy():
    """Every rank and every worker pays for the import, and the program hears signals only after it."""
    assert run(f"import sys, brimful; print([m for m in {HEAVY} if m in sys.modules])") == "[]"


def test_import_costs_less_than_numpy_again():
    """A ratio within one process, not a time: brimful's own part against numpy's."""
    code = (
        "import time; a = time.perf_counter(); import numpy; b = time.perf_counter(); import brimful; "
        "c = time.perf_counter(); print((c - b) / (b - a))"
    )
    assert min(float(run(code)) for _ in range(3)) < 1


def test_planning_needs_no_tokenizer_and_no_torch():
    """The heart runs on a laptop without any of it."""
    code = "import sys; from brimful import plan_packs; plan_packs([3, 4], capacity=8); print('torch' in sys.modules, 'transformers' in sys.modules)"
    assert run(code) == "False False"


def test_planning_loads_few_modules():
    """Each module costs a millisecond of every script that plans."""
    code = "import sys; from brimful import plan_packs; print(sum(name.startswith('brimful') for name in sys.modules))"
    assert int(run(code)) <= 95


def test_a_missing_extra_prints_the_line_that_installs_it():
    """Instead of a ModuleNotFoundError from the depth."""
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "import brimful\n"
        "try: brimful.PackCollator\n"
        "except ImportError as error: print(error)"
    )
    assert run(code) == "PackCollator needs torch, which is not installed: pip install 'brimful[torch]'"


def test_shards_with_media_load_no_pandas():
    """``pyarrow.array`` looks for it: 40 MB and half a second in each process that writes packs."""
    code = (
        "import io, sys, numpy as np\n"
        "from brimful.media import MediaKind, Medium, PlacedMedium\n"
        "from brimful.store.shards import ATTACHMENT_VERSION, PackRows, ShardWriter\n"
        "item = PlacedMedium(Medium(MediaKind.IMAGE, 'a', '/a', size=3), start=0, length=1, num_tokens=1)\n"
        "one, zero, places = np.ones(1, np.int32), np.zeros(1, np.int32), np.array([0, 1])\n"
        "rows = PackRows(one, np.ones(1, bool), one, zero.astype(np.int64), zero, places, [[item]])\n"
        "sink = io.BytesIO()\n"
        "writer = ShardWriter(sink, version=ATTACHMENT_VERSION)\n"
        "writer.add(rows)\n"
        "writer.close()\n"
        "print('pandas' in sys.modules, sink.tell() > 0)"
    )
    assert run(code) == "False True"
