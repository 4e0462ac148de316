"""Measure, write and export in shares, as an array of Slurm does: the bytes of one call, in any order, with repeats."""

import json
import shutil
from typing import Any

import pytest

from brimful import LengthTable, measure_lengths, open_source, plan_packs, write_packs
from brimful.base.blobs import open_blob_store
from brimful.base.execute import Execution
from brimful.errors import BadSampleError, SettingsError, UnfinishedSharesError
from brimful.integrations.export import export_packs
from brimful.sources import line_index
from brimful.store import pack_dataset
from brimful.store.shards import StreamLog
from brimful.testing.toys import toy_chat_encoder
from tests.cli.tools import outcome
from tests.integrations.export.stores import tree as exported
from tests.store.stores import tree

LENGTHS = [3, 9, 2, 4, 8, 8, 2, 6, 7, 5, 3]


@pytest.fixture(autouse=True)
def _two_rows_a_block(monkeypatch):
    monkeypatch.setattr(line_index, "BLOCK_ROWS", 2)


@pytest.fixture(autouse=True)
def _one_process(monkeypatch):
    """Shares are divided the same way in any number of processes, and each start of some takes seconds."""
    monkeypatch.setattr("brimful.base.execute.execution.available_cores", lambda: 1)


@pytest.fixture
def data(tmp_path):
    """Eleven texts, two a block: six blocks."""
    path = tmp_path / "data.jsonl"
    path.write_text("".join(json.dumps({"text": "x" * length}) + "\n" for length in LENGTHS))
    return path


def shares(count):
    return [Execution(task_index=index, num_tasks=count) for index in range(count)]


def measured(data, folder, execution, **options):
    table = measure_lengths(
        data, toy_chat_encoder(), path=folder / "lengths.arrow", cache_dir=folder, execution=execution, **options
    )
    assert table.tokens.tolist() == LENGTHS
    return (folder / "lengths.arrow").read_bytes()


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 0, 1], [1, 1, 0, 1, 2], list(range(9))])
def test_lengths_in_shares_are_those_of_one_call(data, tmp_path, order):
    """The last share joins; a share that comes again changes nothing; more shares than blocks do no harm."""
    whole = measured(data, tmp_path / "whole", "local")
    executions = shares(max(order) + 1)
    for index in order[:-1]:
        with pytest.raises(UnfinishedSharesError, match=f"share {index} of {max(order) + 1} is done; "):
            measured(data, tmp_path / "parts", executions[index])
        assert not (tmp_path / "parts/lengths.arrow").exists(), "half a table would be planned"
    assert measured(data, tmp_path / "parts", executions[order[-1]]) == whole
    for index in order:
        assert measured(data, tmp_path / "parts", executions[index]) == whole


def test_one_call_joins_what_shares_left(data, tmp_path):
    """Without it a share that was killed for good would have to be found and repeated by hand."""
    for execution in shares(3)[:2]:
        with pytest.raises(UnfinishedSharesError):
            measured(data, tmp_path / "parts", execution)
    assert measured(data, tmp_path / "parts", "local") == measured(data, tmp_path / "whole", "local")


def test_blocks_that_were_lost_since_are_measured_by_the_one_who_joins(data, tmp_path):
    """The note of a share does not prove that its blocks exist; without it the table would have holes, or no end."""
    first, second = shares(2)
    with pytest.raises(UnfinishedSharesError):
        measured(data, tmp_path / "parts", first)
    (parts,) = (tmp_path / "parts/lengths").glob("*/parts")
    shutil.rmtree(parts)
    assert measured(data, tmp_path / "parts", second) == measured(data, tmp_path / "whole", "local")


def test_shares_of_other_numbers_do_not_count(data, tmp_path):
    """Without it two of three shares and one of two would pass for a whole."""
    for execution in (*shares(3)[:2], shares(2)[1]):
        with pytest.raises(UnfinishedSharesError):
            measured(data, tmp_path / "parts", execution)


def test_a_bad_row_is_named_by_its_share(data, tmp_path):
    rows = data.read_text().splitlines()
    rows[4] = json.dumps({"text": "refuse me"})
    data.write_text("\n".join(rows))
    with pytest.raises(UnfinishedSharesError):
        measured(data, tmp_path / "parts", shares(3)[0])
    with pytest.raises(BadSampleError, match=r"data.jsonl:5 \(sample 4\): asks to be refused"):
        measured(data, tmp_path / "parts", shares(3)[2])


