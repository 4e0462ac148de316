"""The solver of the master problem."""

import numpy as np

from brimful.planners.optimal.master_problem import MasterProblem


def test_the_solver_prints_nothing(capfd):
    """Without it, as with highspy 1.16, ``brimful plan --json`` has two lines of the solver before its result."""
    MasterProblem(np.ones(3))
    assert capfd.readouterr() == ("", "")
