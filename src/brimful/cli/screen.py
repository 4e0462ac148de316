"""A terminal that shows one picture, painted again in place."""

import shutil
import sys
from collections.abc import Iterable
from typing import TextIO

from brimful.cli.flags import in_flags
from brimful.cli.terminal import MIN_WIDTH, fitted
from brimful.stopping import at_the_end

_OPEN, _CLOSE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
"""Controls of every terminal since xterm: a second screen without a cursor, and back to the first one."""

_HOME, _END_OF_LINE, _END_OF_SCREEN = "\x1b[H", "\x1b[K", "\x1b[J"


class Screen:
    """A second screen of the terminal; the first comes back at the end, with the last picture below what was there.

    So it is after a signal too. Each picture is one write, over the last one: nothing flickers, and another size of the
    terminal counts from the next picture on.

    Args:
        stream: a terminal.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stdout
        self._last_lines: list[str] = []
        self._is_open = True
        at_the_end(self.close)
        self._write(_OPEN)

    @property
    def num_lines(self) -> int:
        """Lines that a picture may have."""
        return max(8, shutil.get_terminal_size().lines - 1)

    def paint(self, lines: Iterable[str]) -> None:
        """Show a picture in place of the last one, folded to the terminal; what is too long is cut off at its end."""
        width = max(MIN_WIDTH, shutil.get_terminal_size().columns)
        self._last_lines = [in_flags(line) for line in lines]
        picture = list(fitted(self._last_lines, width))[: self.num_lines]
        self._write(_HOME + "".join(f"{line}{_END_OF_LINE}\n" for line in picture) + _END_OF_SCREEN)

    def close(self) -> None:
        """Go back to the first screen, and leave the last picture on it; a second call does nothing."""
        if self._is_open:
            self._is_open = False
            self._write(_CLOSE + "".join(f"{line}\n" for line in self._last_lines))

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


def is_screen(stream: TextIO, terminal: str) -> bool:
    """Return true if pictures can be painted: a terminal that knows controls.

    Args:
        stream: where to.
        terminal: its name, of the variable ``TERM``.
    """
    return stream.isatty() and terminal != "dumb"
