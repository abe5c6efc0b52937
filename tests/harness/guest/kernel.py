"""Makes a guest's kernel of a Debian kernel package, without installing it.

    python -m tests.harness.guest.kernel PACKAGE.deb FOLDER

FOLDER then holds `vmlinux`, which QEMU starts with nothing to unpack, and `lib/modules/<release>`
with the modules that guests use, unpacked too: the processor is emulated, so each second saved
there is many. It takes only the standard library, and the programs dpkg-deb, modprobe, depmod, zstd.
"""

import lzma
import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT_MODULES = ("9pnet_virtio", "9p", "overlay")
"""What mounts the guest's root; loaded before it."""
OTHER_MODULES = (
    "virtio_net",
    *("snd-hda-intel", "snd-hda-codec-generic", "snd-hda-codec-hdmi"),
    *("xhci-pci", "snd-usb-audio", "virtio_snd", "snd-aloop", "snd-dummy"),
    *("hci_vhci", "rfcomm", "uhid", "uinput", "algif_hash", "algif_skcipher", "cmac"),
)
# Fields of the boot sector, Documentation/arch/x86/boot.rst.
_SETUP_SECTORS = 0x1F1
_PAYLOAD = 0x248
_XZ_MAGIC = b"\xfd7zXZ"


def make_kernel(package: Path, folder: Path) -> None:
    """Fill `folder`, which must not be there, from the package; nothing is left when it fails."""
    scratch = folder.with_name(f"{folder.name}.new.{os.getpid()}")
    scratch.mkdir(mode=0o755, parents=True)
    try:
        _run("dpkg-deb", "-x", str(package), str(scratch / "deb"))
        (modules,) = (scratch / "deb" / "lib" / "modules").iterdir()
        _run("depmod", "-b", str(scratch / "deb"), modules.name)
        _keep_modules(modules, scratch / "made" / "lib" / "modules" / modules.name)
        _run("depmod", "-b", str(scratch / "made"), modules.name)
        (image,) = (scratch / "deb" / "boot").glob("vmlinuz-*")
        (scratch / "made" / "vmlinux").write_bytes(_unpacked_kernel(image.read_bytes()))
        (scratch / "made").rename(folder)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def files_in_order(root: Path, release: str, names: Sequence[str]) -> Sequence[Path]:
    """Files of the modules and of all that they need, in the order to load them."""
    command = ["modprobe", "-d", str(root), "-S", release, "--ignore-install", "-a", "-D", *names]
    lines = [line.split() for line in _run(*command).splitlines()]
    return list(dict.fromkeys(Path(words[1]) for words in lines if words[0] == "insmod"))


def _keep_modules(modules: Path, kept: Path) -> None:
    root = modules.parents[2]
    for packed in files_in_order(root, modules.name, [*ROOT_MODULES, *OTHER_MODULES]):
        # modprobe may name the folder by another path than ours.
        place = str(packed).partition(f"/lib/modules/{modules.name}/")[2]
        content = packed.read_bytes()
        target = kept / place.removesuffix(".xz")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(lzma.decompress(content) if content.startswith(_XZ_MAGIC) else content)
    for listing in [*modules.glob("modules.builtin*"), modules / "modules.order"]:
        shutil.copy(listing, kept)


def _unpacked_kernel(image: bytes) -> bytes:
    """The ELF file in a bzImage. Its last 4 bytes, the unpacked size, belong to no format."""
    offset, length = struct.unpack_from("<II", image, _PAYLOAD)
    start = (image[_SETUP_SECTORS] + 1) * 512 + offset
    payload = image[start : start + length - 4]
    if payload.startswith(_XZ_MAGIC):
        return lzma.decompress(payload)
    done = subprocess.run(["zstd", "-dcq"], input=payload, check=True, capture_output=True)
    return done.stdout


def _run(*command: str) -> str:
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


if __name__ == "__main__":
    make_kernel(Path(sys.argv[1]), Path(sys.argv[2]))
