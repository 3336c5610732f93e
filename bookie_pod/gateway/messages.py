"""Requests, metadata and errors, between gRPC and the client: errors as statuses, with the error's own name.

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

from bookie_client.writing.creation import NewLedger
from bookie_protocol.digest import DigestType
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
from bookie_protocol.ledger_metadata.model import LedgerMetadata, LedgerState
from bookie_protocol.ledger_service import ledger_service_pb2 as messages

MAX_GIVEN_BYTES: Final = 64 * 1024
"""Password and custom metadata of a ledger together: a metadata service keeps them, and every writer."""
DEFAULT_DIGEST: Final = DigestType.CRC32C
_STATES: Final = {
    LedgerState.OPEN: messages.LedgerMetadata.OPEN,
    LedgerState.IN_RECOVERY: messages.LedgerMetadata.IN_RECOVERY,
    LedgerState.CLOSED: messages.LedgerMetadata.CLOSED,
}

_DIGESTS: Final = {
    DigestType.CRC32: messages.CRC32,
    DigestType.MAC: messages.MAC,
    DigestType.CRC32C: messages.CRC32C,
    DigestType.DUMMY: messages.DUMMY,
}
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


def creation(request: messages.CreateRequest) -> NewLedger:
    """Return the ledger that the request asks for. Raises `BadRequest`."""
    for name in ("ensemble_size", "write_quorum", "ack_quorum"):
        if getattr(request, name) < 0:
            raise BadRequest(f"{name} {getattr(request, name)} is negative")
    if request.HasField("ledger_id"):
        check_ledger_id(request.ledger_id)
    new = NewLedger(
        ensemble=request.ensemble_size or 3,
        write_quorum=request.write_quorum or 2,
        ack_quorum=request.ack_quorum or 2,
        password=request.password,
        digest=digest_of(request.digest_type),
        metadata=dict(request.custom_metadata),
        ledger_id=request.ledger_id if request.HasField("ledger_id") else None,
    )
    if (given := given_bytes(new)) > MAX_GIVEN_BYTES:
        raise BadRequest(f"password and custom metadata have {given} bytes; at most {MAX_GIVEN_BYTES} are possible")
    return new


def given_bytes(new: NewLedger) -> int:
    """Return the bytes of password and custom metadata."""
    return len(new.password) + sum(len(name) + len(value) for name, value in new.custom_metadata.items())


def check_ledger_id(ledger_id: int) -> int:
    """The id as it is; `BadRequest` if it is none."""
    if ledger_id < 0:
        raise BadRequest(f"ledger id {ledger_id} is negative")
    return ledger_id


def digest_of(number: int) -> DigestType:
    """The digest type; unspecified is the default. Raises `BadRequest`."""
    if number == messages.DIGEST_TYPE_UNSPECIFIED:
        return DEFAULT_DIGEST
    try:
        return DigestType(number)
    except ValueError:
        raise BadRequest(
            f"digest type {number} is not valid; use one of {', '.join(kind.name for kind in DigestType)}"
        ) from None


def metadata_message(metadata: LedgerMetadata) -> messages.LedgerMetadata:
    """Return a ledger's metadata as clients see them, without the password."""
    segments = [
        messages.LedgerMetadata.Segment(first_entry_id=first, bookies=bookies)
        for first, bookies in metadata.ensembles.items()
    ]
    return messages.LedgerMetadata(
        ledger_id=metadata.ledger_id,
        state=_STATES[metadata.state],
        last_entry_id=metadata.last_entry_id,
        length=metadata.length,
        ensemble_size=metadata.ensemble_size,
        write_quorum=metadata.write_quorum_size,
        ack_quorum=metadata.ack_quorum_size,
        digest_type=_DIGESTS[metadata.digest_type] if metadata.digest_type else messages.DIGEST_TYPE_UNSPECIFIED,
        segments=segments,
        custom_metadata=dict(metadata.custom_metadata),
        created_ms=metadata.ctime,
    )


def code_of(error: PodkeeperError) -> grpc.StatusCode:
    """Return the status code that fits best."""
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
