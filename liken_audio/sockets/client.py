"""The agent's side of the claims' sockets: it writes folders and asks the holder to look.

The folder is what counts: a claim whose folder is there gets its socket even when the holder was
away at the moment of asking. `claim.json` in it is for the container as well as for the holder.
"""

import asyncio
import contextlib
import json
import shutil
from collections.abc import Sequence
from pathlib import Path

from liken_audio.api import Json
from liken_audio.dra.claim_folder import CLAIM_FILE, is_claim_uid
from liken_audio.dra.claims import ClaimedDevice, ClaimRecord
from liken_audio.graph.model import Direction

_Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]

DEADLINE = 10.0
"""Seconds for the holder to answer."""


AWAY_SECONDS = 5.0
"""How long `open` waits for a claim-sockets that doesn't run: it may just be restarted."""
_LOOK_SECONDS = 0.05


class HolderAwayError(ConnectionError):
    """No claim-sockets runs, and so no claim's socket is live."""


class SocketClient:
    """Asks the holder behind the socket `control` for the claims in `claims_dir`."""

    def __init__(self, claims_dir: Path, control: Path) -> None:
        self._claims_dir = claims_dir
        self._control = control
        self._idle: list[_Connection] = []

    async def open(self, record: ClaimRecord, joined: Sequence[ClaimedDevice] = ()) -> None:
        """Have the claim's directory with its socket ready; idempotent. `OSError` says why not.

        `joined` are devices of the pod's other claims that the socket reaches too.
        """
        folder = self._folder(record.ref.uid)
        folder.mkdir(parents=True, exist_ok=True)
        # Whatever the umask: the container's user gets in, and claim-sockets, which may be another
        # user of the agent's group, makes the sockets in there.
        folder.chmod(0o775)
        # Without indentation: that has no encoder in C, and the kubelet waits.
        text = json.dumps(claim_document(record, joined), ensure_ascii=False) + "\n"
        _write_whole(folder / CLAIM_FILE, text.encode())
        if not await self._sync_patiently(record.ref.uid):
            raise OSError(f"claim-sockets doesn't see {folder}: it must have the same claims dir")

    async def close(self, uid: str) -> None:
        """Cut the claim's connections and remove its directory; fine if there is none."""
        if not is_claim_uid(uid):
            return
        folder = self._folder(uid)
        (folder / CLAIM_FILE).unlink(missing_ok=True)
        with contextlib.suppress(HolderAwayError):
            await self._sync(uid)  # no holder, no live socket: PipeWire ended them all with it
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(folder)

    def hang_up(self) -> None:
        """Close the connections to the holder that are kept for the next question."""
        while self._idle:
            _, writer = self._idle.pop()
            writer.close()

    def uids(self) -> set[str]:
        """Return the UIDs that have a directory."""
        if not self._claims_dir.exists():
            return set()
        return {path.name for path in self._claims_dir.iterdir() if is_claim_uid(path.name)}

    def _folder(self, uid: str) -> Path:
        if not is_claim_uid(uid):
            raise ValueError(f"{uid!r} is no claim UID")
        return self._claims_dir / uid

    async def _sync_patiently(self, uid: str) -> bool:
        """The same as `_sync`, waiting a while for a holder that is away."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + AWAY_SECONDS
        while True:
            try:
                return await self._sync(uid)
            except ConnectionError:  # away, or killed while it was asked
                if loop.time() >= deadline:
                    raise
                await asyncio.sleep(_LOOK_SECONDS)

    async def _sync(self, uid: str) -> bool:
        """Ask the holder to look at one folder; return whether its socket is live."""
        try:
            async with asyncio.timeout(DEADLINE):
                answer = await self._ask({"sync": uid})
        except TimeoutError:
            raise TimeoutError(f"claim-sockets doesn't answer on {self._control}") from None
        if "error" in answer:
            raise OSError(str(answer["error"]))
        return bool(answer.get("live"))

    async def _ask(self, request: Json) -> Json:
        line = json.dumps(request).encode() + b"\n"
        while self._idle:
            # The holder may have been restarted since: then this connection has ended.
            with contextlib.suppress(ConnectionError):
                return await self._converse(self._idle.pop(), line)
        try:
            connection = await asyncio.open_unix_connection(self._control)
        except (FileNotFoundError, ConnectionRefusedError):
            raise HolderAwayError(
                f"claim-sockets isn't running: nobody answers on {self._control}"
            ) from None
        return await self._converse(connection, line)

    async def _converse(self, connection: "_Connection", line: bytes) -> Json:
        """Ask one question; keep the connection for the next if it was answered."""
        reader, writer = connection
        is_whole = False
        try:
            writer.write(line)
            answer = await reader.readline()
            is_whole = answer.endswith(b"\n")
        finally:
            if is_whole:
                self._idle.append(connection)
            else:
                writer.close()
        if not is_whole:
            raise ConnectionResetError(f"claim-sockets ended while it was asked on {self._control}")
        document: Json = json.loads(answer)
        return document


def claim_document(record: ClaimRecord, joined: Sequence[ClaimedDevice] = ()) -> Json:
    """Return `claim.json`: what a program in the container may want to know, and nothing secret.

    `requests` has for each request its devices in the order of the allocation, `joined` those of
    the pod's other claims that the socket reaches too. What a class allows stands there as true or
    not at all.
    """
    requests: dict[str, list[Json]] = {}
    for device in record.devices:
        facts = {
            "nodeName": device.node_name,
            "channels": device.channels,
            "rate": device.rate_hz,
        }
        requests.setdefault(device.request_name, []).append(_access(device) | facts)
    document = {
        "version": 1,
        "claim": {
            "namespace": record.ref.namespace,
            "name": record.ref.name,
            "uid": record.ref.uid,
        },
        "pulse": record.has_pulse,
        "requests": requests,
    }
    return document | ({"joined": [_access(device) for device in joined]} if joined else {})


def _access(device: ClaimedDevice) -> Json:
    limit = device.parameters.max_volume
    allowed = {
        "monitor": device.parameters.monitor,
        "setVolume": device.parameters.set_volume,
        "shared": device.share_id is not None,
    }
    return {
        "device": device.device,
        "kind": "sink" if device.direction is Direction.PLAYBACK else "source",
        **{key: True for key, is_so in allowed.items() if is_so},
        **({} if limit is None else {"maxVolume": limit}),
    }


def _write_whole(path: Path, content: bytes) -> None:
    """Replace a file unless it holds that already; no fsync, since a reboot makes it anew."""
    with contextlib.suppress(FileNotFoundError):
        if path.read_bytes() == content:
            return
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_bytes(content)
    temporary.chmod(0o644)
    temporary.replace(path)
