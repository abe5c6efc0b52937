"""A guest with emulated sound cards: QEMU with Debian's own kernel, from the host's side.

The guest's root is the host's own, read-only under what it writes in memory: what is installed here
runs there, our tree and its virtual environment too. One folder is shared, at the same path on both
sides. `Guest.call` has a function of the harness run there (see inside.py). What a card played is
the WAV file that QEMU writes (`Guest.played`).

The processor is emulated unless LIKEN_AUDIO_GUEST_KVM=1, so everything takes 5 to 20 times longer, and
much more on a busy machine: no test judges by the guest's time unless it is generous.
"""

import json
import os
import platform
import select
import shlex
import shutil
import signal
import socket
import stat
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar

from tests.harness.guest import kernel
from tests.harness.processes import HarnessError, Program, Programs, wait_until
from tests.harness.tone import Sound, measure, read_left

KERNEL_VARIABLE = "LIKEN_AUDIO_GUEST_KERNEL"
KVM_VARIABLE = "LIKEN_AUDIO_GUEST_KVM"
BOOT_SECONDS = 300
CALL_SECONDS = 900
ATTEMPTS = 3
TREE = Path(__file__).parents[3]
_HERE = Path(__file__).parent
_WAV_HEADER_BYTES = 44
_FRAME_BYTES = 4
P = ParamSpec("P")
T = TypeVar("T")
Json = dict[str, Any]

# Parts of QEMU for each kind of card; {name} is its audio backend, and tells cards apart.
_DEVICES: Mapping[str, Sequence[str]] = {
    "hda": ("ich9-intel-hda,addr={slot},id={name}-bus", "hda-duplex,bus={name}-bus.0,audiodev={name}"),
    "hdmi": ("ich9-intel-hda,addr={slot},id={name}-bus", "hda-output,bus={name}-bus.0,audiodev={name}"),
    "usb": ("usb-audio,bus=xhci.0,id={name},audiodev={name}",),
    "virtio": ("virtio-sound-pci,addr={slot},audiodev={name}",),
}  # fmt: skip
_DRIVERS = {
    "hda": "snd-hda-intel",
    "hdmi": "snd-hda-intel",
    "usb": "snd-usb-audio",
    "virtio": "virtio_snd",
}
# QEMU has no HDMI codec. Told that hda-output (1af4:0012) is a VIA VX900, the kernel's HDMI driver
# takes it: that one asks the codec nothing. Format: Documentation/sound/hd-audio/notes.rst.
HDMI_CODEC = """\
[codec]
0x1af40012 0x1af40012 0

[vendor_id]
0x11069f80
"""
_KERNEL_ARGUMENTS = (
    "console=ttyS0 quiet panic=-1 nokaslr mitigations=off tsc=reliable no_timer_check"
    " random.trust_cpu=on rcupdate.rcu_expedited=1 nowatchdog audit=0 lsm= cryptomgr.notests"
)


@dataclass(frozen=True, slots=True)
class Card:
    """An emulated card that is there from the start."""

    kind: str
    """`hda`, `hdmi`, `usb` or `virtio`."""
    name: str
    """Of its WAV file, and to unplug it by."""
    slot: int = 0x1B
    """Its place on the PCI bus; of no meaning for USB."""
    properties: Mapping[str, str] = field(default_factory=dict)
    """Of its last QEMU device: a USB card's `serial`."""


