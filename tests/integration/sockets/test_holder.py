"""Claims' sockets on a real PipeWire: there when they should be, and dead when they should not."""

import asyncio
import json
import signal
import stat
import sys
import wave
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from liken_audio.dra.claims import ClaimRecord
from liken_audio.sockets import client, holder
from liken_audio.sockets.client import HolderAwayError, SocketClient
from liken_audio.sockets.holder import Holder
from liken_audio.sockets.protocol import Decoder, Done, Encoder
from tests.builders import claim_record, claim_ref, claimed_device
from tests.harness.sound_stack import SoundStack

DEADLINE = 45.0
SINK = "kitchen-hdmi-0"


class Site:
    """The claims' folder and the control socket of one node, with an agent's client."""

    def __init__(self, folder: Path, stack: SoundStack) -> None:
        self.claims_dir = folder / "claims"
        self.control = folder / "control" / "claim-sockets"
        self.stack = stack
        self.client = SocketClient(self.claims_dir, self.control)

    def holder(self) -> Holder:
        return Holder(self.claims_dir, str(self.stack.remote), self.control)

    def socket(self, uid: str) -> Path:
        return self.claims_dir / uid / "pipewire-0"

    async def tool(self, uid: str, *command: str) -> tuple[int, str]:
        """Run a PipeWire tool on a claim's socket; return exit code and output."""
        process = await self.start(uid, *command)
        output, _ = await asyncio.wait_for(process.communicate(), DEADLINE)
        return process.returncode or 0, output.decode(errors="replace")

    async def start(self, uid: str, *command: str) -> asyncio.subprocess.Process:
        environment = dict(self.stack.environment) | {"PIPEWIRE_REMOTE": str(self.socket(uid))}
        return await asyncio.create_subprocess_exec(
            *command,
            env=environment,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )

    async def answers(self, uid: str) -> bool:
        code, output = await self.tool(uid, "pw-cli", "info", "0")
        return code == 0 and "PipeWire:Interface:Core" in output


@pytest.fixture
def site(workspace: Path, sound_stack: SoundStack) -> Site:
    return Site(workspace / "site", sound_stack)


@asynccontextmanager
async def running(site: Site) -> AsyncIterator[Holder]:
    made = site.holder()
    task = asyncio.get_running_loop().create_task(made.run())
    try:
        await until(lambda: task.done() or site.control.exists())
        yield made
    finally:
        site.client.hang_up()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE):
        while not is_so():
            await asyncio.sleep(0.02)


def claim(uid: str) -> ClaimRecord:
    return claim_record(claimed_device(device=SINK), ref=claim_ref(uid, f"claim-{uid}"))


async def playing(site: Site, uid: str) -> asyncio.subprocess.Process:
    """Start a player of two minutes on a claim's socket, and wait for its stream in the graph."""
    silence = site.claims_dir.parent / "silence.wav"
    if not silence.exists():
        with wave.open(str(silence), "wb") as file:
            file.setparams((1, 2, 8000, 0, "NONE", ""))
            file.writeframes(bytes(2 * 8000 * 120))
    player = await site.start(uid, "pw-play", "--target", SINK, str(silence))

    def has_stream() -> bool:
        clients = [o for o in site.stack.objects() if str(o["type"]).endswith(":Client")]
        ours = {o["id"] for o in clients if _properties(o).get("pipewire.sec.instance-id") == uid}
        nodes = [o for o in site.stack.objects() if str(o["type"]).endswith(":Node")]
        return any(_properties(o).get("client.id") in ours for o in nodes)

    async with asyncio.timeout(DEADLINE):
        while not await asyncio.to_thread(has_stream):
            await asyncio.sleep(0.05)
    return player


def _properties(item: Any) -> dict[str, Any]:
    return (item.get("info") or {}).get("props") or {}


async def test_a_claim_s_socket_is_live_when_open_returns(site: Site) -> None:
    async with running(site):
        await site.client.open(claim("a"))
        assert await site.answers("a")
        folder, socket = site.claims_dir / "a", site.socket("a")
        assert stat.S_IMODE(folder.stat().st_mode) == 0o775
        assert stat.S_IMODE(socket.stat().st_mode) == 0o666
        assert sorted(path.name for path in folder.iterdir()) == [
            "claim.json",
            "pipewire-0",
            "pulse",
        ]


async def test_a_stream_plays_through_it(site: Site) -> None:
    await asyncio.to_thread(site.stack.make_null_node, SINK, device=SINK)
    async with running(site):
        await site.client.open(claim("a"))
        player = await playing(site, "a")
        player.kill()
        await player.communicate()


