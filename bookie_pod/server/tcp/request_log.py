"""Lines about requests that were slow or failed, by which an error of a client is found here.

A line has what the client's error has: the address of its connection (`peer`), ledger, entry and, of version 3, the
transaction id. All of it is in each request and answer anyway: no client has to send more, and none notices.

What a line says is decoded out of the answer, and only if the line is written: a request that is neither slow nor
failed costs one comparison for each socket read that it came in.

Invariants
- Lines are few (`FewLines`), each kind for itself, so that one kind hides no other.
- "No such entry" and "no such ledger" of reads are answers, not failures: tailing readers get them all the time.

Threads: event loop only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import structlog

from bookie_pod.logs import FewLines
from bookie_protocol.errors import NotThere, PodkeeperError, ProtocolViolation, Refused, StorageFault, Unauthorized
from bookie_protocol.wire import v2, v3
from bookie_protocol.wire.framing import LENGTH, LENGTH_SIZE

MOST_LEDGERS: Final = 8
"""Ledgers that a line names; the others of its batch are counted."""
MOST_ADDS: Final = 100_000
_V2: Final = 2
"""The first byte of an answer of version 2; that of version 3 is a field of protobuf."""

_log = structlog.get_logger(__name__)


class RequestId(NamedTuple):
    """The identity of a request, as both sides know it."""

    ledger_id: int
    entry_id: int
    txn_id: int | None = None
    """The transaction id; None in version 2, which has none."""

    @property
    def fields(self) -> dict[str, int]:
        """Return what a line of the log, or a span, has of it."""
        found = {"ledger": self.ledger_id, "entry": self.entry_id}
        return found if self.txn_id is None else {**found, "txn": _signed(self.txn_id)}


class RequestLog:
    """See the module. `slow_ms`: milliseconds from which a request counts as slow; 0: none does."""

    def __init__(self, slow_ms: int, make: Callable[[], FewLines] = lambda: FewLines(_log)) -> None:
        self.slow_ms = slow_ms or float("inf")
        self._make = make
        self._lines: dict[str, FewLines] = {}

    def look(self) -> None:
        """Write the numbers of lines that were left out; called every now and then."""
        for lines in self._lines.values():
            lines.look()

    def adds_were_slow(self, peer: str, answers: bytes, elapsed_ms: float) -> None:
        """Adds of one socket read took at least `slow_ms`. `answers`: the frames with which they are answered."""
        lines = self._of("slow add")
        if not lines.may_write():
            return
        ledgers: dict[int, list[RequestId]] = {}
        for each in _identities(answers):
            ledgers.setdefault(each.ledger_id, []).append(each)
        shown = [_range(found) for found in list(ledgers.values())[:MOST_LEDGERS]]
        more: dict[str, Any] = {"more_ledgers": len(ledgers) - len(shown)} if len(ledgers) > len(shown) else {}
        lines.log.warning("adds were slow", peer=peer, ms=round(elapsed_ms), adds=shown, **more)

    def read_was_slow(self, peer: str, request: RequestId, elapsed_ms: float) -> None:
        """A read took at least `slow_ms`."""
        lines = self._of("slow read")
        if lines.may_write():
            lines.log.warning("a read was slow", peer=peer, ms=round(elapsed_ms), **request.fields)

    def add_failed(self, peer: str, request: RequestId, error: BaseException) -> None:
        """An add is answered with an error. A wrong password is in the audit trail."""
        if not isinstance(error, Unauthorized):
            self._failed("an add failed", peer, request, error)

    def read_failed(self, peer: str, request: RequestId, error: BaseException) -> None:
        """A read is answered with an error; `NotThere` is none."""
        if not isinstance(error, NotThere | Unauthorized):
            self._failed("a read failed", peer, request, error)

    def _failed(self, event: str, peer: str, request: RequestId, error: BaseException) -> None:
        known = error if isinstance(error, PodkeeperError) else StorageFault()
        lines = self._of(f"{event}: {known.v3.name}")
        if lines.may_write():
            # A refusal (fenced, read-only, no room) is the protocol's business; all else is this bookie's.
            write = lines.log.info if isinstance(known, Refused) else lines.log.warning
            write(event, peer=peer, code=known.v3.name, reason=str(error), **request.fields)

    def _of(self, kind: str) -> FewLines:
        if (found := self._lines.get(kind)) is None:
            found = self._lines[kind] = self._make()
        return found


def traced_adds(peer: str, answers: bytes, entries: int) -> dict[str, str | int]:
    """Return the attributes of a trace of adds: what a line of the log has, of the first of them."""
    return {**traced(peer, next(_identities(answers), None)), "bookkeeper.adds": entries}


def traced(peer: str, request: RequestId | None) -> dict[str, str | int]:
    """Return the attributes of a trace of one request."""
    named = {} if request is None else {f"bookkeeper.{name}": value for name, value in request.fields.items()}
    return {"network.peer.address": peer, **named}


def _signed(txn_id: int) -> int:
    """Return a transaction id as clients show it, and as attributes of spans can have it: a signed number."""
    return txn_id - 2**64 if txn_id >= 2**63 else txn_id


def _range(found: list[RequestId]) -> dict[str, Any]:
    """Return the fields of all adds of one ledger: those of the only one, or the first and the last."""
    first, last = min(found, key=_entry_of), max(found, key=_entry_of)
    if first is last:
        return first.fields
    ends: dict[str, Any] = {"ledger": first.ledger_id, "entry": [first.entry_id, last.entry_id], "adds": len(found)}
    return ends if first.txn_id is None else {**ends, "txn": [first.fields["txn"], last.fields["txn"]]}


def _entry_of(request: RequestId) -> int:
    return request.entry_id


def _identities(answers: bytes) -> Iterator[RequestId]:
    """Yield the identity of each add whose answer is in these frames, which this bookie has made."""
    at, count = 0, 0
    while at < len(answers) and count < MOST_ADDS:
        (length,) = LENGTH.unpack_from(answers, at)
        body = answers[at + LENGTH_SIZE : at + LENGTH_SIZE + length]
        at, count = at + LENGTH_SIZE + length, count + 1
        try:
            if body[0] == _V2:
                found = v2.decode_response(body)
                if isinstance(found, v2.Response):
                    yield RequestId(found.ledger_id, found.entry_id)
            else:
                response = v3.parse_response(body)
                add = response.addResponse
                yield RequestId(add.ledgerId, add.entryId, response.header.txnId)
        except ProtocolViolation:
            continue
