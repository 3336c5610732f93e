"""What must hold when the faults are over: everything comes back by itself, and all that was promised is there.

In order
1. every bookie serves and is writable again, every ledger can be closed (`all_closed`, before the last fault of the
   round);
2. every copy of every ledger is made good by those who heal, and each copy is what was appended: read from its own
   bookie;
3. what was acknowledged is read by a client, entry by entry;
4. a writer that a recovery has locked out finds fewer bookies than it needs to be told a success;
5. a bookie at rest holds nothing: no request, no waiter, no memory of a client.

Whatever was done to its disks, a bookie that had an entry never says that it has none, and neither does one that was
needed for an acknowledgement, as long as what was done is damage that it can see.

Event loop only.
"""

from __future__ import annotations

import asyncio
import re
import struct
import time
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Final

import aiohttp

from bookie_client import Client
from bookie_client.distribution import Quorums
from bookie_client.reading.maintenance import replicas
from bookie_protocol.errors import CouldNotTell, LedgerDeleted, NotThere, PodkeeperError, Refused
from bookie_protocol.keys import master_key
from bookie_protocol.ledger_metadata.model import LedgerMetadata
from tests.campaign.actors import named, recover
from tests.campaign.connecting import connected
from tests.campaign.history import History, Ledger
from tests.campaign.world import PORT, Bookie, World
from tests.support.frames import entry, v2_add, v2_code

BACK_S: Final = 90.0
CLOSED_S: Final = 60.0
HEALED_S: Final = 150.0
LOST_S: Final = 20.0
"""For ledgers of which so much was destroyed that nothing is promised."""
REST_S: Final = 20.0
_AGAIN_S: Final = 1.5
_AT_ONCE: Final = 6
_NEWEST: Final = 40
_REMEMBERS_S: Final = 20.0
_GAUGES: Final = 7

AT_REST: Final = re.compile(
    r"^bookkeeper_server_((?:ADD|READ)_ENTRY_(?:IN_PROGRESS|BLOCKED)|LONG_POLLS_WAITING|LONG_POLL_READS_BLOCKED"
    r"|CLIENT_MEMORY_BYTES)(?:\{[^}]*\})? (\S+)$",
    re.MULTILINE,
)
"""Gauges of what clients have under way."""


