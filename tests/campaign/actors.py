"""The clients of a campaign: writers, tailing readers, range readers, recoverers and deleters, each of which tells the
history what it was told.

Every error of the taxonomy is a fair answer while faults go on, except where a docstring says otherwise; what an
actor is *told*, as an acknowledgement, an entry, an end, has to be true. Any other exception is a breach.

Event loop only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Final

from bookie_client import Client, LedgerWriter
from bookie_protocol.digest import DigestType
from bookie_protocol.errors import (
    CouldNotTell,
    LedgerClosed,
    LedgerDeleted,
    LedgerFenced,
    NotThere,
    PodkeeperError,
    Refused,
)
from bookie_protocol.ledger_metadata.model import LedgerMetadata
from tests.campaign.connecting import connected
from tests.campaign.gateway_writer import GatewayWriter
from tests.campaign.history import PASSWORD, History, Ledger
from tests.campaign.java_writer import JavaWriter

QUORUMS: Final = ((3, 3, 2), (3, 3, 2), (3, 2, 2), (4, 3, 2), (3, 3, 3), (2, 2, 2), (1, 1, 1))
"""With one copy, and wherever all have to acknowledge, a bookie alone answers for what it said."""
_WINDOW: Final = 24
_PAUSE_S: Final = 0.25
_END_S: Final = 45.0
_KEEP_LEDGERS: Final = 24
"""Of the closed ones; beyond it old ones are deleted."""

_nonces = 0


def named(ledger: Ledger, metadata: LedgerMetadata) -> None:
    """Note whom the metadata name."""
    ledger.bookies |= metadata.all_bookies()


class Actors:
    """All of them, over one history. `going` ends them at their next turn."""

    def __init__(
        self, uri: str, gateway: str, history: History, seed: int, java: tuple[str, Path] | None = None
    ) -> None:
        """`gateway`: host and port. `java`: the class path of the Java client, and where it logs."""
        self.uri = uri
        self.gateway = gateway
        self._java = java
        self._java_writer: JavaWriter | None = None
        self.history = history
        self.going = True
        self._random = Random(seed)
        self._tasks: set[asyncio.Task[None]] = set()
        self._tails: dict[asyncio.Task[None], Ledger] = {}

    def start(self, writers: int) -> None:
        for number in range(writers):
            self._run(self._write(Random(self._random.random()), 2 + number % 2), f"writer-{number}")
        self._run(self._write_by_gateway(Random(self._random.random())), "gateway writer")
        if self._java is not None:
            self._run(self._write_by_java(*self._java, Random(self._random.random())), "Java writer")
        self._run(self._read(Random(self._random.random())), "reader")
        self._run(self._delete(Random(self._random.random())), "deleter")

    async def stop(self) -> None:
        """The faults are over: all but the tails come to an end, and the Java program is ended, since its time-outs are
        its own."""
        self.going = False
        if self._java_writer is not None:
            self._java_writer.close()
        await self._end(self._tasks)

    async def tails_end(self) -> None:
        """All ledgers are closed by now, but for those that are lost: who waits for news of these is sent away."""
        await self._end({task for task, ledger in self._tails.items() if ledger.is_promised})
        lost = set(self._tails)
        for task in lost:
            task.cancel()
        if lost:
            await asyncio.wait(lost)

    async def _end(self, tasks: set[asyncio.Task[None]]) -> None:
        if not tasks:
            return
        _, late = await asyncio.wait(set(tasks), timeout=_END_S)
        for task in late:
            self.history.breach("stuck", f"{task.get_name()} does not come to an end, and no fault goes on")
            task.cancel()
        if late:
            await asyncio.wait(late)

    def _run(self, work: Coroutine[None, None, None], name: str) -> None:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(self._ended)

    def _run_tail(self, ledger: Ledger, version: int) -> None:
        task = asyncio.create_task(self._tail(ledger, version), name=f"tail of {ledger.ledger_id}")
        self._tails[task] = ledger
        task.add_done_callback(self._tails.pop)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.history.breach("clients", f"{task.get_name()} ended with {error!r}")

    # --- writers --------------------------------------------------------------------------------------------------

    async def _write(self, random: Random, version: int) -> None:
        """One ledger after the other; a writer that dies is another client next time."""
        while self.going:
            async with connected(self.uri, version) as client:
                for _ in range(random.randint(1, 3)):
                    if self.going:
                        await self._write_one(client, random, f"v{version}")

    async def _write_one(self, client: Client, random: Random, who: str) -> None:
        ensemble, write_quorum, ack_quorum = random.choice(QUORUMS)
        digest = random.choice((DigestType.CRC32C, DigestType.CRC32, DigestType.MAC))
        try:
            writer = await client.create(
                ensemble=ensemble, write_quorum=write_quorum, ack_quorum=ack_quorum, password=PASSWORD, digest=digest
            )
        except (Refused, CouldNotTell):
            await asyncio.sleep(_PAUSE_S)
            return
        ledger = self._register(writer.ledger_id, (ensemble, write_quorum, ack_quorum), digest.name, who)
        named(ledger, writer.metadata)
        if random.random() < 0.6:
            self._run_tail(ledger, random.choice((2, 3)))
        way = random.choice(("close", "close", "die", "die", "fenced", "idle"))
        count = random.randint(20, 300)
        self.history.counts[f"writers that {way}"] += 1
        recoveries: list[asyncio.Task[None]] = []
        futures: list[asyncio.Future[int]] = []
        for number in range(count):
            if not self.going:
                break
            if way == "fenced" and number == count // 2:
                recoveries = self._recover_twice(ledger)
            if not await self._submit(writer, ledger, futures):
                break
            if way == "idle" and number == count // 2:
                await asyncio.sleep(random.uniform(4, 9))  # long enough for its bookies to come and go
            if random.random() < 0.3:
                await asyncio.sleep(random.uniform(0.0, 0.03))
        if futures:
            await asyncio.wait(futures, timeout=20 if way != "die" else random.uniform(0, 0.2))
        ledger.writes_to = writer.metadata.last_ensemble
        if way in ("close", "idle"):
            await self._close(writer, ledger)
        elif way == "fenced" and recoveries:
            await self._append_on(writer, ledger, futures)
            await asyncio.wait(recoveries)
        elif random.random() < 0.6:  # of others the end is found when the round ends
            self._run(self._recover(ledger, random), f"recoverer of {ledger.ledger_id}")
        ledger.is_written = False

    async def _write_by_gateway(self, random: Random) -> None:
        while self.going:
            writer = GatewayWriter(self.gateway, self.history, self._register)
            ledger = await writer.write(random)
            if ledger is not None:
                ledger.is_written = False
                self._run(self._recover(ledger, random), f"recoverer of {ledger.ledger_id}")
            await asyncio.sleep(random.uniform(0, 1))

    async def _write_by_java(self, class_path: str, log: Path, random: Random) -> None:
        writer = self._java_writer = JavaWriter(class_path, self.uri, log, self.history, self._register)
        try:
            while self.going:
                ledger = await writer.write(random)
                if ledger is not None:
                    ledger.is_written = False
                    self._run(self._recover(ledger, random), f"recoverer of {ledger.ledger_id}")
        finally:
            writer.close()

    def _register(self, ledger_id: int, quorums: tuple[int, int, int], digest: str, who: str) -> Ledger:
        """A ledger that has just been made."""
        global _nonces
        _nonces += 1
        ledger = Ledger(ledger_id, _nonces, quorums, digest, who)
        if ledger_id in self.history.ledgers:
            self.history.breach("metadata", f"the id of {self.history.ledgers[ledger_id]} was given out again")
        self.history.ledgers[ledger_id] = ledger
        self.history.counts["ledgers written"] += 1
        return ledger

    async def _submit(self, writer: LedgerWriter, ledger: Ledger, futures: list[asyncio.Future[int]]) -> bool:
        """Append the next entry; False: the writer takes no more."""
        entry_id = ledger.sent
        ledger.sent += 1
        behind_recovery = ledger.end is not None
        if behind_recovery and ledger.fenced_from is None:
            ledger.fenced_from = entry_id
        try:
            future = await writer.submit(ledger.payload(entry_id))
        except PodkeeperError as error:
            self._failed(ledger, error)
            return False
        future.add_done_callback(lambda done: self._appended(writer, ledger, done))
        futures.append(future)
        while len(futures) > _WINDOW and not futures[-_WINDOW].done():
            await asyncio.wait([futures[-_WINDOW]], timeout=30)
            if not futures[-_WINDOW].done():
                self.history.breach("stuck", f"{ledger}: an append has been waiting for 30 s")
                return False
        return not (futures[-1].done() and futures[-1].exception() is not None)

    def _appended(self, writer: LedgerWriter, ledger: Ledger, done: asyncio.Future[int]) -> None:
        if done.cancelled():
            return
        error = done.exception()
        if error is None:
            named(ledger, writer.metadata)
            self.history.acknowledged(ledger, done.result())
        else:
            self._failed(ledger, error)

    def _failed(self, ledger: Ledger, error: BaseException) -> None:
        self.history.counts["appends that failed"] += 1
        if not isinstance(error, (Refused, CouldNotTell)):
            self.history.breach("clients", f"{ledger}: an append failed with {error!r}")

    async def _append_on(self, writer: LedgerWriter, ledger: Ledger, futures: list[asyncio.Future[int]]) -> None:
        """It does not know yet that it is locked out."""
        for _ in range(200):
            if not await self._submit(writer, ledger, futures):
                return
            await asyncio.sleep(0.02)
        if ledger.end is not None and self.going:
            self.history.breach("fence", f"{ledger}: its writer goes on behind a recovery and hears nothing of it")

    async def _close(self, writer: LedgerWriter, ledger: Ledger) -> None:
        ledger.is_closed_by_writer = True
        try:
            await writer.close()
        except (LedgerFenced, LedgerClosed, CouldNotTell, Refused):
            self._run(self._recover(ledger, Random(ledger.nonce)), f"recoverer of {ledger.ledger_id}")
            return
        named(ledger, writer.metadata)
        self.history.ended(ledger, writer.last_add_confirmed, writer.length, "its writer")

    # --- recoverers -----------------------------------------------------------------------------------------------

    def _recover_twice(self, ledger: Ledger) -> list[asyncio.Task[None]]:
        """At the same time, by two clients: they have to agree."""
        tasks = [asyncio.create_task(self._recover(ledger, Random(n)), name="recoverer") for n in (2, 3)]
        for task in tasks:
            task.add_done_callback(self._ended)
        return tasks

    async def _recover(self, ledger: Ledger, random: Random) -> None:
        """Until it is closed, or the faults are over: the judge closes what is left."""
        async with connected(self.uri, random.choice((2, 3))) as client:
            while self.going:
                if await recover(client, self.history, ledger, "a recoverer"):
                    return
                await asyncio.sleep(_PAUSE_S)

    # --- readers --------------------------------------------------------------------------------------------------

    async def _tail(self, ledger: Ledger, version: int) -> None:
        """Every entry once and in order, and none that is not confirmed; of a ledger that is lost as far as it goes."""
        history, following, lac = self.history, 0, -1
        async with connected(self.uri, version) as client:
            while self.going or ledger.is_promised:
                try:
                    async with client.open(ledger.ledger_id, password=ledger.password) as reader:
                        async for entry in reader.tail(following):
                            if entry.entry_id != following:
                                history.breach("order", f"{ledger}: a tail was given {entry.entry_id}, not {following}")
                            history.read_entry(ledger, entry.entry_id, bytes(entry.payload), "a tail")
                            following = entry.entry_id + 1
                            ledger.read = max(ledger.read, entry.entry_id)
                            history.heard_lac(ledger, reader.last_add_confirmed, lac)
                            lac = reader.last_add_confirmed
                        if reader.is_closed:
                            history.counts["tails that came to the end"] += 1
                            if following != reader.metadata.last_entry_id + 1:
                                end = reader.metadata.last_entry_id
                                history.breach(
                                    "order", f"{ledger}: a tail ended before {following}, the ledger at {end}"
                                )
                            history.ended(ledger, reader.metadata.last_entry_id, reader.length, "a tail")
                            return
                except LedgerDeleted:
                    if not ledger.is_deleted:
                        history.breach("metadata", f"{ledger}: a tail was told that it does not exist")
                    return
                except NotThere as error:
                    if ledger.is_promised and not ledger.is_deleted:
                        history.breach("absence", f"{ledger}: a tail at {following} was told {error!r}")
                    await asyncio.sleep(_PAUSE_S)
                except (CouldNotTell, Refused):
                    await asyncio.sleep(_PAUSE_S)

    async def _read(self, random: Random) -> None:
        """Ranges of ledgers that are closed."""
        history = self.history
        while self.going:
            async with connected(self.uri, random.choice((2, 3))) as client:
                for _ in range(40):
                    closed = [each for each in history.live() if each.end is not None and each.end[0] >= 0]
                    if closed and self.going:
                        await read_some(client, history, random.choice(closed), random)
                    await asyncio.sleep(random.uniform(0.02, 0.2))

    # --- deleters -------------------------------------------------------------------------------------------------

    async def _delete(self, random: Random) -> None:
        """So that there is something to collect and to compact."""
        while self.going:
            async with connected(self.uri) as client:
                for _ in range(10):
                    await asyncio.sleep(random.uniform(0.5, 1.5))
                    if self.going:
                        await self._delete_one(client, random)

    async def delete_some(self, client: Client) -> None:
        """Behind a round: all but some, so that those who check everything come round in time."""
        while await self._delete_one(client, self._random):
            pass

    async def _delete_one(self, client: Client, random: Random) -> bool:
        closed = [each for each in self.history.live() if each.end is not None and not each.is_written]
        if len(closed) <= _KEEP_LEDGERS:
            return False
        victim = random.choice(closed)
        victim.is_deleted = True
        self.history.counts["ledgers deleted"] += 1
        with suppress(CouldNotTell):
            await client.delete(victim.ledger_id)
        return True


async def recover(client: Client, history: History, ledger: Ledger, who: str) -> bool:
    """One attempt to close a ledger; True: it is closed, or was deleted."""
    try:
        metadata = await client.recover(ledger.ledger_id, password=ledger.password)
    except LedgerDeleted:
        if not ledger.is_deleted:
            history.breach("metadata", f"{ledger}: {who} was told that it does not exist")
        return True
    except NotThere as error:
        history.breach("absence", f"{ledger}: {who} was told {error!r}")
        return False
    except (CouldNotTell, Refused):
        history.counts["recoveries that failed"] += 1
        return False
    named(ledger, metadata)
    history.counts["recoveries"] += 1
    history.ended(ledger, metadata.last_entry_id, metadata.length, who)
    return True


async def read_some(client: Client, history: History, ledger: Ledger, random: Random) -> None:
    """A range of a closed ledger, compared."""
    assert ledger.end is not None
    first = random.randint(0, ledger.end[0])
    last = min(ledger.end[0], first + random.choice((0, 20, 200)))
    try:
        async with client.open(ledger.ledger_id, password=ledger.password) as reader:
            if not reader.is_closed:
                history.breach("recovery", f"{ledger}: it was closed, and is open again")
                return
            history.read_range(ledger, (first, last), await reader.read(first, last), "a reader")
    except NotThere as error:
        if ledger.is_promised and not ledger.is_deleted:
            history.breach("absence", f"{ledger}: a reader of {first} to {last} was told {error!r}")
    except (CouldNotTell, Refused):
        history.counts["reads that failed"] += 1
