"""A finished pack store by index."""

import pytest

from brimful import open_packs
from brimful.errors import NotAPackStoreError, UnfinishedStoreError
from brimful.plan import Alignment
from brimful.testing.toys import toy_stream
from tests.store.stores import written


def test_an_unfinished_store_says_so(tmp_path):
    """A reader must not train on half a data set because the job still runs."""
    with pytest.raises(NotAPackStoreError, match="is not a pack store"):
        open_packs(tmp_path)
    written(tmp_path, range(1, 30), 32)
    (sorted((tmp_path / "log").iterdir())[-1]).unlink()
    with pytest.raises(UnfinishedStoreError, match=r"is not finished: .* run the command that writes it again"):
        open_packs(tmp_path)


def test_facts_of_a_store(tmp_path):
    """Twelve samples of one to twelve tokens, 78 together, in packs of 16, in more than one shard."""
    _, _, plan = written(tmp_path, range(1, 13), 16, alignment=Alignment(2))
    store = open_packs(tmp_path)
    assert (len(store), store.num_tokens, store.num_shards) == (
        len(plan),
        78,
        len(list((tmp_path / "shards").iterdir())),
    )
    assert store.num_shards > 1
    assert store.fill_ratio == pytest.approx(78 / (16 * len(plan)))
    assert store.fingerprint == plan.fingerprint
    assert store.alignment == plan.alignment
    assert (store.attachment_settings, store.attachment_features, store.has_attachments) == (None, None, False)
    assert not store.census.kinds
    samples = [[segment.sample_id for segment in pack] for pack in plan]
    assert [pack.sample_ids.tolist() for pack in store] == samples
    assert [pack.sample_ids.tolist() for pack in store[1:-1]] == samples[1:-1]
    assert store[-1].sample_ids.tolist() == samples[-1]
    for index in (len(plan), -len(plan) - 1):
        with pytest.raises(IndexError, match=f"pack {index}"):
            store[index]


def test_a_store_without_packs(tmp_path):
    """Of a data set whose samples were all left out: nothing divides by its zero packs."""
    store = open_packs(toy_stream(tmp_path, []))
    assert (len(store), store.num_tokens, store.num_shards, store.fill_ratio) == (0, 0, 0, 1.0)
    assert not store.has_attachments
    assert list(store) == []
