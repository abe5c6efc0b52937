"""Kubeconfigs and service accounts, as files."""

import base64
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from liken_audio.kubernetes.credentials import (
    CredentialsError,
    KubeconfigFile,
    ServiceAccount,
    fingerprint,
)

IN_POD = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443"}


def kubeconfig(folder: Path, user: str, cluster: str = "insecure-skip-tls-verify: true") -> Path:
    file = folder / "kubeconfig"
    file.write_text(
        f"""
apiVersion: v1
kind: Config
clusters:
  - {{name: lab, cluster: {{server: "https://127.0.0.1:6443", {cluster}}}}}
  - {{name: other, cluster: {{server: "https://127.0.0.2:6443"}}}}
users:
  - {{name: agent, user: {{{user}}}}}
contexts:
  - {{name: lab, context: {{cluster: lab, user: agent}}}}
  - {{name: other, context: {{cluster: other, user: agent}}}}
current-context: lab
"""
    )
    return file


def service_account(folder: Path, token: str = "abc", authority: str = "CA") -> Path:
    (folder / "token").write_text(token)
    (folder / "ca.crt").write_text(authority)
    return folder


async def test_a_token_is_sent_as_bearer(tmp_path: Path) -> None:
    access = await KubeconfigFile(kubeconfig(tmp_path, "token: abc")).load()
    assert access.configuration.host == "https://127.0.0.1:6443"
    assert access.configuration.api_key == {"BearerToken": "Bearer abc"}
    assert access.configuration.verify_ssl is False
    assert access.files == (tmp_path / "kubeconfig",)


async def test_a_token_file_is_stripped_of_its_line_feed_and_watched(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("abc\n")
    access = await KubeconfigFile(kubeconfig(tmp_path, "tokenFile: token")).load()
    assert access.configuration.api_key == {"BearerToken": "Bearer abc"}
    assert tmp_path / "token" in access.files


async def test_a_named_context_beats_the_current_one(tmp_path: Path) -> None:
    access = await KubeconfigFile(kubeconfig(tmp_path, "token: abc"), "other").load()
    assert access.configuration.host == "https://127.0.0.2:6443"
    assert access.configuration.verify_ssl is True


async def test_certificates_may_be_files_or_data(tmp_path: Path) -> None:
    (tmp_path / "client.crt").write_text("CERTIFICATE")
    key = base64.b64encode(b"KEY").decode()
    authority = base64.b64encode(b"AUTHORITY").decode()
    file = kubeconfig(
        tmp_path,
        f"client-certificate: client.crt, client-key-data: {key}",
        f"certificate-authority-data: {authority}",
    )
    access = await KubeconfigFile(file).load()
    configuration = access.configuration
    assert configuration.cert_file == str(tmp_path / "client.crt")
    assert Path(str(configuration.key_file)).read_bytes() == b"KEY"
    assert Path(str(configuration.ssl_ca_cert)).read_bytes() == b"AUTHORITY"
    assert tmp_path / "client.crt" in access.files


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(None, "no such file", id="missing"),
        pytest.param("", "kubeconfig", id="empty"),
        pytest.param("just a text", "kubeconfig", id="not-a-mapping"),
        pytest.param("{a: [", "kubeconfig", id="not-yaml"),
        pytest.param("current-context: x\ncontexts: []\n", "contexts", id="unknown-context"),
    ],
)
async def test_a_broken_kubeconfig_is_named(
    tmp_path: Path, text: str | None, expected: str
) -> None:
    file = tmp_path / "kubeconfig"
    if text is not None:
        file.write_text(text)
    with pytest.raises(CredentialsError, match=expected) as caught:
        await KubeconfigFile(file).load()
    assert str(file) in str(caught.value)


@pytest.mark.parametrize(
    ("host", "address"),
    [("10.96.0.1", "https://10.96.0.1:443"), ("fd00::1", "https://[fd00::1]:443")],
)
async def test_a_pod_uses_its_service_account(tmp_path: Path, host: str, address: str) -> None:
    folder = service_account(tmp_path, token="abc\n")
    access = await ServiceAccount(folder, IN_POD | {"KUBERNETES_SERVICE_HOST": host}).load()
    assert access.configuration.host == address
    assert access.configuration.api_key == {"BearerToken": "Bearer abc"}
    assert access.configuration.ssl_ca_cert == str(tmp_path / "ca.crt")
    assert access.files == (tmp_path / "token", tmp_path / "ca.crt")


@pytest.mark.parametrize(
    ("environment", "files", "expected"),
    [
        pytest.param({}, {"token": "a", "ca.crt": "b"}, "give a kubeconfig", id="not-in-a-pod"),
        pytest.param(IN_POD, {"ca.crt": "b"}, "token", id="no-token"),
        pytest.param(IN_POD, {"token": "a"}, "ca.crt", id="no-authority"),
        pytest.param(IN_POD, {"token": "a", "ca.crt": ""}, "is empty", id="empty-authority"),
    ],
)
async def test_a_broken_service_account_says_what_is_missing(
    tmp_path: Path, environment: Mapping[str, str], files: dict[str, str], expected: str
) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(CredentialsError, match=expected):
        await ServiceAccount(tmp_path, environment).load()


def test_a_fingerprint_changes_when_a_file_is_written_replaced_or_removed(tmp_path: Path) -> None:
    file = tmp_path / "token"
    seen: list[Any] = [fingerprint((file,))]
    file.write_text("a")
    seen.append(fingerprint((file,)))
    file.write_text("ab")
    seen.append(fingerprint((file,)))
    (tmp_path / "new").write_text("cd")
    (tmp_path / "new").rename(file)
    seen.append(fingerprint((file,)))
    assert len(set(seen)) == 4
    assert fingerprint((file,)) == seen[-1]
