"""Media of a pack as files of an export: their bytes, each once, and their places as JSON."""

import re
from typing import Any

from brimful.errors import StoreError
from brimful.media import BadMediumError, PlacedMedium
from brimful.store.shards import Pack

_SUFFIX = re.compile(r"\.([A-Za-z0-9]{1,5})$")


def read_medium(pack: Pack, index: int, item: PlacedMedium) -> bytes:
    """Return the bytes of a medium of a pack.

    Args:
        pack: that holds it.
        index: of the pack, for the message.
        item: the medium.

    Raises:
        StoreError: the medium is gone or was changed; names pack, sample and medium.
    """
    try:
        return item.read()
    except BadMediumError as error:
        sample_id = int(pack.sample_ids[item.segment])
        raise StoreError(f"pack {index}, sample {sample_id}: {item.title} {error}") from error


def suffix_of(name: str, default: str) -> str:
    """Return the ending of a name in lowercase, without its dot.

    >>> suffix_of("a b.c.JPG", "image"), suffix_of("a.b c", "image")
    ('jpg', 'image')
    """
    match = _SUFFIX.search(name)
    return match[1].lower() if match else default


def place_as_json(item: PlacedMedium, part: str | int) -> dict[str, Any]:
    """Return the place of a medium among the tokens of its pack.

    Args:
        item: the medium.
        part: the member of the pack that has its bytes, or their index.
    """
    facts = {name: value for name, value in vars(item).items() if name != "medium"}
    return {"part": part, "kind": item.medium.kind.value, "name": item.medium.name, **facts}
