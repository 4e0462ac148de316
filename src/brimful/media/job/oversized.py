"""Samples with media that are longer than a pack: they are not cut, and the error names settings that shorten them."""

import numpy as np

from brimful.encode.encoder import Encoder
from brimful.errors import BrimfulError, OversizedSampleError
from brimful.lengths.table import LengthTable
from brimful.media import PlacedMedium
from brimful.media.encode.chat import MediaChatEncoder
from brimful.messages import counted, setting
from brimful.plan import Overflow, PlanSettings
from brimful.sources.source import Source

_REMEDIES = {
    "max_pixels": f"smaller images with {setting('max_pixels')}",
    "fps": f"fewer frames with {setting('fps')} and {setting('max_frames')}",
    "video_max_pixels": f"smaller frames with {setting('video_max_pixels')}",
}
"""Words for each setting of a family that makes fewer tokens of a medium (``Family.remedies``)."""


def check_media_fit(table: LengthTable, settings: PlanSettings, source: Source, encoder: Encoder) -> None:
    """Reject a sample with media that exceeds a pack in tokens or another budget, unless such samples are dropped.

    Raises:
        OversizedSampleError: names the largest of them, its largest medium, and the settings that make it smaller.
    """
    if not encoder.takes_media or settings.overflow_policy is Overflow.DROP:
        return
    has_media = np.any([table.budgets[name] > 0 for name in encoder.budgets], axis=0)
    limits = {"tokens": settings.usable, **(settings.budgets or {})}
    for name, limit in limits.items():
        # Budgets that follow from lengths have no columns; planning itself checks them.
        too_large = np.flatnonzero(has_media & (table.budgets[name] > limit)) if name in table.budgets else ()
        if len(too_large):
            sample_id = int(too_large[np.argmax(table.budgets[name][too_large])])
            size = int(table.budgets[name][sample_id])
            way_out = setting("capacity", size) if name == "tokens" else setting("budgets", {name: size})
            item = _largest_medium(source, encoder, sample_id)
            share = "" if item is None or name != "tokens" else f", {item.length:,} of them of its {item.title}"
            others = f" (and {counted(len(too_large) - 1, 'more sample')} with media)" if len(too_large) > 1 else ""
            raise OversizedSampleError(
                f"{source.where(sample_id)} (sample {sample_id}){others} has {size:,} {name.replace('_', ' ')}{share}, and "
                f"a pack holds {limit:,}: samples with media are not cut. Choose "
                f"{remedy_of(source, encoder, sample_id)}{setting('overflow', 'drop')}, or {way_out}"
            )


def remedy_of(source: Source, encoder: Encoder, sample_id: int) -> str:
    """Return settings that shorten the largest medium of a sample, each with a comma after it; empty without any."""
    item = _largest_medium(source, encoder, sample_id)
    if item is None or not isinstance(encoder, MediaChatEncoder):
        return ""
    names = encoder.family.remedies.get(item.medium.kind, ())
    return "".join(f"{_REMEDIES[name]}, " for name in names if name in _REMEDIES)


def _largest_medium(source: Source, encoder: Encoder, sample_id: int) -> PlacedMedium | None:
    """Return the medium with the largest number of tokens; a table has only sums, so the sample is encoded again."""
    try:
        media = encoder.encode(source[sample_id]).media
    except BrimfulError:
        return None  # changed since it was measured: the caller reports its length
    return max(media, key=lambda item: item.length, default=None)
