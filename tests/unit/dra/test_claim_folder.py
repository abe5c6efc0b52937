"""A claim's folder is named by its UID, so a UID must not lead elsewhere."""

import pytest

from liken_audio.dra.claim_folder import is_claim_uid
from tests.builders import CLAIM_UID


def test_the_api_server_s_uids_are_claim_uids() -> None:
    assert is_claim_uid(CLAIM_UID)


@pytest.mark.parametrize(
    "text", ["", ".", "..", "../x", "a/b", ".hidden", "-x", "a b", "a\n", "a\0", "ä", "a" * 129]
)
def test_what_could_lead_out_of_the_folder_is_none(text: str) -> None:
    assert not is_claim_uid(text)
