"""The id of a call: taken from the client or made, returned, and in the log if the call fails."""

from __future__ import annotations

import grpc
import pytest
from structlog.testing import capture_logs

from bookie_pod.audit import request_id
from bookie_protocol.ledger_service import ledger_service_pb2 as pb

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = f"00-{TRACE}-00f067aa0ba902b7-01"
TOO_LARGE = pb.CreateRequest(ensemble_size=9, write_quorum=3, ack_quorum=2)


@pytest.mark.parametrize(
    ("given", "parent", "expected"),
    [
        ("from-ci.7", PARENT, "from-ci.7"),
        (None, PARENT, TRACE),
        ("not an id", PARENT, TRACE),
        ("x" * 65, PARENT, TRACE),
        (None, f"00-{'0' * 32}-00f067aa0ba902b7-01", None),
        (None, PARENT + "-more", None),
        (None, PARENT.upper(), None),
        ("line\nbreak", None, None),
    ],
)
def test_only_a_valid_id_is_taken(given: str | None, parent: str | None, expected: str | None) -> None:
    found = request_id(given, parent)
    assert found == expected if expected is not None else len(found) == 16


async def test_id_is_returned_and_names_a_call_that_fails(stub) -> None:
    for shown, expected in (((("x-request-id", "r-1"),), "r-1"), ((("traceparent", PARENT),), TRACE)):
        call = stub.Create(TOO_LARGE, metadata=shown)
        with capture_logs() as logs, pytest.raises(grpc.aio.AioRpcError):
            await call
        assert ("x-request-id", expected) in tuple(await call.initial_metadata())
        (line,) = [each for each in logs if each["event"] == "a call failed"]
        assert line["request"] == expected
        assert line["call"].endswith("/Create")


async def test_what_is_not_there_is_no_failure(stub) -> None:
    with capture_logs() as logs, pytest.raises(grpc.aio.AioRpcError):
        await stub.GetMetadata(pb.GetMetadataRequest(ledger_id=99))
    assert [each for each in logs if each["event"] == "a call failed"] == []


async def test_stream_has_an_id_before_its_first_answer(stub) -> None:
    call = stub.List(pb.ListRequest(), metadata=(("x-request-id", "r-2"),))
    assert ("x-request-id", "r-2") in tuple(await call.initial_metadata())
    assert [each async for each in call] == []
