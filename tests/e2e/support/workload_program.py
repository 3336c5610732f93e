"""Writer and reader in a pod of the cluster: they work all the time, and remember every acknowledged entry.

Run with the Python of the image, as a file of its own: it imports what the image has, and nothing of the tests.

Invariants
- What an entry holds follows from its ledger and number, so that the record of what was acknowledged is one number for
  each ledger.
- An entry counts as written from its acknowledgement on, and ever after: a reader that does not get it is a loss.
- Faults (an append or a read that could not be done now) are kept apart from losses and from damage.

HTTP on $PORT: GET /state, GET /state/{appended}/{read}, POST /stop, POST /verify,
POST /check, GET /verdict. One event loop.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import time
from collections import Counter
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from random import Random
from typing import Any

from aiohttp import web

from bookie_client import (
    Client,
    ClientOptions,
    LedgerReader,
    LedgerWriter,
    MetadataServiceOptions,
    MetadataTls,
    PlacementOptions,
)
from bookie_client.reading.maintenance import replicas
from bookie_pod.autorecovery.auditor.runs import Check, force_checks
from bookie_protocol.errors import DigestMismatch, LedgerFenced, NotThere, PodkeeperError

PASSWORD = b"workload"
ENTRIES = 200
"""Of a ledger of a busy writer."""
BUSY_PAUSE = 0.05
IDLE_PAUSE = 5.0
AFTER_FAULT = 0.5
READ_PAUSE = 0.1
CHUNK = 200
KEPT = 200
"""Faults and findings that are told in words; all are counted."""
TO_THE_METADATA = MetadataServiceOptions()
if os.path.exists("/metadata/token"):  # of an embedded service
    TO_THE_METADATA = MetadataServiceOptions(tls=MetadataTls(ca_file="/metadata/ca.crt"), token_file="/metadata/token")
elif os.path.exists("/metadata/tls.crt"):  # of an etcd that the operator runs
    _FILES = MetadataTls(ca_file="/metadata/ca.crt", certificate_file="/metadata/tls.crt", key_file="/metadata/tls.key")
    TO_THE_METADATA = MetadataServiceOptions(tls=_FILES)
OPTIONS = ClientOptions(add_timeout=5.0, read_timeout=5.0, metadata_service=TO_THE_METADATA)
PLACEMENT = PlacementOptions(policy=os.environ.get("PLACEMENT", "rack-aware"))


def payload(ledger_id: int, entry_id: int) -> bytes:
    seed = hashlib.blake2b(b"%d/%d" % (ledger_id, entry_id)).digest()
    return seed * (1 + (ledger_id + entry_id * 7) % 30)


@dataclass
class Written:
    """`acknowledged`: the last entry; -1: none."""

    acknowledged: int = -1
    closed: bool = False
    fenced: bool = False


@dataclass
class State:
    began: float = field(default_factory=time.time)
    going: bool = True
    ledgers: dict[int, Written] = field(default_factory=dict)
    appended: int = 0
    read: int = 0
    longest_gap: float = 0.0
    """Seconds without any acknowledgement."""
    last_acknowledged: float = 0.0
    faults: Counter[str] = field(default_factory=Counter)
    fault_lines: list[str] = field(default_factory=list)
    losses: list[str] = field(default_factory=list)

    def acknowledge(self, written: Written, entry_id: int) -> None:
        now = time.monotonic()
        if self.last_acknowledged:
            self.longest_gap = max(self.longest_gap, now - self.last_acknowledged)
        self.last_acknowledged = now
        written.acknowledged = entry_id
        self.appended += 1

    def fault(self, what: str, error: Exception) -> None:
        self.faults[f"{what} {type(error).__name__}"] += 1
        if len(self.fault_lines) < KEPT:
            self.fault_lines.append(
                f"{time.strftime('%H:%M:%S', time.gmtime())} {what}: {type(error).__name__}: {error}"
            )

    def loss(self, line: str) -> None:
        if len(self.losses) < KEPT:
            self.losses.append(line)


# --- writing and reading ----------------------------------------------------------------------------------------------


async def write_for_ever(state: State, client: Client, shape: tuple[int, int, int], pause: float) -> None:
    """One ledger after the other; one that ended by a fault is left behind as it is."""
    ensemble, write_quorum, ack_quorum = shape
    while state.going:
        try:
            writer = await client.create(
                ensemble=ensemble, write_quorum=write_quorum, ack_quorum=ack_quorum, password=PASSWORD
            )
        except PodkeeperError as error:
            state.fault("create", error)
            await asyncio.sleep(AFTER_FAULT)
            continue
        written = state.ledgers.setdefault(writer.ledger_id, Written())
        try:
            await write_ledger(state, writer, written, pause)
        except LedgerFenced as error:
            written.fenced = True
            state.fault("append", error)
        except PodkeeperError as error:
            state.fault("append", error)
            with suppress(PodkeeperError):
                await writer.close()
            await asyncio.sleep(AFTER_FAULT)


async def write_ledger(state: State, writer: LedgerWriter, written: Written, pause: float) -> None:
    for entry_id in range(ENTRIES):
        if not state.going:
            break
        given = await writer.append(payload(writer.ledger_id, entry_id))
        if given != entry_id:
            state.loss(f"ledger {writer.ledger_id}: entry {entry_id} was given the number {given}")
        state.acknowledge(written, entry_id)
        await asyncio.sleep(pause)
    await writer.close()
    written.closed = True


async def read_for_ever(state: State, client: Client, random: Random) -> None:
    while state.going:
        await asyncio.sleep(READ_PAUSE)
        known = [ledger_id for ledger_id, written in state.ledgers.items() if written.acknowledged >= 0]
        if not known:
            continue
        ledger_id = random.choice(known[-20:] if random.random() < 0.5 else known)
        written = state.ledgers[ledger_id]
        end, was_closed = written.acknowledged, written.closed
        try:
            async with client.open(ledger_id, password=PASSWORD) as reader:
                if was_closed and reader.last_add_confirmed < end:
                    state.loss(f"ledger {ledger_id} ends with {reader.last_add_confirmed}, acknowledged was {end}")
                last = min(end, reader.last_add_confirmed)
                if last >= 0:
                    first = random.randint(0, last)
                    await compare(state, reader, first, min(last, first + 50))
        except NotThere as error:
            state.loss(f"reader: ledger {ledger_id} up to {end}: {error}")
        except PodkeeperError as error:
            state.fault("read", error)


async def compare(state: State, reader: LedgerReader, first: int, last: int) -> None:
    wanted = first
    for entry in await reader.read(first, last):
        if entry.entry_id != wanted or entry.payload != payload(reader.ledger_id, wanted):
            state.loss(f"ledger {reader.ledger_id}: entry {wanted} is not what was written")
        wanted += 1
    if wanted != last + 1:
        state.loss(f"ledger {reader.ledger_id}: entries {wanted} to {last} were not read")
    state.read += wanted - first


# --- the verdict ------------------------------------------------------------------------------------------------------


async def verify(state: State, client: Client) -> dict[str, Any]:
    """Close and read every ledger, then each of its copies."""
    verdict: dict[str, Any] = {"ledgers": 0, "entries": 0, "copies": 0}
    verdict |= {"losses": [], "unread": [], "short": [], "untold": []}
    turn = asyncio.Semaphore(4)

    async def one(ledger_id: int, written: Written) -> None:
        async with turn:
            try:
                read = await verify_entries(state, client, ledger_id, written)
                verdict["entries"] += read
                await verify_replicas(client, ledger_id, verdict)
            except NotThere as error:
                state.loss(f"verify: ledger {ledger_id} up to {written.acknowledged}: {error}")
            except PodkeeperError as error:
                verdict["unread"].append(f"ledger {ledger_id}: {type(error).__name__}: {error}")
            verdict["ledgers"] += 1

    await asyncio.gather(*(one(ledger_id, written) for ledger_id, written in sorted(state.ledgers.items())))
    verdict["losses"] = state.losses
    return {name: value[:KEPT] if isinstance(value, list) else value for name, value in verdict.items()}


async def verify_entries(state: State, client: Client, ledger_id: int, written: Written) -> int:
    async with client.open(ledger_id, password=PASSWORD, recover=True) as reader:
        if reader.last_add_confirmed < written.acknowledged:
            state.loss(
                f"ledger {ledger_id} ends with {reader.last_add_confirmed}, acknowledged: {written.acknowledged}"
            )
        for first in range(0, reader.last_add_confirmed + 1, CHUNK):
            await compare(state, reader, first, min(reader.last_add_confirmed, first + CHUNK - 1))
        return reader.last_add_confirmed + 1


async def verify_replicas(client: Client, ledger_id: int, verdict: dict[str, Any]) -> None:
    """Read each copy that the metadata promise, from the bookie that they name."""
    async with client.open(ledger_id, password=PASSWORD) as reader:
        for bookie in sorted(reader.metadata.all_bookies()):
            async with aclosing(replicas(reader).scan(bookie, 0, reader.last_add_confirmed)) as answers:
                async for answer in answers:
                    what = f"ledger {ledger_id}, entry {answer.entry_id} on {bookie}"
                    if isinstance(answer.error, NotThere | DigestMismatch):
                        verdict["short"].append(f"{what}: {answer.error}")
                    elif answer.error is not None:
                        verdict["untold"].append(f"{what}: {answer.error}")
                    elif answer.entry is None or answer.entry.payload != payload(ledger_id, answer.entry_id):
                        verdict["short"].append(f"{what} is not what was written")
                    else:
                        verdict["copies"] += 1
                        continue
                    break  # one entry tells it of this bookie


# --- serving ----------------------------------------------------------------------------------------------------------


class Server:
    def __init__(self, state: State, client: Client, workers: list[asyncio.Task[None]]) -> None:
        self._state = state
        self._client = client
        self._workers = workers
        self._verdict: asyncio.Task[dict[str, Any]] | None = None

    def application(self) -> web.Application:
        made = web.Application()
        made.add_routes(
            [
                web.get("/state", self.state),
                web.get("/state/{appended}/{read}", self.state),
                web.post("/stop", self.stop),
                web.post("/verify", self.verify),
                web.post("/check", self.check),
                web.get("/verdict", self.verdict),
            ]
        )
        return made

    async def state(self, request: web.Request) -> web.Response:
        """With `appended` and `read` in its path: once there are so many, or after 20 s."""
        end = time.monotonic() + 20
        appended, read = (int(request.match_info.get(name, 0)) for name in ("appended", "read"))
        while (self._state.appended < appended or self._state.read < read) and time.monotonic() < end:  # noqa: ASYNC110 - two counters, and a time-out
            await asyncio.sleep(0.05)
        dead = [
            str(task.exception()) for task in self._workers if task.done() and not task.cancelled() and task.exception()
        ]
        waited = time.monotonic() - self._state.last_acknowledged if self._state.last_acknowledged else 0.0
        return web.json_response(
            {
                "began": self._state.began,
                "ledgers": len(self._state.ledgers),
                "appended": self._state.appended,
                "read": self._state.read,
                "longestGap": max(self._state.longest_gap, waited if self._state.going else 0.0),
                "faults": dict(self._state.faults),
                "faultLines": self._state.fault_lines,
                "losses": self._state.losses,
                "dead": dead,
            }
        )

    async def stop(self, _: web.Request) -> web.Response:
        self._state.going = False
        await asyncio.wait(self._workers, timeout=60)
        return web.json_response({"stopped": all(task.done() for task in self._workers)})

    async def verify(self, _: web.Request) -> web.Response:
        self._verdict = asyncio.create_task(verify(self._state, self._client))
        return web.json_response({})

    async def check(self, _: web.Request) -> web.Response:
        """Have the auditor look for copies that only a look at the bookies finds: those that a writer left out."""
        await force_checks(self._client.metadata_service, [Check.REPLICAS])
        return web.json_response({})

    async def verdict(self, _: web.Request) -> web.Response:
        """`{}` while it is not there yet, after 20 s."""
        assert self._verdict is not None
        await asyncio.wait([self._verdict], timeout=20)
        return web.json_response(self._verdict.result() if self._verdict.done() else {})


async def main() -> None:
    state = State()
    shapes = [(3, 3, 2)] * 3
    async with Client(os.environ["METADATA_URI"], OPTIONS, placement=PLACEMENT) as client:
        workers = [asyncio.create_task(write_for_ever(state, client, shape, BUSY_PAUSE)) for shape in shapes]
        workers.append(asyncio.create_task(write_for_ever(state, client, (3, 3, 2), IDLE_PAUSE)))
        workers += [asyncio.create_task(read_for_ever(state, client, Random(seed))) for seed in (1, 2)]
        runner = web.AppRunner(Server(state, client, workers).application())
        await runner.setup()
        await web.TCPSite(runner, "0.0.0.0", int(os.environ.get("PORT", "8080"))).start()
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