async def test_the_claim_is_stamped_on_its_clients_who_cannot_change_it(site: Site) -> None:
    keys = ("pipewire.sec.engine", "pipewire.sec.app-id", "pipewire.sec.instance-id")
    async with running(site):
        await site.client.open(claim("a"))
        reader, writer = await asyncio.open_unix_connection(site.socket("a"))
        encoder = Encoder()
        writer.write(
            encoder.hello(dict.fromkeys(keys, "b") | {"application.name": "liar"}) + encoder.sync(7)
        )
        decoder = Decoder()
        async with asyncio.timeout(DEADLINE):
            while Done(0, 7) not in decoder.feed(await reader.read(4096)):
                pass
        found = [_properties(item) for item in await asyncio.to_thread(site.stack.objects)]
        writer.close()
    (liar,) = [each for each in found if each.get("application.name") == "liar"]
    assert [liar[key] for key in keys] == ["audio.liken.sh", "media/claim-a", "a"]


async def test_open_twice_disturbs_nobody(site: Site) -> None:
    async with running(site) as made:
        await site.client.open(claim("a"))
        inode = site.socket("a").stat().st_ino
        await site.client.open(claim("a"))
        changed = claim_record(claimed_device(device=SINK, node_name="renamed"), ref=claim("a").ref)
        await site.client.open(changed)
        assert site.socket("a").stat().st_ino == inode
        assert made.created == 1
        document = json.loads((site.claims_dir / "a" / "claim.json").read_text())
        assert document["requests"]["out"][0]["nodeName"] == "renamed"


async def test_close_cuts_a_playing_client_and_leaves_nothing(site: Site) -> None:
    await asyncio.to_thread(site.stack.make_null_node, SINK, device=SINK)
    async with running(site):
        await site.client.open(claim("a"))
        await site.client.open(claim("b"))
        player, other = await playing(site, "a"), await playing(site, "b")
        assert player.returncode is None
        await site.client.close("a")
        await asyncio.wait_for(player.communicate(), 2.0)  # the contract's 2 s
        assert not (site.claims_dir / "a").exists()
        assert other.returncode is None
        assert site.client.uids() == {"b"}
        other.kill()
        await other.communicate()


async def test_closing_what_was_never_open_is_fine(site: Site) -> None:
    async with running(site):
        for uid in ("never", "../.."):
            await site.client.close(uid)
    await site.client.close("never")  # with no holder at all


async def test_a_folder_removed_without_asking_is_noticed(site: Site) -> None:
    await asyncio.to_thread(site.stack.make_null_node, SINK, device=SINK)
    async with running(site):
        await site.client.open(claim("a"))
        player = await playing(site, "a")
        (site.claims_dir / "a" / "claim.json").unlink()  # an agent that was killed right then
        await asyncio.wait_for(player.communicate(), DEADLINE)
        assert not await site.answers("a")


async def test_clients_play_on_while_the_agent_is_away(site: Site) -> None:
    await asyncio.to_thread(site.stack.make_null_node, SINK, device=SINK)
    async with running(site) as made:
        await site.client.open(claim("a"))
        player = await playing(site, "a")
        site.client.hang_up()
        restarted = SocketClient(site.claims_dir, site.control)
        await restarted.open(claim("a"))
        restarted.hang_up()
        assert player.returncode is None
        assert made.created == 1
        player.kill()
        await player.communicate()


async def test_folders_that_are_there_at_the_start_get_their_sockets(site: Site) -> None:
    async with running(site):
        await site.client.open(claim("a"))
        await site.client.open(claim("b"))
    assert not await site.answers("a")
    (site.claims_dir / "empty").mkdir()
    (site.claims_dir / "file").touch()
    async with running(site) as made:
        await until(lambda: made.created == 2)
        assert await site.answers("a")
        assert await site.answers("b")


async def test_after_pipewire_s_restart_each_claim_has_a_live_socket_at_its_place(
    site: Site,
) -> None:
    async with running(site) as made:
        await site.client.open(claim("a"))
        await site.client.open(claim("b"))
        await asyncio.to_thread(site.stack.restart_pipewire)
        await until(lambda: made.created == 4)
        assert await site.answers("a")
        assert await site.answers("b")
        assert sorted(path.name for path in (site.claims_dir / "a").iterdir()) == [
            "claim.json",
            "pipewire-0",
            "pulse",
        ]


async def test_a_broken_connection_of_the_holder_cuts_no_client(site: Site) -> None:
    await asyncio.to_thread(site.stack.make_null_node, SINK, device=SINK)
    async with running(site) as made:
        await site.client.open(claim("a"))
        player = await playing(site, "a")
        first = made._connection
        assert first is not None
        first._stream.shutdown(2)
        await until(lambda: made._connection not in {None, first})
        await site.client.open(claim("b"))
        assert made.created == 2
        assert player.returncode is None
        await site.client.close("a")
        await asyncio.wait_for(player.communicate(), DEADLINE)


