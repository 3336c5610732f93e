"""A writer in another language speaks gRPC to the gateway: so does this one, and tells the history what it is told.

Event loop only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any, Final

import grpc

from bookie_protocol.ledger_service import ledger_service_pb2 as pb
from bookie_protocol.ledger_service.ledger_service_pb2_grpc import LedgerServiceStub
from tests.campaign.history import PASSWORD, History, Ledger

_SHAPES: Final = ((3, 3, 2), (3, 2, 2), (2, 2, 2))
_PAUSE_S: Final = 0.5
_CALL_S: Final = 25.0


class GatewayWriter:
    """`write` one ledger: closed by its end, by the gateway when the call fails, or by whoever recovers it."""

    def __init__(self, address: str, history: History, new_ledger: Callable[..., Ledger]) -> None:
        self._address = address
        self._history = history
        self._new_ledger = new_ledger

    async def write(self, random: Random) -> Ledger | None:
        """The ledger, open or closed; None: the gateway gave none. Its calls may fail while faults go on."""
        async with grpc.aio.insecure_channel(self._address) as channel:
            call = LedgerServiceStub(channel).Append(timeout=_CALL_S)
            ledger: Ledger | None = None
            try:
                ledger = await self._begin(call, random)
                async with asyncio.TaskGroup() as group:
                    group.create_task(self._hear(call, ledger))
                    await self._append(call, ledger, random)
                    await call.done_writing()
            except* (grpc.RpcError, asyncio.InvalidStateError):
                self._history.counts["gateway calls that failed"] += 1
            else:
                return ledger
            await asyncio.sleep(_PAUSE_S)
            return ledger

    async def _begin(self, call: Any, random: Random) -> Ledger:
        shape = random.choice(_SHAPES)
        create = pb.CreateRequest(ensemble_size=shape[0], write_quorum=shape[1], ack_quorum=shape[2], password=PASSWORD)
        await call.write(pb.AppendRequest(create=create))
        answer = await call.read()
        if answer is grpc.aio.EOF:
            raise asyncio.InvalidStateError
        ledger = self._new_ledger(answer.ledger_id, shape, "CRC32C", "gateway")
        ledger.is_closed_by_writer = True
        return ledger

    async def _append(self, call: Any, ledger: Ledger, random: Random) -> None:
        for _ in range(random.randint(2, 12)):
            first, count = ledger.sent, random.randint(1, 25)
            ledger.sent += count
            await call.write(pb.AppendRequest(entries=[ledger.payload(entry) for entry in range(first, first + count)]))
            await asyncio.sleep(random.uniform(0, 0.1))

    async def _hear(self, call: Any, ledger: Ledger) -> None:
        while (answer := await call.read()) is not grpc.aio.EOF:
            for entry_id in range(ledger.acked + 1, answer.last_entry_id + 1):
                self._history.acknowledged(ledger, entry_id)
            if answer.closed:
                length = sum(len(ledger.payload(entry)) for entry in range(answer.last_entry_id + 1))
                self._history.ended(ledger, answer.last_entry_id, length, "the gateway")
