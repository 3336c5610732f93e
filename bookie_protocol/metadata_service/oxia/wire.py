"""The names of Oxia's calls, headers and errors: what `oxia.proto` does not say. Pure."""

from __future__ import annotations

from typing import Final

SERVICE: Final = "io.oxia.proto.v1.OxiaClient"
FORMER_SERVICE: Final = "io.streamnative.oxia.proto.OxiaClient"
"""Java's client calls this one, up to its release 0.9 at least; servers have both."""

NAMESPACE_HEADER: Final = "namespace"
SHARD_HEADER: Final = "shard-id"
"""A `WriteStream` says with these two where it writes; its requests need not."""

DEFAULT_NAMESPACE: Final = "default"

NOT_EXISTING: Final = -1
"""The version that a put expects of a record that must not exist."""

ERROR_DOMAIN: Final = "oxia.io"
"""Newer servers and clients name the kind of an error in a `google.rpc.ErrorInfo` of this domain; `shard` and `leader`
of its metadata say who leads the shard."""

CALLS: Final = (
    "GetShardAssignments",
    "Write",
    "WriteStream",
    "Read",
    "List",
    "RangeScan",
    "GetSequenceUpdates",
    "GetNotifications",
    "CreateSession",
    "KeepAlive",
    "CloseSession",
)


def methods(*calls: str) -> tuple[str, ...]:
    """Return the full names of these calls, under both names of their service."""
    return tuple(f"/{service}/{call}" for service in (SERVICE, FORMER_SERVICE) for call in calls)
