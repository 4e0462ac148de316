"""Shares of a job: every task in one of them, whatever is done already; and settings that contradict each other."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brimful.base.execute import LOCAL, Engine, Execution, Resources, as_execution, run_tasks
from brimful.errors import MissingExtraError, SettingsError, UnfinishedSharesError, WrongTypeError


def test_a_share_is_every_so_many_th_task():
    """Without it one share would get all the long blocks of a file that is sorted by length."""
    shares = [Execution(task_index=index, num_tasks=3).share("abcdefg") for index in range(3)]
    assert shares == [["a", "d", "g"], ["b", "e"], ["c", "f"]]
    assert LOCAL.share("abc") == ["a", "b", "c"]


@given(num_items=st.integers(0, 60), num_tasks=st.integers(1, 70))
def test_every_task_is_in_one_share(num_items, num_tasks):
    """Law: without it rows would be missing, or measured twice, for some number of machines."""
    shares = [Execution(task_index=index, num_tasks=num_tasks).share(range(num_items)) for index in range(num_tasks)]
    assert sorted(item for share in shares for item in share) == list(range(num_items))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"task_index": 2, "num_tasks": 2}, "task_index must be 0 to 1 and is 2 (a Slurm array counts from 0 with"),
        ({"task_index": -1, "num_tasks": 2}, "task_index must be 0 to 1 and is -1"),
        ({"task_index": 0, "num_tasks": 0}, "num_tasks must be at least 1 and is 0"),
        ({"task_index": 0}, "task_index goes with num_tasks: give both"),
        ({"num_tasks": 4}, "num_tasks goes with task_index: give both"),
        ({"engine": "dask"}, "engine 'dask' is unknown: use one of local, ray"),
        ({"engine": "ray", "task_index": 0, "num_tasks": 2}, 'engine="ray" distributes tasks itself: leave one out'),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, message):
    """Without it an array that counts from 1 silently leaves its first share undone."""
    with pytest.raises(SettingsError) as caught:
        Execution(**settings)
    assert message in str(caught.value)


def test_a_share_is_a_whole_number():
    with pytest.raises(WrongTypeError, match="task_index must be a whole number"):
        Execution(task_index="0", num_tasks=2)  # type: ignore[arg-type]


def test_an_engine_is_known_by_its_name():
    assert as_execution("ray") == as_execution(Engine.RAY) == Execution(Engine.RAY)
    assert as_execution(LOCAL) is LOCAL
    with pytest.raises(WrongTypeError, match="an Execution, or the name of an engine: local or ray"):
        as_execution(4)  # type: ignore[arg-type]


def test_a_share_that_is_alone_says_what_is_missing():
    share = Execution(task_index=1, num_tasks=4)
    share.check_all_done(4, 4, "shares")
    with pytest.raises(UnfinishedSharesError) as caught:
        share.check_all_done(3, 4, "shares")
    assert str(caught.value).startswith("share 1 of 4 is done; 3 of 4 shares exist. The call that finishes last joins")


def test_all_cores_where_nobody_says_how_many(monkeypatch):
    """Without it ``num_proc=None`` of a cluster would be an error on one machine."""
    assert list(run_tasks(lambda context, task: context * task, [2], context=3, resources=Resources())) == [(2, 6)]


def test_ray_is_named_where_it_is_missing(monkeypatch):
    """Without it a traceback says that a module of that name does not exist."""
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    tasks = run_tasks(lambda context, task: task, [1], context=0, resources=Resources(execution=as_execution("ray")))
    with pytest.raises(MissingExtraError) as caught:
        list(tasks)
    assert str(caught.value) == "engine=\"ray\" needs ray, which is not installed: pip install 'brimful[ray]'"
