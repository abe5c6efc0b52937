"""A device file against this machine's own kernel: what fails fails with the kernel's errno."""

import errno
import os
from pathlib import Path

import pytest

from liken_audio.alsa import kernel
from liken_audio.alsa.device import DeviceFile

NULL = Path("/dev/null")


def test_a_driver_that_knows_no_sound_refuses_the_ioctl() -> None:
    device = DeviceFile(NULL)
    unknown = os.strerror(errno.ENOTTY)
    with pytest.raises(OSError, match=unknown):
        device.ioctl(kernel.CARD_INFO, kernel.card_info_request())
    with pytest.raises(OSError, match=unknown):
        device.element_ids()
    device.close()


def test_a_device_that_is_not_there_is_enoent(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        DeviceFile(tmp_path / "controlC0")


def test_a_device_that_may_only_be_read_is_opened_for_reading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "controlC0").touch()
    flags = []
    real_open = os.open

    def refuse_writers(path: Path, asked: int) -> int:
        flags.append(asked)
        if asked & os.O_RDWR:
            raise PermissionError(errno.EACCES, "Permission denied")
        return real_open(path, asked)

    monkeypatch.setattr(os, "open", refuse_writers)
    device = DeviceFile(tmp_path / "controlC0")
    device.close()
    assert [asked & os.O_ACCMODE for asked in flags] == [os.O_RDWR, os.O_RDONLY]
    assert all(asked & os.O_NONBLOCK and asked & os.O_CLOEXEC for asked in flags)


def test_a_closed_device_has_given_its_descriptor_back() -> None:
    device = DeviceFile(NULL)
    handle = device.fileno()
    assert device.read(10) == b""
    device.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(handle)
