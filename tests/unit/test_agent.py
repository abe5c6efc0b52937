"""The composition: what can't be put together, what fails, and the order of the end."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from liken_audio import agent
from liken_audio.settings import Settings
from tests.builders import KITCHEN_CARDS

KUBECONFIG = """
apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "http://127.0.0.1:1"}}]
users: [{name: u, user: {token: t}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
"""


@pytest.fixture
def settings(tmp_path: Path) -> Callable[..., Settings]:
    """Settings of an agent whose files all are in order, but for the changes."""
    (tmp_path / "kubeconfig").write_text(KUBECONFIG)
    (tmp_path / "cards.yaml").write_text(KITCHEN_CARDS)

    def made(**changes: str) -> Settings:
        right = {
            "node": "kitchen",
            "kubeconfig": str(tmp_path / "kubeconfig"),
            "virtual": str(tmp_path / "cards.yaml"),
            "plugin_dir": str(tmp_path),
            "registry_dir": "/registry",
            "cdi_dir": str(tmp_path / "cdi"),
            "http_port": "0",
        }
        return Settings(**(right | changes))

    return made


@pytest.mark.parametrize(
    ("option", "value", "reason"),
    [
        ("kubeconfig", "/no/such/kubeconfig", "/no/such/kubeconfig: no such file"),
        ("virtual", "/no/such/cards.yaml", "/no/such/cards.yaml: can't be read"),
        ("registry_dir", "/" + "r" * 107, "must be"),
        ("plugin_dir", "/dev/null", "/dev/null"),
    ],
)
def test_what_a_person_must_put_right_ends_the_agent_with_status_1_and_one_line(
    settings: Callable[..., Settings], option: str, value: str, reason: str
) -> None:
    with capture_logs() as lines:
        assert agent.main(settings(**{option: value})) == 1
    assert [line["event"] for line in lines] == ["the agent can't start"]
    assert reason in lines[0]["reason"]


def test_broken_virtual_cards_are_named_with_their_place(
    settings: Callable[..., Settings], tmp_path: Path
) -> None:
    broken = tmp_path / "broken.yaml"
    broken.write_text("cards:\n- bus: isa\n")
    with capture_logs() as lines:
        assert agent.main(settings(virtual=str(broken))) == 1
    assert str(broken) in lines[0]["reason"]
    assert "isa" in lines[0]["reason"]


def parts(*loops: Any, server: Any) -> Any:
    return SimpleNamespace(
        loops=lambda: loops,
        kubelet=SimpleNamespace(run=lambda: server),
        missing=list,
        metrics=list,
    )


async def for_ever(done: list[str], name: str) -> None:
    try:
        await asyncio.Event().wait()
    finally:
        done.append(name)


@pytest.mark.parametrize("culprit", ["loop", "server"])
def test_a_part_that_fails_ends_all_others_and_the_process(
    settings: Callable[..., Settings], monkeypatch: pytest.MonkeyPatch, culprit: str
) -> None:
    """The kubelet starts the container again; going on without a loop would only look alive."""
    done: list[str] = []

    async def fail() -> None:
        raise ZeroDivisionError("a bug")

    healthy = for_ever(done, "healthy")
    made = (
        parts(fail(), healthy, server=for_ever(done, "server"))
        if culprit == "loop"
        else parts(healthy, server=fail())
    )
    monkeypatch.setattr(agent, "build", lambda *_: made)
    with pytest.raises(ExceptionGroup) as failure, capture_logs():
        agent.main(settings())
    assert failure.group_contains(ZeroDivisionError)
    assert "healthy" in done


async def test_at_the_end_the_kubelets_sockets_go_before_the_loops() -> None:
    """Calls under way are finished by loops that still run."""
    done: list[str] = []
    stop = asyncio.Event()
    made = parts(for_ever(done, "loop"), server=for_ever(done, "server"))
    with capture_logs():
        serving = asyncio.ensure_future(agent._serve(made, stop))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        stop.set()
        await serving
    assert done == ["server", "loop"]
