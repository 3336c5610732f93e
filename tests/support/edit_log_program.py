"""An active node that keeps its edit log in a stream: a process of its own, to be killed and stopped.

With an election it stands by until no other node is active, as far as the sessions of a metadata service tell. Then it
takes the log over (`examples.edit_log`) and goes on behind its last transaction until somebody ends it.

A node whose session ended goes on: it may hang and never learn of it, so nothing but the log can keep it out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Final

from bookie_client import Client, ClientOptions
from bookie_client.streams import StreamPosition
from bookie_protocol.errors import MetadataExists, PodkeeperError
from bookie_protocol.metadata_service.uri import open_metadata_service
from examples.edit_log.edit_log import EditLog, unpack
from tests.support.noting_program import NotingProgram, note_to

PASSWORD = b"edit log"
OPTIONS = ClientOptions(add_timeout=30.0, read_timeout=30.0, explicit_lac_interval=0.05)
"""Long time-outs, so that a node that was stopped for a while does not count its own sleep against bookies."""

SESSION_SECONDS: Final = 3.0
"""How long a node that is dead or hangs counts as the active one."""


def operations(entry: bytes) -> list[int]:
    """The transaction ids in an entry."""
    return [number for number, _ in unpack(entry)]


class EditLogProgram(NotingProgram):
    """The running program. `window`: entries that are under way at a time; `election`: a root of its own in a metadata
    service, where the nodes agree on who is active. None: this one is, at once."""

    def __init__(self, uri: str, file: Path, stream: str, window: int = 20, election: str | None = None) -> None:
        super().__init__(__name__, file, (uri, file, stream, window, *([election] if election else [])))


async def _become_active(session: AsyncExitStack, election: str, name: str, note: Callable[..., None]) -> None:
    """Wait for it, in a session that lasts as long as the node."""
    service = await open_metadata_service(election, timeout=SESSION_SECONDS)
    session.push_async_callback(service.close)
    with suppress(MetadataExists):
        await service.cluster.initialize()
    note("candidate")
    await service.auditor_election.elect(name)


async def _run(uri: str, file: str, name: str, window: int, election: str | None) -> None:
    note = note_to(file)

    def ended(last: int, future: asyncio.Future[StreamPosition]) -> None:
        error = future.exception()
        note("acknowledged", last) if error is None else note("failed", last, type(error).__name__)

    async with Client(uri, OPTIONS) as client, AsyncExitStack() as session:
        if election is not None:
            await _become_active(session, election, Path(file).name, note)
        log = EditLog(client, name, PASSWORD)
        note("active", await log.take_over())
        under_way = asyncio.Semaphore(window)
        try:
            while True:
                await under_way.acquire()
                future = await log.submit(["touch"] * (1 + log.last % 4))
                future.add_done_callback(lambda done, last=log.last: (ended(last, done), under_way.release()))
        except PodkeeperError as error:
            note("refused", log.last + 1, type(error).__name__)
        await asyncio.get_running_loop().create_future()


def main(arguments: Sequence[str]) -> None:
    uri, file, name, window, *election = arguments
    asyncio.run(_run(uri, file, name, int(window), election[0] if election else None))
