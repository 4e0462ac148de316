"""Checks of the files that ``Dataset.save_to_disk`` wrote, before ``datasets`` maps them.

``datasets`` maps the Arrow files of a saved data set and trusts their contents. If a file is damaged, reading can kill
the process; if it was cut short between two batches, its rows are silently missing. Here the frames of each file are
compared with its size, and the columns of each batch with their buffers, which costs milliseconds. The values are
compared with their offsets when they are read (``HuggingFaceRows``).
"""

import json
import os
from typing import Any

from brimful.errors import SourceError

_END = b"\xff\xff\xff\xff\0\0\0\0"
"""The last bytes of an Arrow stream."""


def saved_files(path: str) -> list[tuple[str, int]]:
    """Return the Arrow files of a saved data set in order, each with its number of rows.

    Raises:
        SourceError: one of its files is missing, cut short or damaged.
    """
    state = _json(os.path.join(path, "state.json"))
    info = _json(os.path.join(path, "dataset_info.json"))
    try:
        names = [str(entry["filename"]) for entry in state["_data_files"]]
    except (KeyError, TypeError) as error:
        raise SourceError(f"{path}/state.json is damaged: it does not name the data files") from error
    return [(file := os.path.join(path, name), _checked_rows(file, info)) for name in names]


def saved_splits(path: str) -> list[str]:
    """Return the names of the splits in a saved ``DatasetDict``; none in a saved ``Dataset``."""
    if not os.path.exists(name := os.path.join(path, "dataset_dict.json")):
        return []
    splits = _json(name).get("splits")
    if not isinstance(splits, list) or not splits:
        raise SourceError(f"{name} is damaged: it does not name the splits")
    return [str(split) for split in splits]


def _json(path: str) -> dict[str, Any]:
    """Read a JSON object, or say which file is missing or damaged."""
    try:
        with open(path, "rb") as file:
            value = json.load(file)
    except FileNotFoundError as error:
        raise SourceError(f"{path} is missing: every saved data set has one") from error
    except ValueError as error:
        raise SourceError(f"{path} is damaged: {error}") from error
    if not isinstance(value, dict):
        raise SourceError(f"{path} is damaged: it holds {type(value).__name__}")
    return value


def _checked_rows(path: str, info: dict[str, Any]) -> int:
    """Return the number of rows in an Arrow file after checking its frames and columns."""
    import pyarrow as pa

    try:
        # A file that was cut short between two batches is a stream without an end, which Arrow accepts.
        with open(path, "rb") as file:
            file.seek(-min(len(_END), os.fstat(file.fileno()).st_size), os.SEEK_END)
            if file.read() != _END:
                raise SourceError(f"{path} is cut short: save the data set again")
        num_rows = 0
        with pa.memory_map(path) as file, pa.ipc.open_stream(file) as stream:
            # datasets converts all values of columns whose saved type differs when it opens them: check them first.
            must_check_values = not _has_saved_types(stream.schema, info)
            for batch in stream:
                batch.validate(full=must_check_values)
                num_rows += batch.num_rows
    except FileNotFoundError as error:
        raise SourceError(f"{path} is missing: save the data set again") from error
    except (pa.ArrowException, OSError, ValueError, MemoryError) as error:
        raise SourceError(f"{path} is damaged: {str(error).splitlines()[0]}") from error
    return num_rows


def _has_saved_types(schema: Any, info: dict[str, Any]) -> bool:
    """Return true if the columns of a file have the types in the data set's description."""
    import datasets

    try:
        features = datasets.Features.from_dict(info["features"])
    except (KeyError, TypeError, ValueError, AttributeError):
        return False
    return bool(features.arrow_schema.remove_metadata().equals(schema.remove_metadata()))
