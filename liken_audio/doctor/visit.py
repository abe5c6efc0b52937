"""One visit of the doctor: everything is looked at side by side, each under a deadline of its own."""

import asyncio
import os
from pathlib import Path

import aiohttp

from liken_audio.doctor import api_server, listening, machine
from liken_audio.doctor.checks import PROGRAMS
from liken_audio.doctor.facts import Cluster, Facts, Folder, Reach
from liken_audio.kubernetes.client import KubernetesClient
from liken_audio.kubernetes.credentials import CredentialsError
from liken_audio.settings import Settings

CLUSTER_SECONDS = 30.0
_AGENT_SECONDS = 5.0
_SYSTEM_BUS = "unix:path=/run/dbus/system_bus_socket"
_FOLDERS = ("registry_dir", "plugin_dir", "cdi_dir")


async def facts(settings: Settings) -> Facts:
    """Look at everything; raises nothing that a partner does."""
    address = os.environ.get("DBUS_SYSTEM_BUS_ADDRESS", _SYSTEM_BUS)
    async with asyncio.TaskGroup() as group:
        sound = group.create_task(asyncio.to_thread(machine.sound, Path("/"), settings.virtual))
        folders = group.create_task(asyncio.to_thread(_folders, settings))
        bus = group.create_task(asyncio.to_thread(machine.knock, machine.bus_path(address)))
        programs = group.create_task(listening.versions([*PROGRAMS, "wireplumber"]))
        pipewire = group.create_task(listening.server(settings.pipewire_remote))
        cluster = group.create_task(_cluster(settings))
        agent = group.create_task(_agent(settings))
    reach, lacks = agent.result()
    return Facts(
        sound=sound.result(),
        programs=programs.result(),
        pipewire=pipewire.result(),
        bus_address=address,
        bus=bus.result(),
        folders=folders.result(),
        cluster=cluster.result(),
        agent=reach,
        agent_lacks=lacks,
    )


def _folders(settings: Settings) -> tuple[Folder, ...]:
    return tuple(
        machine.folder(f"--{name.replace('_', '-')}", getattr(settings, name)) for name in _FOLDERS
    )


async def _cluster(settings: Settings) -> Cluster:
    try:
        client = (
            KubernetesClient.from_kubeconfig(settings.kubeconfig)
            if settings.kubeconfig
            else KubernetesClient.in_cluster()
        )
        async with asyncio.timeout(CLUSTER_SECONDS), client:
            return await api_server.cluster(client, settings.node)
    except (CredentialsError, OSError) as error:
        said = str(error) or f"no answer within {CLUSTER_SECONDS:.0f} s"
        return Cluster(error=said, node=settings.node)


async def _agent(settings: Settings) -> tuple[Reach, tuple[str, ...]]:
    """What the agent's own readiness says; on this machine's loopback, wherever else it listens."""
    if settings.http_port == "0":
        return Reach.ABSENT, ()
    url = f"http://127.0.0.1:{settings.http_port}/readyz"
    timeout = aiohttp.ClientTimeout(total=_AGENT_SECONDS)
    try:
        async with aiohttp.ClientSession(timeout=timeout) as session, session.get(url) as answer:
            lines = (await answer.text()).splitlines()
            return Reach.ANSWERS, () if answer.status == 200 else tuple(lines)
    except TimeoutError:
        return Reach.SILENT, ()
    except (aiohttp.ClientError, OSError):
        return Reach.ABSENT, ()
