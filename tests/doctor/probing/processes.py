"""Two ranks as processes."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def two_ranks(module, kind, folder):
    """Start ``module`` twice with a kind, a number and an address; return what each printed, None for one that died."""
    address = f"file://{folder}/store"
    command = [sys.executable, "-W", "ignore", "-m", module, kind]
    ranks = [
        subprocess.Popen(
            [*command, str(rank), address], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for rank in range(2)
    ]
    results = []
    for rank in ranks:
        out, error = rank.communicate(timeout=120)
        assert rank.returncode == 0, error[-3000:]
        results.append(json.loads(out.splitlines()[-1]) if out else None)
    return results
