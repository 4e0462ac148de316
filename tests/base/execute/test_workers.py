"""The server of worker processes imports what a job names, in order, with the variables that only it sees."""

import multiprocessing
import os

import pytest

from brimful.base.execute.workers import start_server


@pytest.mark.parametrize("names", [[], ["a"], ["a", "b"], ["a", "b", "c"]])
def test_the_first_module_comes_before_all_others(monkeypatch, names):
    """It loads in a thread while the server imports the rest; after them, each job would start half a second later."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        pytest.skip("this system has no server of processes")
    from multiprocessing import forkserver

    modules, variables = [], {}
    monkeypatch.setattr(forkserver, "set_forkserver_preload", modules.extend)
    monkeypatch.setattr(forkserver, "ensure_running", lambda: variables.update(os.environ))
    start_server({name: {f"BRIMFUL_TEST_{name}": f"of {name}"} for name in names})
    assert modules == [*names[:1], "brimful.base.execute.preload", *names[1:]]
    assert [variables[f"BRIMFUL_TEST_{name}"] for name in names] == [f"of {name}" for name in names]
    assert not any(name.startswith("BRIMFUL_TEST_") for name in os.environ)
