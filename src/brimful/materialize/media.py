"""Media of the packs of a shard: placed in their packs, and named by the fingerprint of their bytes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from brimful.errors import BadSampleError, OversizedSampleError
from brimful.media import BadMediumError, Medium, PlacedMedium, media_of_segment
from brimful.messages import setting
from brimful.ragged import offsets_of
from brimful.typing import Fingerprint, Int64Array, Lengths, Offsets


def media_of_packs(
    media: Mapping[int, Sequence[PlacedMedium]],
    sample_ids: Int64Array,
    starts: Lengths,
    lengths: Lengths,
    segments: Offsets,
    where: Callable[[int], str],
) -> list[list[PlacedMedium]]:
    """Return the media of each of some packs.

    Args:
        media: of each sample that has some.
        sample_ids, starts, lengths: of the segments, as in ``PackRows``.
        segments: first segment of each pack, and the end.
        where: file and line of a sample.

    Raises:
        BadSampleError: a medium that cannot be read.
        OversizedSampleError: a sample was cut within a medium.
    """
    places = offsets_of(lengths).tolist()
    packs: list[list[PlacedMedium]] = []
    for first, end in zip(segments[:-1].tolist(), segments[1:].tolist(), strict=True):
        pack: list[PlacedMedium] = []
        for row in range(first, end):
            sample_id = int(sample_ids[row])
            try:
                items = list(
                    media_of_segment(
                        media.get(sample_id, ()),
                        start=int(starts[row]),
                        length=int(lengths[row]),
                        segment=row - first,
                        offset=places[row] - places[first],
                    )
                )
            except BadMediumError as error:
                raise OversizedSampleError(
                    f"{where(sample_id)} (sample {sample_id}): {error}; choose {setting('overflow', 'drop')}"
                ) from error
            pack += [replace(item, fingerprint=_fingerprint(item, sample_id, where)) for item in items]
        packs.append(pack)
    return packs


def _fingerprint(item: PlacedMedium, sample_id: int, where: Callable[[int], str]) -> Fingerprint:
    try:
        return item.medium.fingerprint() if item.medium.data is not None else _fingerprint_of_file(item.medium)
    except BadMediumError as error:
        raise BadSampleError(f"{item.title}: {error}", sample_id=sample_id, where=where(sample_id)) from error


@lru_cache(maxsize=1 << 16)
def _fingerprint_of_file(medium: Medium) -> Fingerprint:
    # One picture often has several captions: it is read once.
    return medium.fingerprint()
