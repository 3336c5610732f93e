"""Errors of the client as gRPC statuses, with the error's own name in the details.

Invariants
- "Not there" is NOT_FOUND and nothing else is: a fault never looks like an absence.
- UNAVAILABLE and RESOURCE_EXHAUSTED mean that the call may be repeated. UNAVAILABLE does not mean that nothing was
  done: a metadata service that did not answer may have stored what it was asked to.

Pure; any thread.
"""

from __future__ import annotations

from typing import Final

import grpc
from google.protobuf.any_pb2 import Any
from google.rpc.error_details_pb2 import ErrorInfo
from google.rpc.status_pb2 import Status
from grpc_status import rpc_status

from bookie_protocol.errors import (
    BadRequest,
    BadVersion,
    BookieReadOnly,
    BookieUnavailable,
    CouldNotTell,
    DigestMismatch,
    EntryDamaged,
    LedgerClosed,
    LedgerFenced,
    LedgerIdsExhausted,
    LedgerNotClosed,
    MetadataDamaged,
    MetadataExists,
    MetadataUnavailable,
    MetadataVersionConflict,
    NotEnoughBookies,
    NotThere,
    PodkeeperError,
    QuorumLost,
    TooManyRequests,
    Unauthorized,
    public_kind,
)

DOMAIN: Final = "podkeeper"

_CODES: Final[tuple[tuple[type[PodkeeperError], grpc.StatusCode], ...]] = (
    (NotThere, grpc.StatusCode.NOT_FOUND),
    (Unauthorized, grpc.StatusCode.PERMISSION_DENIED),
    (BadVersion, grpc.StatusCode.UNIMPLEMENTED),
    (BadRequest, grpc.StatusCode.INVALID_ARGUMENT),
    (MetadataExists, grpc.StatusCode.ALREADY_EXISTS),
    (LedgerFenced, grpc.StatusCode.FAILED_PRECONDITION),
    (LedgerClosed, grpc.StatusCode.FAILED_PRECONDITION),
    (LedgerNotClosed, grpc.StatusCode.FAILED_PRECONDITION),
    (BookieReadOnly, grpc.StatusCode.FAILED_PRECONDITION),
    (TooManyRequests, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (LedgerIdsExhausted, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (NotEnoughBookies, grpc.StatusCode.UNAVAILABLE),
    (MetadataVersionConflict, grpc.StatusCode.ABORTED),
    (QuorumLost, grpc.StatusCode.ABORTED),
    (DigestMismatch, grpc.StatusCode.DATA_LOSS),
    (EntryDamaged, grpc.StatusCode.DATA_LOSS),
    (MetadataDamaged, grpc.StatusCode.DATA_LOSS),
    (BookieUnavailable, grpc.StatusCode.UNAVAILABLE),
    (MetadataUnavailable, grpc.StatusCode.UNAVAILABLE),
    (CouldNotTell, grpc.StatusCode.UNKNOWN),
)


def code_of(error: PodkeeperError) -> grpc.StatusCode:
    """The status code that fits best."""
    for kind, code in _CODES:
        if isinstance(error, kind):
            return code
    return grpc.StatusCode.FAILED_PRECONDITION


def status_of(error: PodkeeperError) -> grpc.Status:
    """Code, message and details of an error."""
    kind = public_kind(error)
    info = ErrorInfo(
        reason=kind.__name__,
        domain=DOMAIN,
        metadata={"client_code": str(kind.client.value), "client_code_name": kind.client.name},
    )
    details = Any()
    details.Pack(info)
    status = Status(code=code_of(error).value[0], message=str(error), details=[details])
    return rpc_status.to_status(status)
