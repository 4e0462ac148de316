"""The only source of randomness: a stream of bits keyed by (seed, epoch, purpose).

NumPy promises that its bit generators never change their output, and makes no such promise for
``shuffle`` or ``permutation`` (NEP 19). Orders here are therefore derived from raw bits, so that
any later NumPy on any platform reproduces a plan made today.

>>> generator(seed=0, epoch=0, purpose="pack order").permutation(5)
array([1, 0, 4, 2, 3])
"""

import numpy as np
import xxhash

from brimful.base.typing import Int64Array


class RandomStream:
    """A stream of 64-bit words from a Philox counter, and the orders and numbers derived from
    them.
    """

    def __init__(self, key: int) -> None:
        self._bits = np.random.Philox(key=key)

    def words(self, count: int) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
        """Return ``uint64[count]`` uniform words."""
        return np.asarray(self._bits.random_raw(count), dtype=np.uint64)

    def permutation(self, count: int) -> Int64Array:
        """Return ``int64[count]``: the numbers 0 to count-1 in random order.

        It sorts random keys; of tied keys (2**-64 per pair) the smaller number comes first, so the
        order is exact.
        """
        return np.argsort(self.words(count), kind="stable").astype(np.int64, copy=False)

    def integers(self, count: int, *, below: int) -> Int64Array:
        """Return ``int64[count]`` numbers in [0, below); the bias of the modulo is under 2**-32."""
        return (self.words(count) % np.uint64(below)).astype(np.int64)


def generator(*, seed: int, epoch: int, purpose: str) -> RandomStream:
    """Return the stream for one purpose: the same words for the same arguments.

    Args:
        seed: chosen by the user.
        epoch: number of the pass over the data, from 0.
        purpose: a constant text that names the use, so that two uses never share words.
    """
    material = f"brimful/{seed}/{epoch}/{purpose}".encode()
    return RandomStream(xxhash.xxh3_128_intdigest(material))