async def test_without_pipewire_open_waits_and_then_says_why(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(holder, "REQUEST_SECONDS", 0.3)
    async with running(site) as made:
        await site.client.open(claim("a"))
        site.stack.pipewire.kill()
        await until(lambda: made._connection is None)
        with pytest.raises(OSError, match="PipeWire isn't there: no connection to"):
            await site.client.open(claim("b"))
        await asyncio.wait_for(site.client.close("a"), DEADLINE)
        monkeypatch.setattr(holder, "REQUEST_SECONDS", 20.0)
        opening = asyncio.get_running_loop().create_task(site.client.open(claim("c")))
        site.stack.wireplumber.end()
        await asyncio.to_thread(site.stack.start_pipewire)
        try:
            await opening
        finally:
            await asyncio.to_thread(site.stack.start_wireplumber)
        assert await site.answers("c")


async def test_open_waits_for_a_holder_that_is_being_restarted(site: Site) -> None:
    opening = asyncio.get_running_loop().create_task(site.client.open(claim("a")))
    await until((site.claims_dir / "a" / "claim.json").exists)
    async with running(site):
        await opening
        assert await site.answers("a")


async def test_open_asks_again_when_the_holder_is_killed_over_the_question(site: Site) -> None:
    def hang_up(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()
        dying.close()

    site.control.parent.mkdir(parents=True)
    dying = await asyncio.start_unix_server(hang_up, site.control)
    opening = asyncio.get_running_loop().create_task(site.client.open(claim("a")))
    await until(lambda: not dying.is_serving())
    site.control.unlink()
    async with running(site):
        await opening
        assert await site.answers("a")


async def test_without_a_holder_open_says_so_after_a_while(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "AWAY_SECONDS", 0.2)
    with pytest.raises(HolderAwayError, match="claim-sockets isn't running: nobody answers on"):
        await site.client.open(claim("a"))


async def test_a_socket_whose_file_was_taken_away_comes_back(site: Site) -> None:
    async with running(site) as made:
        await site.client.open(claim("a"))
        site.socket("a").unlink()
        await until(lambda: made.created == 2)
        assert await site.answers("a")


async def test_a_broken_claim_file_harms_no_other_claim(site: Site) -> None:
    (site.claims_dir / "broken").mkdir(parents=True)
    (site.claims_dir / "broken" / "claim.json").write_text("{")
    async with running(site):
        await site.client.open(claim("a"))
        assert await site.answers("a")


async def test_a_path_too_long_for_a_socket_is_no_obstacle(site: Site) -> None:
    deep = site.claims_dir / ("d" * 100)
    site.claims_dir = deep
    site.client = SocketClient(deep, site.control)
    async with running(site):
        await site.client.open(claim("a"))
        mounted = site.control.parent / "mounted"  # as a container sees it: somewhere shorter
        mounted.symlink_to(deep / "a")
        environment = dict(site.stack.environment) | {
            "PIPEWIRE_REMOTE": str(mounted / "pipewire-0")
        }
        process = await asyncio.create_subprocess_exec("pw-cli", "info", "0", env=environment)
        assert await asyncio.wait_for(process.wait(), DEADLINE) == 0


async def test_a_second_holder_waits_for_the_first_one_s_end(site: Site) -> None:
    async with running(site) as first:
        await site.client.open(claim("a"))
        second = site.holder()
        waiting = asyncio.get_running_loop().create_task(second.run())
        try:
            await asyncio.sleep(0.5)
            assert (first.created, second.created) == (1, 0)
            assert await site.answers("a")
        finally:
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)


@pytest.mark.parametrize("line", [b"\n", b"{}\n", b"null\n", b'{"sync": 3}\n', b'{"sync": ".."}\n'])
async def test_a_bad_question_has_an_answer(site: Site, line: bytes) -> None:
    async with running(site):
        reader, writer = await asyncio.open_unix_connection(site.control)
        writer.write(line)
        answer = json.loads(await asyncio.wait_for(reader.readline(), DEADLINE))
        assert "want one line" in answer["error"]
        writer.write(b'{"sync": "never"}\n')
        assert json.loads(await asyncio.wait_for(reader.readline(), DEADLINE)) == {"live": False}
        writer.close()


async def test_only_its_own_user_and_group_may_ask(site: Site) -> None:
    async with running(site):
        assert stat.S_IMODE(site.control.stat().st_mode) == 0o660


def descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


async def test_many_claims_at_once_each_get_their_socket(site: Site) -> None:
    async with running(site) as made:
        await asyncio.gather(*(site.client.open(claim(f"uid-{i}")) for i in range(40)))
        assert made.created == 40
        before = descriptors()
        await asyncio.gather(*(site.client.close(f"uid-{i}") for i in range(40)))
        assert descriptors() <= before - 40
    assert site.client.uids() == set()


async def test_the_process_ends_with_success_on_sigterm_and_its_sockets_with_it(
    site: Site,
) -> None:
    program = (
        "import asyncio, sys; from liken_audio.sockets import holder; "
        "sys.exit(asyncio.run(holder.main(*sys.argv[1:])))"
    )
    arguments = (str(site.claims_dir), str(site.stack.remote), str(site.control))
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", program, *arguments)
    try:
        await until(site.control.exists)
        await site.client.open(claim("a"))
        site.client.hang_up()
        process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(process.wait(), DEADLINE) == 0
        assert not await site.answers("a")
        assert not site.control.exists()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
