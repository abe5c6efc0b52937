"""A stream of JSON arrays, one after another, cut anywhere → the bytes of each array.

Nothing separates the arrays, but the form of their lines does: text in JSON holds no raw line
break, so in what pw-dump prints a `[` that starts a line starts an array, and a `]` that starts
a line ends it. That needs no look at the bytes between, and it finds the way back after any
garbage. Only for an array that goes on in the line of its `[` are brackets counted.

What is returned may still be no JSON: an array that was broken off ends where the next starts.
Time is linear in the bytes, whatever the pieces; held is one incomplete array at most.
"""

import re

MAX_ARRAY_BYTES = 64 * 2**20
"""An array that isn't complete after so many bytes is given up; pw-dump prints 12 KB a node."""

_LINE_START = re.compile(rb"\n[\[\]]")
_ARRAY_START = re.compile(rb"\n\[|\[\n")
_NOT_BLANK = re.compile(rb"[^ \t\r\n]")
_TOKEN = re.compile(rb'"[^"\\\n]*(?:\\[^\n][^"\\\n]*)*("?)|[\[\]{}]|\n\[')


class ArrayFramer:
    """The bytes seen so far that belong to no complete array yet."""

    def __init__(self, max_array_bytes: int = MAX_ARRAY_BYTES) -> None:
        self._max_array_bytes = max_array_bytes
        self._buffer = bytearray()
        self._start = 0
        """Where the array that is looked at starts, or what is to be skipped before the next."""
        self._scanned = 0
        """Where to look on for its end."""
        self._depth = 0
        """Open brackets before `_scanned`, where they are counted."""
        self._is_inside = False
        self._is_garbled = False
        """Whether bytes that belong to no array are being skipped."""
        self.errors = 0
        """Runs of bytes that belong to no array."""

    @property
    def pending_bytes(self) -> int:
        """How much of an incomplete array is held; at the end of a stream over 0 means cut off."""
        return len(self._buffer) if self._is_inside else 0

    def feed(self, data: bytes) -> list[bytes]:
        """Take the next bytes and return the arrays that they complete, from `[` to `]`."""
        self._buffer += data
        arrays = []
        while self._find_start():
            end = self._find_end()
            if end is None:
                break
            arrays.append(bytes(self._buffer[self._start : end]))
            self._start = self._scanned = end
            self._depth = 0
            self._is_inside = False
        del self._buffer[: self._start]
        self._scanned = max(0, self._scanned - self._start)
        self._start = 0
        if len(self._buffer) > self._max_array_bytes:
            self._give_up()
        return arrays

    def _give_up(self) -> None:
        self._buffer.clear()
        self._scanned = self._depth = 0
        self._is_inside = False
        self._is_garbled = True
        self.errors += 1

    def _find_start(self) -> bool:
        """Move to the next array; False: it isn't here yet, and nothing worth keeping is."""
        if self._is_inside:
            return True
        if not self._is_garbled:
            found = _NOT_BLANK.search(self._buffer, self._start)
            self._start = found.start() if found else len(self._buffer)
            if found is None:
                return False
            if found[0] != b"[":
                self._is_garbled = True
                self.errors += 1
        if self._is_garbled:
            found = _ARRAY_START.search(self._buffer, self._start)
            if found is None:
                is_edge = self._buffer.endswith((b"\n", b"["))
                self._start = max(self._start, len(self._buffer) - is_edge)
                return False
            self._start = found.start() + found[0].index(b"[")
            self._is_garbled = False
        self._scanned = self._start
        self._is_inside = True
        return True

    def _find_end(self) -> int | None:
        if len(self._buffer) < self._start + 2:
            return None
        if self._buffer[self._start + 1] in b"\r\n":
            return self._find_line_end()
        return self._find_bracket_end()

    def _find_line_end(self) -> int | None:
        found = _LINE_START.search(self._buffer, self._scanned)
        if found is None:
            self._scanned = max(self._scanned, len(self._buffer) - 1)
            return None
        return found.end() if found[0] == b"\n]" else found.start() + 1

    def _find_bracket_end(self) -> int | None:
        for token in _TOKEN.finditer(self._buffer, self._scanned):
            first = token[0][:1]
            if first == b"\n":
                return token.start() + 1
            if first == b'"':
                if token[1]:
                    continue
                if token.end() < len(self._buffer) - 1:
                    return token.end() + 1
                self._scanned = token.start()
                return None
            self._depth += 1 if first in b"[{" else -1
            if self._depth == 0:
                return token.end()
        # The last byte may be the first of a line break and bracket.
        self._scanned = len(self._buffer) - self._buffer.endswith(b"\n")
        return None
