"""Kills its own process right before the n-th change of a file whose path holds a given text.

Python imports a module of this name at its start where this folder is in PYTHONPATH; see
`Node.die_at`. So a test can walk through every step of a call, with the program as it is.
"""

import os
import signal
import sys
from typing import Any

TEXT, COUNT = "LIKEN_AUDIO_TEST_DIE_IN", "LIKEN_AUDIO_TEST_DIE_AT"
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT
_CHANGES = frozenset({"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.chmod", "os.link"})


def _watch(text: str, count: int) -> None:
    left = count

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal left
        is_change = event in _CHANGES or (event == "open" and arguments[2] & _WRITES)
        if is_change and text in str(arguments[0]):
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


if os.environ.get(TEXT):
    _watch(os.environ[TEXT], int(os.environ[COUNT]))
