"""A name service of several nodes, of which one at a time is active: `python -m examples.edit_log.name_node --help`.

Every node follows the edit log and applies it to the names that it has in memory. The active one, elected by a session
of the metadata service, also takes commands and logs each before it applies it. When it dies or hangs, the next one
takes the log over, which locks the former one out, and reads to its end before it takes commands.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Final

from examples.edit_log.edit_log import EditLog, Operation
from podkeeper import Client, ClientOptions, MetadataExists, PodkeeperError, StreamFenced
from podkeeper.metadata import open_metadata_service
from podkeeper.streams import StreamSettings

SESSION_SECONDS: Final = 5.0
"""How long a node that is dead or hangs counts as the active one."""
OPTIONS: Final = ClientOptions(explicit_lac_interval=0.05)
"""The last operation of a quiet log reaches those who follow it within so many seconds."""


def say(*words: object) -> None:
    print(*words, flush=True)


class Names:
    """What the service is about: a set of paths, made by a checkpoint and by operations, in their order."""

    def __init__(self, image: Path) -> None:
        self._image = image
        self.last, self.paths = 0, set[str]()
        if image.exists():
            self.last, *paths = json.loads(image.read_text())
            self.paths.update(paths)
        self._grown = asyncio.Condition()

    async def apply(self, operation: Operation) -> None:
        """What is in the checkpoint, or was applied when it was logged here, comes once more with the log."""
        number, (verb, path) = operation[0], operation[1].split(" ", 1)
        if number <= self.last:
            return
        if number != self.last + 1:
            sys.exit(
                f"the log goes on at transaction {number}, these names end at {self.last}: give the newest --image"
            )
        (self.paths.add if verb == "create" else self.paths.discard)(path)
        self.last = number
        async with self._grown:
            self._grown.notify_all()

    async def reach(self, transaction: int) -> None:
        async with self._grown:
            await self._grown.wait_for(lambda: self.last >= transaction)

    def checkpoint(self) -> None:
        """The image is there as a whole, or as it was."""
        new = self._image.with_suffix(".new")
        with new.open("w") as file:
            json.dump([self.last, *sorted(self.paths)], file)
            file.flush()
            os.fsync(file.fileno())
        new.replace(self._image)


async def lines() -> AsyncIterator[str]:
    """Lines of standard input, without holding up the event loop."""
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        yield line.decode().strip()


async def follow(log: EditLog, names: Names) -> None:
    async for operation in log.follow():
        await names.apply(operation)


async def become_active(log: EditLog, names: Names, election: str, node: str, session: AsyncExitStack) -> None:
    """Until this one is elected, and has everything that its predecessor logged."""
    service = await open_metadata_service(election, timeout=SESSION_SECONDS)
    session.push_async_callback(service.close)
    with suppress(MetadataExists):
        await service.cluster.initialize()
    await service.auditor_election.elect(node)
    last = await log.take_over()
    await names.reach(last)
    say("active, behind transaction", last)


async def command(log: EditLog, names: Names, line: str, active: bool) -> None:
    match line.split():
        case ["list"]:
            say(len(names.paths), "names at transaction", names.last, *sorted(names.paths)[:20])
        case ["create" | "delete", _] if active:
            last = await log.append([line])
            await names.apply((last, line))
            say("done", last)
        case ["create" | "delete", _]:
            say("standby: only the active node takes that")
        case ["checkpoint"] if active:
            names.checkpoint()
            say("checkpoint at transaction", names.last, "and", await log.purge(names.last), "segments purged")
        case _:
            say("commands: create PATH, delete PATH, list, checkpoint")


async def run(uri: str, election: str, stream: str, node: str, segment: int, image: Path) -> int:
    async with Client(uri, OPTIONS) as client, AsyncExitStack() as session:
        log, names = EditLog(client, stream), Names(image)
        await log.create(StreamSettings(max_ledger_entries=segment, min_ledger_seconds=0))
        following = asyncio.create_task(follow(log, names))
        taking = asyncio.create_task(become_active(log, names, election, node, session))
        say("standby")
        try:
            async for line in lines():
                for task in (following, taking):
                    if task.done():
                        task.result()
                await command(log, names, line, active=taking.done())
        except StreamFenced:
            say("another node is active now: this one ends")
            return 1
        finally:
            for task in (following, taking):
                task.cancel()
            await asyncio.wait((following, taking))
            with suppress(PodkeeperError):
                await log.close()
    return 0


def main() -> None:
    parser = argparse.ArgumentParser(description="One node of a name service whose changes are kept in a stream.")
    parser.add_argument("node", help="name of this node")
    parser.add_argument("--uri", default="embedded://127.0.0.1:3180/ledgers", help="metadata service of the bookies")
    parser.add_argument(
        "--election", default="embedded://127.0.0.1:3180/election", help="where the active one is elected"
    )
    parser.add_argument("--stream", default="edits", help="name of the stream that is the edit log")
    parser.add_argument("--segment", type=int, default=1000, help="entries of a segment")
    parser.add_argument("--image", type=Path, default=Path("names.json"), help="checkpoint that nodes share")
    at = parser.parse_args()
    try:
        sys.exit(asyncio.run(run(at.uri, at.election, at.stream, at.node, at.segment, at.image)))
    except PodkeeperError as error:
        sys.exit(f"{at.node}: {error}")


if __name__ == "__main__":
    main()
