"""What a worker gets first: the function and its context, whatever defines them."""

from __future__ import annotations

import gc
import operator
import pickle
import signal
import subprocess
import sys
from multiprocessing import spawn

import pytest

from brimful.base.execute import Resources, run_tasks
from brimful.base.execute.run_tasks import rare_collections
from brimful.base.execute.serving import OBJECTS_BETWEEN_COLLECTIONS, InterruptShield, order_of
from brimful.base.execute.workers import _NAME
from brimful.errors import MissingExtraError

SCRIPT = """
from operator import mul
from brimful.base.execute import Resources, run_tasks
print("begins", flush=True)
print(sorted(result for _, result in run_tasks(mul, range(4), context=10, resources=Resources(2))))
"""
"""A script that starts processes in its first lines, as those of a notebook do."""


@pytest.mark.parametrize("is_file", [True, False])
def test_workers_do_not_run_the_script(put, is_file):
    """Without it a script without ``if __name__ == "__main__":`` ends in the tracebacks of its workers, which begin it again."""
    arguments = [put("script.py", SCRIPT)] if is_file else ["-"]
    outcome = subprocess.run([sys.executable, *arguments], input=SCRIPT, capture_output=True, text=True)
    assert (outcome.stdout, outcome.stderr) == ("begins\n[0, 10, 20, 30]\n", "")


def test_processes_of_the_script_itself_run_it(monkeypatch):
    """Without it a pool of the caller would not know the functions that it is given."""
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", None)
    monkeypatch.setattr(sys.modules["__main__"], "__file__", "/script.py", raising=False)
    assert spawn.get_preparation_data("Process-1")["init_main_from_path"] == "/script.py"
    assert "init_main_from_path" not in spawn.get_preparation_data(_NAME)


class Shift:
    """An encoder, as it were, of the script itself."""

    def __init__(self, number):
        self.number = number

    def __call__(self):
        return self.number + 1


@pytest.fixture
def of_script(monkeypatch):
    monkeypatch.setattr(Shift, "__module__", "__main__")
    monkeypatch.setattr(sys.modules["__main__"], "Shift", Shift, raising=False)
    return Shift(6)


def test_what_the_script_defines_is_sent_by_value(of_script):
    """Without it a worker looks for the encoder of a notebook in a module that has none."""
    pytest.importorskip("cloudpickle")
    code = "import pickle, sys; _, context = pickle.load(sys.stdin.buffer); print(context())"
    outcome = subprocess.run([sys.executable, "-c", code], input=order_of(operator.mul, of_script), capture_output=True)
    assert (outcome.stdout.strip(), outcome.stderr) == (b"7", b"")


def test_what_a_function_defines_is_sent_by_value():
    """Without it an encoder that a test or a ``main()`` defines ends in ``Can't pickle local object``."""
    pytest.importorskip("cloudpickle")

    class Local(Shift):
        def __call__(self):
            return self.number - 1

    _, (local, function) = pickle.loads(order_of(operator.mul, (Local(6), lambda: 7)))
    assert (local(), function()) == (5, 7)


def test_what_cannot_be_sent_by_value_is_named(of_script, monkeypatch):
    """Without it the caller gets an AttributeError of a module that is not the script."""
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    with pytest.raises(MissingExtraError) as caught:
        order_of(operator.mul, [1, of_script])
    assert str(caught.value) == (
        "Shift, defined in the script itself and not in a module that it imports, needs cloudpickle, which is not installed: "
        "pip install 'brimful[text]'"
    )
    assert pickle.loads(order_of(operator.mul, "__main__")) == (operator.mul, "__main__")


@pytest.fixture(autouse=True)
def threshold():
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


def _threshold_in_task(_context, _task):
    return gc.get_threshold()[0]


def test_a_task_in_this_process_is_seldom_interrupted_and_the_caller_as_before():
    """Between two tasks the caller's own code runs, with the caller's own setting."""
    gc.set_threshold(500, 10, 10)
    for _, in_task in run_tasks(_threshold_in_task, [0, 1], context=None, resources=Resources(1)):
        assert in_task == OBJECTS_BETWEEN_COLLECTIONS
        assert gc.get_threshold() == (500, 10, 10)


def test_the_setting_comes_back_after_an_error():
    gc.set_threshold(500, 10, 10)
    with pytest.raises(KeyError), rare_collections():
        raise KeyError
    assert gc.get_threshold() == (500, 10, 10)


@pytest.mark.parametrize("first", [0, 1_000_000])
def test_a_process_that_looks_more_rarely_stays_as_it_is(first):
    gc.set_threshold(first, 10, 10)
    with rare_collections():
        assert gc.get_threshold()[0] == first


def test_a_worker_ignores_interrupts_from_its_first_argument_on():
    """Without it Ctrl-C would print a traceback of every worker, before the one line of the job."""
    handler = signal.getsignal(signal.SIGINT)
    try:
        pickle.loads(pickle.dumps(InterruptShield()))
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, handler)
