"""Claims on disk: written whole, read back by anybody, and nothing left behind."""

import asyncio
import errno
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from liken_audio import claim_store
from liken_audio.claim_store import ClaimStore
from liken_audio.dra.cdi import CdiSpec, spec
from liken_audio.dra.claims import ClaimState
from liken_audio.dra.metadata import MetadataFile
from tests.builders import CLAIM_UID, claim_record, claim_ref, claimed_device

CDI = CdiSpec({"cdiVersion": "0.5.0", "kind": "audio.liken.sh/claim", "devices": []})


class Folders:
    """A state folder and a CDI folder, and stores on them: one for each agent."""

    def __init__(self, folder: Path) -> None:
        self.state = folder / "state"
        self.cdi = folder / "cdi"
        self.claims = self.state / "claims"
        self._stores: list[ClaimStore] = []

    def store(self) -> ClaimStore:
        made = ClaimStore(self.state, self.cdi)
        self._stores.append(made)
        return made

    def close(self) -> None:
        for store in self._stores:
            store.close()


@pytest.fixture
def folders(tmp_path: Path) -> Iterator[Folders]:
    made = Folders(tmp_path)
    yield made
    made.close()


def test_a_saved_claim_is_read_by_another_agent(folders: Folders) -> None:
    folders.store().save(claim_record())
    assert folders.store().load(CLAIM_UID) == claim_record()


def test_a_claim_that_was_never_saved_is_none(folders: Folders) -> None:
    assert folders.store().load(CLAIM_UID) is None
    assert folders.store().records() == []


def test_records_are_ordered_by_namespace_name_and_uid(folders: Folders) -> None:
    store = folders.store()
    refs = [claim_ref("3", "b", "a"), claim_ref("2", "a", "b"), claim_ref("1", "b", "a")]
    for ref in refs:
        store.save(claim_record(ref=ref))
    assert [record.ref.uid for record in store.records()] == ["1", "3", "2"]


def test_what_another_agent_changed_is_seen_at_the_next_look(folders: Folders) -> None:
    one, other = folders.store(), folders.store()
    one.save(claim_record(state=ClaimState.STARTED))
    assert other.load(CLAIM_UID) == claim_record(state=ClaimState.STARTED)
    one.save(claim_record())
    assert other.load(CLAIM_UID) == claim_record()
    assert other.records() == [claim_record()]
    other.remove(CLAIM_UID)
    assert one.load(CLAIM_UID) is None
    assert one.records() == []


def test_a_list_of_records_shows_what_another_agent_changed(folders: Folders) -> None:
    one, other = folders.store(), folders.store()
    one.save(claim_record(state=ClaimState.STARTED))
    assert other.records() == [claim_record(state=ClaimState.STARTED)]
    one.save(claim_record())
    assert other.records() == [claim_record()]


def test_an_unchanged_record_is_the_same_object(folders: Folders) -> None:
    store = folders.store()
    store.save(claim_record())
    first = store.records()[0]
    assert store.records()[0] is first
    assert store.load(CLAIM_UID) is first


def test_what_was_written_here_is_not_read_again(folders: Folders) -> None:
    store, record = folders.store(), claim_record()
    store.save(record)
    assert store.load(CLAIM_UID) is record
    assert store.records()[0] is record


def test_removing_twice_is_fine(folders: Folders) -> None:
    store = folders.store()
    store.save(claim_record())
    store.remove(CLAIM_UID)
    store.remove(CLAIM_UID)
    assert list(folders.claims.iterdir()) == []


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"null", b"\xff\xfe", b'{"version": 1}', b"\0" * 512, b"[" * 200_000],
    ids=["empty", "cut", "null", "no-text", "lacking", "zeros", "deep"],
)
def test_a_broken_record_is_set_aside_and_not_lost(folders: Folders, content: bytes) -> None:
    store = folders.store()
    path = folders.claims / f"{CLAIM_UID}.json"
    path.write_bytes(content)
    assert store.records() == []
    assert store.load(CLAIM_UID) is None
    assert not path.exists()
    assert path.with_suffix(".broken").read_bytes() == content


def test_one_broken_record_does_not_hide_the_others(folders: Folders) -> None:
    store = folders.store()
    store.save(claim_record())
    (folders.claims / "other.json").write_text("{")
    assert store.records() == [claim_record()]


