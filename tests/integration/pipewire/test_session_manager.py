"""The file by which WirePlumber's restart is asked for."""

from pathlib import Path

import pytest

from liken_audio.pipewire.session_manager import RestartFile


async def test_a_request_is_a_file_until_it_is_answered(tmp_path: Path) -> None:
    file = tmp_path / "restart"
    manager = RestartFile(str(file))
    await manager.restart()
    assert file.exists()
    with pytest.raises(FileExistsError, match="not answered"):
        await manager.restart()
    file.unlink()
    await manager.restart()
    assert manager.requests == 2


async def test_where_nothing_can_be_asked_it_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        await RestartFile(str(tmp_path / "none" / "restart")).restart()
    with pytest.raises(OSError, match="--wireplumber-restart"):
        await RestartFile("").restart()
