"""The master problem by one solver and by the other."""

import numpy as np
import pytest

from brimful.plan.counts.histogram import Histogram
from brimful.plan.optimal import column_generation as column_generation_module
from brimful.plan.optimal import master_problem, pack_optimally
from brimful.plan.optimal.master_problem import ScipyMaster, import_solver
from tests.plan.optimal.instances import HARD_FOR_DECREASING, gap, histogram


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_scipy_alone_does_as_well(monkeypatch, seed):
    """Without highspy the same programme is solved afresh in each round."""
    items = Histogram.of(np.random.default_rng(seed).integers(100, 480, 300))
    kept = pack_optimally(items, capacity=1000, time_limit=60)
    monkeypatch.setattr(column_generation_module, "master_problem_of", ScipyMaster)
    afresh = pack_optimally(items, capacity=1000, time_limit=60)
    assert afresh.bound == kept.bound
    assert max(gap(afresh), gap(kept)) <= 1
    hard = pack_optimally(histogram(HARD_FOR_DECREASING | {1: 1}), capacity=100, time_limit=60)
    assert (hard.packs.num_packs, hard.bound) == (10, 10)


@pytest.mark.parametrize(("solver", "imported"), [("highspy", ["highspy"]), ("scipy", ["scipy"]), ("", [])])
def test_the_solver_that_is_installed_is_imported_early(monkeypatch, solver, imported):
    """Without one there is nothing to import, and nobody has asked for a search yet."""
    names = []
    monkeypatch.setattr(master_problem, "installed_solver", lambda: solver)
    monkeypatch.setattr(master_problem, "import_module", names.append)
    import_solver()
    assert names == imported


def test_the_solver_prints_nothing(capfd):
    """Without it, as with highspy 1.16, ``brimful plan --json`` has two lines of the solver before its result."""
    master_problem.master_problem_of(np.ones(3))
    assert capfd.readouterr() == ("", "")
