"""The two forms of a compiled loop."""

import pytest

from brimful.base import compiling
from brimful.plan.fit import best_fit as best_fit_module


def use(form, monkeypatch):
    if form == "compiled":
        pytest.importorskip("numba")
    monkeypatch.setattr(compiling, "_choice", form == "compiled")
    assert (compiling.compiled(best_fit_module._best_fit, 1) is not None) == (form == "compiled"), (
        "the form under test is not taken"
    )
    return form
