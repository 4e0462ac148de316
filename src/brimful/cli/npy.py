"""Numbers in ``.npy`` and ``.npz`` files."""

from typing import Any

import numpy as np

from brimful.errors import BrimfulError, InvalidLengthsError, SourceNotFoundError
from brimful.measure import LengthTable


def numbers_from_npy(path: str, *, flag: str = "", error_type: type[BrimfulError] = InvalidLengthsError) -> Any:
    """Open the array of a .npy file, or the named arrays of a .npz file.

    Args:
        path: the file.
        flag: the flag that named it, with a trailing blank, for messages.
        error_type: error class for a file that holds no numbers.

    Raises:
        SourceNotFoundError: no such file.
        InvalidLengthsError: it holds no numbers; or the other error type.
    """
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError as error:
        raise SourceNotFoundError(f"{flag}{path}: no such file") from error
    except (ValueError, EOFError, OSError) as error:
        raise error_type(f"{flag}{path} is not a .npy file of numbers: {error}") from error


def lengths_from_npy(path: str) -> LengthTable:
    """Return a length table from the whole numbers in a .npy file, or from the named columns of a .npz file.

    Raises:
        SourceNotFoundError: no such file.
        InvalidLengthsError: not a file of numbers, no numbers in it, or numbers that are not whole or below 1.
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
        raise InvalidLengthsError(f"{path} holds no lengths")
    return table