@pytest.fixture
def job(data, tmp_path):
    """Source, encoder and plan of five packs."""
    source, encoder = open_source(data), toy_chat_encoder()
    table = measure_lengths(source, encoder, path=tmp_path / "lengths.arrow")
    return plan_packs(LengthTable.open(tmp_path / "lengths.arrow"), capacity=12), source, encoder, table


@pytest.mark.parametrize("order", [[1, 0], [0, 2, 0, 1], list(range(5))])
def test_packs_in_shares_are_those_of_one_call(job, tmp_path, order):
    plan, source, encoder, _ = job
    write_packs(plan, source, encoder, tmp_path / "whole", shard_bytes=48)
    executions = shares(max(order) + 1)
    log = StreamLog(open_blob_store(tmp_path / "parts"))
    for index in order[:-1]:
        with pytest.raises(UnfinishedSharesError, match=f"share {index} of "):
            write_packs(plan, source, encoder, tmp_path / "parts", shard_bytes=48, execution=executions[index])
        assert log.records()[1] is None, "half a store that says it is whole"
    write_packs(plan, source, encoder, tmp_path / "parts", shard_bytes=48, execution=executions[order[-1]])
    assert log.records()[1].packs == plan.num_packs
    assert tree(tmp_path / "parts") == tree(tmp_path / "whole")
    # A share behind the last shard has nothing to do.
    assert not write_packs(plan, source, encoder, tmp_path / "parts", shard_bytes=48, execution=shares(9)[8])


def test_exports_in_shares_are_those_of_one_call(job, tmp_path):
    plan, source, encoder, _ = job
    write_packs(plan, source, encoder, tmp_path / "packs")
    for name in ("jsonl", "megatron"):
        options: dict[str, Any] = {"to": name, "packs_per_shard": 1}
        export_packs(tmp_path / "packs", directory=tmp_path / name / "whole", **options)
        for execution in (*shares(3)[1:], shares(3)[1]):
            with pytest.raises(UnfinishedSharesError):
                export_packs(tmp_path / "packs", directory=tmp_path / name / "parts", execution=execution, **options)
        summary = export_packs(
            tmp_path / "packs", directory=tmp_path / name / "parts", execution=shares(3)[0], **options
        )
        assert summary.packs == plan.num_packs
        assert exported(tmp_path / name / "parts") == exported(tmp_path / name / "whole")


def test_packing_in_one_call_takes_no_shares(data, tmp_path):
    """Without it each share would plan what it sees."""
    with pytest.raises(SettingsError, match="measure in shares, plan, then write in shares"):
        pack_dataset(data, toy_chat_encoder(), tmp_path, capacity=12, execution=shares(2)[0])


def test_the_program_ends_well_when_a_share_is_done(data, tmp_path):
    """Without it Slurm calls every task but the last one failed, and cancels what depends on them."""
    tokens = tmp_path / "tokens.jsonl"
    tokens.write_text("".join(json.dumps({"input_ids": list(range(length))}) + "\n" for length in LENGTHS))
    command = ["measure", tokens, "-o", tmp_path / "lengths.arrow", "--num-tasks", "2", "--quiet"]
    code, out, err = outcome(*command, "--task-index", "1")
    assert (code, out) == (0, "")
    assert err == (
        "share 1 of 2 is done; 1 of 2 shares exist, and 0 missing. The call that finishes last joins them, or the same call without "
        "--task-index and --num-tasks\n"
    )
    code, out, err = outcome(*command, "--task-index", "1", "--json")
    assert (code, json.loads(err.splitlines()[-1])["event"]) == (0, "share")
    assert outcome(*command, "--task-index", "0")[0] == 0
    assert LengthTable.open(tmp_path / "lengths.arrow").tokens.tolist() == LENGTHS
    code, _, err = outcome(*command, "--task-index", "2")
    assert (code, err) == (
        2,
        "error: --task-index must be 0 to 1 and is 2 (a Slurm array counts from 0 with array=0-1)\n",
    )
