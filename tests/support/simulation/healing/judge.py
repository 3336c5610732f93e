"""What must hold while a cluster heals, judged as things happen.

| rule | says |
|---|---|
| H1 data first | who is named in another's place holds every entry that striping puts there |
| H2 copies | an exchange never leaves an entry with fewer copies than it had |
| H3 marks | a mark goes only when whoever it names, and whose filling was begun, is repaired |
| H4 locks | copies are exchanged only under the ledger's lock, which ends with its session; nobody holds another's |
| H5 needless | a copy that is there, on a bookie that is registered, is replaced only if the placement asks for it |
| H6 cookies | the cookie of a bookie goes only if nothing names it, then or later; who is decommissioned has none |
| H7 open | the last segment of an open ledger is its writer's |
| H8 undo | a cookie goes only while its decommission says so, and stays where that was undone |
| H9 recover | a closed ledger that is said to be restored does not name the lost bookie |
| H10 losses | whatever was done, any loss of Qa - 1 disks would leave a copy of each entry of a closed ledger |
| L healing | everything is restored once the cluster is whole, nothing is marked or locked then |
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from bookie_protocol.ledger_metadata.model import LedgerMetadata
from bookie_protocol.metadata_service.tree import paths
from bookie_protocol.metadata_service.tree.under_replication import formats
from tests.support.simulation import checks
from tests.support.simulation.healing.copies import Part, lacks_what_it_had, parts, quorums_of, striped
from tests.support.simulation.healing.decommissions import Decommissions
from tests.support.simulation.history import History, LedgerHistory
from tests.support.simulation.nodes import NodeRecord

HEALERS = ("healer", "drainer", "restorer")
KNOWN_SECONDS = 1.5
"""That a bookie is registered nowhere is believed for so long at most."""


@dataclass(slots=True)
class Lock:
    """Whose lock of a ledger there is, and since when."""

    host: str
    since: float


class HealingJudge:
    """A `Judge` that knows healers; `written` and `deleted` hear of every node."""

    def __init__(self, root: str, clock: Callable[[], float]) -> None:
        self._root = root
        self._under = f"{root}/{paths.UNDER_REPLICATION}"
        self._clock = clock
        self.history: History
        self.locks: dict[int, Lock] = {}
        self.marks: dict[int, float] = {}
        """Marked ledgers, and when the mark was written last."""
        self.lost_at: dict[str, float] = {}
        """When the disk of a bookie was lost, the last time."""
        self._registrations: dict[str, dict[str, float]] = {}
        """Bookie -> path of a registration -> since when."""
        self._gone_at: dict[str, float] = {}
        self.had_bad_reads: dict[str, None] = {}
        self.on_cookie_deleted: Callable[[str], None] = lambda bookie_id: None
        self.obeys: Callable[[LedgerMetadata, Part], bool] = lambda metadata, part: True
        """Whether a segment obeys the placement policy."""
        self.decommissions = Decommissions(root)
        self._to_be_moved: dict[int, None] = {}
        """Ledgers that were marked for their placement."""
        self._copied_at: dict[tuple[int, str], float] = {}
        self.cookie_gone_at: dict[str, float] = {}

    # --- the metadata service -------------------------------------------------------------------------------

    def written(self, host: str, path: str, data: bytes) -> None:
        name = path.rpartition("/")[2]
        ledger_id = formats.lock_ledger_id(name)
        if ledger_id is not None and path.startswith(f"{self._under}/{formats.LOCKS}/"):
            self.locks[ledger_id] = Lock(host, self._clock())
            self.history.on_event("lock", host)
        elif ledger_id is not None and path.startswith(f"{self._under}/{formats.LEDGERS}/"):
            self.marks[ledger_id] = self._clock()
            if not formats.decode_mark(ledger_id, data, path).replicas:
                self._to_be_moved[ledger_id] = None
                self.history.count("marked for its placement")
            self.history.count("marked")
            self.history.on_event("mark", host)
        elif self._is_registration(path):
            self._registrations.setdefault(name, {})[path] = self.registered_since(name) or self._clock()
        elif (phase := self.decommissions.written(path, data)) is not None:
            self.history.on_event(phase.value, host)

    def deleted(self, host: str, path: str, record: NodeRecord) -> None:
        name = path.rpartition("/")[2]
        self.decommissions.deleted(path)
        ledger_id = formats.lock_ledger_id(name)
        if ledger_id is not None and path.startswith(f"{self._under}/{formats.LOCKS}/"):
            lock = self.locks.pop(ledger_id)
            if host and host != lock.host:
                self._violated("H4 locks", ledger_id, f"{host} removed the lock of {lock.host}")
        elif ledger_id is not None and path.startswith(f"{self._under}/{formats.LEDGERS}/"):
            self._mark_gone(host, ledger_id, path, record)
        elif self._is_registration(path):
            self._registrations[name].pop(path, None)
            self._gone_at[name] = self._clock()
        elif path.startswith(f"{self._root}/{paths.COOKIES}/"):
            self._cookie_gone(host, name)

    def _is_registration(self, path: str) -> bool:
        directory = f"{self._root}/{paths.AVAILABLE}/"
        return path.startswith(directory) and path.rpartition("/")[2] in self.history.bookies

    def registered_since(self, bookie_id: str) -> float | None:
        """Since when without a gap, writable or read-only; None: it is not."""
        return min(self._registrations.get(bookie_id, {}).values(), default=None)

    def gone_at(self, bookie_id: str) -> float:
        """When a bookie whose disk was lost was registered last; infinity: it still is, as it was then."""
        since = self.registered_since(bookie_id)
        if since is not None and since < self.lost_at[bookie_id]:
            return math.inf
        return self._gone_at.get(bookie_id, self.lost_at[bookie_id])

    def _violated(self, rule: str, ledger_id: int | None, what: str) -> None:
        self.history.violated(rule, None if ledger_id is None else self.history.ledgers[ledger_id], what)

    def _mark_gone(self, host: str, ledger_id: int, path: str, record: NodeRecord) -> None:
        marked_at = self.marks.pop(ledger_id)
        self.history.count("mark removed")
        if not host.startswith(HEALERS):
            return
        ledger = self.history.ledgers[ledger_id]
        self._filled_again(host, ledger)
        for bookie_id in formats.decode_mark(ledger_id, record.data, path).replicas:
            lost_at = self.lost_at.get(bookie_id)
            if lost_at is None or lost_at > marked_at:
                continue
            for part in parts(ledger.metadata):
                why = self._not_repaired(ledger, part, bookie_id)
                if why:
                    self._violated("H3 marks", ledger_id, f"{host} removed its mark: {bookie_id} {why}")

    def _filled_again(self, host: str, ledger: LedgerHistory) -> None:
        """Whose filling was begun, it was also ended."""
        for bookie_id, lost_at in self.lost_at.items():
            if self._copied_at.get((ledger.ledger_id, bookie_id), -1.0) > lost_at:
                for part in parts(ledger.metadata):
                    why = self._not_repaired(ledger, part, bookie_id)
                    if why:
                        self.history.violated(
                            "H3 marks", ledger, f"{host} removed its mark: half-filled {bookie_id} {why}"
                        )

    def _not_repaired(self, ledger: LedgerHistory, part: Part, bookie_id: str) -> str:
        bookie = self.history.bookies[bookie_id]
        if bookie_id not in part.members:
            return ""
        if bookie.disk.lost:
            return f"is gone for good, and stands in {part}"
        if ledger.metadata.is_closed and lacks_what_it_had(ledger, part, part.members.index(bookie_id), bookie):
            return f"came back empty, and lacks entries of {part}"
        return ""

    def _cookie_gone(self, host: str, bookie_id: str) -> None:
        self.cookie_gone_at[bookie_id] = self._clock()
        for ledger in self.history.ledgers.values():
            if bookie_id in ledger.metadata.all_bookies():
                self._violated("H6 cookies", ledger.ledger_id, f"{host} deleted the cookie of {bookie_id}, named in it")
        why_not = self.decommissions.forbids_removal(bookie_id) if host.startswith("drainer") else ""
        if why_not:
            self._violated("H8 undo", None, f"{host} deleted the cookie of {bookie_id}: {why_not}")
        self.on_cookie_deleted(bookie_id)

    # --- ledgers --------------------------------------------------------------------------------------------

    def metadata_changed(
        self, history: History, ledger: LedgerHistory, host: str, before: LedgerMetadata, after: LedgerMetadata
    ) -> None:
        for bookie_id in after.all_bookies() - before.all_bookies():
            if history.bookies[bookie_id].is_retired:
                history.violated("H6 cookies", ledger, f"{host} named {bookie_id}, whose cookie is deleted")
        same_end = (before.state, before.last_entry_id, before.length) == (
            after.state,
            after.last_entry_id,
            after.length,
        )
        if host.startswith(HEALERS) and same_end:
            self._exchanged(ledger, host, before, after)
        elif before.ensembles != after.ensembles and before.is_closed:
            history.violated("S2 one end", ledger, f"{host} changed its segments: {before} became {after}")
        else:
            checks.metadata_changed(history, ledger, host, before, after)
        self.losses(ledger, host)

    def entry_stored(
        self, history: History, ledger: LedgerHistory, bookie_id: str, entry_id: int, entry: bytes
    ) -> None:
        metadata = ledger.metadata
        if metadata.is_closed or entry_id < max(metadata.ensembles):
            history.on_event("copy", bookie_id.rpartition(":")[0])
            self._copied_at[ledger.ledger_id, bookie_id] = self._clock()
            payload = ledger.payloads.get(entry_id)
            if payload is None or not entry.endswith(payload):
                history.violated("S8 content", ledger, f"{bookie_id} was given another entry {entry_id}")
            return
        checks.entry_stored(history, ledger, bookie_id, entry_id, entry)

    def losses(self, ledger: LedgerHistory, host: str) -> None:
        """Whether any loss of Qa - 1 disks would leave a copy of each entry, but for what faults have destroyed."""
        metadata, bookies = ledger.metadata, self.history.bookies
        if not metadata.is_closed:
            return  # S5 says how many there are when an entry is acknowledged
        write_set = quorums_of(metadata).write_set
        for part in parts(metadata):
            for entry in range(part.first, part.last + 1):
                members = [bookies[part.members[position]] for position in write_set(entry)]
                there = sum(not each.is_retired and each.holds(ledger.ledger_id, entry) is not None for each in members)
                if there < metadata.ack_quorum_size:
                    self.history.violated(
                        "H10 losses", ledger, f"after what {host} did, entry {entry} has {there} copies in {part}"
                    )
                    return

    def written_blindly(self, history: History, ledger: LedgerHistory, host: str) -> None:
        checks.written_blindly(history, ledger, host)

    def stored_by_writer(self, history: History, ledger: LedgerHistory, bookie_id: str, entry_id: int) -> None:
        checks.stored_by_writer(history, ledger, bookie_id, entry_id)

    def fenced(self, history: History, ledger: LedgerHistory, bookie_id: str) -> None:
        checks.fenced(history, ledger, bookie_id)

    def _exchanged(self, ledger: LedgerHistory, host: str, before: LedgerMetadata, after: LedgerMetadata) -> None:
        self.history.count("exchanged")
        self.history.on_event("exchange", host)
        self._locked(ledger, host)
        old, new = parts(before), parts(after)
        if [(part.first, part.last) for part in old] != [(part.first, part.last) for part in new]:
            self.history.violated("S10 segments", ledger, f"{host}: {before} became {after}")
            return
        for was, now in zip(old, new, strict=True):
            if was.members == now.members:
                continue
            if not after.is_closed and now.first == max(after.ensembles):
                self.history.violated("H7 open", ledger, f"{host} exchanged bookies of {was}: {now}")
                continue
            if len(set(now.members)) != len(now.members):
                self.history.violated("S10 segments", ledger, f"{host}: a bookie stands twice in {now}")
            self._data_first(ledger, host, was, now)
            self._no_fewer_copies(ledger, host, was, now)

    def _locked(self, ledger: LedgerHistory, host: str) -> None:
        lock = self.locks.get(ledger.ledger_id)
        if lock is None or lock.host != host:
            whose = "nobody's" if lock is None else f"that of {lock.host}"
            self.history.violated("H4 locks", ledger, f"{host} exchanged bookies, the lock is {whose}")

    def _data_first(self, ledger: LedgerHistory, host: str, was: Part, now: Part) -> None:
        for position, (left, came) in enumerate(zip(was.members, now.members, strict=True)):
            if left == came:
                continue
            bookie = self.history.bookies[came]
            entries = list(striped(ledger.metadata, now, position, now.last))
            lacking = [entry for entry in entries if bookie.holds(ledger.ledger_id, entry) is None]
            if lacking:
                self.history.violated(
                    "H1 data first", ledger, f"{host} put {came} in the place of {left}, and it lacks {lacking}"
                )
            if host.startswith("healer") and not self._moves_it(ledger, was, now):
                self._needed(ledger, host, left, entries)

    def _moves_it(self, ledger: LedgerHistory, was: Part, now: Part) -> bool:
        """Whether the exchange makes the segment obey the placement policy, as its mark demands."""
        if ledger.ledger_id not in self._to_be_moved:
            return False
        moves = not self.obeys(ledger.metadata, was) and self.obeys(ledger.metadata, now)
        self.history.count("moved", int(moves))
        return moves

    def _needed(self, ledger: LedgerHistory, host: str, left: str, entries: list[int]) -> None:
        lock = self.locks.get(ledger.ledger_id)
        since = self.registered_since(left)
        if lock is None or since is None or since > lock.since - KNOWN_SECONDS or left in self.had_bad_reads:
            return
        bookie = self.history.bookies[left]
        if bookie.has_lost_data or self._copied_at.get((ledger.ledger_id, left), -1.0) >= lock.since:
            return  # it may have been filled again without an answer
        if all(bookie.has(ledger.ledger_id, entry) for entry in entries):
            self.history.violated(
                "H5 needless", ledger, f"{host} replaced {left}, which has been registered and has its copies"
            )

    def _no_fewer_copies(self, ledger: LedgerHistory, host: str, was: Part, now: Part) -> None:
        write_set, bookies = quorums_of(ledger.metadata).write_set, self.history.bookies
        for entry in range(now.first, now.last + 1):
            before, after = (
                sum(bookies[part.members[p]].holds(ledger.ledger_id, entry) is not None for p in write_set(entry))
                for part in (was, now)
            )
            if after < before:
                self.history.violated(
                    "H2 copies", ledger, f"{host}: entry {entry} had {before} copies in {was}, and {after} in {now}"
                )
