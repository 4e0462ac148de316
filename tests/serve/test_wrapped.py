"""Data sets that encode their own rows: packed by lengths, read when a pack is asked for, in workers and after a stop."""

import json

import pytest

from brimful import PackCollator, PackedDataset, PackLoader
from brimful.errors import (
    CacheMismatchError,
    EncodeError,
    LengthChangedError,
    OversizedSampleError,
    SettingsError,
    WrongTypeError,
)
from brimful.measure import LengthTable
from brimful.serve.wrapped import EncodedRows, WrappedPacks
from brimful.store.shards import PlainPack
from tests.trees.plans import plan_of_trees

torch = pytest.importorskip("torch", reason="data sets of PyTorch")


class Encoding(torch.utils.data.Dataset):  # type: ignore[name-defined]
    """Counts how often it encodes; sample ``i`` has ``2 + i % 5`` tokens, all of them ``i + 1``."""

    def __init__(self, count=12, grow=0):
        self.count, self.grow, self.calls = count, grow, 0

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        assert not isinstance(index, str), "it has no columns"
        self.calls += 1
        ids = torch.full((2 + index % 5 + self.grow,), index + 1)
        return {"input_ids": ids, "labels": ids, "attention_mask": torch.ones_like(ids), "name": f"row {index}"}


def ids_of(packs):
    return [pack.sample_ids for pack in packs]


def test_each_row_is_in_one_pack_and_is_encoded_when_it_is_asked_for():
    data = Encoding()
    packs = PackedDataset.wrap(data, 10, seed=None)
    assert data.calls == 12  # measured
    assert sorted(number for ids in ids_of(packs) for number in ids) == list(range(12))
    pack = packs[0]
    assert isinstance(pack, PlainPack)
    assert sum(len(row["input_ids"]) for row in pack) <= 10
    assert [row["name"] for row in pack] == [f"row {number}" for number in pack.sample_ids]
    assert data.calls == 24 + len(pack)


def test_workers_measure_what_one_process_measures():
    """A data set of a script or of a test is in no module that a fresh process could import: workers are forked."""
    plans = [PackedDataset.wrap(Encoding(100), 16, num_proc=num_proc).fingerprint for num_proc in (1, 2)]
    assert plans[0] == plans[1]


@pytest.mark.parametrize("name", ["length", "lengths"])
def test_lengths_that_the_data_set_has_are_taken(name):
    data = Encoding()
    setattr(data, name, [2 + index % 5 for index in range(12)])
    PackedDataset.wrap(data, 10)
    assert data.calls == 0


def test_a_length_that_is_another_at_access_is_refused_by_name():
    """A pack would be too long, in silence."""
    data = Encoding()
    packs = PackedDataset.wrap(data, 10)
    data.grow = 1
    with pytest.raises(
        LengthChangedError,
        match=r"^Encoding \(sample \d+\) encodes to \d tokens and was planned with \d: .*wrap it again",
    ):
        packs[0]


def test_padding_is_not_counted():
    rows = [{"input_ids": [5, 6, 0, 0], "attention_mask": [1, 1, 0, 0]}] * 3
    assert len(PackedDataset.wrap(rows, 4)) == 2


def test_a_file_of_lengths_is_believed_for_the_same_data_alone(tmp_path):
    path = tmp_path / "lengths.arrow"
    PackedDataset.wrap(Encoding(), 10, path=path)
    assert LengthTable.open(path).tokens.tolist() == [2 + index % 5 for index in range(12)]
    data = Encoding()
    PackedDataset.wrap(data, 10, path=path)
    assert data.calls == 8
    for other, part in (
        (Encoding(13), "samples"),
        (Encoding(grow=1), "sample 0"),
        ([{"input_ids": [1]}] * 12, "data set"),
    ):
        with pytest.raises(CacheMismatchError, match=rf"lengths of another data set; these parts differ: {part}"):
            PackedDataset.wrap(other, 10, path=path)


@pytest.mark.parametrize("name", ["fingerprint", "_fingerprint"])
def test_a_file_of_lengths_belongs_to_one_fingerprint(tmp_path, name):
    """Other rows between the few that are compared would be packed by lengths that they do not have."""
    one, other = Encoding(), Encoding()
    setattr(one, name, "one")
    setattr(other, name, "other")
    PackedDataset.wrap(one, 10, path=tmp_path / "lengths.arrow")
    PackedDataset.wrap(one, 10, path=tmp_path / "lengths.arrow")
    with pytest.raises(CacheMismatchError, match="these parts differ: fingerprint"):
        PackedDataset.wrap(other, 10, path=tmp_path / "lengths.arrow")


class Template:
    """An encoder as ms-swift has it."""

    def encode(self, row):
        return {"input_ids": [*row["text"].encode()], "lengths": [len(row["text"])]}


