"""Pack stores for tests, and what is in them."""

import hashlib
from pathlib import Path

from brimful import (
    measure_lengths,
    open_source,
    plan_packs,
    write_packs,
)
from brimful.testing.toys import toy_chat_encoder


def texts(*lengths):
    return [{"text": chr(97 + number % 26) * length} for number, length in enumerate(lengths)]


def tree(directory):
    """Every committed file with a digest of its content."""
    root = Path(directory)
    return {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(root.rglob("*"))
        if path.is_file() and not {"tmp", "log", "summary.json"} & set(path.relative_to(root).parts)
    }


def written(directory, lengths, capacity, **options):
    source, encoder = open_source(texts(*lengths)), toy_chat_encoder()
    plan = plan_packs(measure_lengths(source, encoder, targets=False), capacity=capacity, **options)
    write_packs(plan, source, encoder, directory, shard_bytes=4 * capacity * 3)
    return source, encoder, plan
