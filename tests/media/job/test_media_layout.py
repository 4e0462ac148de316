"""Where the bytes of media go."""

import hashlib
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brimful.base.attachment import AttachmentStorage
from brimful.base.ragged import offsets_of
from brimful.media import MediaKind, Medium, PlacedMedium
from brimful.media.job.media_layout import MediaLayout
from brimful.media.job.survey import MediaSurvey
from brimful.plan import plan_packs

PICTURE = PlacedMedium(Medium(MediaKind.IMAGE, "a", "/a"), start=0, length=1, num_tokens=1)


def survey_of(media, in_row=()):
    """A survey of samples whose media are letters; a letter takes as many bytes as its place in the alphabet.

    A capital is the same content as its small letter, as another kind.
    """
    letters = [letter for sample in media for letter in sample]
    sizes = np.array([ord(letter.lower()) - 96 for letter in letters], dtype=np.int64)
    digests = np.array([(0, ord(letter.lower())) for letter in letters], dtype=np.uint64).reshape(-1, 2)
    kinds = np.array([letter.isupper() for letter in letters], dtype=np.int8)
    stamps = np.array([0 if letter in in_row else 7 for letter in letters], dtype=np.int64)
    return MediaSurvey(offsets_of([len(sample) for sample in media]), digests, sizes, stamps, kinds)


def plan_of(*packs):
    """A plan with these packs of samples, by lengths that allow nothing else."""
    num_samples = max(sample for pack in packs for sample in pack) + 1
    plan = plan_packs(np.full(num_samples, 4), capacity=4 * max(map(len, packs)), algorithm="next_fit", seed=None)
    sample_ids = np.array([sample for pack in packs for sample in pack])
    object.__setattr__(plan, "sample_ids", sample_ids)
    object.__setattr__(plan, "offsets", offsets_of([len(pack) for pack in packs]))
    return plan


def test_each_medium_goes_to_the_shard_that_uses_it_first():
    """Samples 0 … 4 have the media ab, c, b, (none) and da; packs are 2·0, 1·3 and 4, one a shard."""
    survey = survey_of(["ab", "c", "b", "", "da"])
    layout = MediaLayout.of(plan_of([2, 0], [1, 3], [4]), survey, AttachmentStorage.BYTES)
    assert [survey.sizes[row] for row in layout.first_uses] == [2, 1, 3, 4]  # b a c d
    placed = replace(layout, packs_of_shard=1)
    assert placed.shards.tolist() == [0, 0, 1, 2]
    assert placed.positions.tolist() == [512, 1536, 512, 512]  # behind a header of tar each
    last = placed.of_samples(2, np.array([4]))
    assert last.containers.tolist() == [2, 0], "a lies in the container of shard 0"
    assert (last.positions.tolist(), last.is_new.tolist()) == ([512, 1536], [True, False])
    assert layout.stored_bytes == 4 * 1024
    assert layout.packs_per_shard(7, 3) == 7


def test_references_store_only_what_is_in_no_file():
    """A file stays in its place; bytes of a row are in no other place."""
    layout = MediaLayout.of(plan_of([0, 1]), survey_of(["ab", "b"], in_row="b"), AttachmentStorage.REFERENCES)
    assert layout.stored_index.tolist() == [-1, 0, 0]
    assert (layout.num_stored, layout.num_references) == (1, 1)


@pytest.mark.parametrize(("storage", "num_stored"), [("bytes", 3), ("references", 1)])
def test_distinct_media_are_counted_where_they_are_used_first(storage, num_stored):
    """Stored or not; a film whose sound is a medium too is one of each kind, and its bytes are stored once."""
    survey = survey_of(["ab", "ca", "Aa", "d"], in_row="b")
    layout = MediaLayout.of(plan_of([1], [0, 2]), survey, AttachmentStorage(storage))
    assert layout.first_use_packs.tolist() == [-1, 1, 0, 0, 1, -1, -1]
    assert layout.num_stored == num_stored
    placed = replace(layout, packs_of_shard=1)
    samples = [np.array([1]), np.array([0, 2])]
    assert [int(placed.of_samples(shard, ids).is_first_use.sum()) for shard, ids in enumerate(samples)] == [2, 2]


def test_a_sample_that_is_drawn_again_brings_no_distinct_medium():
    """A mixture repeats samples, in the same pack, shard or a later one."""
    layout = MediaLayout.of(plan_of([0, 0], [1], [0, 1]), survey_of(["ab", "c"]), AttachmentStorage.REFERENCES)
    samples = [np.array([0]), np.array([1]), np.array([0, 1])]
    assert [
        int(replace(layout, packs_of_shard=1).of_samples(n, ids).is_first_use.sum()) for n, ids in enumerate(samples)
    ] == [2, 1, 0]


def test_media_of_dropped_samples_are_not_stored():
    """Sample 1 is in no pack."""
    layout = MediaLayout.of(plan_of([0, 2]), survey_of(["a", "b", "a"]), AttachmentStorage.BYTES)
    assert (layout.num_stored, layout.stored_index.tolist()) == (1, [0, -1, 0])


def test_a_container_keeps_its_size(monkeypatch):
    """Large media make shards of fewer packs: what a killed job loses stays small."""
    monkeypatch.setattr("brimful.media.job.media_layout.CONTAINER_BYTES", 2048)
    layout = MediaLayout.of(plan_of([0], [1], [2], [3]), survey_of(["a", "b", "c", "d"]), AttachmentStorage.BYTES)
    assert layout.packs_per_shard(100, 4) == 2


