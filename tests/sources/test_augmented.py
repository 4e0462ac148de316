"""A sample after transforms is the same one each time it is read: what is measured is what is trained."""

import pickle
import random
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from brimful import PackedDataset, measure_lengths, plan_packs
from brimful.errors import AugmentationError, BadSampleError, SettingsError
from brimful.sources import open_source
from brimful.sources.augmented import identity_of
from brimful.testing.toys import toy_chat_encoder

ROWS = [{"text": "abcdefgh" * number} for number in range(1, 13)]


def half(sample):
    return replace(sample, text=sample.text[: len(sample.text) // 2])


def cut(sample):
    """As augmentation is written: by the generators of the process."""
    return replace(sample, text=sample.text[: random.randint(1, 4) + int(np.random.randint(1, 4))])


def texts(source):
    return [sample.text for sample in source.read(0, len(source))]


def test_draws_are_of_seed_epoch_and_sample():
    """Not of the order in which samples are read, or of the process's other draws."""
    source = open_source(ROWS).augmented([cut])
    first = texts(source)
    assert [source[number].text for number in reversed(range(12))] == first[::-1]
    assert texts(open_source(ROWS).augmented([cut], seed=1)) != first
    assert texts(open_source(ROWS).augmented([cut], epoch=1)) != first
    assert len(set(texts(open_source([ROWS[-1]] * 8).augmented([cut])))) > 1
    random.seed(3)
    np.random.seed(3)
    undisturbed = (random.random(), np.random.random())
    random.seed(3)
    np.random.seed(3)
    texts(source)
    assert (random.random(), np.random.random()) == undisturbed


def test_measured_planned_and_served_are_the_same_lengths():
    """A half is a half each time. A cut by chance is served from the source that was measured, otherwise refused by name."""
    source, encoder = open_source(ROWS), toy_chat_encoder()
    table = measure_lengths(source, encoder, transforms=[half])
    assert table.tokens.tolist() == [4 * number for number in range(1, 13)]
    packs = PackedDataset.from_plan(source, encoder, plan_packs(table, capacity=64), transforms=[half])
    assert sum(map(len, packs)) == table.tokens.sum()
    drawn = source.augmented([cut], epoch=2)
    table = measure_lengths(drawn, encoder)
    plan = plan_packs(table, capacity=64)
    assert sum(map(len, PackedDataset.from_plan(drawn, encoder, plan))) == table.tokens.sum()
    with pytest.raises(
        AugmentationError, match=r"cut changed its length.*serve source\.augmented\(transforms, epoch=…\)"
    ):
        list(PackedDataset.from_plan(source, encoder, plan, transforms=[cut]))


def test_the_same_rows_elsewhere_have_other_draws():
    """A block is found by its content. Without its place in the identity, draws of other samples would be taken for these."""
    source = open_source([{"text": "abcdefgh"}] * 8192)
    first, second = source.augmented([cut]).blocks
    assert first.fingerprint != second.fingerprint
    first, second = source.blocks
    assert first.fingerprint == second.fingerprint


def test_lengths_bear_the_identity_of_transforms():
    """Otherwise lengths of other transforms, seeds or epochs are found in the cache."""
    source = open_source(ROWS)
    sources = [source, *(source.augmented(t) for t in ([half], [cut], [half, cut])), source.augmented([half], epoch=1)]
    assert len({augmented.fingerprint for augmented in sources}) == 5
    assert source.augmented([half]).fingerprint == source.augmented([half]).fingerprint
    assert source.augmented([]).fingerprint == source.fingerprint


def test_identity_is_of_code_and_of_what_it_holds():
    class Crop:
        def __init__(self, size):
            self.size = size

        def __call__(self, sample):
            return sample

    def scaled(sample, by):
        return sample

    assert identity_of(Crop(1)) == identity_of(Crop(1)) != identity_of(Crop(2))
    assert (
        identity_of(partial(scaled, by=0.5))
        == identity_of(partial(scaled, by=0.5))
        != identity_of(partial(scaled, by=2))
    )
    assert identity_of(Crop(np.zeros(2))) != identity_of(Crop(np.ones(2)))
    assert identity_of(half).startswith("half ")


def test_a_transform_that_fails_names_the_row():
    def fails(sample):
        return sample.text[40] and sample

    with pytest.raises(BadSampleError, match=r"memory\[0\].*cannot be augmented by fails \(IndexError"):
        measure_lengths(open_source(ROWS), toy_chat_encoder(), transforms=[fails])
    with pytest.raises(AugmentationError, match="<lambda> applied to"):
        open_source(ROWS).augmented([lambda sample: sample.text])[0]  # type: ignore[list-item, return-value]


def test_draws_are_of_one_source():
    augmented = open_source(ROWS).augmented([half])
    with pytest.raises(SettingsError, match="augment the joined source"):
        open_source([augmented, open_source(ROWS)])
    with pytest.raises(SettingsError, match="memory is already augmented"):
        measure_lengths(augmented, toy_chat_encoder(), transforms=[half])


def test_a_function_within_another_is_refused_by_workers():
    """Python's error names neither the transform nor what to do."""
    source = open_source(ROWS).augmented([half, lambda sample: sample])
    with pytest.raises(SettingsError, match=r"worker processes cannot have <lambda>.*num_proc=1"):
        pickle.dumps(source)
    assert texts(pickle.loads(pickle.dumps(open_source(ROWS).augmented([cut])))) == texts(
        open_source(ROWS).augmented([cut])
    )