def test_a_template_encodes_rows():
    """Rows stay as the template makes them; the collator passes over the ``lengths`` of ms-swift."""
    packs = PackedDataset.wrap([{"text": "abc"}, {"text": "de"}], packing_length=8, template=Template())  # type: ignore[call-arg]
    assert [row["input_ids"] for row in [*packs[0]]] == [[97, 98, 99], [100, 101]]
    assert PackCollator()([packs[0]])["input_ids"].tolist() == [[97, 98, 99, 100, 101]]
    with pytest.raises(EncodeError, match=r"sample 0 of list: KeyError: 'text'"):
        PackedDataset.wrap([{}], 8, encode=Template())
    with pytest.raises(EncodeError, match=r"sample 0 of list has no 'input_ids'.*\(found \['text'\]\).*encode"):
        PackedDataset.wrap([{"text": "abc"}], 8)
    with pytest.raises(
        EncodeError, match=r"sample 0 of list has 'input_ids' of shape \(1, 3\).* take \[0\] of the tokens"
    ):
        PackedDataset.wrap([{"input_ids": torch.ones(1, 3)}], 8)
    with pytest.raises(EncodeError, match=r"'input_ids' of shape \(0,\): they are one row of at least 1 token"):
        PackedDataset.wrap([{"input_ids": []}], 8)
    with pytest.raises(OversizedSampleError, match=r'Choose overflow="drop", or capacity=6$'):
        PackedDataset.wrap([{"input_ids": [1] * 6}], 4)


def test_what_cannot_be_wrapped_names_the_way():
    for call in (
        lambda: PackedDataset(dataset=Encoding(), template=None, packing_length=8),  # type: ignore[call-arg]
        lambda: PackedDataset(Encoding()),
        lambda: PackedDataset(Encoding(), packing_length=8),  # type: ignore[call-arg]
    ):
        with pytest.raises(WrongTypeError, match=r"PackedDataset\.wrap\(dataset, packing_length=…\)"):
            call()
    with pytest.raises(WrongTypeError, match="a stream goes to WindowBatches"):
        PackedDataset.wrap(iter([]), 8)
    with pytest.raises(SettingsError, match="rows that a data set encodes are packed whole"):
        PackedDataset.wrap(Encoding(), 4, overflow="split")
    for policy in (None, "error", "drop"):  # without the refusal, a sample that is cut would be served twice
        with pytest.raises(
            SettingsError, match='algorithm="concat_split": rows that a data set encodes are packed whole'
        ):
            PackedDataset.wrap(Encoding(), 8, algorithm="wrapped", overflow=policy)
    trees = plan_of_trees([[5, 6], [5, 7]], [[0, 1]])
    with pytest.raises(SettingsError, match=r'share="prefixes": rows that a data set encodes are packed whole'):
        WrappedPacks(EncodedRows(Encoding()), trees)
    with pytest.raises(SettingsError, match="2 lengths are given for 12 rows"):
        PackedDataset.wrap(Encoding(), 8, lengths=[1, 2])


def test_a_stopped_run_goes_on_in_workers():
    """The state is of the plan, and counts what was delivered."""
    from brimful.serve.worker_loader import WorkerLoader

    packs = PackedDataset.wrap(Encoding(40), 10)
    whole = [ids_of(batch) for batch in PackLoader(packs)]
    loader = WorkerLoader(PackLoader(packs), num_workers=2)
    batches = iter(loader)
    first = [ids_of(next(batches)) for _ in range(3)]
    state = json.loads(json.dumps(loader.state_dict()))
    again = WorkerLoader(PackLoader(PackedDataset.wrap(Encoding(40), 10)), num_workers=1)
    again.load_state_dict(state)
    assert first + [ids_of(batch) for batch in again] == whole


def test_a_rank_without_a_pack_runs_one_without_loss():
    packs = PackedDataset.wrap(Encoding(3), 10)
    batches = list(PackLoader(packs, dp_rank=1, dp_world_size=2))
    (filler,) = batches[-1]
    assert filler.sample_ids == [-1] * len(filler)
    assert {int(label) for row in filler for label in row["labels"]} == {-100}


def test_the_collator_joins_the_rows_of_a_pack():
    """A dialect of rows has one for each pack, and not one for each sample."""
    from brimful import PackCollator

    packs = PackedDataset.wrap(Encoding(), 10, seed=None)
    batch = PackCollator()([packs[0], packs[1]])
    assert batch["input_ids"].tolist() == [
        [id for pack in list(packs)[:2] for row in pack for id in row["input_ids"].tolist()]  # type: ignore[attr-defined]
    ]
    (rows,) = PackCollator().rows([packs[0], packs[1]])
    assert rows.sample_ids.tolist() == packs[0].sample_ids + packs[1].sample_ids
    batch = PackCollator(dialect="llama_factory", pad_to=10)([packs[0], packs[1]])
    assert batch["input_ids"].shape == (2, 11)  # with the spare token of that dialect


@pytest.mark.parametrize("rank", [0, 1])
def test_the_first_rank_measures_for_all(rank, monkeypatch):
    """Rows with random lengths have others in each process: all ranks plan with the first rank's."""
    lengths = [9, 8, 7, 6, 5, 4, 3, 2, 1, 2, 3, 4]

    def broadcast(numbers, source):
        assert source == 0
        if rank:
            assert not numbers.any(), "this rank measures nothing"
            numbers += torch.tensor(lengths)

    for name, value in {"is_initialized": True, "get_backend": "gloo", "get_rank": rank}.items():
        monkeypatch.setattr(torch.distributed, name, lambda value=value: value)
    monkeypatch.setattr(torch.distributed, "broadcast", broadcast)
    data = Encoding()
    packs = PackedDataset.wrap(data, 10, seed=None)
    assert data.calls == (12 if rank == 0 else 0)
    measured = [2 + index % 5 for index in range(12)]
    assert (
        packs.fingerprint
        == PackedDataset.wrap(Encoding(), 10, lengths=lengths if rank else measured, seed=None).fingerprint
    )
