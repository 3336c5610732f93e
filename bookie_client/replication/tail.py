"""Entries behind the last add confirmed of an open ledger that a bookie may have lost with the confirmed ones.

A bookie that a mark names may have lost acknowledged entries behind those that it is named for. Its writer confirms
them later, and may die before. Then a recovery takes the bookie's "no such entry" for the word of one that never had
them, and closes the ledger below them if another bookie is away. So no finding is answered, whatever its reason, before
the bookie has every entry up to the last one that any bookie of the segment has.

- An entry that the bookie denies, or gives damaged, is lacking if another one gives it. One that is on its way to the
  bookie is not: the bookie is asked again for a moment.
- What the bookie lists it has, except its last entry, and those for which it is marked: these are read.
- A bookie whose last entry is damaged has it, and tells by its list which one that is.
- Behind an entry that was never acknowledged nothing was. That is known if so many others of its write set deny it that
  too few are left for an acknowledgement. As in a recovery, bookies that lost entries do not count
  (`findings.distrusted`), nor does one that a mark names because it was away, and that has nothing of the last segment
  now, or has an entry behind this one, which its writer sent to it later.
- Of an entry that no bookie gives, and that may have been acknowledged, nothing is known. Then the look ends there.

Limit: nothing is fenced here, so a denial holds for the moment. A writer may have got the bookie's acknowledgement of
an entry that is still on its way to all others, for as long as the writer's process stands still. If the bookie loses
that entry, and its findings are answered meanwhile, the writer acknowledges the entry although one copy less is left
than it counts, and a recovery that does not reach the others closes the ledger below it. A bookie that knows of its
loss prevents that: the ledger is in limbo there until it is closed, however it is filled, so the bookie denies nothing
to any client. Ours know an emptied disk, and one that was set back. What is left are Apache's bookies;
docs/adr/0019-a-bookie-knows-its-losses.md says why those who fill a bookie do not put it in limbo.

Event loop only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Final, NamedTuple

from bookie_client.access import LedgerAccess
from bookie_client.patience import Patience
from bookie_client.replication.fragments import Fragment, StripedEntries
from bookie_client.replication.replica_reads import CHUNK_SINGLES, Look, ReplicaReads
from bookie_client.replication.source_reads import FAULTY_ANSWERS
from bookie_protocol.errors import NoSuchEntry, NotThere, PodkeeperError, TooManyRequests
from bookie_protocol.metadata_service.findings import Finding, distrusted, entries_to_read
from bookie_protocol.wire.availability import Availability

TAIL_TRIES: Final = 4
TAIL_SECONDS: Final = 0.1
"""Seconds before a bookie is asked again the first time; they double."""


@dataclass(frozen=True, slots=True)
class Tail:
    """The answer.

    `fragment`: the last segment up to the last entry that its bookies should have; None if none lacks any. `lacking`:
    positions whose bookies lack an entry behind the last add confirmed, and these bookies. `unknown`: why it is not
    known what they lack, or what else they do; None: it is known.
    """

    fragment: Fragment | None = None
    lacking: Mapping[int, str] = field(default_factory=dict)
    unknown: str | None = None

    @property
    def left(self) -> str | None:
        """Return why the findings are not answered yet; None: they are."""
        if self.lacking and self.fragment is not None:
            names = ", ".join(sorted(set(self.lacking.values())))
            return f"{names} lacks entries behind the last add confirmed, up to {self.fragment.last_entry}"
        return self.unknown


async def find_tail(
    reads: ReplicaReads, last: Fragment, lac: int, doubts: Collection[Finding], access: LedgerAccess
) -> Tail:
    """Look for what the bookies of these findings may have lost behind the last add confirmed. `last`: the last
    segment. Raises nothing of what bookies answer."""
    named = {each.bookie for each in doubts}
    doubted = [position for position, bookie in enumerate(last.ensemble) if bookie in named]
    if last.is_closed or not doubted:
        return Tail()
    ends = await asyncio.gather(*(_last_entry(reads, each, last.ledger_id, access) for each in last.ensemble))
    most = max((end.entry_id for end in ends if end.entry_id is not None), default=lac)
    look = Look.at(reads.context, replace(last, last_entry=most), access)
    search = _Search(reads, look, max(lac + 1, last.first_entry), doubts, [end.entry_id for end in ends])
    for bookie, end in zip(last.ensemble, ends, strict=True):
        if end.entry_id is None:
            search.unknown = f"{bookie} does not tell its last entry, which others may have lost: {end.error}"
        elif end.error is not None:
            search.damaged[bookie] = {end.entry_id: end.error}
    for each in doubts:
        if each.runs and each.runs[-1][1] > most and each.bookie in last.ensemble:
            search.unknown = f"no bookie gives entry {each.runs[-1][1]}, for which {each.bookie} is marked"
    for position in doubted:
        await search.look_at(position)
    lacking = {position: last.ensemble[position] for position, first in search.lacking.items() if first <= search.end}
    return Tail(replace(last, last_entry=search.end) if lacking else None, lacking, search.unknown)


class _End(NamedTuple):
    """A bookie's last entry; None: it does not tell. `error`: why not, or why that entry cannot be read."""

    entry_id: int | None
    error: PodkeeperError | None = None


