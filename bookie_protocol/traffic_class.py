"""Traffic classes of reads: whose a bookie serves first, and how a read tells its class. An extension of Podkeeper.

A read of the class `batch` says so; one that says nothing is of the class `online`, and its bytes are those of every
BookKeeper client. A bookie of Podkeeper serves reads of the class `batch` behind everything else.

    version 2    flag 0x0008 (`v2.Flag.BATCH_CLASS`) in the header word of READENTRY and BATCH_READ_ENTRY; a
                 bookie that does not know the bit ignores it, as it does all unknown bits
    version 3    a pair in `Request.requestContext` (field 200) of READ_ENTRY: key `podkeeper.trafficClass`, value
                 `batch`; other bookies put it into their log lines

It counts for plain reads of entries alone. Fencing reads, long polls, reads with high priority and all other requests
are served as if it were not there.

Pure; any thread.

Source: docs/internals/wire-protocol.md, sections 3.3 and 4.2.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from bookie_protocol.wire import bookkeeper_pb2 as pb

CONTEXT_KEY: Final = "podkeeper.trafficClass"


class TrafficClass(StrEnum):
    """The class of the reads of one client."""

    ONLINE = "online"
    """Requests that a user waits for; the class of a client that names none."""
    BATCH = "batch"
    """Requests of jobs: served behind everything else."""


BATCH_CONTEXT: Final = pb.Request(
    requestContext=[pb.ContextPair(key=CONTEXT_KEY, value=TrafficClass.BATCH)]
).SerializePartialToString()
"""Bytes behind the fields of a request of version 3 that mark it."""


def is_batch(request: pb.Request) -> bool:
    """Return True if a request is marked with the class `batch`."""
    return any(pair.key == CONTEXT_KEY and pair.value == TrafficClass.BATCH for pair in request.requestContext)
