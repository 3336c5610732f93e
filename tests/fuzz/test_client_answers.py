"""Fuzz: whatever a bookie answers, the client gets an answer or the one error that closes the connection."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bookie_client.connection.connection import BookieConnection
from bookie_client.connection.dialect import Dialect
from bookie_client.connection.health import BookieHealth
from bookie_client.connection.latency import Ticker
from bookie_client.connection.operations import OneShot
from bookie_client.connection.pool import dialect
from bookie_client.connection.request import NO_LAC
from bookie_client.options import ClientOptions
from bookie_protocol.errors import BookieUnavailable, PodkeeperError, ProtocolViolation
from tests.support import golden_frames
from tests.support.mutations import mutated
from tests.support.receiving import receive

ANSWERS = {
    2: [item.body for item in golden_frames.exchanged("response") if not item.is_v3],
    3: [item.body for item in golden_frames.exchanged("response") if item.is_v3],
}
VERSIONS = pytest.mark.parametrize("version", [2, 3])


def bodies(version: int) -> st.SearchStrategy[bytes]:
    return st.one_of(st.binary(max_size=120), st.sampled_from(ANSWERS[version]).flatmap(mutated))


@VERSIONS
@settings(max_examples=250)
@given(st.data())
def test_any_body(version: int, data: st.DataObject) -> None:
    body = data.draw(bodies(version))
    speaks = dialect(version)
    before, behind = data.draw(st.binary(max_size=5)), data.draw(st.binary(max_size=5))
    key = speaks.acknowledged(before + body + behind, len(before), len(before) + len(body))
    try:
        answer = speaks.decode(body)
    except ProtocolViolation:
        # What the fast path takes, protobuf and the v2 decoder need not: it looks at the fixed bytes only.
        return
    assert isinstance(answer.key, bytes)
    if answer.error is not None:
        assert issubclass(answer.error, PodkeeperError)
        assert answer.entry == b""
    if key is not None and key == answer.key:
        assert answer.error is None


@VERSIONS
@settings(max_examples=100)
@given(st.data())
def test_any_stream_in_any_pieces(version: int, data: st.DataObject) -> None:
    """Every request ends once, whatever arrives, and nothing but a violation closes the connection."""
    frames = data.draw(st.lists(bodies(version), max_size=5))
    stream = b"".join(len(body).to_bytes(4) + body for body in frames) + data.draw(st.binary(max_size=6))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=5)))
    pieces = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    for take in (receive, BookieConnection.data_received):
        asyncio.run(_feed(dialect(version), pieces, take))


class _Transport(asyncio.Transport):
    aborted = False

    def writelines(self, list_of_data: object) -> None:
        pass

    def abort(self) -> None:
        self.aborted = True


async def _error_of(request: OneShot[int]) -> PodkeeperError | None:
    try:
        await request.outcome()
    except PodkeeperError as error:
        return error
    return None


async def _feed(speaks: Dialect, pieces: list[bytes], take: Callable[[BookieConnection, bytes], None]) -> None:
    loop = asyncio.get_running_loop()
    health = BookieHealth(ClientOptions(), loop.time)
    closed: list[BookieConnection] = []
    connection = BookieConnection(
        "b",
        speaks,
        max_frame_size=1 << 20,
        ticker=Ticker(1000.0),
        patience=10,
        silence_ticks=10,
        record=health.record("b"),
        on_closed=closed.append,
    )
    transport = _Transport()
    connection.connection_made(transport)
    requests = []
    for txn in range(1, 30):
        request = OneShot("the probe", lambda answer: NO_LAC if answer.max_lac is None else answer.max_lac)
        key, frame = speaks.read(txn, 1, txn)
        connection.send(frame, key, request, 10)
        requests.append(request)
    for piece in pieces:
        if not transport.aborted:
            take(connection, piece)
    connection.connection_lost(None)
    assert closed == [connection]
    for request in requests:
        assert not request.is_wanted
    errors = [await _error_of(request) for request in requests]
    assert transport.aborted or not any(isinstance(error, ProtocolViolation) for error in errors)
    assert connection.outstanding == 0
    late: OneShot[int] = OneShot("the probe", lambda answer: 0)
    connection.send(b"", b"", late, 1)
    with pytest.raises((BookieUnavailable, ProtocolViolation)):
        await late.outcome()
