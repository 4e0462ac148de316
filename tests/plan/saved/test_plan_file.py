"""Plans whose file was damaged: each number of each column is found before a pack is served."""

from copy import deepcopy

import numpy as np
import pytest

from brimful import PackedDataset, open_source, plan_packs
from brimful.base.tables import open_table, write_table
from brimful.errors import CorruptFileError
from brimful.plan import Plan
from brimful.testing.toys import toy_chat_encoder

LENGTHS = [3, 9, 4, 7, 2, 5, 30]
COLUMNS = ["offsets", "sample_ids", "lengths", "starts"]


def places(data, plan, column):
    """Places of the bytes of a column in the file."""
    values = np.ascontiguousarray(getattr(plan, column)).tobytes()
    place = data.index(values)
    return range(place, place + len(values))


@pytest.mark.parametrize("overflow", ["split", "drop", "truncate"])
@pytest.mark.parametrize("column", COLUMNS)
def test_every_damaged_byte_of_a_column_is_found_before_it_is_served(tmp_path, overflow, column):
    """Columns are not read where a plan is opened. Damaged offsets also once made the next reading one without end."""
    path = tmp_path / "plan.arrow"
    plan_packs(LENGTHS, capacity=7, overflow=overflow).save(path)
    whole, plan = path.read_bytes(), Plan.open(path)
    if column == "starts" and not plan.starts.any():
        pytest.skip("all samples begin at 0: the file has no such column")
    for place in places(whole, plan, column):
        data = bytearray(whole)
        data[place] ^= 1 << place % 8
        path.write_bytes(data)
        with pytest.raises(CorruptFileError, match=r"plan\.arrow.*(is damaged|cannot be read as a table of brimful)"):
            Plan.open(path).check_fingerprint()


def descriptions(of_plan):
    """With a value that is missing or of another kind, on every level."""
    for path in [(key,) for key in of_plan] + [(part, key) for part in ("ledger", "settings") for key in of_plan[part]]:
        for value in (None, "x", [], -1, 1.5, {"a": 1}, "gone"):
            changed = deepcopy(of_plan)
            part = changed[path[0]] if len(path) == 2 else changed
            part[path[-1]] = value
            if value == "gone":
                del part[path[-1]]
            yield changed


def test_a_description_of_another_program_is_opened_or_refused(tmp_path):
    """A field that a later version writes in another way is one line with the file, and not a traceback."""
    path, refused = tmp_path / "plan.arrow", []
    plan_packs(LENGTHS, capacity=8, overflow="drop", budgets={"samples": 2}, alignment=2, min_fill=0.5).save(path)
    table = open_table(path)
    columns = {name: table.ragged(name) for name in ("sample_ids", "lengths")} | {"kind": table.flat("kind")}
    changed = list(descriptions(table.description))
    for description in changed:
        write_table(path, columns, description)
        try:
            Plan.open(path)
        except CorruptFileError as error:
            refused.append(str(error))
    assert all("plan.arrow" in message for message in refused)
    assert 0.5 < len(refused) / len(changed) < 0.8


def test_a_damaged_plan_is_neither_served_nor_written(tmp_path):
    """The last sample of the last pack would be another one, and this one never trained on."""
    source, path = open_source([{"text": "x" * length} for length in (3, 4, 5)]), tmp_path / "plan.arrow"
    plan_packs([3, 4, 5], capacity=7).save(path)
    data, ids = bytearray(path.read_bytes()), Plan.open(path).sample_ids
    data[places(bytes(data), Plan.open(path), "sample_ids")[-ids.itemsize]] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptFileError, match=r"plan\.arrow: the plan is damaged: its arrays differ"):
        PackedDataset.from_plan(source, toy_chat_encoder(), Plan.open(path))
