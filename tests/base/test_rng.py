"""Randomness is a function of (seed, epoch, purpose), for ever."""

from __future__ import annotations

import numpy as np

from brimful.base.rng import generator


def _order(**changed):
    return generator(**{"seed": 7, "epoch": 2, "purpose": "pack order", **changed}).permutation(6).tolist()


def test_words_never_change():
    """Without it an order made today could not be made again by a later release."""
    words = generator(seed=0, epoch=0, purpose="pack order").words(3)
    assert words.dtype == np.uint64
    assert words.tolist() == [10253233749081396894, 8162028135817437860, 13903689294608733889]


def test_a_permutation_is_the_order_of_the_words():
    """Without it the order would depend on NumPy's shuffle, which NumPy may change (NEP 19)."""
    words = generator(seed=7, epoch=2, purpose="pack order").words(6).tolist()
    order = generator(seed=7, epoch=2, purpose="pack order").permutation(6)
    assert order.dtype == np.int64
    assert order.tolist() == sorted(range(6), key=words.__getitem__) == [4, 0, 1, 3, 5, 2]


def test_seed_epoch_and_purpose_each_give_another_order():
    """Without it two epochs or two uses could share their randomness."""
    orders = [_order(), _order(seed=8), _order(epoch=3), _order(purpose="sample order")]
    assert _order() == orders[0]
    assert len({tuple(order) for order in orders}) == 4


def test_seed_and_epoch_do_not_run_together():
    """Without it seed 1, epoch 11 could equal seed 11, epoch 1."""
    assert _order(seed=1, epoch=11) != _order(seed=11, epoch=1)


def test_a_stream_goes_on_where_it_stopped():
    """Without it the second draw of a stream would repeat the first."""
    whole = generator(seed=0, epoch=0, purpose="x").words(6).tolist()
    stream = generator(seed=0, epoch=0, purpose="x")
    assert stream.words(2).tolist() + stream.words(4).tolist() == whole


def test_integers_are_the_words_modulo_the_bound():
    """Without it numbers could leave the range or change with the platform."""
    words = generator(seed=0, epoch=0, purpose="x").words(5).tolist()
    numbers = generator(seed=0, epoch=0, purpose="x").integers(5, below=10)
    assert numbers.dtype == np.int64
    assert numbers.tolist() == [word % 10 for word in words]


def test_nothing_to_order():
    """Without it an empty data set would fail in NumPy."""
    assert generator(seed=0, epoch=0, purpose="x").permutation(0).tolist() == []
