"""A container image without a registry: an archive that `ctr images import` takes."""

import hashlib
import io
import json
import platform
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path

_FOLDERS = ("bin", "dev", "etc", "proc", "run", "sys", "tmp", "usr", "var")


def write_archive(
    archive: Path,
    reference: str,
    files: Mapping[str, Path],
    *,
    links: Mapping[str, str] | None = None,
    entrypoint: Sequence[str] = (),
) -> None:
    """Write an image of one layer with these files: path in the image, without the root → file."""
    layer = _layer(files, links or {})
    digest = hashlib.sha256(layer).hexdigest()
    config = {
        "architecture": _architecture(),
        "os": "linux",
        "config": {"Entrypoint": list(entrypoint), "Env": ["PATH=/usr/bin:/bin"]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
    }
    encoded = json.dumps(config).encode()
    name = f"{hashlib.sha256(encoded).hexdigest()}.json"
    manifest = [{"Config": name, "RepoTags": [reference], "Layers": [f"{digest}/layer.tar"]}]
    with tarfile.open(archive, "w") as tar:
        _add(tar, name, encoded)
        _add(tar, f"{digest}/layer.tar", layer)
        _add(tar, "manifest.json", json.dumps(manifest).encode())


def _layer(files: Mapping[str, Path], links: Mapping[str, str]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for folder in (each for each in _FOLDERS if each not in links):
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(entry)
        for name, file in files.items():
            _add(tar, name, file.read_bytes(), 0o755)
        for name, target in links.items():
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = tarfile.SYMTYPE, target
            tar.addfile(entry)
    return buffer.getvalue()


def _add(tar: tarfile.TarFile, name: str, data: bytes, mode: int = 0o644) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(data), mode
    tar.addfile(entry, io.BytesIO(data))


def _architecture() -> str:
    return {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