async def _last_entry(reads: ReplicaReads, bookie: str, ledger_id: int, access: LedgerAccess) -> _End:
    try:
        return _End(await reads.last_entry(bookie, ledger_id, access))
    except PodkeeperError as error:
        listed = await reads.listed(bookie, ledger_id) if isinstance(error, FAULTY_ANSWERS) else None
        return _End(None if listed is None else listed.last, error)


class _Search:
    """A search from entry `start` on. `end`: the last entry that matters, as far as is known; `unknown`: what is not
    known of it, and of those behind it; `lacking`: the first entry that each position lacks."""

    def __init__(
        self, reads: ReplicaReads, look: Look, start: int, doubts: Collection[Finding], ends: Sequence[int | None]
    ) -> None:
        self._reads = reads
        self._look = look
        self._start = start
        self._ends = ends
        self._distrusted = distrusted(doubts)
        self._named = {
            bookie: entries_to_read([each for each in doubts if each.bookie == bookie])
            for bookie in {each.bookie for each in doubts}
        }
        self._lists: dict[str, Availability | None] = {}
        self._patience = Patience(TAIL_TRIES, TAIL_SECONDS)
        self.end = look.fragment.last_entry
        self.unknown: str | None = None
        self.lacking: dict[int, int] = {}
        self.damaged: dict[str, Mapping[int, PodkeeperError]] = {}
        """Last entries that their bookies cannot give."""

    async def look_at(self, position: int) -> None:
        """Find what this position lacks, up to the end, which may come down."""
        fragment = self._look.fragment
        sizes = fragment.quorums.ensemble, fragment.quorums.write
        ids = iter(StripedEntries(self._start, self.end, position, *sizes))
        while chunk := list(islice(ids, CHUNK_SINGLES)):
            mine = await self._missed(position, chunk)
            while any(isinstance(error, NotThere | TooManyRequests) for error in mine.values()):
                if not await self._patience.again():
                    break
                del self._lists[fragment.ensemble[position]]
                mine = await self._missed(position, list(mine))
            others = {
                at: await self._missed(at, list(mine)) for at in range(fragment.quorums.ensemble) if at != position
            }
            for entry_id, error in sorted(mine.items()):
                if not self._goes_on(position, entry_id, error, others):
                    return
            await asyncio.sleep(0)

    async def _missed(self, position: int, ids: Sequence[int]) -> Mapping[int, PodkeeperError]:
        """Return those of these entries that the bookie of a position should have and does not give, and its errors."""
        fragment, bookie = self._look.fragment, self._look.fragment.ensemble[position]
        wanted = [entry_id for entry_id in ids if position in fragment.write_set(entry_id)]
        if not wanted:
            return {}
        if bookie not in self._lists:
            self._lists[bookie] = await self._reads.listed(bookie, fragment.ledger_id)
        listed = self._lists[bookie]
        if listed is None:  # Java's with DbLedgerStorage never give one
            return (await self._reads.read(self._look, bookie, wanted))[1]
        damaged = self.damaged.get(bookie, {})
        missed: dict[int, PodkeeperError] = {each: damaged[each] for each in wanted if each in damaged}
        if named := [each for each in wanted if each in listed and each not in missed and self._is_named(bookie, each)]:
            missed.update((await self._reads.read(self._look, bookie, named))[1])
        return missed | {each: NoSuchEntry(f"{bookie} does not list it") for each in wanted if each not in listed}

    def _is_named(self, bookie: str, entry_id: int) -> bool:
        """Return True if this entry is read although the bookie lists it."""
        runs = self._named.get(bookie, ())
        return runs is None or any(first <= entry_id <= last for first, last in runs)

    def _goes_on(
        self, position: int, entry_id: int, error: PodkeeperError, others: Mapping[int, Mapping[int, PodkeeperError]]
    ) -> bool:
        """Judge an entry that the bookie of a position does not give. False: the end is in front of it."""
        ensemble, quorums = self._look.fragment.ensemble, self._look.fragment.quorums
        said = {at: others[at].get(entry_id) for at in quorums.write_set(entry_id) if at != position}
        denials = [at for at, answer in said.items() if isinstance(answer, NotThere)]
        unknown: str | None = f"no bookie gives entry {entry_id}, which {ensemble[position]} may have lost"
        if not isinstance(error, FAULTY_ANSWERS):
            unknown = f"{ensemble[position]} does not tell whether it has entry {entry_id}: {error}"
        elif None in said.values():
            self.lacking.setdefault(position, entry_id)
            return True
        elif sum(self._is_believed(at, entry_id) for at in denials) > quorums.write - quorums.ack:
            unknown = None
        self.end, self.unknown = entry_id - 1, unknown
        return False

    def _is_believed(self, position: int, entry_id: int) -> bool:
        """Return whether it counts that the bookie of a position denies an entry."""
        bookie, end = self._look.fragment.ensemble[position], self._ends[position]
        if bookie not in self._named:
            return True
        return bookie not in self._distrusted and end is not None and self._look.fragment.first_entry <= end < entry_id
