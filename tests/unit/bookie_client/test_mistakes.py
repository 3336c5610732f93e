"""What a newcomer types: the error names the mistake and the remedy."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from bookie_client.client import Opening, checked_id
from bookie_protocol.digest import as_bytes


@pytest.mark.parametrize(("given", "named"), [("text", ".encode()"), (5, "int"), (None, "NoneType"), (["a"], "list")])
def test_entry_that_is_not_bytes(given: Any, named: str) -> None:
    with pytest.raises(TypeError, match="bytes") as told:
        as_bytes(given)
    assert named in str(told.value)


def test_entry_is_copied_unless_it_cannot_change() -> None:
    payload = b"entry"
    assert as_bytes(payload) is payload
    assert as_bytes(bytearray(payload)) == as_bytes(memoryview(payload)) == payload


@pytest.mark.parametrize("given", ["5", 5.0, None])
def test_id_that_is_not_a_whole_number(given: Any) -> None:
    with pytest.raises(TypeError, match="an int"):
        checked_id(given)


def test_forgotten_await() -> None:
    async def make() -> None: ...

    opening: Any = Opening(make)
    with pytest.raises(AttributeError, match="await"):
        opening.append(b"entry")


def test_library_of_zookeeper_says_nothing_in_a_program_without_logging() -> None:
    import bookie_protocol.metadata_service.zookeeper.client  # noqa: F401

    assert any(isinstance(each, logging.NullHandler) for each in logging.getLogger("kazoo").handlers)
