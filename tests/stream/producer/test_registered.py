"""Producers of one stream: a number and settings by name."""

import pytest

from brimful.base.blobs import LocalBlobStore
from brimful.errors import CorruptFileError, SettingsError, StoreMismatchError
from brimful.stream.producer.registered import SAMPLES_OF_PRODUCER, Producers, Registration


@pytest.fixture
def store(tmp_path):
    return LocalBlobStore(tmp_path)


def test_numbers_follow_each_other(store):
    """Each name has one; its sample ids are its own."""
    producers = Producers(store)
    made = [producers.register(name, {"capacity": 8}) for name in ("a", "b.1_-", "a")]
    assert made == [Registration(0, "a", {"capacity": 8}), Registration(1, "b.1_-", {"capacity": 8}), made[0]]
    assert [one.first_sample_id for one in made[:2]] == [0, SAMPLES_OF_PRODUCER] == [0, 2**44]
    assert producers.all() == made[:2]
    assert producers.since(1) == made[1:2]
    assert producers.since(2) == []
    assert producers.named("b.1_-") == made[1]
    assert producers.named("c") is None
    assert sorted(path.name for path in (store.directory / "producers").iterdir()) == ["000000.json", "000001.json"]


def test_another_that_comes_first_takes_the_number(store, monkeypatch):
    """It is looked for again, under the next one."""
    others = Producers(store)
    put = LocalBlobStore.put_if_absent

    def late(self, key, data):
        monkeypatch.undo()
        others.register("first", {})
        return put(self, key, data)

    monkeypatch.setattr(LocalBlobStore, "put_if_absent", late)
    assert Producers(store).register("second", {}).number == 1


def test_other_settings_are_another_producer(store):
    producers = Producers(store)
    producers.register("a", {"capacity": 8, "lanes": 1})
    with pytest.raises(StoreMismatchError) as refused:
        producers.register("a", {"capacity": 9, "lanes": 1})
    assert str(refused.value) == (
        f"{store.url}: producer a was begun differently: capacity (8 there, 9 here). Go on with the same settings, or choose "
        f"another producer for another source"
    )


@pytest.mark.parametrize("name", ["", "a/b", ".a", "-a", "a b", "é"])
def test_a_name_that_no_file_can_have(store, name):
    with pytest.raises(SettingsError, match="must be of letters, digits, dots, dashes and underscores"):
        Producers(store).register(name, {})


def test_closing(store):
    producers = Producers(store)
    one, other = producers.register("a", {}), producers.register("b", {})
    producers.close(one, {"packs": 3})
    assert [producers.is_closed(one), producers.is_closed(other)] == [True, False]
    assert store.get("producers/000000-closed.json") == b'{"packs": 3}'


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b'{"producer": "a"}'])
def test_a_damaged_registration_is_named(store, data):
    store.put_atomic("producers/000000.json", data)
    with pytest.raises(CorruptFileError, match=r"producers/000000.json is damaged"):
        Producers(store).all()
