"""A claim's files in the order that makes a crash harmless; the store is the real one."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from liken_audio.claim_store import ClaimStore
from liken_audio.controllers.claim_files import ClaimFiles
from liken_audio.dra.claims import ClaimRecord
from liken_audio.dra.metadata import MetadataFile
from tests.builders import CLAIM_UID, claim_record

METADATA = MetadataFile(request="out", text="{}", container_path="/run/metadata.json")


class Place:
    """The folders and what writes in them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = ClaimStore(folder / "state", folder / "cdi")
        self.files = ClaimFiles(self.store, "/run/claims")

    def cdi(self) -> list[str]:
        return sorted(path.name for path in (self.folder / "cdi").glob("*.json"))


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    yield made
    made.store.close()


async def test_the_checkpoint_is_written_after_the_cdi_files(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    save = place.store.save

    def saved(record: ClaimRecord, *, is_durable: bool = True) -> None:
        assert len(place.cdi()) == 2
        save(record, is_durable=is_durable)

    monkeypatch.setattr(place.store, "save", saved)
    whole = await place.files.write(claim_record(), [METADATA], is_changed=True)
    assert whole == claim_record(metadata=("out",))
    assert place.store.load(CLAIM_UID) == whole


async def test_a_checkpoint_that_says_so_already_is_not_written_again(place: Place) -> None:
    whole = await place.files.write(claim_record(), [METADATA], is_changed=False)
    assert place.store.load(CLAIM_UID) == whole
    path = next((place.folder / "state" / "claims").glob("*.json"))
    before = path.stat().st_ino
    assert await place.files.write(whole, [METADATA], is_changed=False) == whole
    assert path.stat().st_ino == before
    await place.files.write(whole, [METADATA], is_changed=True)
    assert path.stat().st_ino != before


async def test_a_claim_works_without_metadata_that_can_t_be_written(place: Place) -> None:
    (place.folder / "state" / "dra-device-metadata").touch()
    whole = await place.files.write(claim_record(), [METADATA], is_changed=True)
    assert whole.metadata == ()
    (name,) = place.cdi()
    mounts = json.loads((place.folder / "cdi" / name).read_text())["devices"][0]["containerEdits"]
    assert mounts["mounts"][0]["hostPath"] == f"/run/claims/{CLAIM_UID}"


async def test_the_checkpoint_goes_last(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    await place.files.write(claim_record(), [METADATA], is_changed=True)

    def refuse(uid: str) -> None:
        raise OSError(f"a full disk keeps {uid}")

    with monkeypatch.context() as patched:
        patched.setattr(place.store, "remove_cdi", refuse)
        with pytest.raises(OSError, match="a full disk"):
            await place.files.forget(CLAIM_UID)
    assert place.store.load(CLAIM_UID) is not None
    await place.files.forget(CLAIM_UID)
    assert place.cdi() == []
    assert place.store.load(CLAIM_UID) is None
