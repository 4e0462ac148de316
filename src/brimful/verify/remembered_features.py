"""Features of packs that were already made: ``verify`` collates the same media tens of times."""

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from brimful.collate.extras import PackExtras
from brimful.shards import Pack

_MOST_PACKS = 64
"""Maximum number of packs whose features are kept: some samples, with the changes made to them."""


class RememberedFeatures:
    """A maker of features that keeps them, for a few small packs; training would fill its memory with it.

    Args:
        maker: such as ``MediaFeatures``.

    >>> from brimful.testing.toys import toy_pack
    >>> calls = []
    >>> remembered = RememberedFeatures(lambda pack: calls.append(pack) or PackExtras())
    >>> [remembered(toy_pack([2, 1])) == PackExtras() for _ in range(3)], len(calls)
    ([True, True, True], 1)
    """

    def __init__(self, maker: Callable[[Pack], PackExtras]) -> None:
        self._maker = maker
        self._made: OrderedDict[Any, PackExtras] = OrderedDict()

    def __call__(self, pack: Pack) -> PackExtras:
        """Return the features of a pack, which depend on its media and the lengths of its segments alone."""
        key = (pack.media, tuple(pack.cu_seqlens.tolist()))
        if key not in self._made:
            self._made[key] = self._maker(pack)
            if len(self._made) > _MOST_PACKS:
                self._made.popitem(last=False)
        self._made.move_to_end(key)
        return self._made[key]
