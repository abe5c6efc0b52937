"""A claim's folder: where it lies and what is in it, on the host and in the container.

Written by the agent, given its socket by claim-sockets, mounted by the container runtime: the
three agree here. Imports next to nothing, since claim-sockets must stay small.
"""

import re

from liken_audio.api import DRIVER

CONTAINER_DIR = f"/run/{DRIVER}"
"""Parent of the claims' folders inside a container."""
SOCKET = "pipewire-0"
"""A claim's PipeWire socket."""
CLAIM_FILE = "claim.json"
"""What the claim holds; a folder without it is on its way out and has no socket."""

_UID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}")


def is_claim_uid(text: str) -> bool:
    """Whether `text` can be a claim's UID, and so a folder's and a file's name."""
    return _UID.fullmatch(text) is not None
