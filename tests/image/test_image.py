"""What is in the image, and what isn't."""

import re
import stat
from pathlib import Path

import pytest

import liken_audio
from tests.harness.image import USER, Image
from tests.harness.node import TREE
from tests.harness.processes import HarnessError

MOST_BYTES = 240_000_000
"""docs/limits.md has the figure; this is where somebody should look what came in."""


def version_of(text: str) -> tuple[int, ...]:
    found = re.search(r"(\d+)\.(\d+)\.(\d+)", text)
    assert found, text
    return tuple(map(int, found.groups()))


def test_it_starts_our_command_as_a_user_that_is_not_root(image: Image, workspace: Path) -> None:
    assert image.config["User"] == f"{USER}:{USER}"
    assert image.config["Entrypoint"] == ["liken-audio"]
    text = image.run(workspace, "liken-audio", "--help")
    for command in ("agent", "claim-sockets", "inventory"):
        assert command in text
    assert image.run(workspace, "liken-audio", "--version").strip() == liken_audio.__version__


def test_the_sound_programs_are_new_enough(image: Image, workspace: Path) -> None:
    assert version_of(image.run(workspace, "pipewire", "--version")) >= (1, 4, 0)
    assert version_of(image.run(workspace, "wireplumber", "--version")) >= (0, 5, 8)
    for program in ("pipewire-pulse", "pw-dump", "pw-cli", "pw-metadata", "flock", "setpriv"):
        image.run(workspace, "sh", "-c", f"command -v {program}")
    plugin = "/usr/lib/*/spa-0.2/bluez5/libspa-bluez5.so"
    image.run(workspace, "sh", "-c", f"test -e {plugin}")


def test_its_packages_can_be_listed(image: Image, workspace: Path) -> None:
    listed = image.run(workspace, "dpkg-query", "-W", "-f", "${Package} ${Version}\n").splitlines()
    packages = {line.split()[0] for line in listed}
    assert {"pipewire", "wireplumber", "libspa-0.2-bluetooth", "python3"} <= packages
    assert "dpkg was interrupted" not in image.run(workspace, "dpkg", "--audit")
    script = (
        "import importlib.metadata as m\n"
        "print(*[f'{d.name.lower()}=={d.version}'.replace('_', '-') for d in m.distributions()], sep='\\n')"
    )
    python = "/opt/liken-audio/bin/python3"
    found = set(image.run(workspace, python, "-Ic", script).split())
    locked = re.findall(
        r"^([a-z0-9_.-]+==\S+)", (TREE / "requirements.lock").read_text(), re.MULTILINE
    )
    assert found == {*locked, f"liken-audio=={liken_audio.__version__}"}


def test_nothing_is_left_of_its_making(image: Image, workspace: Path) -> None:
    for program in ("gcc", "cc", "make", "ld", "pip", "pip3", "curl", "wget"):
        with pytest.raises(HarnessError):
            image.run(workspace, "sh", "-c", f"command -v {program}")
    for folder in ("var/lib/apt/lists", "var/cache", "var/log", "tmp", "root", "home"):
        files = [each for each in (image.root / folder).rglob("*") if each.is_file()]
        assert all(each.name.startswith((".bashrc", ".profile")) for each in files), files
    assert not (image.root / "src").exists()
    assert not (image.root / "wheels").exists()


def test_no_program_gives_its_user_more_rights(image: Image) -> None:
    for path in image.root.rglob("*"):
        mode = path.lstat().st_mode
        if stat.S_ISREG(mode):
            assert not mode & (stat.S_ISUID | stat.S_ISGID), path
            assert not mode & stat.S_IWOTH, path


def test_every_module_of_ours_is_compiled(image: Image) -> None:
    (package,) = image.root.glob("opt/liken-audio/lib/python3.*/site-packages/liken_audio")
    modules = list(package.rglob("*.py"))
    assert len(modules) > 80
    for module in modules:
        assert list((module.parent / "__pycache__").glob(f"{module.stem}.cpython-*.pyc")), module


def test_it_is_no_larger_than_it_has_to_be(image: Image) -> None:
    assert image.bytes < MOST_BYTES


def test_both_files_of_wireplumber_are_where_it_looks(image: Image) -> None:
    for place, file in (
        ("etc/wireplumber/wireplumber.conf.d", "50-liken-audio.conf"),
        ("usr/share/wireplumber/scripts", "claim-access.lua"),
    ):
        source = TREE / "manifests" / "wireplumber" / file
        assert (image.root / place / file).read_bytes() == source.read_bytes()
