"""The loader contract of OLMo-core 3, by its own base class, collator and label function, or by what the class does."""

import sys
from types import ModuleType, SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from brimful import PackCollator  # noqa: E402
from brimful.errors import MissingExtraError, SettingsError, StateError  # noqa: E402
from brimful.integrations.export import check_export, export_packs  # noqa: E402
from brimful.testing.toys import ToyPacks, toy_pack, toy_packs  # noqa: E402
from tests.integrations.export.stores import some_packs  # noqa: E402
from tests.integrations.trainers import tiny  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # of the libraries

try:
    import olmo_core.data as olmo
    from olmo_core.data.utils import get_cumulative_document_lengths, get_labels, split_batch

    from brimful.integrations.trainers.olmo_core import OlmoCoreLoader

    REASON = ""
except (ImportError, MissingExtraError) as error:
    REASON = f"OLMo-core cannot be imported here: {error}"


class ReadLoaderBase:
    """What its base class does for its trainer, read from ``data/data_loader.py`` of version 3: it counts batches."""

    def __init__(self, *, collator, work_dir, global_batch_size, dp_world_size=1, dp_rank=0):
        self.global_batch_size, self.dp_world_size = global_batch_size, dp_world_size
        self._epoch = None
        self.reset()

    def _iter_batches(self):
        raise NotImplementedError

    def reset(self):
        self.batches_processed = self.tokens_processed = 0

    def __iter__(self):
        for batch in self._iter_batches():
            assert batch["input_ids"].numel() == self.global_batch_size // self.dp_world_size
            self.batches_processed += 1
            self.tokens_processed += self.global_batch_size
            yield batch


if REASON:
    modules = {name: ModuleType(name) for name in ("olmo_core", "olmo_core.data", "olmo_core.data.data_loader")}
    vars(modules["olmo_core.data"]).update(DataCollator=SimpleNamespace)
    vars(modules["olmo_core.data.data_loader"]).update(TextDataLoaderBase=ReadLoaderBase)
    sys.modules |= modules
    from brimful.integrations.trainers.olmo_core import OlmoCoreLoader

    for name in (*modules, OlmoCoreLoader.__module__):  # other tests do not find them
        del sys.modules[name]

needs_olmo = pytest.mark.skipif(bool(REASON), reason=REASON)


def loader_of(packs, length=4, rows=1, ranks=1, rank=0, **order):
    return OlmoCoreLoader(
        packs,
        sequence_length=length,
        global_batch_size=length * rows * ranks,
        work_dir="work",
        dp_rank=rank,
        dp_world_size=ranks,
        **order,
    )


def epoch(loader, number=None):
    """The batches of an epoch, in the calls of its trainer."""
    loader.reshuffle(number)
    yield from loader
    loader.reset()


@needs_olmo
def test_a_batch_is_what_its_collator_makes_of_documents():
    """The same keys, types and values as for items with their lengths; the labels of the model are the samples' own."""
    packs = ToyPacks([toy_pack([3, 2]), toy_pack([4, 1, 2], first_sample=2)])
    (batch,) = epoch(loader_of(packs, length=8, rows=2, seed=None))
    items = [
        {
            "input_ids": torch.tensor([*pack.input_ids.tolist(), *[0] * tail]),
            "label_mask": torch.tensor([*pack.loss_mask.tolist(), *[False] * tail]),
            "doc_lens": torch.tensor([*lengths, tail], dtype=torch.int32),
        }
        for pack, lengths, tail in zip(packs, [[3, 2], [4, 1, 2]], (3, 1), strict=True)
    ]
    expected = olmo.DataCollator(pad_token_id=0)(items)
    assert batch.keys() == expected.keys()
    assert batch["max_doc_lens"] == expected["max_doc_lens"] == [3, 4]
    for name in ("input_ids", "label_mask", "doc_lens"):
        assert torch.equal(batch[name], expected[name]), name
        assert batch[name].dtype == expected[name].dtype
    assert get_cumulative_document_lengths(batch["doc_lens"]).tolist() == [0, 3, 5, 8, 12, 13, 15, 16]
    shifted = PackCollator(dialect="nemo_automodel", pad_to=8)(list(packs))["labels"]
    assert torch.equal(get_labels(batch), shifted)
    assert [row["max_doc_lens"] for row in split_batch(batch, 1)] == [[3], [4]]


def test_every_rank_has_its_part_of_every_epoch():
    """Seven packs on two ranks, two rows each: two steps, all packs, one of them twice; another order each epoch."""
    seen = []
    loaders = [loader_of(toy_packs(7), rows=2, ranks=2, rank=rank) for rank in (0, 1)]
    for number in range(1, 4):
        steps = [list(epoch(loader)) for loader in loaders]
        assert loaders[0].state_dict()["epoch"] == number
        assert [len(batches) for batches in steps] == [2, 2] == [loader.total_batches for loader in loaders]
        seen.append([row.tolist() for batches in steps for batch in batches for row in batch["input_ids"]])
    packs = [pack.input_ids.tolist() for pack in toy_packs(7)]
    for rows in seen:
        assert len(rows) == 8
        assert sorted(set(map(tuple, rows))) == sorted(set(map(tuple, packs)))
    assert seen[0] != seen[1]