class Guest:
    """One guest; a context manager that ends it and all that ran in it."""

    def __init__(
        self,
        folder: Path,
        cards: Sequence[Card] = (),
        *,
        modules: Sequence[str] = (),
        sockets: Sequence[str] = (),
    ) -> None:
        """Say what it has.

        `modules` are loaded in that order before those that the cards need: cards that are the
        kernel's own (`snd-aloop`, `snd-dummy`), or the cards' drivers in an order of one's choice;
        `name:option=value` sets an option. `sockets` are names of USB cards to be plugged in later.
        """
        self.folder = folder
        """Shared with the guest, under the same path."""
        self._cards = cards
        self._modules = modules
        self._sockets = sockets
        self._programs = Programs(folder)
        self._qemu: Program | None = None
        self._channel: _Lines | None = None
        self._monitor: _Lines | None = None
        self.boot_seconds = 0.0

    def start(self) -> Self:
        """Boot it and wait until it takes calls."""
        for attempt in range(1, ATTEMPTS + 1):
            began = time.monotonic()
            try:
                self._boot()
            except BaseException as error:
                # QEMU 10.0 sometimes fails an assertion of its own (iotlb_to_section) while two
                # emulated processors find the PCI devices.
                is_qemus = self._qemu is not None and self._qemu.exit_code == -signal.SIGABRT
                self.end()
                if not isinstance(error, HarnessError):
                    raise
                if not is_qemus or attempt == ATTEMPTS:
                    raise HarnessError(f"the guest didn't start: {error}\n{self.logs()}") from error
            else:
                self.boot_seconds = time.monotonic() - began
                break
        return self

    def _boot(self) -> None:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for name in ("channel", "monitor"):
            (self.folder / name).unlink(missing_ok=True)
        self._write_files()
        self._qemu = self._programs.start("qemu", self._command())
        self._monitor = self._connect("monitor")
        self._channel = self._connect("channel")
        self._monitor.receive(BOOT_SECONDS)
        self.qmp("qmp_capabilities")
        self._channel.receive(BOOT_SECONDS)

    def end(self) -> None:
        """End it; QEMU completes its WAV files."""
        for lines in (self._channel, self._monitor):
            if lines is not None:
                lines.close()
        self._channel = self._monitor = None
        self._programs.end()

    def call(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Have the guest run a function of a module of the tree; arguments and result are JSON.

        `HarnessError` with its words when it fails there, or doesn't end within `CALL_SECONDS` s.
        """
        request = {
            "function": f"{function.__module__}:{function.__qualname__}",
            "arguments": args,
            "keywords": kwargs,
        }
        channel = self._open(self._channel)
        channel.send(request)
        try:
            answer = channel.receive(CALL_SECONDS)
        except HarnessError as error:
            raise HarnessError(f"{request['function']}: {error}\n{self.logs()}") from error
        if "error" in answer:
            raise HarnessError(f"in the guest: {answer['error']}")
        result: T = answer["result"]
        return result

    def qmp(self, command: str, **arguments: object) -> Any:
        """Run a command of QEMU's monitor and return its answer (QEMU Machine Protocol)."""
        monitor = self._open(self._monitor)
        monitor.send({"execute": command, "arguments": arguments})
        while True:
            answer = monitor.receive(CALL_SECONDS)
            if "error" in answer:
                raise HarnessError(f"{command}: {answer['error']['desc']}")
            if "return" in answer:
                return answer["return"]

    def plug(self, name: str, **properties: str) -> None:
        """Plug in a USB card; `serial` and `port` are its properties."""
        self.qmp(
            "device_add", driver="usb-audio", bus="xhci.0", audiodev=name, id=name, **properties
        )

    def unplug(self, name: str) -> None:
        """Pull a USB card and wait until QEMU has let go of it: its name is free again then."""
        monitor = self._open(self._monitor)
        monitor.send({"execute": "device_del", "arguments": {"id": name}})
        while True:
            answer = monitor.receive(CALL_SECONDS)
            if "error" in answer:
                raise HarnessError(f"unplug {name}: {answer['error']['desc']}")
            if answer.get("event") == "DEVICE_DELETED" and answer["data"].get("device") == name:
                return

    def played(self, name: str) -> "Played":
        """What the card plays from now on; silence while nothing plays isn't written."""
        return Played(self.folder / f"{name}.wav")

    def logs(self) -> str:
        """The ends of QEMU's, the console's and the guest's own log."""
        files = [self.folder / f"{each}.log" for each in ("qemu", "console", "inside")]
        texts = [(each.name, each.read_text(errors="replace")) for each in files if each.exists()]
        return "\n".join(f"--- {name}\n{text[-3000:]}" for name, text in texts)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.end()

    def _open(self, lines: "_Lines | None") -> "_Lines":
        if lines is None or self._qemu is None:
            raise HarnessError("the guest isn't started")
        self._qemu.check()
        return lines

    def _connect(self, name: str) -> "_Lines":
        assert self._qemu is not None
        path = self.folder / name
        wait_until(path.is_socket, f"QEMU's {name}", BOOT_SECONDS, [self._qemu])
        return _Lines(path, name)

    def _write_files(self) -> None:
        home = guest_kernel()
        (release,) = (home / "lib" / "modules").iterdir()
        drivers = [_DRIVERS[card.kind] for card in self._cards]
        needed = ["snd-hda-codec-generic", "snd-hda-codec-hdmi"] if self._has("hdmi") else []
        later = ["xhci-pci", "snd-usb-audio"] if self._sockets else []
        modules = [*needed, *self._modules, "xhci-pci", *drivers, *later]
        variables = {
            "folder": self.folder,
            "release": release.name,
            "kernel": home,
            "modules": " ".join(dict.fromkeys(modules)),
            "tree": TREE,
            "python": sys.executable,
            "PYTHONPATH": TREE,
            "PYTHONPYCACHEPREFIX": os.environ.get("PYTHONPYCACHEPREFIX", "/run/pycache"),
        }
        lines = [f"export {name}={shlex.quote(str(value))}" for name, value in variables.items()]
        script = "\n".join(lines) + "\n" + (_HERE / "start.sh").read_text()
        (self.folder / "start.sh").write_text(script)
        (self.folder / "hdmi.patch").write_text(HDMI_CODEC)
        # Of the HDA cards, in the order of their places, only those with HDMI get the patch.
        hda = sorted((c for c in self._cards if c.kind in ("hda", "hdmi")), key=lambda c: c.slot)
        patches = ",".join("hdmi.patch" if card.kind == "hdmi" else "" for card in hda)
        (self.folder / "hda.conf").write_text(f"options snd-hda-intel patch={patches}\n")
        (self.folder / "initramfs").write_bytes(_initramfs(home, release.name))

    def _has(self, kind: str) -> bool:
        return any(card.kind == kind for card in self._cards)

    def _command(self) -> Sequence[str]:
        accelerator, processor = (
            ("kvm", "host") if has_kvm() else ("tcg,thread=multi", "Nehalem,+rdrand")
        )
        command = [
            *("qemu-system-x86_64", "-nodefaults", "-no-user-config", "-no-reboot"),
            *("-display", "none", "-serial", f"file:{self.folder}/console.log"),
            *("-machine", "q35,hpet=off,vmport=off,smm=off,sata=off,smbus=off"),
            *("-accel", accelerator, "-cpu", processor, "-smp", "2", "-m", "1G"),
            *("-kernel", f"{guest_kernel()}/vmlinux", "-initrd", f"{self.folder}/initramfs"),
            *("-append", f"{_KERNEL_ARGUMENTS} harness={self.folder}"),
            *_folder_device("root", Path("/"), ",readonly=on"),
            *_folder_device("shared", self.folder, ""),
            *("-device", "virtio-rng-pci", "-device", "virtio-serial-pci"),
            *("-device", "qemu-xhci,id=xhci", "-netdev", "user,id=net"),
            *("-device", "virtio-net-pci,netdev=net,romfile="),
            *("-chardev", f"socket,id=channel,path={self.folder}/channel,server=on,wait=off"),
            *("-device", "virtserialport,chardev=channel,name=harness"),
            *("-qmp", f"unix:{self.folder}/monitor,server=on,wait=off"),
        ]
        for name in [*(card.name for card in self._cards), *self._sockets]:
            wav = f"{self.folder}/{name}.wav"
            command += ["-audiodev", f"wav,id={name},path={wav},out.frequency=48000"]
        for card in self._cards:
            texts = [t.format(name=card.name, slot=f"{card.slot:#x}") for t in _DEVICES[card.kind]]
            texts[-1] += "".join(f",{key}={value}" for key, value in card.properties.items())
            command += [word for text in texts for word in ("-device", text)]
        return command


class Played:
    """What a card played since this was made: 16 bits, 48 kHz, as it left the emulated card."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._start = self._size()

    @property
    def seconds(self) -> float:
        """How much there is."""
        return (self._size() - self._start) / _FRAME_BYTES / 48_000

    def samples(self) -> Sequence[int]:
        """The left channel."""
        return read_left(self._file, self._start)

    def sound(self) -> Sound:
        """Its longest loud stretch, measured."""
        return measure(self.samples())

    def is_heard(self, frequency_hz: float) -> bool:
        """Whether the last half second is that tone and little else."""
        size = self._size()
        last = read_left(self._file, max(self._start, size - 24_000 * _FRAME_BYTES))
        return len(last) >= 20_000 and measure(last).is_tone(frequency_hz)

    def longest_gap_seconds(self) -> float:
        """The longest silence between two loud moments, from samples of 20 ms."""
        length = 48_000 // 50
        samples = self.samples()
        starts = range(0, len(samples) - length + 1, length)
        loud = [max(map(abs, samples[start : start + length])) > 100 for start in starts]
        text = "".join("x" if each else "." for each in loud).strip(".")
        return max(map(len, text.split("x")), default=0) / 50

    def _size(self) -> int:
        size = self._file.stat().st_size if self._file.exists() else 0
        whole = max(size - _WAV_HEADER_BYTES, 0) // _FRAME_BYTES * _FRAME_BYTES
        return _WAV_HEADER_BYTES + whole


class _Lines:
    """A socket on which each line is a JSON object."""

    def __init__(self, path: Path, name: str) -> None:
        self._name = name
        self._rest = b""
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(str(path))

    def send(self, message: Json) -> None:
        self._socket.settimeout(CALL_SECONDS)
        try:
            self._socket.sendall(json.dumps(message).encode() + b"\n")
        except OSError as error:
            raise HarnessError(f"{self._name}: {error}") from error

    def receive(self, timeout: float) -> Json:
        deadline = time.monotonic() + timeout
        while b"\n" not in self._rest:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._socket], [], [], left)[0]:
                raise HarnessError(f"{self._name}: nothing within {timeout:.0f} s")
            data = self._socket.recv(65_536)
            if not data:
                raise HarnessError(f"{self._name}: QEMU ended")
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        message: Json = json.loads(line)
        return message

    def close(self) -> None:
        self._socket.close()


def missing_for_guest() -> str:
    """What isn't there to run a guest, in words for a skip; empty when all is."""
    if platform.machine() != "x86_64":
        return f"guests are made for x86_64 only, this is {platform.machine()}"
    programs = ("qemu-system-x86_64", "busybox", "modprobe", "amixer", "bluetoothd", "pipewire")
    found = [each for each in programs if shutil.which(each, path=_SEARCH) is None]
    if found:
        return f"{', '.join(found)} not installed: run through make"
    try:
        guest_kernel()
    except HarnessError as error:
        return str(error)
    return ""


_SEARCH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin:/usr/libexec/bluetooth"


def guest_kernel() -> Path:
    """Folder that tests/harness/setup.sh made of a kernel package."""
    named = os.environ.get(KERNEL_VARIABLE, "")
    if not named or not (Path(named) / "vmlinux").exists():
        raise HarnessError(
            f"{KERNEL_VARIABLE} names no kernel: run through make, or "
            'eval "$(tests/harness/setup.sh root dev sound guest)" first'
        )
    return Path(named)


def has_kvm() -> bool:
    """Whether the processor itself is to run guests.

    That /dev/kvm answers isn't enough: on some machines a guest then never runs. So it is asked for.
    """
    return os.environ.get(KVM_VARIABLE) == "1"


def _folder_device(name: str, path: Path, more: str) -> Sequence[str]:
    backend = f"local,id={name},path={path},security_model=none,multidevs=remap{more}"
    return ("-fsdev", backend, "-device", f"virtio-9p-pci,fsdev={name},mount_tag={name}")


def _initramfs(home: Path, release: str) -> bytes:
    """An archive in the format newc (Documentation/driver-api/early-userspace/buffer-format.rst)."""
    busybox = shutil.which("busybox", path=_SEARCH)
    if busybox is None:
        raise HarnessError("busybox isn't installed: run tests/harness/setup.sh")
    modules = kernel.files_in_order(home, release, kernel.ROOT_MODULES)
    order = "".join(f"{module.name}\n" for module in modules).encode()
    files = [(f"modules/{module.name}", 0o644, module.read_bytes()) for module in modules]
    files += [
        ("modules/order", 0o644, order),
        ("bin/busybox", 0o755, Path(busybox).read_bytes()),
        ("init", 0o755, (_HERE / "init.sh").read_bytes()),
    ]
    folders = [(name, stat.S_IFDIR | 0o755, b"") for name in ("bin", "dev", "modules")]
    entries = [*folders, *((name, stat.S_IFREG | mode, data) for name, mode, data in files)]
    return b"".join(_newc(entries))


def _newc(entries: Sequence[tuple[str, int, bytes]]) -> Iterator[bytes]:
    for number, (name, mode, data) in enumerate([*entries, ("TRAILER!!!", 0, b"")], 1):
        fields = (number, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name) + 1, 0)
        head = b"070701" + b"".join(b"%08x" % each for each in fields) + name.encode() + b"\0"
        yield head + bytes(-len(head) % 4) + data + bytes(-len(data) % 4)
