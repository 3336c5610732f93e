"""When a bookie process is ready: registered as writable at its address, and answering requests, as clients see it.
One that is being decommissioned is ready as a read-only one.

A bookie that ends before that is an error with the last lines of its output.

Threads: event loop only.
"""

from __future__ import annotations

import asyncio
from typing import Final

from bookie_client.connection.pool import ChannelPool, Resolver
from bookie_client.connection.request import Request
from bookie_client.options import ClientOptions
from bookie_pod.node.standalone.bookie_process import BookieProcess
from bookie_protocol.errors import (
    BookieUnavailable,
    MetadataDamaged,
    MetadataNotFound,
    PodkeeperError,
    ServerStartFailed,
)
from bookie_protocol.metadata_service.interface import BookieGroup, MetadataService
from bookie_protocol.metadata_service.records import DECOMMISSION

LOOPBACK: Final = "127.0.0.1"
_RETRY_SECONDS: Final = 0.02


async def wait_ready(metadata: MetadataService, bookie: BookieProcess, timeout: float) -> None:
    """Raises `ServerStartFailed` when the bookie ends first, or is not ready within `timeout` seconds, and the
    metadata service's error when nobody can tell."""
    ready = asyncio.ensure_future(_serves(metadata, bookie))
    ended = asyncio.ensure_future(bookie.process.wait())
    try:
        await asyncio.wait({ready, ended}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        if ready.done():
            ready.result()
        elif ended.done():
            raise ServerStartFailed(
                f"{bookie.bookie_id} ended with exit code {ended.result()} at start: {bookie.output()}"
            )
        else:
            raise ServerStartFailed(f"{bookie.bookie_id} is not ready after {timeout:g} s: {bookie.output()}")
    finally:
        for task in (ready, ended):
            task.cancel()
        await asyncio.wait({ready, ended})


async def _serves(metadata: MetadataService, bookie: BookieProcess) -> None:
    """Return once the bookie is registered at its new address and answers a request."""
    groups = [BookieGroup.WRITABLE]
    if bookie.bookie_id in await metadata.records(DECOMMISSION).names():
        groups.append(BookieGroup.READ_ONLY)
    registered = [asyncio.ensure_future(_registered(metadata, bookie, group)) for group in groups]
    try:
        done, _ = await asyncio.wait(registered, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in registered:
            task.cancel()
        await asyncio.wait(registered)
    pool = ChannelPool(_resolver(bookie.port), ClientOptions(reconnect_delay=_RETRY_SECONDS, read_timeout=1.0))
    try:
        # It drops connections until its start is over, and tells nobody when that is.
        while isinstance(await _ask(pool, bookie.bookie_id), BookieUnavailable):  # noqa: ASYNC110
            await asyncio.sleep(_RETRY_SECONDS)
    finally:
        await pool.close()
    if bookie.grpc_port is not None:
        await _listens(bookie.grpc_port)


async def _registered(metadata: MetadataService, bookie: BookieProcess, group: BookieGroup) -> None:
    async with metadata.bookies.watch(group) as snapshots:
        async for snapshot in snapshots:
            if bookie.bookie_id in snapshot.bookies and await _address(metadata, bookie.bookie_id) == bookie.port:
                return


async def _address(metadata: MetadataService, bookie_id: str) -> int | None:
    try:
        address = (await metadata.bookies.service_info(bookie_id)).bookie_address()
    except MetadataNotFound:
        return None  # gone again: the watch tells more
    if address is None:
        raise MetadataDamaged(f"{bookie_id} is registered without an address")
    return address[1]


class _Answer(Request):
    """Resolves with None or the error, whatever the bookie answered."""

    __slots__ = ("outcome",)

    def __init__(self) -> None:
        self.outcome: asyncio.Future[PodkeeperError | None] = asyncio.get_running_loop().create_future()

    def answered(self, entry: bytes, max_lac: int | None) -> None:
        self.outcome.set_result(None)

    def failed(self, error: PodkeeperError) -> None:
        self.outcome.set_result(error)

    def describe(self) -> str:
        return "the first request"


async def _ask(pool: ChannelPool, bookie_id: str) -> PodkeeperError | None:
    answer = _Answer()
    key, frame = pool.dialect.read(1, 0, 0)
    pool.channel(bookie_id).send_read(frame, key, answer)
    return await answer.outcome


async def _listens(port: int) -> None:
    """Return once somebody listens there; gRPC is loaded when the bookie serves already."""
    while True:
        try:
            _, writer = await asyncio.open_connection(LOOPBACK, port)
        except OSError:
            await asyncio.sleep(_RETRY_SECONDS)
        else:
            writer.close()
            return


def _resolver(port: int) -> Resolver:
    async def resolve(bookie_id: str) -> tuple[str, int]:
        return LOOPBACK, port

    return resolve
