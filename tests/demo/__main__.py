"""`make demo`: see docs and `demo`. KEEP=1 stays up; DEMO_KUBECONFIG=FILE takes your cluster."""

import contextlib
import os
import shutil
import signal
import sys
import time
from pathlib import Path
from types import FrameType
from typing import NoReturn

from tests.demo.demo import SINK, Demo
from tests.demo.screen import Screen
from tests.harness.control_plane import control_plane_program
from tests.harness.processes import HarnessError
from tests.harness.sound_stack import SoundStack

HEARTBEAT_SECONDS = 10
_TOOLS = (*SoundStack.PROGRAMS, "kubectl", "openssl", "pw-play", "pw-record", "setpriv", "unshare")
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(BaseException):
    """A signal asked for the end."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


def main() -> int:
    """Run the demo; returns the exit code."""
    named = os.environ.get("DEMO_KUBECONFIG", "")
    # Not every shell resolves the ~ of NAME=~/file.
    kubeconfig = Path(named).expanduser().absolute() if named else None
    refusal = _refusal(kubeconfig)
    if refusal:
        print(f"demo: {refusal}", file=sys.stderr)
        return 1
    for number in _SIGNALS:
        signal.signal(number, _interrupt)
    began = time.monotonic()
    screen = Screen()
    try:
        _run(screen, kubeconfig)
    except HarnessError as error:
        screen.say(f"\ndemo: {error}")
        return 1
    except Interrupted as interruption:
        screen.say(f"\ndemo: ended by {interruption}, nothing is left running")
        return 128 + interruption.number
    _say_next(screen)
    screen.say(f"\nDone in {time.monotonic() - began:.0f} s; nothing is left running.")
    return 0


def _run(screen: Screen, kubeconfig: Path | None) -> None:
    with contextlib.ExitStack() as ends:
        try:
            demo = Demo(screen, ends, kubeconfig=kubeconfig)
            demo.run()
            if os.environ.get("KEEP", "") not in {"", "0"}:
                _stay(screen, demo)
            # From here on all is being ended, and nothing may interrupt that: a second Ctrl-C neither.
            _ignore_signals()
            demo.unprepare()
        finally:
            _ignore_signals()


def _ignore_signals() -> None:
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def _stay(screen: Screen, demo: Demo) -> None:
    screen.say(
        f"""
All of it stays up; Ctrl-C ends it. In another terminal:

  export KUBECONFIG={demo.cluster.kubeconfig}
  export PATH="{Path(shutil.which("kubectl") or "kubectl").parent}:$PATH"
  kubectl get sinks,sources -o wide
  kubectl patch sink {SINK} --type=merge -p '{{"spec":{{"mute":true}}}}'
  kubectl describe sink {SINK}

To unplug the monitor, and to see it in `kubectl get sinks -w` and as a taint of the device within 5 s:

  sed -i 's/eld: 1000.*/eld: ""/' {demo.virtual}"""
    )
    with contextlib.suppress(Interrupted):
        while True:
            demo.check()
            demo.heartbeat()
            time.sleep(HEARTBEAT_SECONDS)
    screen.say()


def _say_next(screen: Screen) -> None:
    screen.say(
        """
Next:
  make demo KEEP=1                           stays up and says how to look around
  make demo DEMO_KUBECONFIG=~/.kube/config   in a cluster of yours
  manifests/examples/                        what was applied, and the virtual cards"""
    )


def _refusal(kubeconfig: Path | None) -> str:
    """One line that says what is missing and how to get it, or nothing."""
    if os.geteuid() != 0:
        return "root is needed, for the namespaces of the pod's container: sudo make demo"
    missing = [each for each in _TOOLS if shutil.which(each) is None]
    if missing:
        return f"{', '.join(missing)} not found: start it as `make demo`, which installs them"
    if kubeconfig is not None:
        return "" if kubeconfig.is_file() else f"DEMO_KUBECONFIG={kubeconfig}: no such file"
    try:
        control_plane_program()
    except HarnessError as error:
        return str(error)
    return ""


def _interrupt(number: int, _frame: FrameType | None) -> NoReturn:
    raise Interrupted(number)


sys.exit(main())
