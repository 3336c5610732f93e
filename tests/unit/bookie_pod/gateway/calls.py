"""Calls of a LedgerService as a client makes them, and what it makes of the errors."""

from __future__ import annotations

import grpc
from google.rpc.error_details_pb2 import ErrorInfo
from grpc_status import rpc_status

from bookie_protocol.ledger_service import ledger_service_pb2 as pb

CLOSED = pb.LedgerMetadata.CLOSED


def error_of(raised):
    """Status code, error name and message, as a client reads them."""
    error = raised.value
    status = rpc_status.from_call(error)
    info = ErrorInfo()
    assert status.details[0].Unpack(info)
    assert (info.domain, status.message) == ("podkeeper", error.details())
    return error.code().name, info.reason, error.details()


def batches(*sizes, payload=b"x"):
    return [pb.AppendRequest(entries=[payload] * size) for size in sizes]


async def write(stub, *requests, **create):
    """Append everything to a new ledger and return the responses."""
    first = pb.AppendRequest(create=pb.CreateRequest(**create))
    return [response async for response in stub.Append(iter([first, *requests]))]


async def read_all(stub, **request):
    return [response async for response in stub.Read(pb.ReadRequest(**request))]


async def rest_of(call):
    """All responses that are still to come. Calls of which one was read by itself cannot be iterated over."""
    responses = []
    while (response := await call.read()) is not grpc.aio.EOF:
        responses.append(response)
    return responses
