"""The parts of transactions. Pure; any thread."""

from __future__ import annotations

from bookie_protocol.metadata_service.etcd import etcd_pb2 as messages
from bookie_protocol.metadata_service.interface import Identity


def ranged(key: bytes, end: bytes = b"", *, keys_only: bool = False, count_only: bool = False) -> messages.RequestOp:
    found = messages.RangeRequest(key=key, range_end=end, keys_only=keys_only, count_only=count_only)
    return messages.RequestOp(request_range=found)


def put(key: bytes, data: bytes) -> messages.RequestOp:
    return messages.RequestOp(request_put=messages.PutRequest(key=key, value=data))


def deleted(key: bytes) -> messages.RequestOp:
    return messages.RequestOp(request_delete_range=messages.DeleteRangeRequest(key=key))


def is_present(key: bytes) -> messages.Compare:
    return messages.Compare(result=messages.Compare.GREATER, target=messages.Compare.CREATE, key=key, create_revision=0)


def is_absent(key: bytes, end: bytes = b"") -> messages.Compare:
    """Compare that there is no such key, or with `end` no key in this range."""
    return has_creation(key, 0, end)


def has_creation(key: bytes, revision: int, end: bytes = b"") -> messages.Compare:
    return messages.Compare(target=messages.Compare.CREATE, key=key, range_end=end, create_revision=revision)


def has_version(key: bytes, version: int) -> messages.Compare:
    return messages.Compare(target=messages.Compare.VERSION, key=key, version=version)


def is_this(key: bytes, this: Identity | None) -> list[messages.Compare]:
    """Compare that a node is in this state; None: in any."""
    return [is_present(key)] if this is None else [has_creation(key, this.creation), has_version(key, this.version + 1)]