@given(
    st.lists(st.text("abcdeABC", max_size=4), min_size=1, max_size=12).flatmap(
        lambda media: st.tuples(
            st.just(media), st.permutations(range(len(media))), st.integers(1, 4), st.integers(1, 3)
        )
    )
)
def test_every_distinct_medium_is_stored_once(case):
    """Law: of equal bytes one copy; every use finds it; new ones come in the order of packs, none over another."""
    media, order, samples_a_pack, packs_a_shard = case
    contents, num_distinct = "".join(media).lower(), 0
    packs = [order[begin : begin + samples_a_pack] for begin in range(0, len(order), samples_a_pack)]
    survey, plan = survey_of(media), plan_of(*packs)
    placed = replace(MediaLayout.of(plan, survey, AttachmentStorage.BYTES), packs_of_shard=packs_a_shard)
    new, uses = {}, []
    for shard, begin in enumerate(range(0, len(packs), packs_a_shard)):
        samples = [sample for pack in packs[begin : begin + packs_a_shard] for sample in pack]
        facts, end = placed.of_samples(shard, np.array(samples)), 0
        num_distinct += int(facts.is_first_use.sum())
        for sample in samples:
            (index,) = facts.indices_of(np.array([sample]))
            for row, letter in zip(facts.rows_of(index), media[sample].lower(), strict=True):
                item = facts.stored(row, PICTURE)
                place = item.shard, item.medium.offset
                uses.append((letter, place))
                if facts.is_new[row]:
                    assert letter not in new
                    new[letter] = place
                    assert place == (shard, end + 512)
                    end += 1024
    assert set(new) == set(contents)
    assert num_distinct == len(set("".join(media)))
    assert all(place == new[letter] for letter, place in uses)


def test_another_picture_is_another_job():
    """A job that goes on with other pictures would mix two layouts in one store."""
    plan = plan_of([0, 1])
    one, other = (MediaLayout.of(plan, survey_of(media), AttachmentStorage.BYTES) for media in (["a", "b"], ["a", "c"]))
    assert one.fingerprint != other.fingerprint
    assert one.fingerprint != MediaLayout.of(plan, survey_of(["a", "b"]), AttachmentStorage.REFERENCES).fingerprint


@pytest.mark.parametrize("storage", AttachmentStorage)
def test_no_media_at_all(storage):
    """Texts through an encoder of pictures."""
    layout = MediaLayout.of(plan_of([0, 1]), survey_of(["", ""]), storage)
    placed = replace(layout, packs_of_shard=1)
    assert (layout.stored_bytes, placed.of_samples(0, np.array([0])).offsets.tolist()) == (0, [0, 0])


def test_facts_of_a_shard_are_numbers_in_arrays():
    """A shard of short samples has a million media: a dictionary of them would take ten times as much in its writer."""
    num_samples = 20_000
    survey = MediaSurvey(
        np.arange(num_samples + 1),
        np.arange(2 * num_samples, dtype=np.uint64).reshape(-1, 2),
        np.ones(num_samples, dtype=np.int64),
        np.ones(num_samples, dtype=np.int64),
        np.zeros(num_samples, dtype=np.int8),
    )
    layout = MediaLayout.of(plan_of([*range(num_samples)]), survey, AttachmentStorage.BYTES)
    facts = replace(layout, packs_of_shard=1).of_samples(0, np.arange(num_samples))
    assert sum(np.asarray(value).nbytes for value in vars(facts).values()) <= 80 * num_samples
    assert all(isinstance(value, np.ndarray) for value in vars(facts).values())


@pytest.mark.parametrize(
    ("storage", "expected"),
    [("references", "90cc85f2124c7257"), ("bytes", "71ab84eabf7e77b9"), ("features", "b59a28f48631d01f")],
)
def test_random_layouts_are_what_they_were(storage, expected, monkeypatch):
    """Every number of a layout and of the writers of its shards: another place would be another store."""
    monkeypatch.setattr("brimful.media.job.media_layout.CONTAINER_BYTES", 4096)
    digest = hashlib.sha256()
    for seed in range(100):
        generator = np.random.default_rng([22, seed])
        num_samples = int(generator.integers(1, 9))
        media = ["".join(generator.choice([*"abcdABC"], generator.integers(0, 4))) for _ in range(num_samples)]
        order = generator.permutation(num_samples)[: max(1, num_samples - seed % 3)].tolist()
        packs = [order[begin : begin + 2] for begin in range(0, len(order), 2)]
        survey = survey_of(media, in_row="bc")
        layout = MediaLayout.of(plan_of(*packs), survey, AttachmentStorage(storage))
        if storage == "features":
            layout = replace(layout, stored_sizes=layout.stored_sizes * 700, features={"settings": "x"})
        per_shard = layout.packs_per_shard(3, len(packs))
        placed = replace(layout, packs_of_shard=per_shard)
        values = [
            *(layout.is_used, layout.first_uses, layout.stored_index, layout.first_packs, layout.first_use_packs >= 0),
            *(layout.stored_sizes, placed.shards, placed.positions),
        ]
        for shard in range(-(-len(packs) // per_shard)):
            ids = [sample for pack in packs[shard * per_shard : (shard + 1) * per_shard] for sample in pack]
            values += [*vars(placed.of_samples(shard, np.array(ids))).values()]
        numbers = [
            layout.num_stored,
            layout.num_references,
            layout.stored_bytes,
            per_shard,
            dict(layout.features or {}),
        ]
        digest.update(repr([numbers, [value.tolist() for value in values]]).encode())
    assert digest.hexdigest()[:16] == expected
