"""The content of a plan's packs, as lists."""


def ids_of(plan):
    """Samples of each pack."""
    return [[segment.sample_id for segment in pack] for pack in plan]


def lengths_of(plan):
    """Lengths of the segments of each pack."""
    return [[segment.length for segment in pack] for pack in plan]


def segments_of(plan):
    """Segments of all packs, by sample and start."""
    return sorted(segment for pack in plan for segment in pack)
