"""The stand-in container: a child gets its edits and nothing else."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.container import Edits, Mount, start_container
from tests.harness.processes import Programs, wait_until

TARGET = "/run/audio.liken.sh/1"


@pytest.fixture
def programs(workspace: Path) -> Iterator[Programs]:
    with Programs(workspace) as group:
        yield group


@pytest.fixture
def edits(workspace: Path) -> Edits:
    folder = workspace / "claim"
    folder.mkdir(mode=0o755)
    (folder / "claim.json").write_text("{}")
    workspace.chmod(0o755)
    options = ("ro", "bind", "nosuid", "nodev", "noexec")
    return Edits({"PIPEWIRE_NODE": "a sink"}, (Mount(str(folder), TARGET, options),))


def output(programs: Programs, edits: Edits, script: str) -> str:
    container = start_container(programs, "inside", ["sh", "-c", script], {"OWN": "1"}, edits)
    assert container.wait(20) == 0, container.log_end()
    return container.log.read_text()


def test_the_child_has_the_edits(programs: Programs, edits: Edits) -> None:
    text = output(programs, edits, f"echo $PIPEWIRE_NODE, $OWN; ls {TARGET}")
    assert text == "a sink, 1\nclaim.json\n"


def test_a_file_is_bound_as_it_is_whatever_its_size(programs: Programs, workspace: Path) -> None:
    file = workspace / "metadata.json"
    file.write_text("x" * 5000)
    workspace.chmod(0o755)
    options = ("ro", "bind", "nosuid", "nodev", "noexec")
    edits = Edits({}, (Mount(str(file), f"{TARGET}/metadata.json", options),))
    assert output(programs, edits, f"cat {TARGET}/metadata.json") == "x" * 5000


def test_the_child_is_nobody_without_groups_or_capabilities(
    programs: Programs, edits: Edits
) -> None:
    text = output(programs, edits, "id -u; id -G; grep -h CapEff /proc/self/status; env")
    lines = text.splitlines()
    assert lines[0] == "65534"
    assert lines[1] == "65534"
    assert int(lines[2].split()[1], 16) == 0
    names = {line.split("=", 1)[0] for line in lines[3:]}
    assert names <= {"PATH", "OWN", "PIPEWIRE_NODE", "PWD", "OLDPWD", "SHLVL", "_"}


def test_the_child_reaches_no_path_of_the_machine(
    programs: Programs, edits: Edits, workspace: Path
) -> None:
    text = output(programs, edits, f"ls -A /tmp /run /var; test -e {workspace} || echo unreachable")
    assert text == "/run:\naudio.liken.sh\n\n/tmp:\n\n/var:\nunreachable\n"


def test_the_child_writes_nowhere_but_in_tmp(programs: Programs, edits: Edits) -> None:
    script = (
        f"for d in / /etc /usr /run {TARGET} /tmp; do touch $d/x 2>/dev/null && echo $d; done; :"
    )
    assert output(programs, edits, script) == "/tmp\n"


def test_the_child_has_no_network_and_sees_no_other_process(
    programs: Programs, edits: Edits
) -> None:
    script = "tail -n +3 /proc/net/dev | cut -d: -f1; ls -d /proc/[0-9]* | wc -l"
    interfaces, processes = output(programs, edits, script).split()
    assert interfaces == "lo"
    assert int(processes) <= 3


def test_killing_the_container_ends_all_of_its_processes(
    programs: Programs, edits: Edits, workspace: Path
) -> None:
    script = "sleep 600 & echo started; wait"
    container = start_container(programs, "inside", ["sh", "-c", script], {}, edits)
    wait_until(lambda: "started" in container.log.read_text(), "its start", 10)
    cgroup = Path(f"/proc/{container.pid}/task/{container.pid}/children").read_text().split()
    assert cgroup
    container.kill()
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in cgroup), "their end", 10)


def test_the_machine_keeps_no_mount_of_a_container(programs: Programs, edits: Edits) -> None:
    before = Path("/proc/self/mountinfo").read_text()
    output(programs, edits, "true")
    assert Path("/proc/self/mountinfo").read_text() == before
