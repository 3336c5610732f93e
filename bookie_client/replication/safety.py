"""Safety check: which ledgers would fall below their ack quorum, or have no copy left, if these bookies went now.

Answered from ledger metadata, marks of the under-replication tree and the live state of bookies; nothing is read from
ledgers and nothing is changed.

Invariants
- A copy counts only if its bookie is registered, answers, is not one of those going, and no mark names it.
- What is unknown is unsafe: metadata that cannot be read, a bookie that is registered and does not answer.
- Memory is bounded: ledgers stream by, and at most `max_listed` are kept by name.

Event loop only.

Source: docs/internals/auto-recovery.md, section 13.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Final

from bookie_client.bookies import Registration, Registrations
from bookie_client.client import Client
from bookie_client.replication.fragments import Fragment, fragments
from bookie_protocol.aside import STEPS, Aside, Slices
from bookie_protocol.errors import MetadataError, MetadataNotFound, MetadataUnavailable, PodkeeperError
from bookie_protocol.ledger_metadata.model import LedgerMetadata

CONCURRENT_READS: Final = 16
"""Ledgers whose metadata are read at the same time."""
PROGRESS_EVERY: Final = 1_000
MAX_LISTED: Final = 1_000
SafetyProgress = Callable[[int, int], None]
"""(ledgers seen, ledgers at risk so far)."""


class Risk(Enum):
    """The risk to a ledger. UNKNOWN: it could not be determined, which is unsafe.

    NO_SLACK: its write quorum is no larger than its ack quorum, so that stopping any of its bookies goes below the
    quorum; all its other copies stay.
    """

    NO_COPY = "no copy"
    BELOW_ACK_QUORUM = "below ack quorum"
    NO_SLACK = "no slack"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class LedgerAtRisk:
    """The worst of a ledger's segments. `copies_left`: the certain copies of its worst entry."""

    ledger_id: int
    risk: Risk
    first_entry: int
    copies_left: int
    ack_quorum: int
    detail: str


@dataclass(frozen=True, slots=True)
class SafetyReport:
    """`listed`: the first `max_listed` ledgers at risk; the counts are of all."""

    going: frozenset[str]
    ledgers_seen: int
    ledgers_concerned: int
    """Ledgers that store entries on one of the bookies."""
    no_copy: int
    below_ack_quorum: int
    """Number of ledgers below their ack quorum, not counting those without slack."""
    no_slack: int
    unknown: int
    listed: tuple[LedgerAtRisk, ...]

    @property
    def is_safe(self) -> bool:
        """Return True if no ledger is at risk and none is unknown."""
        return not (self.no_copy or self.below_ack_quorum or self.no_slack or self.unknown)


async def safety_check(
    client: Client,
    going: Collection[str],
    *,
    progress: SafetyProgress | None = None,
    max_listed: int = MAX_LISTED,
) -> SafetyReport:
    """Judge the loss of `going`, all at once. Raises `MetadataUnavailable` when ledgers cannot be listed."""
    tally = _Tally(frozenset(going), max_listed)
    check = _SafetyCheck(client, tally.going)
    try:
        async for batch in _batches(client.list(), CONCURRENT_READS):
            for verdict in await asyncio.gather(*map(check.judge, batch)):
                tally.count(verdict)
            if progress is not None and tally.seen % PROGRESS_EVERY < len(batch):
                progress(tally.seen, tally.at_risk)
    finally:
        check.close()
    if progress is not None:
        progress(tally.seen, tally.at_risk)
    return tally.report()


# --- inside -------------------------------------------------------------------------------------------------------


class _Live(Enum):
    SERVES = "serves"
    DOWN = "down"
    UNKNOWN = "unknown"


class _Untouched(Enum):
    """A ledger that stores nothing on the bookies that go, or that is safe without them."""

    NOT_CONCERNED = "not concerned"
    SAFE = "safe"


class _Tally:
    def __init__(self, going: frozenset[str], max_listed: int) -> None:
        self.going = going
        self.seen = 0
        self._max_listed = max_listed
        self._concerned = 0
        self._counts = dict.fromkeys(Risk, 0)
        self._listed: list[LedgerAtRisk] = []

    @property
    def at_risk(self) -> int:
        return sum(self._counts.values())

    def count(self, verdict: LedgerAtRisk | _Untouched | None) -> None:
        if verdict is None:
            return  # deleted while the listing ran
        self.seen += 1
        self._concerned += verdict is not _Untouched.NOT_CONCERNED
        if isinstance(verdict, LedgerAtRisk):
            self._counts[verdict.risk] += 1
            if len(self._listed) < self._max_listed:
                self._listed.append(verdict)

    def report(self) -> SafetyReport:
        return SafetyReport(
            going=self.going,
            ledgers_seen=self.seen,
            ledgers_concerned=self._concerned,
            no_copy=self._counts[Risk.NO_COPY],
            below_ack_quorum=self._counts[Risk.BELOW_ACK_QUORUM],
            no_slack=self._counts[Risk.NO_SLACK],
            unknown=self._counts[Risk.UNKNOWN],
            listed=tuple(self._listed),
        )


