"""The worker of a cluster as an object in this process: what it refuses, and how it answers."""

import gc
import os
import pickle
import re
import shutil
from dataclasses import replace
from multiprocessing.reduction import ForkingPickler

import pytest

import brimful
from brimful.base.execute.serving import OBJECTS_BETWEEN_COLLECTIONS
from brimful.clusters.ray import ClusterWorker, Surroundings, marks_of, unshared
from brimful.errors import BadSampleError, SettingsError, TaskFailedError


def _halved(context, task):
    if task % 2:
        raise BadSampleError("is odd", sample_id=task, where="data.jsonl:3")
    return (lambda: task) if context == "a lambda" else task // 2


@pytest.fixture
def surroundings(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "environ", dict(os.environ))
    threshold = gc.get_threshold()
    yield Surroundings.here(marks_of([tmp_path / "cache"]))
    gc.set_threshold(*threshold)


def _started(surroundings, context=None):
    worker = ClusterWorker()
    answer, error_traceback = pickle.loads(worker.start(surroundings, bytes(ForkingPickler.dumps((_halved, context)))))
    return worker, answer, error_traceback


def test_results_and_errors_are_those_of_the_task(surroundings):
    """Without it a bad row would be reported by the name of an actor."""
    worker, machine, error_traceback = _started(surroundings)
    assert (machine, error_traceback) == (os.uname().nodename, "")
    assert pickle.loads(worker.do(8)) == (4, "")
    error, error_traceback = pickle.loads(worker.do(7))
    assert str(error) == "data.jsonl:3 (sample 7): is odd"
    assert "in _halved" in error_traceback


def test_garbage_is_looked_for_as_rarely_as_by_local_workers(surroundings):
    """Without it a cluster of the same cores takes a tenth longer."""
    num_frozen = gc.get_freeze_count()
    _started(surroundings)
    assert gc.get_threshold()[0] == OBJECTS_BETWEEN_COLLECTIONS
    assert gc.get_freeze_count() > num_frozen


def test_a_result_that_cannot_be_sent_is_an_error(surroundings):
    worker, *_ = _started(surroundings, "a lambda")
    error, error_traceback = pickle.loads(worker.do(8))
    assert isinstance(error, TaskFailedError)
    assert "a worker process cannot send <function" in str(error)
    assert error_traceback


def test_two_checkouts_of_one_version_are_two(surroundings, tmp_path, monkeypatch):
    """Without it a node with older code measures its share by other rules, and no number tells."""
    shutil.copytree(brimful.__path__[0], tmp_path / "brimful", ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(brimful, "__path__", [str(tmp_path / "brimful")])
    _, machine, _ = _started(surroundings)
    assert machine == os.uname().nodename
    with open(tmp_path / "brimful" / "rng.py", "a") as file:
        file.write("# one line more\n")
    _, error, _ = _started(surroundings)
    number = re.escape(brimful.__version__)
    pattern = rf"has brimful {number} \(code \w{{7}}\) and the job runs {number} \(code \w{{7}}\): install one version"
    assert re.search(pattern, str(error))


def test_relative_paths_begin_where_the_job_was_started(surroundings, tmp_path, monkeypatch):
    """Without it ``brimful measure data.jsonl`` finds no file on any node."""
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    _started(replace(surroundings, variables={"BRIMFUL_CACHE": "/scratch"}))
    assert os.getcwd() == str(tmp_path)
    assert (os.environ["BRIMFUL_CACHE"], os.environ["TOKENIZERS_PARALLELISM"]) == ("/scratch", "false")


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"version": "0.0.1"}, "the job runs 0.0.1: install one version on all nodes"),
        ({"directory": "/no/such/folder"}, "has no /no/such/folder, where this job runs"),
        ({"marks": {"/no/such/cache": "1"}}, "does not see /no/such/cache of the machine that starts the job"),
    ],
)
def test_a_machine_that_is_otherwise_is_refused_by_name(surroundings, other, message):
    """Without it lengths are measured by two versions, or lie on a disk that is not searched."""
    _, error, error_traceback = _started(replace(surroundings, **other))
    assert isinstance(error, SettingsError)
    assert str(error).startswith(f"node {os.uname().nodename} ")
    assert message in str(error)
    assert error_traceback


def test_a_function_that_a_machine_does_not_know_is_an_error(surroundings):
    worker = ClusterWorker()
    order = bytes(ForkingPickler.dumps((_halved, None))).replace(b"test_ray", b"test_raz")
    error, _ = pickle.loads(worker.start(surroundings, order))
    assert isinstance(error, ModuleNotFoundError)


def test_the_same_directory_is_known_again(tmp_path):
    """Without it a cache on a disk of each machine would swallow what workers measure."""
    marks = marks_of([tmp_path / "a", tmp_path / "b"])
    assert marks == marks_of([tmp_path / "a", tmp_path / "b"]), "two jobs at once agree"
    assert unshared(marks) == ""


def test_another_directory_of_the_same_path_is_found(tmp_path):
    marks = marks_of([tmp_path / "a", tmp_path / "b"])
    shutil.rmtree(tmp_path / "b")
    assert unshared(marks) == str(tmp_path / "b"), "absent"
    marks_of([tmp_path / "b"])
    assert unshared(marks) == str(tmp_path / "b"), "another one"
