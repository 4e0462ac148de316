"""Standing still where a test tells a program to, in a way that no Python signal handler ends."""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path


def stalling(stage: str) -> bool:
    """Whether this is the stage at which the program is to stand still."""
    return os.environ.get("STALL") == stage


def stall() -> None:
    """Say so, and stay in C for minutes as a tokenizer does: without the GIL, and without a look at signals."""
    Path(os.environ["STALLED"]).touch()
    hashlib.pbkdf2_hmac("sha256", b"", b"", 1 << 30)


def hold() -> None:
    """Say so, and stay in C with the GIL, as an import does: no thread of this process runs either."""
    Path(os.environ["STALLED"]).touch()
    sum(range(1 << 45))


def nap() -> None:
    """Say so, and take a while to be imported."""
    Path(os.environ["STALLED"]).touch()
    time.sleep(1.5)


def solve() -> None:
    """Say so, and stay in HiGHS for a minute."""
    import highspy
    import numpy as np

    size = 2_000
    random = np.random.default_rng(0)
    programme = highspy.HighsLp()
    programme.num_col_ = programme.num_row_ = size
    programme.col_cost_ = -random.random(size)
    programme.col_lower_ = np.zeros(size)
    programme.col_upper_ = np.full(size, 1e3)
    programme.row_lower_ = np.full(size, -highspy.kHighsInf)
    programme.row_upper_ = 10 + 100 * random.random(size)
    programme.a_matrix_.start_ = np.arange(size + 1) * size
    programme.a_matrix_.index_ = np.tile(np.arange(size), size)
    programme.a_matrix_.value_ = random.random(size * size)
    solver = highspy.Highs()
    solver.setOptionValue("output_flag", False)
    solver.passModel(programme)
    Path(os.environ["STALLED"]).touch()
    solver.run()