def test_one_record_that_the_disk_can_not_give_back_does_not_hide_the_others(
    folders: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = folders.store()
    store.save(claim_record())
    bad = folders.claims / "other.json"
    bad.write_text("{}")
    usual = Path.open

    def open_or_fail(path: Path, *arguments: Any) -> Any:
        if path == bad:
            raise OSError(errno.EIO, "Input/output error", str(path))
        return usual(path, *arguments)

    monkeypatch.setattr(Path, "open", open_or_fail)
    assert store.records() == [claim_record()]
    assert not bad.exists()


def test_a_record_under_another_claim_s_name_is_set_aside(folders: Folders) -> None:
    store = folders.store()
    store.save(claim_record())
    (folders.claims / f"{CLAIM_UID}.json").rename(folders.claims / "other.json")
    assert store.load("other") is None
    assert (folders.claims / "other.broken").exists()


def test_the_end_of_a_claim_takes_what_was_set_aside_with_it(folders: Folders) -> None:
    store = folders.store()
    (folders.claims / f"{CLAIM_UID}.broken").touch()
    store.remove(CLAIM_UID)
    assert list(folders.claims.iterdir()) == []


@pytest.mark.parametrize("uid", ["../../etc/passwd", "", "."])
def test_a_uid_that_leads_elsewhere_touches_nothing(folders: Folders, uid: str) -> None:
    store = folders.store()
    assert store.load(uid) is None
    store.remove(uid)
    store.remove_cdi(uid)
    with pytest.raises(ValueError, match="no claim UID"):
        store.save(claim_record(ref=claim_ref(uid)))
    with pytest.raises(ValueError, match="no claim UID"):
        store.write_cdi(uid, CDI)


def test_a_cdi_file_is_one_json_that_the_runtime_may_read(folders: Folders) -> None:
    made = spec(claim_record(), "/run/claims")
    assert made is not None
    folders.store().write_cdi(CLAIM_UID, made)
    (path,) = folders.cdi.iterdir()
    assert path.name == f"audio.liken.sh-{CLAIM_UID}.json"
    assert json.loads(path.read_text()) == made.document
    assert path.stat().st_mode & 0o777 == 0o644


def test_an_equal_cdi_file_is_not_written_again(folders: Folders) -> None:
    store = folders.store()
    store.write_cdi(CLAIM_UID, CDI)
    (path,) = folders.cdi.iterdir()
    before = path.stat()
    store.write_cdi(CLAIM_UID, CDI)
    assert path.stat().st_ino == before.st_ino


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff"], ids=["empty", "other", "no-text"])
def test_a_wrong_cdi_file_is_replaced(folders: Folders, content: bytes) -> None:
    store = folders.store()
    store.write_cdi(CLAIM_UID, CDI)
    (path,) = folders.cdi.iterdir()
    path.write_bytes(content)
    store.write_cdi(CLAIM_UID, CDI)
    assert json.loads(path.read_text()) == CDI.document


def test_a_cdi_folder_that_a_reboot_took_away_is_made_again(folders: Folders) -> None:
    store = folders.store()
    store.write_cdi(CLAIM_UID, CDI)
    next(folders.cdi.iterdir()).unlink()
    folders.cdi.rmdir()
    store.write_cdi(CLAIM_UID, CDI)
    assert len(list(folders.cdi.iterdir())) == 1


def test_removing_a_cdi_file_twice_is_fine(folders: Folders) -> None:
    store = folders.store()
    store.write_cdi(CLAIM_UID, CDI)
    store.remove_cdi(CLAIM_UID)
    store.remove_cdi(CLAIM_UID)
    assert list(folders.cdi.iterdir()) == []


def test_a_cdi_folder_that_is_none_holds_no_file_to_remove(folders: Folders) -> None:
    store = folders.store()
    folders.cdi.write_text("in the way")
    with pytest.raises(OSError, match="cdi"):
        store.write_cdi(CLAIM_UID, CDI)
    store.remove_cdi(CLAIM_UID)


def test_a_file_that_cannot_be_removed_is_an_error(folders: Folders) -> None:
    store = folders.store()
    (folders.cdi / f"audio.liken.sh-{CLAIM_UID}.json").mkdir(parents=True)
    with pytest.raises(OSError, match=CLAIM_UID):
        store.remove_cdi(CLAIM_UID)


def test_a_runtime_never_sees_a_file_that_is_half_written(
    folders: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = folders.store()
    seen: list[list[str]] = []

    def readable() -> list[str]:
        names = [path.name for path in folders.cdi.iterdir()]
        return [name for name in names if name.endswith((".json", ".yaml"))]

    monkeypatch.setattr(os, "fsync", lambda _descriptor: seen.append(readable()))
    store.write_cdi(CLAIM_UID, CDI)
    assert seen == [[]]  # what is being written ends in .tmp, hidden or not
    assert readable() == [f"audio.liken.sh-{CLAIM_UID}.json"]


def test_a_full_disk_leaves_the_old_record_and_no_rubbish(
    folders: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = folders.store()
    store.save(claim_record())

    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        store.save(claim_record(claimed_device(node_name="new")))
    assert store.load(CLAIM_UID) == claim_record()
    assert [path.name for path in folders.claims.iterdir()] == [f"{CLAIM_UID}.json"]


def test_a_reservation_costs_no_fsync_and_a_record_two(
    folders: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = folders.store()
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    store.save(claim_record(state=ClaimState.STARTED), is_durable=False)
    assert len(synced) == 0
    store.save(claim_record())
    assert len(synced) == 2  # the file and its folder


def test_what_a_killed_agent_was_writing_goes_with_the_claim_s_cdi_files(folders: Folders) -> None:
    store = folders.store()
    store.write_cdi(CLAIM_UID, CDI)
    (folders.cdi / f".audio.liken.sh-{CLAIM_UID}.json.tmp").touch()
    (folders.cdi / f".{METADATA_CDI}.tmp").touch()
    (folders.cdi / ".audio.liken.sh-other.json.tmp").touch()
    store.remove_cdi(CLAIM_UID)
    assert [path.name for path in folders.cdi.iterdir()] == [".audio.liken.sh-other.json.tmp"]


def test_a_cdi_file_s_content_is_synced(folders: Folders, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    folders.store().write_cdi(CLAIM_UID, CDI)
    assert len(synced) == 1


def test_leftovers_are_files_without_a_record(folders: Folders) -> None:
    store = folders.store()
    store.save(claim_record(ref=claim_ref("known")))
    store.write_cdi("known", CDI)
    store.write_cdi("orphan", CDI)
    (folders.claims / ".cut.json.tmp").touch()
    (folders.cdi / ".audio.liken.sh-cut2.json.tmp").touch()
    (folders.cdi / "gpu.example.com-x.json").touch()
    (folders.cdi / ".gpu.json.tmp").touch()
    assert store.leftovers() == {"orphan", "cut", "cut2"}


def test_sweeping_removes_leftovers_only(folders: Folders) -> None:
    store = folders.store()
    store.save(claim_record(ref=claim_ref("known")))
    for uid in ("known", "orphan"):
        store.write_cdi(uid, CDI)
        (folders.claims / f".{uid}.json.tmp").touch()
        (folders.cdi / f".audio.liken.sh-{uid}.json.tmp").touch()
    for uid in ("known", "orphan", "never"):
        store.sweep(uid)
    assert [path.name for path in folders.claims.iterdir()] == ["known.json"]
    assert [path.name for path in folders.cdi.iterdir()] == ["audio.liken.sh-known.json"]


METADATA = MetadataFile(request="out", text="{}\n", container_path="/var/run/x/metadata.json")
METADATA_CDI = f"audio.liken.sh_metadata_{CLAIM_UID}_out.json"


def metadata_file(folders: Folders) -> Path:
    """The file that the CDI file mounts."""
    document = json.loads((folders.cdi / METADATA_CDI).read_text())
    (mount,) = document["devices"][0]["containerEdits"]["mounts"]
    return Path(mount["hostPath"])


@pytest.mark.parametrize("umask", [0o022, 0o077], ids=oct)
def test_metadata_is_for_every_user_of_a_container(folders: Folders, umask: int) -> None:
    store = folders.store()
    before = os.umask(umask)
    try:
        store.write_metadata(claim_record(), METADATA)
    finally:
        os.umask(before)
    path = metadata_file(folders)
    assert path.read_text() == METADATA.text
    assert path.is_relative_to(folders.state)
    assert path.stat().st_mode & 0o777 == 0o644
    parents = (path.parent, path.parent.parent, path.parent.parent.parent)
    assert {parent.stat().st_mode & 0o777 for parent in parents} == {0o755}


def test_equal_metadata_is_not_written_again_and_other_is_replaced_whole(
    folders: Folders,
) -> None:
    """A container that runs has the file's old inode."""
    store = folders.store()
    store.write_metadata(claim_record(), METADATA)
    inode = metadata_file(folders).stat().st_ino
    store.write_metadata(claim_record(), METADATA)
    assert metadata_file(folders).stat().st_ino == inode
    store.write_metadata(claim_record(), replace(METADATA, text="{ }\n"))
    assert metadata_file(folders).stat().st_ino != inode


def test_the_end_of_a_claim_takes_its_metadata_and_no_other_claim_s(folders: Folders) -> None:
    store = folders.store()
    store.write_metadata(claim_record(), METADATA)
    store.write_metadata(claim_record(), replace(METADATA, request="second"))
    other = claim_record(ref=claim_ref(f"{CLAIM_UID}0"))
    store.write_metadata(other, METADATA)
    store.remove_cdi(CLAIM_UID)
    store.remove_cdi(CLAIM_UID)
    assert len(list(folders.cdi.iterdir())) == 1
    assert [path.name for path in (folders.state / "dra-device-metadata").iterdir()] == [
        other.ref.uid
    ]


@pytest.mark.parametrize("spoil", ["cdi", "folder", "half-written"])
def test_metadata_without_a_record_is_a_leftover_and_swept(folders: Folders, spoil: str) -> None:
    store = folders.store()
    store.write_metadata(claim_record(), METADATA)
    if spoil == "cdi":
        shutil.rmtree(folders.state / "dra-device-metadata")
    elif spoil == "folder":
        (folders.cdi / METADATA_CDI).unlink()
    else:
        (folders.cdi / METADATA_CDI).rename(folders.cdi / f".{METADATA_CDI}.tmp")
    assert store.leftovers() == {CLAIM_UID}
    store.sweep(CLAIM_UID)
    assert store.leftovers() == set()
    assert list(folders.cdi.iterdir()) == []


def test_metadata_of_a_known_claim_is_none(folders: Folders) -> None:
    store = folders.store()
    store.save(claim_record())
    store.write_metadata(claim_record(), METADATA)
    assert store.leftovers() == set()
    store.sweep(CLAIM_UID)
    assert metadata_file(folders).exists()


async def overlapping(*holds: Any) -> int:
    """Enter all holds side by side; return how many were inside at the same time at most."""
    inside = most = 0

    async def enter(hold: Any) -> None:
        nonlocal inside, most
        async with hold:
            inside += 1
            most = max(most, inside)
            await asyncio.sleep(0.01)
            inside -= 1

    await asyncio.gather(*(enter(hold) for hold in holds))
    return most


async def test_a_claim_s_lock_excludes_in_one_agent_and_between_two(folders: Folders) -> None:
    one, other = folders.store(), folders.store()
    assert await overlapping(one.lock("a"), one.lock("a"), other.lock("a"), other.lock("a")) == 1


async def test_locks_of_two_claims_do_not_wait_for_each_other(folders: Folders) -> None:
    one, other = folders.store(), folders.store()
    assert await overlapping(one.lock("a"), other.lock("b"), one.lock("c")) == 3


async def test_a_reservation_excludes_in_one_agent_and_between_two(folders: Folders) -> None:
    one, other = folders.store(), folders.store()
    assert await overlapping(one.reservation(), one.reservation(), other.reservation()) == 1


async def test_a_reservation_is_possible_inside_a_claim_s_lock(folders: Folders) -> None:
    store = folders.store()
    async with store.lock("a"), store.reservation():
        pass


async def test_a_lock_is_free_again_after_a_failure_inside(folders: Folders) -> None:
    one, other = folders.store(), folders.store()
    with pytest.raises(RuntimeError):
        async with one.lock("a"):
            raise RuntimeError
    async with asyncio.timeout(5), other.lock("a"):
        pass


async def test_a_lock_that_never_gets_free_is_an_error_and_not_for_ever(
    folders: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claim_store, "LOCK_SECONDS", 0.05)
    one, other = folders.store(), folders.store()
    async with one.lock("a"):
        with pytest.raises(TimeoutError, match="another agent of this node still works on claim a"):
            async with other.lock("a"):
                pass
        with pytest.raises(TimeoutError):
            async with one.lock("a"):
                pass


async def test_a_cancelled_waiter_leaves_nothing_behind(folders: Folders) -> None:
    store = folders.store()
    async with store.lock("a"):
        waiter = asyncio.get_running_loop().create_task(store.lock("a").__aenter__())
        await asyncio.sleep(0)
        waiter.cancel()
        await asyncio.gather(waiter, return_exceptions=True)
    assert store._waiting == {}


def test_the_boot_id_is_the_kernel_s() -> None:
    assert claim_store.read_boot_id() == claim_store.read_boot_id()
    assert len(claim_store.read_boot_id()) == 36