@pytest.mark.parametrize("stop", [0, 1, 2, 3, 4, 5, 6])
def test_resumed_anywhere_it_goes_on(stop):
    """Three batches an epoch: in the middle, and at the end, where its trainer asks for the same epoch once more."""

    def run(loader, number):
        while True:
            for batch in epoch(loader, number):
                yield batch["input_ids"].tolist()
            number += 1

    options = {"length": 24, "rows": 1}
    whole = run(loader_of(tiny.packs(3), **options), 1)
    expected = [next(whole) for _ in range(9)]
    first = loader_of(tiny.packs(3), **options)
    batches = run(first, 1)
    assert [next(batches) for _ in range(stop)] == expected[:stop]
    state = first.state_dict()
    second = loader_of(tiny.packs(3), **options)
    second.load_state_dict(state)
    assert (second.batches_processed, second.tokens_processed) == (first.batches_processed, first.tokens_processed)
    again = run(second, max(1, -(-stop // 3)))
    assert [next(again) for _ in range(9 - stop)] == expected[stop:]


def test_a_state_saved_after_an_epoch_is_of_the_next():
    """Its trainer saves the last one after ``reset``, and asks for the next epoch when the run is made longer."""
    first, straight = loader_of(toy_packs(4)), loader_of(toy_packs(4))
    for loader in (first, straight):
        assert len(list(epoch(loader, 1))) == 4
    second = loader_of(toy_packs(4))
    second.load_state_dict(first.state_dict())
    found, expected = ([batch["input_ids"].tolist() for batch in epoch(one, 2)] for one in (second, straight))
    assert found == expected
    assert len(found) == 4


def test_other_ranks_go_on_where_some_stopped():
    """Packs that were not served yet, each once: a step of four packs, then steps of two."""
    first = loader_of(toy_packs(8), ranks=4)
    served = [next(epoch(first))["input_ids"].tolist()]
    states = [loader_of(toy_packs(8), ranks=4, rank=rank).state_dict() for rank in range(4)]
    assert all(state == states[0] for state in states)
    rest = []
    for rank in (0, 1):
        loader = loader_of(toy_packs(8), ranks=2, rank=rank)
        loader.load_state_dict(first.state_dict())
        rest += [batch["input_ids"].tolist() for batch in epoch(loader, 1)]
    assert len(rest) == 4
    assert served[0] not in rest


def test_what_cannot_be_a_batch_of_olmo_core_is_refused():
    """A batch is whole rows on each rank, and at least one of them."""
    with pytest.raises(SettingsError, match="global_batch_size=0 must be a multiple of 4 tokens on each of 1 ranks"):
        OlmoCoreLoader(toy_packs(3), sequence_length=4, global_batch_size=0, work_dir="work")
    with pytest.raises(SettingsError, match="global_batch_size=9 must be a multiple of 4 tokens on each of 2 ranks"):
        OlmoCoreLoader(toy_packs(3), sequence_length=4, global_batch_size=9, work_dir="work", dp_world_size=2)
    with pytest.raises(SettingsError, match="tail='pad' leaves a rank without a target"):
        loader_of(toy_packs(3), tail="pad")
    with pytest.raises(StateError, match="of other data or settings"):
        loader_of(toy_packs(3)).load_state_dict(loader_of(toy_packs(4)).state_dict())


def test_the_dry_run_has_whole_rows_and_counts_none():
    loader = loader_of(toy_packs(2), rows=3)
    alone = OlmoCoreLoader(toy_packs(2), sequence_length=4, global_batch_size=12, work_dir="work")
    assert alone.state_dict() == loader.state_dict()
    assert len(list(epoch(alone))) == 1
    first, second = (pack.input_ids.tolist() for pack in toy_packs(2))
    assert loader.get_mock_batch()["input_ids"].tolist() == [first, second, first]
    assert loader.state_dict() == loader_of(toy_packs(2), rows=3).state_dict()
    assert len(list(epoch(loader))) == 1


@needs_olmo
def test_its_packed_data_set_reads_the_files(tmp_path):
    """Boundaries from the table: each of its rows is whole documents, and all of them are there with their targets."""
    packs = some_packs(9)
    export_packs(packs, to="olmo-core", directory=tmp_path / "out", packs_per_shard=4)
    outcome = check_export(tmp_path / "out", packs)
    assert (outcome.packs, outcome.reader) == (9, "ai2-olmo-core")
    assert outcome.fields == ("input_ids", "loss_mask", "cu_seqlens", "sample_ids", "starts")
    config = olmo.NumpyPackedFSLDatasetConfig(
        paths=[f"{tmp_path}/out/token_ids_part_*.npy"],
        label_mask_paths=[f"{tmp_path}/out/labels_mask_part_*.npy"],
        expand_glob=True,
        dtype="uint32",
        use_array_if_local=False,
        generate_doc_lengths=True,
        sequence_length=64,  # its packer takes powers of two
        tokenizer=olmo.TokenizerConfig(vocab_size=1000, eos_token_id=999, pad_token_id=999),
        work_dir=str(tmp_path / "work"),
    )
    dataset = config.build()
    dataset.prepare()
    documents = []
    for number in range(len(dataset)):
        row = dataset[number]
        parts = zip(
            row["input_ids"].split(row["doc_lens"].tolist()),
            row["label_mask"].split(row["doc_lens"].tolist()),
            strict=True,
        )
        documents += [(ids.tolist(), mask.tolist()) for ids, mask in parts if ids.tolist() != [999] * len(ids)]
    expected = [
        (pack.segment(place).tolist(), pack.take([place]).loss_mask.tolist())
        for pack in packs
        for place in range(pack.num_segments)
    ]
    assert sorted(documents) == sorted(expected)
