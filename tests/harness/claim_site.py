"""A node's sound with claims on it and no cluster: PipeWire, WirePlumber, claim-sockets, containers.

What the agent does for a prepared claim is done by its own parts (`dra.cdi`, `sockets.client`); the
containers get the edits as from a runtime, so what a test runs in one has what a pod has.
"""

import asyncio
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from liken_audio.dra import cdi
from liken_audio.dra.claims import ClaimedDevice, ClaimRecord
from liken_audio.sockets.client import SocketClient
from tests.builders import claim_record, claim_ref
from tests.harness.container import Mount, read_edits, start_container
from tests.harness.processes import HarnessError, Program, Programs, python_cache, wait_until
from tests.harness.sound_stack import SoundStack
from tests.harness.tone import RATE_HZ, Recorder, Sound, measure, read_left, write_tone

TREE = Path(__file__).parents[2]
READY_SECONDS = 45
RUN_SECONDS = 45
SOUNDS = "/sounds"
"""Where containers find the tones, `<Hz>.wav`."""
OUT = "/out"
"""Folder of containers that anybody may write to and the test reads."""


@dataclass(frozen=True, slots=True)
class Finished:
    """How a program in a container ended."""

    exit_code: int
    """124 when it was ended because its time was up."""
    output: str


@dataclass(frozen=True, slots=True)
class SiteClaim:
    """A claim that is prepared."""

    record: ClaimRecord
    folder: Path

    @property
    def socket(self) -> Path:
        """Its PipeWire socket, as the host sees it."""
        return self.folder / "pipewire-0"

    @property
    def pulse(self) -> Path:
        """Its PulseAudio socket, as the host sees it."""
        return self.folder / "pulse"


