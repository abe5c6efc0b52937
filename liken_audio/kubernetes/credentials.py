"""Where the API server is and how we prove who we are: a kubeconfig or a service account.

Either is read whole into one `Access`. Its files (tokens, certificates, the kubeconfig itself) may
be replaced at any time: the client compares their `fingerprint` and loads again when it differs,
so a rotated token, certificate or authority needs no restart.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from kubernetes_asyncio.client.configuration import Configuration

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where the kubelet mounts a pod's service account."""


class CredentialsError(Exception):
    """The credentials can't be read; the message names the file or variable and what is wrong."""


@dataclass(frozen=True, slots=True)
class Access:
    """One reading of the credentials."""

    configuration: Configuration
    files: tuple[Path, ...]
    """What it was read from; a change of one of them makes it stale."""


_BROKEN = (ValueError, TypeError, KeyError, AttributeError, AssertionError)
"""What the library raises on files whose shape it doesn't expect."""

Fingerprint = tuple[tuple[int, int, int] | None, ...]


class Credentials(Protocol):
    """Something that an `Access` can be read from, again and again."""

    async def load(self) -> Access:
        """Read them now; raises `CredentialsError`."""


class KubeconfigFile:
    """A kubeconfig: token, token file, client certificate, exec plugin, insecure-skip-tls-verify.

    `context` is the name of one of its contexts, None for the current one.
    """

    def __init__(self, path: Path, context: str | None = None) -> None:
        self._path = path
        self._context = context

    async def load(self) -> Access:
        """Read the file and those that it names; raises `CredentialsError`."""
        # Imported here: YAML, OpenID and exec plugins are nothing that a pod needs.
        from kubernetes_asyncio.config import kube_config  # noqa: PLC0415
        from kubernetes_asyncio.config.config_exception import ConfigException  # noqa: PLC0415
        from yaml import YAMLError  # noqa: PLC0415

        if not self._path.is_file():
            raise CredentialsError(f"kubeconfig {self._path}: no such file")
        configuration = Configuration()
        try:
            merged = kube_config.KubeConfigMerger(str(self._path)).config
            loader = kube_config.KubeConfigLoader(
                config_dict=merged,
                active_context=self._context,
                config_base_path=str(self._path.parent),
            )
            await loader.load_and_set(configuration)
            token_file = _token_file(merged, loader.current_context, self._path.parent)
        except (ConfigException, YAMLError, OSError, *_BROKEN) as error:
            raise CredentialsError(f"kubeconfig {self._path}: {error}") from error
        _strip_token(configuration)
        return _access(configuration, self._path, token_file)


class ServiceAccount:
    """The pod's own service account: a folder with `token` and `ca.crt`, two variables."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self._folder = folder
        self._environment = environment

    async def load(self) -> Access:
        """Read token and address; raises `CredentialsError`."""
        host = self._environment.get("KUBERNETES_SERVICE_HOST", "")
        port = self._environment.get("KUBERNETES_SERVICE_PORT", "")
        if not host or not port:
            raise CredentialsError(
                "KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set: "
                "outside of a pod give a kubeconfig"
            )
        authority = self._folder / "ca.crt"
        token = self._folder / "token"
        configuration = Configuration()
        configuration.host = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
        configuration.ssl_ca_cert = str(authority)
        try:
            configuration.api_key["BearerToken"] = "Bearer " + token.read_text(encoding="utf-8")
            if not authority.read_bytes():
                raise CredentialsError(f"service account: {authority} is empty")
        except (OSError, ValueError) as error:
            raise CredentialsError(f"service account: {error}") from error
        _strip_token(configuration)
        return _access(configuration, token, authority)


def in_pod() -> ServiceAccount:
    """Return the service account of the pod that this process runs in."""
    return ServiceAccount(SERVICE_ACCOUNT, os.environ)


def fingerprint(files: tuple[Path, ...]) -> Fingerprint:
    """Return what changes when a file is written or replaced; None stands for a missing one."""
    prints: list[tuple[int, int, int] | None] = []
    for file in files:
        try:
            status = file.stat()
        except OSError:
            prints.append(None)
        else:
            prints.append((status.st_ino, status.st_mtime_ns, status.st_size))
    return tuple(prints)


def _access(configuration: Configuration, *files: Path | None) -> Access:
    named = (configuration.ssl_ca_cert, configuration.cert_file, configuration.key_file)
    paths = [*files, *(Path(name) for name in named if name)]
    return Access(configuration, tuple(dict.fromkeys(path for path in paths if path is not None)))


def _strip_token(configuration: Configuration) -> None:
    """Token files often end in a line feed, which no HTTP header may hold."""
    token = configuration.api_key.get("BearerToken")
    if token is not None:
        configuration.api_key["BearerToken"] = token.strip()


def _token_file(config: Any, context: Any, folder: Path) -> Path | None:
    """Return the `tokenFile` of the context's user, if it has one (library's ConfigNodes)."""
    name = context["context"].get("user")
    entry = config["users"].get_with_name(name, safe=True) if name and "users" in config else None
    file = entry["user"].safe_get("tokenFile") if entry and entry["user"].value else None
    return folder / str(file) if file else None
