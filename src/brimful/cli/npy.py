"""Numbers in ``.npy`` and ``.npz`` files."""

from typing import Any

import numpy as np

from brimful.errors import BrimfulError, InvalidLengthsError, SourceNotFoundError
from brimful.measure import LengthTable


def numbers_from_npy(path: str, *, flag: str = "", error_type: type[BrimfulError] = InvalidLengthsError) -> Any:
    """Open the array of a .npy file, or the named arrays of a .npz file.

    Args:
        path: of the file.
        flag: that named it, with a blank behind, for messages.
        error_type: of a file that holds no numbers.

    Raises:
        SourceNotFoundError: no such file.
        InvalidLengthsError: it holds no numbers; or the other error type.
    """
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError as error:
        raise SourceNotFoundError(f"{flag}{path}: no such file") from error
    except (ValueError, EOFError, OSError) as error:
        raise error_type(f"{flag}{path} is no .npy file of numbers: {error}") from error


def lengths_from_npy(path: str) -> LengthTable:
    """Return a table of the whole numbers in a .npy file, or of the named columns in a .npz file.

    Raises:
        SourceNotFoundError: no such file.
        InvalidLengthsError: no such file of numbers, no whole numbers, none at all, or one below 1.
    """
    numbers = numbers_from_npy(path)
    try:
        if isinstance(numbers, np.ndarray):
            table = LengthTable.from_lengths(numbers)
        else:
            # Columns of the file become arguments, and tokens are called lengths there.
            columns = {"lengths" if name == "tokens" else name: numbers[name] for name in numbers}
            if "lengths" not in columns:
                raise InvalidLengthsError(f"it has {', '.join(numbers)}, and the lengths must be named tokens")
            table = LengthTable.from_lengths(**columns)
    except InvalidLengthsError as error:
        raise InvalidLengthsError(f"{path}: {error.message}") from error
    if len(table) == 0:
        raise InvalidLengthsError(f"{path} holds nothing: there are no lengths")
    return table