class ClaimSite:
    """The node; a context manager."""

    def __init__(self, folder: Path, stack: SoundStack) -> None:
        self.stack = stack
        self.claims_dir = folder / "claims"
        self.control = folder / "control" / "sockets"
        self.out = folder / "out"
        self._cdi = folder / "cdi"
        self._sounds = folder / "sounds"
        self._folder = folder
        self._programs = Programs(folder)
        self._claim_sockets: Program | None = None
        self._count = 0
        self._containers: list[Program] = []
        self._prepared: list[SiteClaim] = []

    @property
    def claim_sockets(self) -> Program:
        """The process that holds the claims' sockets."""
        if self._claim_sockets is None:
            raise HarnessError("claim-sockets isn't started")
        return self._claim_sockets

    def start(self) -> Self:
        """Start claim-sockets and wait until it answers."""
        for folder in (self.claims_dir, self.control.parent, self._cdi, self._sounds, self.out):
            folder.mkdir(parents=True)
        self.out.chmod(0o777)
        self.start_claim_sockets()
        return self

    def end(self) -> None:
        """End everything that was started here."""
        self._programs.end()

    def start_claim_sockets(self) -> None:
        """Start claim-sockets; for after `claim_sockets.kill()`."""
        flags = [
            f"--claims-dir={self.claims_dir}",
            f"--pipewire-remote={self.stack.remote}",
            f"--control={self.control}",
        ]
        environment = {
            "PATH": os.environ["PATH"],
            "LANG": "C.UTF-8",
            "PYTHONPATH": str(TREE),
            **python_cache(),
        }
        self.control.unlink(missing_ok=True)  # of one that was killed
        command = [sys.executable, "-m", "liken_audio", "claim-sockets", *flags]
        self._claim_sockets = self._programs.start("claim-sockets", command, environment)
        wait_until(self.control.is_socket, "claim-sockets", READY_SECONDS, [self._claim_sockets])

    def prepare(
        self, *devices: ClaimedDevice, name: str = "", namespace: str = "media"
    ) -> SiteClaim:
        """Prepare a claim of these devices."""
        self._count += 1
        uid = f"uid-{self._count}"
        record = claim_record(*devices, ref=claim_ref(uid, name or f"claim-{uid}", namespace))
        self._with_client(lambda client: client.open(record))
        spec = cdi.spec(record, str(self.claims_dir))
        if spec is None:
            raise HarnessError("a claim without devices")
        (self._cdi / f"{uid}.json").write_text(json.dumps(spec.document))
        claim = SiteClaim(record, self.claims_dir / uid)
        self._prepared.append(claim)
        return claim

    def unprepare(self, claim: SiteClaim) -> None:
        """Take a claim's sockets away."""
        self._with_client(lambda client: client.close(claim.record.ref.uid))
        (self._cdi / f"{claim.record.ref.uid}.json").unlink()
        self._prepared.remove(claim)

    def clear(self) -> None:
        """End all containers and unprepare all claims."""
        for container in self._containers:
            container.kill()
        self._containers.clear()
        for claim in list(self._prepared):
            self.unprepare(claim)

    def tone(self, frequency_hz: int, seconds: float = 30) -> Path:
        """Have a tone where containers find it, as `/sounds/<Hz>.wav`."""
        file = self._sounds / f"{frequency_hz}.wav"
        if not file.exists():
            write_tone(file, frequency_hz, seconds)
        return file

    def start_in(
        self, claim: SiteClaim, *command: str, environment: Mapping[str, str] | None = None
    ) -> Program:
        """Start a program in a container that has the claim; `environment` is the image's."""
        ids = [each for device in cdi.prepared(claim.record) for each in device.cdi_ids]
        edits = read_edits([self._cdi], ids)
        sounds = Mount(str(self._sounds), SOUNDS, ("ro", "bind"))
        out = Mount(str(self.out), OUT, ("rw", "bind"))
        edits = replace(edits, mounts=(*edits.mounts, sounds, out))
        self._count += 1
        name = f"{command[0].rpartition('/')[2]}-{self._count}"
        program = start_container(self._programs, name, command, environment or {}, edits)
        self._containers.append(program)
        return program

    def run_in(
        self,
        claim: SiteClaim,
        *command: str,
        environment: Mapping[str, str] | None = None,
        seconds: float = 0,
    ) -> Finished:
        """Run a program in such a container to its end; with `seconds`, end it after so long."""
        limited = ["timeout", "-s", "INT", f"{seconds}", *command] if seconds else command
        program = self.start_in(claim, *limited, environment=environment)
        code = program.wait(RUN_SECONDS + seconds)
        return Finished(code, program.log.read_text(errors="replace"))

    def start_host(self, *command: str) -> Program:
        """Start a program of the host, with all rights on PipeWire."""
        self._count += 1
        name = f"host-{command[0]}-{self._count}"
        return self._programs.start(name, command, self.stack.environment)

    def recorder(self, node_name: str) -> Recorder:
        """A recorder of a sink's monitor, with the host's rights."""
        return Recorder(self.stack, self._programs, node_name)

    def speak_into(self, source: str, frequency_hz: int) -> Program:
        """Have a null source give a tone, until the program that is returned ends."""
        tone = self.tone(frequency_hz)
        options = f"{{ node.name=speaker-{source} node.autoconnect=false }}"
        player = self.start_host("pw-play", "-P", options, str(tone))

        def is_linked() -> bool:
            ports = [("output_FL", "input_FL"), ("output_FR", "input_FR")]
            try:
                for out, into in ports:
                    self.stack.run("pw-link", f"speaker-{source}:{out}", f"{source}:{into}")
            except HarnessError as error:
                return "File exists" in str(error)
            return True

        wait_until(is_linked, f"the tone into {source}", READY_SECONDS, [player])
        return player

    def recorded(self, name: str) -> Sound:
        """Measure what a container recorded raw, 16 bits, stereo, into `/out/<name>`."""
        file = self.out / name
        return measure(read_left(file) if file.exists() else [])

    def links(self) -> set[tuple[str, str]]:
        """Names of linked nodes: (output, input)."""
        objects = self.stack.objects()
        names = {each["id"]: _properties(each).get("node.name", "") for each in objects}
        return {
            (names.get(info["output-node-id"], ""), names.get(info["input-node-id"], ""))
            for each in objects
            if str(each["type"]).endswith(":Link") and (info := each.get("info"))
        }

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.end()

    def _with_client(self, act: Callable[[SocketClient], Any]) -> None:
        async def acted() -> None:
            client = SocketClient(self.claims_dir, self.control)
            try:
                await act(client)
            finally:
                client.hang_up()

        asyncio.run(acted())


def record_command(name: str, *options: str) -> Sequence[str]:
    """A `pw-record` that writes raw stereo of 16 bits to `/out/<name>`."""
    form = [f"--rate={RATE_HZ}", "--channels=2", "--format=s16", "--raw"]
    return ["sh", "-c", f'exec "$@" >{OUT}/{name}', "-", "pw-record", *form, *options, "-"]


def _properties(item: Mapping[str, Any]) -> Mapping[str, Any]:
    found: Mapping[str, Any] = (item.get("info") or {}).get("props") or {}
    return found
