"""What the demo shows: a line for each thing done, with a check mark and its seconds."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_GREEN, _RED, _BOLD, _PLAIN = "\x1b[32m", "\x1b[31m", "\x1b[1m", "\x1b[0m"


class Line:
    """A line that is being worked on; `text` may be replaced by what was found out."""

    def __init__(self, text: str) -> None:
        self.text = text


class Screen:
    """Prints to standard output; colours only for a person's terminal."""

    def __init__(self, write: Callable[[str], object] = sys.stdout.write) -> None:
        self._write = write
        self._is_terminal = sys.stdout.isatty()

    def step(self, title: str) -> None:
        """Begin a step."""
        self._print(f"\n{self._paint(_BOLD, title)}")

    def say(self, text: str = "") -> None:
        """Print text as it is."""
        self._print(text)

    def command(self, line: str, output: str) -> None:
        """Show a command as a reader would type it, and what it printed."""
        self._print(f"\n{self._paint(_BOLD, '$ ' + line)}\n{output.rstrip()}")

    @contextmanager
    def doing(self, text: str) -> Iterator[Line]:
        """Show what is being done, and when it is done, its seconds."""
        line = Line(text)
        began = time.monotonic()
        if self._is_terminal:
            self._print(f"  … {text}", end="")
        try:
            yield line
        except BaseException:
            self._finish(_RED, "✗", line.text, began)
            raise
        self._finish(_GREEN, "✓", line.text, began)

    def _finish(self, colour: str, mark: str, text: str, began: float) -> None:
        start = "\r\x1b[K" if self._is_terminal else ""
        seconds = time.monotonic() - began
        self._print(f"{start}  {self._paint(colour, mark)} {text} ({seconds:.1f} s)")

    def _paint(self, colour: str, text: str) -> str:
        return f"{colour}{text}{_PLAIN}" if self._is_terminal else text

    def _print(self, text: str, end: str = "\n") -> None:
        self._write(text + end)
        sys.stdout.flush()
