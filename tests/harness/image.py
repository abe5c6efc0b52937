"""Our image, unpacked, and containers of it without a container runtime.

A container here has what its manifest gives it: namespaces of its own, a read-only root, no
capability, the pod's shared folder. What is left out is a runtime's: the seccomp filter, cgroups.
"""

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.harness.processes import HarnessError, Program, Programs

ARCHIVE_VARIABLE = "LIKEN_AUDIO_IMAGE"
USER = 42800
ROOT_USER = 0
_SECONDS = 60
_SCRIPT = Path(__file__).with_name("image.sh")


class Image:
    """The image of an archive, unpacked into a folder."""

    def __init__(self, archive: Path, folder: Path) -> None:
        self.root = folder / "root"
        self.root.mkdir(mode=0o755)
        layers = folder / "layers"
        layers.mkdir()
        _run("tar", "-xf", str(archive), "-C", str(layers))
        (manifest,) = json.loads((layers / "manifest.json").read_text())
        self.config: dict[str, Any] = json.loads((layers / manifest["Config"]).read_text())[
            "config"
        ]
        """What a runtime starts unless told otherwise: `User`, `Env`, `Entrypoint`, `Cmd`."""
        self.bytes = sum((layers / each).stat().st_size for each in manifest["Layers"])
        """Of all layers, unpacked."""
        for layer in manifest["Layers"]:
            self._unpack(layers / layer)
        _run("rm", "-rf", str(layers))

    @property
    def environment(self) -> dict[str, str]:
        """The image's variables."""
        return dict(each.split("=", 1) for each in self.config["Env"])

    def run(self, shared: Path, *command: str, user: int = USER, group: int = USER) -> str:
        """Run a program in a container to its end and return what it printed."""
        line = self._line(shared, f"{user}:{group}", command)
        try:
            done = subprocess.run(
                line,
                env=self.environment,
                capture_output=True,
                text=True,
                timeout=_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise HarnessError(f"{' '.join(command)}: no end in {_SECONDS} s") from None
        if done.returncode != 0:
            said = f"{done.stdout.strip()}\n{done.stderr.strip()}"
            raise HarnessError(f"{' '.join(command)}: code {done.returncode}: {said.strip()}")
        return done.stdout

    def start(
        self, programs: Programs, name: str, shared: Path, *command: str, pod: str = "pod"
    ) -> Program:
        """Start a container of a pod; it is the child of the program, see `first_process`."""
        line = self._line(shared, f"{USER}:{USER}", command)
        return programs.start(name, line, {**self.environment, "POD": pod})

    def _line(self, shared: Path, user: str, command: Sequence[str]) -> Sequence[str]:
        namespaces = ["--mount", "--pid", "--net", "--ipc", "--uts", "--fork", "--kill-child=KILL"]
        inside = [str(_SCRIPT), str(self.root), str(shared), *user.split(":"), *command]
        return ["unshare", *namespaces, "--", *inside]

    def _unpack(self, layer: Path) -> None:
        names = _run("tar", "-tf", str(layer)).splitlines()
        for name in names:
            folder, _, file = name.rpartition("/")
            if file.startswith(".wh."):
                _run("rm", "-rf", str(self.root / folder / file.removeprefix(".wh.")))
        _run("tar", "-xpf", str(layer), "-C", str(self.root), "--exclude=.wh.*")


def image_archive() -> Path:
    """The built image, or a `HarnessError` that says how to get it."""
    named = os.environ.get(ARCHIVE_VARIABLE, "")
    if not named or not Path(named).is_file():
        raise HarnessError(
            f"{ARCHIVE_VARIABLE}={named!r} is no archive: run tests/harness/setup.sh image"
        )
    return Path(named)


def first_process(program: Program) -> int:
    """The pid, on this machine, of the first process of a container that `Image.start` started."""
    children = Path(f"/proc/{program.pid}/task/{program.pid}/children").read_text().split()
    if len(children) != 1:
        raise HarnessError(f"{program.name} has no process yet, or has ended")
    return int(children[0])


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode != 0:
        raise HarnessError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout
