"""Passwords and digest types at opening."""

import pytest

from bookie_client.access import access_to
from bookie_protocol.digest import DigestType
from bookie_protocol.errors import Unauthorized
from bookie_protocol.keys import master_key
from bookie_protocol.ledger_metadata.model import LedgerMetadata

BARE = LedgerMetadata(1, 1, 1, 1, {0: ("A",)})
RECORDED = LedgerMetadata(1, 1, 1, 1, {0: ("A",)}, digest_type=DigestType.MAC, password=b"right")


def test_the_recorded_type_counts_and_the_callers_where_there_is_none():
    assert access_to(RECORDED, b"right", DigestType.CRC32).digest.type is DigestType.MAC
    assert access_to(BARE, b"any", DigestType.CRC32).digest.type is DigestType.CRC32


def test_the_password_is_compared_where_one_is_recorded():
    assert access_to(RECORDED, b"right", DigestType.CRC32).master_key == master_key(b"right")
    assert access_to(BARE, b"any", DigestType.CRC32).master_key == master_key(b"any")
    for wrong in (b"", b"righ", b"right "):
        with pytest.raises(Unauthorized, match=r"ledger 1 .*password"):
            access_to(RECORDED, wrong, DigestType.CRC32)


def test_administration_uses_what_is_recorded():
    access = access_to(RECORDED, None, DigestType.CRC32)
    entry = access.digest.encode(1, 0, -1, 1, b"x")
    assert access_to(RECORDED, b"right", DigestType.MAC).digest.verify(entry, 1, 0) == b"x"
    assert access_to(BARE, None, DigestType.CRC32).master_key == master_key(b"")


def test_the_key_is_not_in_the_representation():
    assert repr(master_key(b"right")) not in repr(access_to(RECORDED, None, DigestType.CRC32))
