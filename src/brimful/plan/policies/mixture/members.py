"""Sources of a mixture in a length table, and how often each sample was used."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from brimful.checks import check_type, whole_number
from brimful.errors import PlanMismatchError, SettingsError
from brimful.lengths.table import LengthTable
from brimful.messages import setting
from brimful.plan.policies.mixture.spec import Mixture
from brimful.ragged import offsets_of
from brimful.typing import AnyIntArray, Int64Array, Offsets


def members_of(table: LengthTable, mixture: Mixture, sources: Mapping[str, int] | None) -> tuple[list[str], Offsets]:
    """Return names of the sources in the order of the samples, and the first sample of each.

    Args:
        table: lengths of all samples.
        mixture: mixture with a weight for each source.
        sources: number of samples of each source, by name and in the order of the table; None for the measured files.

    Returns:
        Names, and ``int64[num_sources + 1]``: source ``i`` has the samples ``offsets[i] … offsets[i + 1] - 1``.

    Raises:
        SettingsError: a source without a weight, or a weight without a source.
        PlanMismatchError: the sources and the table differ in the number of samples.

    >>> table = LengthTable.from_lengths([3, 5, 4])
    >>> members_of(table, Mixture(weights={"chat": 3, "code": 1}), {"code": 2, "chat": 1})
    (['code', 'chat'], array([0, 2, 3]))
    """
    if sources is None:
        parts = table.provenance.get("parts") or []
        sources = {str(name): int(count) for name, count in parts}
        if len(sources) != len(parts) or not parts:
            raise SettingsError(
                f"the lengths do not say which sample is of which source: give {setting('sources')}, the number of samples "
                f"of each source"
            )
    check_type("sources", sources, Mapping, "a mapping such as {'chat': 7473, 'code': 1319}")
    for name in sources:
        if name not in mixture.weights:
            raise SettingsError(
                f"{setting('mixture')} has no weight for source {name}: give one, or leave the source out of the data"
            )
    for name in mixture.weights:
        if name not in sources:
            raise SettingsError(
                f"{setting('mixture')} has a weight for {name}, and the sources are {', '.join(sources)}"
            )
    counts = [whole_number(f"the number of samples of {name}", count, minimum=1) for name, count in sources.items()]
    if sum(counts) != len(table):
        raise PlanMismatchError(
            f"the sources of the mixture have {sum(counts):,} samples and the lengths {len(table):,}"
        )
    return list(sources), offsets_of(counts)


def as_uses(uses: AnyIntArray | None, num_samples: int) -> Int64Array:
    """Return how often each sample was consumed: ``int64[num_samples]``, zeros for None.

    Raises:
        SettingsError: a wrong number of samples, or not counts.
    """
    if uses is None:
        return np.zeros(num_samples, dtype=np.int64)
    array = np.asarray(uses)
    if array.shape != (num_samples,) or array.dtype.kind not in "iu" or (num_samples and int(array.min()) < 0):
        raise SettingsError(
            f"{setting('uses')} must hold how often each of the {num_samples:,} samples was consumed and has shape "
            f"{array.shape} of {array.dtype}"
        )
    return array.astype(np.int64)


def count_uses(
    sample_ids: AnyIntArray, starts: AnyIntArray, num_samples: int, before: AnyIntArray | None = None
) -> Int64Array:
    """Count how often each sample was consumed; a sample of several segments counts if any of them was consumed.

    Args:
        sample_ids: ``int[num_segments]``, samples of the consumed segments.
        starts: ``int[num_segments]``, first token of the sample in each segment.
        num_samples: number of all samples.
        before: ``int[num_samples]``, counts to add to; None for zeros.

    Returns:
        ``int64[num_samples]``.

    >>> count_uses(np.array([0, 2, 2, 2]), np.array([0, 0, 0, 8]), 3).tolist()
    [1, 0, 2]
    """
    total = as_uses(before, num_samples)
    if not len(sample_ids):
        return total
    order = np.lexsort((starts, sample_ids))
    ids, begins = np.asarray(sample_ids)[order], np.asarray(starts)[order]
    edges = np.flatnonzero(np.r_[True, (ids[1:] != ids[:-1]) | (begins[1:] != begins[:-1])])
    counts: Int64Array = np.zeros(num_samples, dtype=np.int64)
    # If a sample has several segments, its count is the count of its most frequent segment.
    np.maximum.at(counts, ids[edges], np.diff(np.r_[edges, len(ids)]))
    return total + counts