class _SafetyCheck:
    def __init__(self, client: Client, going: frozenset[str]) -> None:
        self._client = client
        self._going = going
        self._registrations = Registrations(client.bookies, client.metadata_service.bookies)
        self._aside = Aside()
        self._live: dict[str, asyncio.Task[_Live]] = {}

    def close(self) -> None:
        """Give up what is still asked."""
        for task in self._live.values():
            task.cancel()

    async def judge(self, ledger_id: int) -> LedgerAtRisk | _Untouched | None:
        """None: the ledger was deleted meanwhile."""
        service = self._client.metadata_service
        try:
            metadata = (await service.ledgers.read(ledger_id)).value
        except MetadataNotFound:
            return None
        except MetadataError as error:
            return LedgerAtRisk(ledger_id, Risk.UNKNOWN, 0, 0, 0, f"its metadata cannot be read: {error}")
        if self._going.isdisjoint(metadata.all_bookies()):
            return _Untouched.NOT_CONCERNED
        if len(metadata.ensembles) > STEPS:
            concerned = await self._aside.run(lambda: _concerned(metadata, self._going))
        else:
            concerned = _concerned(metadata, self._going)
        if not concerned:
            return _Untouched.NOT_CONCERNED
        try:
            mark = await service.under_replication.read(ledger_id)
        except PodkeeperError as error:
            quorum = concerned[0].quorums.ack
            return LedgerAtRisk(ledger_id, Risk.UNKNOWN, 0, 0, quorum, f"its mark cannot be read: {error}")
        missing = frozenset(mark.replicas) if mark is not None else frozenset[str]()
        slices, worst = Slices(), None
        for fragment in concerned:
            risk = await self._risk(fragment, missing, slices)
            if risk is not None and (worst is None or _gravity(risk) < _gravity(worst)):
                worst = risk
        return worst if worst is not None else _Untouched.SAFE

    async def _risk(self, fragment: Fragment, missing: frozenset[str], slices: Slices) -> LedgerAtRisk | None:
        live = {bookie: await self._state(bookie) for bookie in set(fragment.ensemble)}
        worst: LedgerAtRisk | None = None
        for positions in _write_sets(fragment):
            await slices.took(len(positions) + 10)
            members = [fragment.ensemble[position] for position in positions]
            if self._going.isdisjoint(members):
                continue
            stay = [bookie for bookie in members if bookie not in self._going and bookie not in missing]
            sure = sum(live[bookie] is _Live.SERVES for bookie in stay)
            unsure = sum(live[bookie] is _Live.UNKNOWN for bookie in stay)
            if sure >= fragment.quorums.ack or (worst is not None and worst.copies_left <= sure):
                continue
            worst = self._describe(fragment, members, missing, live, sure, unsure)
        return worst

    def _describe(
        self,
        fragment: Fragment,
        members: Iterable[str],
        missing: frozenset[str],
        live: dict[str, _Live],
        sure: int,
        unsure: int,
    ) -> LedgerAtRisk:
        ack_quorum, write_quorum = fragment.quorums.ack, fragment.quorums.write
        if sure + unsure >= ack_quorum:
            risk = Risk.UNKNOWN
        elif sure and ack_quorum == write_quorum and sure == write_quorum - 1:
            risk = Risk.NO_SLACK
        elif sure:
            risk = Risk.BELOW_ACK_QUORUM
        else:
            risk = Risk.UNKNOWN if unsure else Risk.NO_COPY
        said = []
        for bookie in members:
            if bookie in self._going:
                said.append(f"{bookie} goes")
            elif bookie in missing:
                said.append(f"{bookie} is marked as missing")
            elif live[bookie] is _Live.DOWN:
                said.append(f"{bookie} is down")
            elif live[bookie] is _Live.UNKNOWN:
                said.append(f"{bookie} does not answer")
        detail = f"{sure} of {fragment.quorums.write} copies stay for sure: {', '.join(said)}"
        return LedgerAtRisk(fragment.ledger_id, risk, fragment.first_entry, sure, ack_quorum, detail)

    async def _state(self, bookie: str) -> _Live:
        """Asked once for each bookie of a check."""
        task = self._live.get(bookie)
        if task is None:
            task = self._live[bookie] = asyncio.get_running_loop().create_task(self._ask(bookie))
        return await asyncio.shield(task)

    async def _ask(self, bookie: str) -> _Live:
        try:
            if await self._registrations.of(bookie) is Registration.NOWHERE:
                return _Live.DOWN
        except MetadataUnavailable:
            return _Live.UNKNOWN
        return _Live.SERVES if await self._client.operations.answers(bookie) else _Live.UNKNOWN


_GRAVITY: Final = {Risk.NO_COPY: 0, Risk.UNKNOWN: 1, Risk.BELOW_ACK_QUORUM: 2, Risk.NO_SLACK: 3}


def _gravity(risk: LedgerAtRisk) -> tuple[int, int]:
    return _GRAVITY[risk.risk], risk.copies_left


def _concerned(metadata: LedgerMetadata, going: frozenset[str]) -> list[Fragment]:
    """Fragments on one of these bookies that hold entries, or may at any time: the last one of a ledger that is not
    closed."""
    found = fragments(metadata.ledger_id, metadata, -1)
    with_entries = (fragment for fragment in found if fragment.count or not fragment.is_closed)
    return [fragment for fragment in with_entries if not going.isdisjoint(fragment.ensemble)]


def _write_sets(fragment: Fragment) -> Iterator[tuple[int, ...]]:
    """The write sets of its entries, each once; of one that may grow, all."""
    size = fragment.quorums.ensemble
    count = size if not fragment.is_closed else min(size, fragment.count)
    return (fragment.write_set(fragment.first_entry + place) for place in range(count))


async def _batches(items: AsyncIterator[int], size: int) -> AsyncIterator[list[int]]:
    batch: list[int] = []
    async for item in items:
        batch.append(item)
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch
