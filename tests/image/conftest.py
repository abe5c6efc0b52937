"""The built image, unpacked once."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.image import Image, image_archive
from tests.harness.processes import HarnessError, Workspace


@pytest.fixture(scope="session")
def image() -> Iterator[Image]:
    """The image of LIKEN_AUDIO_IMAGE."""
    try:
        archive = image_archive()
    except HarnessError as error:
        pytest.skip(str(error))
    with Workspace("image") as made:
        yield Image(archive, made.path)


@pytest.fixture
def shared(workspace: Path, image: Image) -> Path:
    """A node's /run/audio.liken.sh, with its folders made."""
    folder = workspace / "run"
    folder.mkdir(mode=0o755)
    image.run(folder, "node-sound", "folders", user=0)
    return folder
