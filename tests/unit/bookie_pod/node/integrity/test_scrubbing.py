"""Digest types from the metadata service: asked once, not at all while it is silent."""

from __future__ import annotations

import pytest

from bookie_pod.node.integrity import scrubbing
from bookie_pod.node.integrity.scrubbing import PAUSE_S, MetadataDigestTypes
from bookie_protocol.digest import DigestType
from bookie_protocol.errors import MetadataDamaged, MetadataUnavailable
from bookie_protocol.ledger_metadata.model import LedgerMetadata


class Metadata:
    """`LedgerMetadata` with these types; counts questions."""

    bookie_id = "me:1"

    def __init__(self, **types: DigestType | None) -> None:
        self.types = {int(name[1:]): each for name, each in types.items()}
        self.asked: list[int] = []
        self.down = False
        self.damaged: set[int] = set()

    def read(self, ledger_id: int) -> LedgerMetadata | None:
        self.asked.append(ledger_id)
        if self.down:
            raise MetadataUnavailable("down")
        if ledger_id in self.damaged:
            raise MetadataDamaged("not metadata")
        if ledger_id not in self.types:
            return None
        digest_type = self.types[ledger_id]
        password = None if digest_type is None else b""
        return LedgerMetadata(ledger_id, 1, 1, 1, {0: ("a:1",)}, digest_type=digest_type, password=password)


def test_each_ledger_is_asked_for_once() -> None:
    metadata, paid = Metadata(l1=DigestType.CRC32, l2=None), []
    types = MetadataDigestTypes(metadata, lambda: paid.append(1))  # type: ignore[arg-type]
    for _ in range(3):
        assert [types.digest_type(each) for each in (1, 2, 3)] == [
            DigestType.CRC32,
            DigestType.DUMMY,
            None,
        ], "a record that names no type is an answer"
    assert metadata.asked == [1, 2, 3]
    assert len(paid) == 3


def test_a_silent_service_is_left_alone_for_a_while() -> None:
    metadata, now = Metadata(l1=DigestType.CRC32C), [100.0]
    types = MetadataDigestTypes(metadata, lambda: None, lambda: now[0])  # type: ignore[arg-type]
    metadata.down = True
    assert types.digest_type(1) is None
    metadata.down = False
    assert types.digest_type(1) is None
    assert metadata.asked == [1]
    now[0] += PAUSE_S
    assert types.digest_type(1) is DigestType.CRC32C


def test_a_ledger_whose_metadata_are_damaged_keeps_no_other_from_being_checked() -> None:
    metadata = Metadata(l1=DigestType.CRC32C)
    metadata.damaged.add(2)
    types = MetadataDigestTypes(metadata, lambda: None)  # type: ignore[arg-type]
    assert [types.digest_type(each) for each in (2, 1, 2)] == [None, DigestType.CRC32C, None]
    assert metadata.asked == [2, 1]


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scrubbing, "MAX_KNOWN", 2)
    metadata = Metadata(l1=DigestType.CRC32, l2=DigestType.CRC32, l3=DigestType.CRC32)
    types = MetadataDigestTypes(metadata, lambda: None)  # type: ignore[arg-type]
    for ledger_id in (1, 2, 1, 3, 1, 2):
        types.digest_type(ledger_id)
    assert metadata.asked == [1, 2, 3, 2]


def test_whoever_is_about_to_call_an_entry_damaged_asks_anew() -> None:
    """But not for each of many entries."""
    metadata, now = Metadata(l1=DigestType.CRC32), [100.0]
    types = MetadataDigestTypes(metadata, lambda: None, lambda: now[0])  # type: ignore[arg-type]
    assert types.digest_type(1) is DigestType.CRC32
    metadata.types[1] = DigestType.CRC32C
    now[0] += 2 * scrubbing.FRESH_S
    assert types.digest_type(1) is DigestType.CRC32
    for _ in range(5):
        assert types.digest_type(1, fresh=True) is DigestType.CRC32C
    assert types.digest_type(1) is DigestType.CRC32C
    assert metadata.asked == [1, 1]
