"""Tools as child processes: what they get, how they end, what is left of them."""

from pathlib import Path

import pytest

from liken_audio.pipewire import tool


async def test_a_tool_gets_the_socket_and_nothing_to_read() -> None:
    process = await tool.start("/run/pipewire-0", ["sh", "-c", 'cat; echo "$PIPEWIRE_REMOTE"'])
    output, errors = await process.communicate()
    assert (output, errors) == (b"/run/pipewire-0\n", b"")
    assert await tool.end(process) == 0


async def test_the_pid_is_the_tools_own() -> None:
    process = await tool.start("/nowhere", ["sh", "-c", "echo $$"])
    output, _ = await process.communicate()
    assert int(output) == process.pid
    await tool.end(process)


async def test_a_tool_that_isnt_there_is_an_oserror_that_names_it() -> None:
    with pytest.raises(FileNotFoundError, match="no-such-tool"):
        await tool.start("/nowhere", ["no-such-tool"])


async def test_without_setpriv_tools_run_all_the_same(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (workspace / "echo").symlink_to("/bin/echo")
    monkeypatch.setenv("PATH", str(workspace))
    process = await tool.start("/nowhere", ["echo", "heard"])
    output, _ = await process.communicate()
    assert output == b"heard\n"
    await tool.end(process)


async def test_a_running_tool_is_asked_to_end() -> None:
    process = await tool.start(
        "/nowhere", ["sh", "-c", "trap 'exit 3' TERM; echo; while :; do sleep 0.01; done"]
    )
    assert process.stdout is not None
    await process.stdout.readline()
    assert await tool.end(process) == 3


async def test_a_deaf_tool_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tool, "END_SECONDS", 0.5)
    process = await tool.start(
        "/nowhere", ["sh", "-c", "trap '' TERM; echo; while :; do sleep 0.01; done"]
    )
    assert process.stdout is not None
    await process.stdout.readline()
    assert await tool.end(process) == -9
    assert not Path(f"/proc/{process.pid}").exists()


async def test_a_tool_whose_output_nobody_read_ends_too() -> None:
    """A pipe that is full would otherwise stay open, and its transport with it."""
    process = await tool.start("/nowhere", ["sh", "-c", "yes | head -c 10000000; exec sleep 1000"])
    assert process.stdout is not None
    await process.stdout.readline()
    assert await tool.end(process) == -15


async def test_ending_twice_is_fine() -> None:
    process = await tool.start("/nowhere", ["true"])
    await process.wait()
    assert await tool.end(process) == 0
    assert await tool.end(process) == 0


async def test_one_that_ends_by_itself_keeps_its_exit_code() -> None:
    process = await tool.start("/nowhere", ["sh", "-c", "exec >&- 2>&-; sleep 0.1; exit 7"])
    assert process.stdout is not None
    assert await process.stdout.read() == b""
    assert await tool.end(process) == 7


async def test_one_that_closes_its_output_and_stays_is_asked_to_end() -> None:
    process = await tool.start("/nowhere", ["sh", "-c", "exec >&- 2>&-; exec sleep 1000"])
    assert process.stdout is not None
    assert await process.stdout.read() == b""
    assert await tool.end(process) == -15
