"""Files of older versions open, hold what they held, and are what this version would make of the same data."""

import json
import shutil
from pathlib import Path

import pytest

from brimful import LengthTable, Plan, measure_lengths, open_packs, open_source, plan_packs
from brimful.base.tables import open_table
from brimful.errors import UnfinishedStoreError
from brimful.report.store_check import check_store
from brimful.testing.toys import toy_chat_encoder
from tests.golden import make

FORMATS = sorted(Path(__file__).parent.glob("formats_*"))


@pytest.fixture(params=FORMATS, ids=lambda path: path.name)
def golden(request, tmp_path, monkeypatch):
    """A copy of the files of one version, as the working directory: paths in them are relative."""
    shutil.copytree(request.param, tmp_path / "golden")
    monkeypatch.chdir(tmp_path / "golden")
    return tmp_path / "golden"


@pytest.fixture
def expected(golden):
    return json.loads((golden / "expected.json").read_text())


def normalised(value):
    """As JSON would give it back."""
    return json.loads(json.dumps(value))


def committed(directory):
    """The shards of a store, and its header."""
    return {path.name: path.read_bytes() for path in [*(directory / "shards").iterdir(), directory / "stream.json"]}


def test_there_are_golden_files():
    """An empty folder would pass every other test here."""
    assert [path.name for path in FORMATS][:1] == ["formats_1"]


@pytest.mark.parametrize(("file", "name"), [("lengths.arrow", "table"), ("text_lengths.arrow", "text_table")])
def test_length_tables_open(golden, expected, file, name):
    """Without it an update of brimful would measure all data again, or plan with other lengths."""
    assert normalised(make.contents_of_table(LengthTable.open(file))) == expected[name]


def test_rows_measure_to_the_same_table(golden, expected):
    """Without it fingerprints of sources or encoders move, and no cache or store is found again."""
    source = open_source("rows.jsonl")
    budgets = ("tokens", "loss_tokens")
    table = measure_lengths(source, toy_chat_encoder(), budgets=budgets, on_bad_sample="skip", num_proc=1)
    assert normalised(make.contents_of_table(table)) == expected["table"]


@pytest.mark.parametrize("name", make.PLANS)
def test_plans_open(golden, expected, name):
    """Without it a saved plan would be lost with the version that made it, or read as another one."""
    plan = Plan.open(f"{name}.plan")
    plan.check_fingerprint()
    plan.validate(LengthTable.open("lengths.arrow"))
    assert normalised(make.contents_of_plan(plan)) == expected["plans"][name]


@pytest.mark.parametrize("name", make.PLANS)
def test_the_same_lengths_are_planned_the_same(golden, expected, name):
    """Without it a job that is repeated after an update packs otherwise, and refuses the directory it began."""
    table = LengthTable.open("lengths.arrow")
    plan = plan_packs(table, **make.options_of(name, len(table)))
    assert normalised(make.contents_of_plan(plan)) == expected["plans"][name]
    plan.save("again.plan")
    assert open_table("again.plan").description == open_table(f"{name}.plan").description


def test_finished_stores_open(golden, expected):
    """Without it an update of brimful would cost every packed data set."""
    assert normalised(make.contents_of_store(open_packs("finished"))) == expected["store"]
    check = check_store("finished", plan=Plan.open("finished/plan.arrow"))
    assert check.packs == expected["store"]["num_packs"]


def test_the_same_job_accepts_a_finished_store(golden):
    """Without it the command that made a store would refuse it, or write it again."""
    before = committed(golden / "finished")
    make.pack("finished")
    assert committed(golden / "finished") == before


def test_interrupted_stores_are_finished(golden, expected):
    """Without it a job that was stopped for an update could not go on, or would end with other packs."""
    with pytest.raises(UnfinishedStoreError, match=r"3 shards with 21 packs so far"):
        open_packs("interrupted")
    make.pack("interrupted")
    assert normalised(make.contents_of_store(open_packs("interrupted"))) == expected["store"]
    assert committed(golden / "interrupted") == committed(golden / "finished")
