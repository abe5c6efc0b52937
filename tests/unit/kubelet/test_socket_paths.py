"""Socket names: they fit, they differ, and they are those of the kubelet's own library."""

from pathlib import Path

import pytest

from liken_audio.kubelet.socket_paths import (
    LONGEST,
    SocketPathError,
    SocketPaths,
    relatives,
    socket_paths,
)

DRIVER = "audio.liken.sh"
POD = "7d1c6d1e-0000-4000-8000-000000000001"
ROOT = Path("/var/lib/kubelet")
LONG_ROOT = Path("/var/snap/microk8s/common/var/lib/kubelet")


def paths(root: Path, pod_uid: str = POD, driver: str = DRIVER) -> SocketPaths:
    return socket_paths(driver, root / "plugins_registry", root / "plugins" / driver, pod_uid)


def test_one_instance_at_a_time_has_plain_names() -> None:
    assert paths(ROOT, pod_uid="") == SocketPaths(
        ROOT / "plugins_registry" / "audio.liken.sh-reg.sock",
        ROOT / "plugins" / "audio.liken.sh" / "dra.sock",
    )


def test_a_rolling_update_has_the_pod_in_its_names() -> None:
    made = paths(ROOT)
    assert made.registration.name == f"audio.liken.sh-{POD}-reg.sock"
    assert made.plugin.name == f"dra-{POD}.sock"


def test_under_a_long_root_the_names_get_short_and_fit() -> None:
    made = paths(LONG_ROOT)
    assert made.registration.name == "audio.liken.sh-T_Wo57Qb5L8-reg.sock"
    assert made.plugin.name == "dra-T_Wo57Qb5L8.sock"
    assert max(len(bytes(made.registration)), len(bytes(made.plugin))) <= LONGEST


def test_a_driver_of_sixty_letters_still_fits() -> None:
    driver = "a" * 57 + ".sh"
    made = socket_paths(driver, ROOT / "plugins_registry", ROOT / "plugins" / "a", POD)
    assert made.registration.name.startswith("dra-")
    assert len(bytes(made.registration)) <= LONGEST


@pytest.mark.parametrize("root", [ROOT, LONG_ROOT])
def test_two_pods_never_share_a_socket(root: Path) -> None:
    one, other = paths(root), paths(root, pod_uid=POD[:-1] + "2")
    assert one.registration != other.registration
    assert one.plugin != other.plugin


def test_the_limit_itself_fits_and_one_byte_more_takes_the_next_name() -> None:
    longest_name = f"audio.liken.sh-{POD}-reg.sock"
    exact = Path("/" + "d" * (LONGEST - len(longest_name) - 2))
    assert socket_paths(DRIVER, exact, ROOT, POD).registration.name == longest_name
    longer = Path(f"{exact}d")
    assert socket_paths(DRIVER, longer, ROOT, POD).registration.name != longest_name


def test_where_nothing_fits_the_error_says_by_how_much() -> None:
    with pytest.raises(SocketPathError, match=r"/d{100} must be 15 bytes shorter"):
        socket_paths(DRIVER, ROOT, Path("/" + "d" * 100), POD)


def test_the_limit_counts_bytes_and_not_letters() -> None:
    with pytest.raises(SocketPathError):
        socket_paths(DRIVER, ROOT, Path("/" + "ä" * 50), "")


def test_other_instances_are_found_and_other_drivers_are_not(tmp_path: Path) -> None:
    made = SocketPaths(
        tmp_path / "registry" / f"audio.liken.sh-{POD[:-1]}2-reg.sock",
        tmp_path / "plugin" / "dra-mine.sock",
    )
    made.registration.parent.mkdir(parents=True)
    made.plugin.parent.mkdir(parents=True)
    ours = {f"audio.liken.sh-{POD}-reg.sock", "audio.liken.sh-xyz-reg.sock"}
    for name in (*ours, "gpu.example.com-reg.sock", "dra-T3EqRKaqhDiHZpHtiH616B-reg.sock"):
        (made.registration.parent / name).touch()
    for name in (made.plugin.name, "dra-other.sock", "claims.lock"):
        (made.plugin.parent / name).touch()
    found = sorted(path.name for path in relatives(DRIVER, made))
    assert found == [*sorted(ours), "dra-other.sock"]
