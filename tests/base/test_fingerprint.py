"""Fingerprints are made of content and settings, and of all of them."""

from __future__ import annotations

import numpy as np
import pytest

from brimful.base.fingerprint import (
    canonical_json,
    differing_keys,
    fingerprint_array,
    fingerprint_bytes,
    fingerprint_of,
    short,
    short_digest,
)


def test_fingerprints_never_change():
    """Without it a new release would throw away every cache and refuse every store."""
    assert fingerprint_of({"capacity": 8192}) == "27629b9abbce2f2d923396be14996e56"
    assert fingerprint_bytes(b"abc") == "06b05ab6733a618578af5f94892f3950"
    assert fingerprint_array(np.array([3, 3, 5, 6, 1, 1])) == "2e2fec6915f5addd4be2b46cc3028b9a"
    assert short_digest(b"abc") == 4_348_137_248_518_544_552


def test_the_order_of_keys_does_not_matter_and_the_order_of_a_list_does():
    """Without it equal settings would differ, or reordered data would pass as the same."""
    assert fingerprint_of({"a": 1, "b": 2}) == fingerprint_of({"b": 2, "a": 1})
    assert fingerprint_of([1, 2]) != fingerprint_of([2, 1])


@pytest.mark.parametrize(("one", "other"), [(1, "1"), (None, "null"), (["ab"], ["a", "b"]), ([[1], 2], [1, [2]])])
def test_different_values_differ(one, other):
    """Without it two settings could share one cache entry."""
    assert fingerprint_of(one) != fingerprint_of(other)


def test_canonical_json_is_utf8_without_spaces():
    """Without it the bytes, and so every fingerprint, could depend on the writer of JSON."""
    assert canonical_json({"b": [1, True], "a": "é\ud800"}) == b'{"a":"\xc3\xa9\xed\xa0\x80","b":[1,true]}'


def test_not_a_number_is_refused():
    """Without it bytes that are no JSON would be fingerprinted."""
    with pytest.raises(ValueError, match="JSON"):
        canonical_json(float("nan"))


def test_an_array_is_its_values_whatever_its_dtype_and_memory():
    """Without it lengths from NumPy, a list and a file would have different fingerprints."""
    values = np.array([3, 3, 5, 6, 1, 1])
    same = [values.astype(dtype) for dtype in (np.int8, np.uint16, np.int32, np.uint64, ">i4")]
    same += [np.repeat(values, 2)[::2], np.asfortranarray(values)]
    assert {fingerprint_array(array) for array in same} == {fingerprint_array(values)}


def test_what_is_no_integer_is_its_bytes_and_its_dtype():
    """Without it costs of 0.25 and of 0.75 are the same costs, and a loader goes on with other packs."""
    arrays = [
        np.array([0.25, 1.0]),
        np.array([0.75, 1.0]),
        np.array([0.0, 1.0]),
        np.array([0.0, 1.0], dtype=np.float32),
        np.array([0, 1]),
        np.array([False, True]),
        np.array([2**64 - 1, 1], dtype=np.uint64),
        np.array([-1, 1]),
    ]
    assert len({fingerprint_array(array) for array in arrays}) == len(arrays)
    assert fingerprint_array(arrays[0].astype(">f8")) == fingerprint_array(arrays[0]), (
        "the order of bytes is no content"
    )
    with pytest.raises(TypeError, match="has no fingerprint"):
        fingerprint_array(np.array([None, "a"]))


def test_an_array_differs_by_value_order_and_shape():
    """Without it a changed plan could pass as the old one."""
    arrays = [np.array([1, 2]), np.array([2, 1]), np.array([1, 2, 0]), np.array([[1, 2]]), np.array([[1], [2]])]
    assert len({fingerprint_array(array) for array in arrays}) == 5


def test_long_arrays_are_hashed_to_their_end():
    """Without it a change after the first chunk would go unseen."""
    array = np.zeros((1 << 20) + 2, dtype=np.int32)
    before = fingerprint_array(array)
    assert fingerprint_array(array.astype(np.int64)) == before
    array[-1] = 1
    assert fingerprint_array(array) != before


def test_short_is_seven_digits():
    """Without it messages would show fingerprints of different widths."""
    assert short("0123456789abcdef0123456789abcdef") == "0123456"


def test_differing_keys_tells_absent_from_none():
    """Without it a message could not name an option that only one side knows."""
    assert differing_keys({"a": 1, "b": None}, {"a": 2, "c": 3}) == ["a", "b", "c"]
    assert differing_keys({"a": [1]}, {"a": [1]}) == []