class Judge:
    """Of one world. `round` after each round, when no fault goes on and the actors have ended."""

    def __init__(self, world: World, history: History) -> None:
        self._world = world
        self._history = history
        self._sound: dict[int, set[str]] = {}
        """By ledger: the bookies each of whose copies was read and was sound."""
        self._told: set[tuple[int, str]] = set()

    def acknowledged(self) -> dict[int, int]:
        """How far each ledger is acknowledged of which every copy had to say so."""
        alone = [each for each in self._history.live() if each.quorums[1] == each.quorums[2] and each.acked >= 0]
        return {ledger.ledger_id: ledger.acked for ledger in alone}

    async def remembers(self, bookie: Bookie, before: Mapping[int, int], *, all_it_had: bool = False) -> None:
        """Something was done to it: what it had to acknowledge a while `before` that, and since, is there.
        `all_it_had`: of those whose copies there were sound none is denied, whatever was done to its disks. Asked at
        once, before those who heal have made good what it has forgotten, and the newest first."""
        now = self.acknowledged()
        asked = {each: (max(0, before.get(each, -1) - _NEWEST), last) for each, last in now.items()}
        if all_it_had:
            for ledger in self._history.live():
                if ledger.end is not None and bookie.name in self._sound.get(ledger.ledger_id, ()):
                    asked[ledger.ledger_id] = 0, ledger.end[0]
        with suppress(CouldNotTell, TimeoutError):
            async with asyncio.timeout(_REMEMBERS_S), connected(self._world.uri) as client:
                for ledger_id, (first, last) in sorted(asked.items(), reverse=True):
                    await self._asked(client, bookie, self._history.ledgers[ledger_id], first, last)

    async def _asked(self, client: Client, bookie: Bookie, ledger: Ledger, first: int, last: int) -> None:
        if ledger.is_deleted:
            return
        with suppress(NotThere):
            stored = await client.stored_metadata(ledger.ledger_id)
            handle = client.open_stored(stored, password=ledger.password, last_add_confirmed=last)
            last = min(last, handle.last_add_confirmed)
            due = _held(handle.metadata, bookie.name, first, last)
            await self._scan(ledger, bookie.name, replicas(handle).scan(bookie.name, first, last), due)
            self._history.counts["memories of restarted bookies asked"] += 1

    async def round(self) -> None:
        history = self._history
        began = history.clock
        await asyncio.gather(*(self._comes_back(bookie) for bookie in self._world.bookies.values()))
        async with connected(self._world.uri) as client:
            await self._all_writable(client)
            await self.all_closed(client)
            for ledger in history.live():
                await self._names(client, ledger)
            await self._all_healed(client)
            await self._all_read(client)
            await self._fences_hold()
        await asyncio.gather(*(self._rests(bookie) for bookie in self._world.bookies.values()))
        for ledger in history.live():
            ledger.destroyed.clear()
        for bookie in self._world.bookies.values():
            bookie.excuse = bookie.damaged = ""
            bookie.must_tell = False
        history.counts["seconds of judging"] += int(history.clock - began)

    # --- 1 --------------------------------------------------------------------------------------------------------

    async def _comes_back(self, bookie: Bookie) -> None:
        deadline = time.monotonic() + bookie.kind.patience * BACK_S
        while time.monotonic() < deadline:
            if bookie.program.is_running and await self._world.says_ready(bookie):
                return
            await asyncio.sleep(0.3)
        self._history.breach("stuck", f"{bookie.name} does not come back: {bookie.program.said()[-1500:]}")

    async def _all_writable(self, client: Client) -> None:
        missing: set[str] = set(self._world.bookies)
        deadline = time.monotonic() + BACK_S
        while missing and time.monotonic() < deadline:
            try:
                missing = set(self._world.bookies) - await client.writable_bookies()
            except CouldNotTell:
                pass
            await asyncio.sleep(0.3)
        for name in missing:
            said = self._world.bookies[name].program.said()[-1500:]
            self._history.breach("stuck", f"{name} is not writable again, and nothing is wrong with it: {said}")
            self._world.bookies[name].program.kill()  # as somebody would who saw it; the supervisor starts it

    async def all_closed(self, client: Client) -> None:
        """Close what its writers left."""
        deadline, soon = time.monotonic() + CLOSED_S, time.monotonic() + LOST_S
        left = [ledger for ledger in self._history.live() if ledger.end is None]
        while left and time.monotonic() < (deadline if _any_promised(left) else soon):
            closed = await asyncio.gather(*(recover(client, self._history, each, "the judge") for each in left))
            left = [ledger for ledger, is_closed in zip(left, closed, strict=True) if not is_closed]
            if left:
                await asyncio.sleep(0.5)
        for ledger in left:
            if ledger.is_promised:
                self._history.breach("stuck", f"{ledger} cannot be closed")
            self._give_up(ledger)

    def _give_up(self, ledger: Ledger) -> None:
        ledger.given_up = ledger.is_deleted = True

    async def _names(self, client: Client, ledger: Ledger) -> None:
        try:
            metadata = await client.metadata(ledger.ledger_id)
        except PodkeeperError as error:
            self._history.breach("metadata", f"{ledger}: its metadata cannot be read: {error!r}")
            return
        named(ledger, metadata)
        if metadata.last_ensemble != ledger.writes_to:
            ledger.writes_to = ()  # its bookies were exchanged: those that the recovery has fenced are others
        if not metadata.is_closed:
            self._history.breach("recovery", f"{ledger}: somebody was told its end, and it is {metadata.state.value}")
        elif ledger.end != (metadata.last_entry_id, metadata.length):
            self._history.breach(
                "recovery", f"{ledger}: it ends at {metadata.last_entry_id}, somebody was told {ledger.end}"
            )

    # --- 2 --------------------------------------------------------------------------------------------------------

    async def _all_healed(self, client: Client) -> None:
        deadline, soon = time.monotonic() + HEALED_S, time.monotonic() + LOST_S
        left = {ledger.ledger_id: ledger for ledger in self._history.live()}
        wrong: dict[int, list[str]] = {}
        while True:
            gate = asyncio.Semaphore(_AT_ONCE)
            found = await asyncio.gather(*(self._look_at(client, ledger, gate) for ledger in left.values()))
            wrong = {ledger_id: bad for ledger_id, bad in zip(left, found, strict=True) if bad}
            left = {ledger_id: left[ledger_id] for ledger_id in wrong}
            if not left or time.monotonic() > (deadline if _any_promised(left.values()) else soon):
                break
            await asyncio.sleep(_AGAIN_S)
        for ledger_id, ledger in left.items():
            words = f"{ledger}: not healed after {HEALED_S:.0f} s: {'; '.join(wrong[ledger_id][:4])}"
            if ledger.is_promised:
                self._history.breach("stuck", words)
            else:
                self._history.counts["ledgers lost beyond what is promised"] += 1
            self._give_up(ledger)
            await client.delete(ledger_id)

    async def _look_at(self, client: Client, ledger: Ledger, gate: asyncio.Semaphore) -> list[str]:
        """Each copy at its own bookie; gives what is wrong."""
        async with gate:
            wrong = []
            try:
                async with client.open(ledger.ledger_id, password=ledger.password) as handle:
                    named(ledger, handle.metadata)
                    reader = replicas(handle)
                    for bookie in sorted(handle.metadata.all_bookies()):
                        last = handle.last_add_confirmed
                        due = _held(handle.metadata, bookie, 0, last)
                        bad = await self._scan(ledger, bookie, reader.scan(bookie, 0, last), due)
                        if bad is None:
                            self._sound.setdefault(ledger.ledger_id, set()).add(bookie)
                        else:
                            wrong.append(bad)
            except (CouldNotTell, Refused) as error:
                wrong.append(repr(error))
            except LedgerDeleted:
                self._history.breach("metadata", f"{ledger} was never deleted, and does not exist")
            return wrong

    async def _scan(self, ledger: Ledger, bookie: str, answers: object, due: list[int]) -> str | None:
        """`due`: the entries of which it has to give its copy."""
        history, left = self._history, deque(due)
        async for answer in answers:  # type: ignore[attr-defined]
            history.counts["copies looked at"] += 1
            if not left or answer.entry_id != left.popleft():
                history.breach(
                    "order", f"{ledger}: a scan of {bookie} gave {answer.entry_id}, not the next of {due[:9]}"
                )
            if answer.entry is not None:
                history.read_entry(ledger, answer.entry_id, bytes(answer.entry.payload), f"a scan of {bookie}")
                continue
            if isinstance(answer.error, NotThere):
                self._judge_absence(ledger, bookie, answer.entry_id, answer.error)
            return f"{bookie}, entry {answer.entry_id}: {answer.error!r}"
        if left:
            history.breach("order", f"{ledger}: a scan of {bookie} ended before entry {left[0]}")
        return None

    def _judge_absence(self, ledger: Ledger, bookie: str, entry_id: int, error: NotThere) -> None:
        """It says that it has no such entry, of which the metadata say that it has one."""
        had = bookie in self._sound.get(ledger.ledger_id, ())
        _, write_quorum, ack_quorum = ledger.quorums
        counts = bookie not in ledger.destroyed or self._world.bookies[bookie].must_tell
        acknowledged = ack_quorum == write_quorum and entry_id <= ledger.acked and counts
        if (had or acknowledged) and (ledger.ledger_id, bookie) not in self._told:
            self._told.add((ledger.ledger_id, bookie))
            why = "had" if had else "acknowledged"
            self._history.breach("absence", f"{ledger}: {bookie} {why} entry {entry_id}, and says {error!r}")
        self._sound.get(ledger.ledger_id, set()).discard(bookie)

    # --- 3 --------------------------------------------------------------------------------------------------------

    async def _all_read(self, client: Client) -> None:
        for ledger in self._history.live():
            assert ledger.end is not None
            if ledger.acked > ledger.end[0]:
                continue  # told already
            try:
                async with client.open(ledger.ledger_id, password=ledger.password) as reader:
                    found = await reader.read(0, ledger.end[0]) if ledger.end[0] >= 0 else []
            except PodkeeperError as error:
                self._history.lost(ledger, f"it cannot be read: {error!r}")
                continue
            self._history.counts["ledgers judged"] += 1
            self._history.counts["acknowledged entries judged"] += ledger.acked + 1
            self._history.read_range(ledger, (0, ledger.end[0]), found, "the judge")

    # --- 4 --------------------------------------------------------------------------------------------------------

    async def _fences_hold(self) -> None:
        """What a writer would send that knows of nothing yet."""
        for ledger in self._history.live():
            if ledger.is_closed_by_writer or not ledger.writes_to or ledger.destroyed or ledger.fence_judged:
                continue
            ledger.fence_judged = True
            ensemble, write_quorum, ack_quorum = ledger.quorums
            quorums = Quorums(ensemble, write_quorum, ack_quorum)
            stored = entry(ledger.ledger_id, ledger.sent, ledger.payload(ledger.sent))
            members = [ledger.writes_to[position] for position in quorums.write_set(ledger.sent)]
            codes = [await self._ask(member, v2_add(stored, master_key(ledger.password))) for member in members]
            self._history.counts["fences asked"] += len(codes)
            if codes.count(0) >= ack_quorum:
                self._history.breach(
                    "fence",
                    f"{ledger}: a recovery closed it, and an add of its writer is stored by "
                    f"{[member for member, code in zip(members, codes, strict=True) if code == 0]}",
                )

    async def _ask(self, name: str, frame: bytes) -> int | None:
        """The code of a bookie's answer; None: none came."""
        try:
            async with asyncio.timeout(10):
                reader, writer = await asyncio.open_connection(self._world.bookies[name].host.address, PORT)
                try:
                    writer.write(frame)
                    head = await reader.readexactly(4)
                    return v2_code(head + await reader.readexactly(struct.unpack(">I", head)[0]))
                finally:
                    writer.close()
        except (OSError, EOFError, TimeoutError):
            return None

    # --- 5 --------------------------------------------------------------------------------------------------------

    async def _rests(self, bookie: Bookie) -> None:
        """Nobody asks it anything any more but those who heal."""
        if not bookie.kind.is_ours:
            return
        deadline = time.monotonic() + REST_S
        held: dict[str, float] = {}
        while time.monotonic() < deadline:
            try:
                held = at_rest(await self._world.metrics(bookie))
            except (aiohttp.ClientError, TimeoutError, OSError):
                held = {"no metrics": 1.0}
            if not held:
                return
            await asyncio.sleep(0.5)
        self._history.breach("rest", f"{bookie.name} is at rest and holds {held}")


def _held(metadata: LedgerMetadata, bookie: str, first: int, last: int) -> list[int]:
    """The entries from the first to the last of which the metadata say that this bookie has a copy."""
    return [entry_id for entry_id in range(first, last + 1) if bookie in metadata.bookies_for(entry_id)]


def _any_promised(ledgers: Iterable[Ledger]) -> bool:
    return any(ledger.is_promised for ledger in ledgers)


def at_rest(metrics: str) -> dict[str, float]:
    """Gauges that have to be zero when nobody asks, and are not."""
    found = {name: float(value) for name, value in AT_REST.findall(metrics)}
    if len(found) < _GAUGES:
        raise AssertionError(f"only {sorted(found)} are exported")
    return {name: value for name, value in found.items() if value}
