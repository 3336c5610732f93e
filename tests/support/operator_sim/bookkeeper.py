"""The simulated BookKeeper: registrations, cookies, ledgers with real copies, audits, repairs and drains.

Data are told apart from names: a ledger names bookie ids, and a copy of it is on the disk with some data id. So a
bookie that comes back with empty disks under its old id is seen for what it is.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from bookie_operator.planner.flows.repair import loss_hash
from bookie_operator.world.facts import ClusterFacts, DrainFacts, DrainPhase, Outlook, Proof, SafetyFacts

AUDIT_SECONDS: Final = 3.0
CLAIM_SECONDS: Final = 1.0
"""An auditor that was elected tells so much later which bookies it looks at."""
_UNDER_WAY: Final = frozenset({DrainPhase.RUNNING, DrainPhase.BLOCKED, DrainPhase.INTERRUPTED})
ACK_QUORUM: Final = 2


class Refused(Exception):
    """The service says no; the operator sees an error and asks again."""


@dataclass
class SimLedger:
    ensemble: list[str]
    copies: set[str]
    """Data ids of disks that have it."""


@dataclass
class SimDrain:
    stopped: bool
    phase: DrainPhase = DrainPhase.RUNNING
    accepted: frozenset[int] = frozenset()
    removes_cookie: bool = False


@dataclass
class SimBookKeeper:
    now: float = 0.0
    up: bool = True
    """Whether the metadata service answers."""
    silent: bool = False
    """Whether no pod answers the operator, while bookies serve and copies are made."""
    instance_id: str = ""
    cookies: dict[str, str] = field(default_factory=dict)
    """Bookie id to data id."""
    running: dict[str, str] = field(default_factory=dict)
    """Bookies that are up: bookie id to data id of their disks."""
    joined: dict[str, str] = field(default_factory=dict)
    """Those of another cluster that uses the same metadata. They do not answer the operator."""
    backup: tuple[str, dict[str, str]] | None = None
    """Instance id and cookies that the metadata service lost, and that are to be restored."""
    read_only: set[str] = field(default_factory=set)
    absent_since: dict[str, float] = field(default_factory=dict)
    ledgers: dict[int, SimLedger] = field(default_factory=dict)
    marks: set[int] = field(default_factory=set)
    drains: dict[str, SimDrain] = field(default_factory=dict)
    disks: set[str] = field(default_factory=set)
    """Data ids that can still be read."""
    recovery_delay: int = 60
    auditor_up: bool = False
    elected: float | None = None
    """When its auditor was; None: there is none."""
    autorecovery_enabled: bool = True
    other_auditor: bool = False
    """One that somebody else runs."""
    recovering: int = 0
    """Ledgers of every bookie that are being recovered."""
    most_named: int = 10_000
    """Ledgers without a copy that are told one by one."""
    replica_checks: int = 0
    """How often somebody asked for a check of replicas."""
    unchecked: set[str] = field(default_factory=set)
    """Bookies that were away, and whose copies nobody looked at since."""
    looks_at_returned: bool = True
    """Whether its auditor is of this release."""
    last_audit: float | None = None
    audit_ends: float | None = None
    audit_lost_now: bool = False
    writes: bool = True
    ensemble: int = 3
    """Of the ledgers that clients write."""
    drain_seconds: float = 1.0
    """Per ledger."""
    next_ledger: int = 0
    last_write: float = 0.0

    # --- bookies ------------------------------------------------------------------------------------------------------

    def start(self, bookie_id: str, data_id: str | None, fresh: str) -> str | None:
        """Data id that it serves; None: cookie and disks disagree. `fresh`: what an empty disk would get."""
        cookie = self.cookies.get(bookie_id)
        if data_id is None and cookie is None:
            data_id = self.cookies[bookie_id] = fresh
            self.disks.add(fresh)
        elif cookie != data_id or data_id is None:
            return None
        self.running[bookie_id] = data_id
        if self.absent_since.pop(bookie_id, None) is not None:
            self.unchecked.add(bookie_id)
        if bookie_id in self.drains and self.drains[bookie_id].phase is not DrainPhase.DRAINED:
            self.read_only.add(bookie_id)
        else:
            self.read_only.discard(bookie_id)
        return data_id

    def stop(self, bookie_id: str) -> None:
        if self.running.pop(bookie_id, None) is not None:
            self.absent_since[bookie_id] = self.now
        self.read_only.discard(bookie_id)

    @property
    def writable(self) -> list[str]:
        return sorted(set(self.running) - self.read_only)

    # --- time ---------------------------------------------------------------------------------------------------------

    def tick(self) -> None:
        if not self.auditor_up:
            self.elected = None
        elif self.elected is None:
            self.elected = self.now
        if not self.up:
            return
        self._write()
        self._audit()
        if self.auditor_up:
            self.unchecked = self.unchecked.intersection(self.cookies).difference(self.running)
            for ledger_id in sorted(self.marks):
                self._repair(ledger_id)
        for bookie_id, drain in self.drains.items():
            self._drain(bookie_id, drain)

    def _write(self) -> None:
        """Less often the more there are, so that a long story is no slower than a short one."""
        if not self.writes or self.now - self.last_write < max(7, len(self.ledgers) // 4):
            return
        targets = self.writable
        if len(targets) < self.ensemble:
            return
        self.last_write, first = self.now, self.next_ledger % len(targets)
        chosen = [targets[(first + step) % len(targets)] for step in range(self.ensemble)]
        self.ledgers[self.next_ledger] = SimLedger(chosen, {self.running[one] for one in chosen})
        self.next_ledger += 1

    def _audit(self) -> None:
        if not self.auditor_up:
            self.audit_ends = None
            return
        late = [one for one, since in self.absent_since.items() if self.now - since >= self.recovery_delay]
        if self.audit_ends is None and (self.last_audit is None or any(self._unmarked(one) for one in late)):
            self.audit_ends = self.now + AUDIT_SECONDS
        if self.audit_ends is None or self.now < self.audit_ends:
            return
        self.last_audit, self.audit_ends = self.audit_ends - AUDIT_SECONDS, None
        lost = set(self.absent_since) if self.audit_lost_now else set(late)
        self.audit_lost_now = False
        for ledger_id, ledger in self.ledgers.items():
            if lost & set(ledger.ensemble):
                self.marks.add(ledger_id)

    def _unmarked(self, bookie_id: str) -> bool:
        return not self.marks.issuperset(self.naming(bookie_id))

    def _repair(self, ledger_id: int) -> None:
        ledger = self.ledgers[ledger_id]
        for bookie_id in list(ledger.ensemble):
            if bookie_id not in self.running:
                self._move(ledger, bookie_id)
        if all(self.running.get(one) in ledger.copies for one in ledger.ensemble):
            self.marks.discard(ledger_id)

    def _move(self, ledger: SimLedger, bookie_id: str) -> bool:
        """Copy to another bookie, then name that one."""
        under_way = {one for one, drain in self.drains.items() if drain.phase is not DrainPhase.DRAINED}
        spare = [one for one in self.writable if one not in ledger.ensemble and one not in under_way]
        readable = ledger.copies & set(self.running.values())
        if not spare or not readable:
            return False
        ledger.copies.add(self.running[spare[0]])
        ledger.ensemble[ledger.ensemble.index(bookie_id)] = spare[0]
        return True

    def _drain(self, bookie_id: str, drain: SimDrain) -> None:
        if drain.phase not in (DrainPhase.RUNNING, DrainPhase.BLOCKED):
            return
        if bookie_id in self.running:
            self.read_only.add(bookie_id)
        left = [key for key in self.naming(bookie_id) if key not in drain.accepted]
        if not left:
            drain.phase = DrainPhase.DRAINED
            if drain.removes_cookie:
                self.cookies.pop(bookie_id, None)
            return
        budget = max(1, int(1 / self.drain_seconds))
        moved = sum(self._move(self.ledgers[key], bookie_id) for key in left[:budget])
        drain.phase = DrainPhase.RUNNING if moved else DrainPhase.BLOCKED

    @property
    def lost(self) -> set[int]:
        """Ledgers without any copy."""
        return {key for key, ledger in self.ledgers.items() if ledger.copies.isdisjoint(self.disks)}

    # --- what the operator does ---------------------------------------------------------------------------------------

    def trigger_audit(self) -> None:
        if not self.auditor_up:
            raise Refused("no auditor is elected")
        self.audit_lost_now = True
        if self.audit_ends is None or self.audit_ends - AUDIT_SECONDS <= self.now:
            self.audit_ends = self.now + 0.5 + AUDIT_SECONDS

    def outlook(self, bookie_id: str) -> Outlook | None:
        """What would be refused: a bookie that nobody knows, and ledgers that have no other bookie to go to."""
        if self.facts() is None:
            return None
        naming = self.naming(bookie_id)
        others = set(self.writable) - {bookie_id} - {one for one, it in self.drains.items() if it.phase in _UNDER_WAY}
        stuck = [key for key in naming if others <= set(self.ledgers[key].ensemble)]
        refusals = [f"{len(stuck)} ledgers have no other writable bookie to go to: add a bookie"] if stuck else []
        if not naming and bookie_id not in self.cookies:
            refusals.append("this bookie is unknown")
        return Outlook(bookie_id, len(naming), tuple(refusals))

    def begin_drain(
        self, bookie_id: str, stopped: bool, accepted: tuple[int, ...], removes_cookie: bool = False
    ) -> None:
        if stopped and bookie_id in self.running:
            raise Refused(f"{bookie_id} is registered")
        outlook, running = self.outlook(bookie_id), self.drains.get(bookie_id)
        if outlook is not None and outlook.refusals and (running is None or running.phase is DrainPhase.DRAINED):
            raise Refused("; ".join(outlook.refusals))
        self.drains[bookie_id] = SimDrain(stopped, accepted=frozenset(accepted), removes_cookie=removes_cookie)

    def undo_drain(self, bookie_id: str) -> None:
        """One that ended is told for ever, and what it did stays."""
        if bookie_id in self.drains and self.drains[bookie_id].phase is DrainPhase.DRAINED:
            return
        self.drains.pop(bookie_id, None)
        self.read_only.discard(bookie_id)

    def interrupt_drains(self) -> None:
        """Whoever carried them out is gone."""
        for drain in self.drains.values():
            if drain.phase in (DrainPhase.RUNNING, DrainPhase.BLOCKED):
                drain.phase = DrainPhase.INTERRUPTED

    def naming(self, bookie_id: str) -> list[int]:
        return sorted([key for key, one in self.ledgers.items() if bookie_id in one.ensemble])

    # --- what it says -------------------------------------------------------------------------------------------------

    def facts(self) -> ClusterFacts | None:
        """None: nobody is there who could be asked."""
        if self.silent or not self.up or not (self.running.keys() - self.joined.keys() or self.auditor_up):
            return None
        return ClusterFacts(
            instance_id=self.instance_id,
            writable=frozenset(self.writable),
            read_only=frozenset(self.read_only & set(self.running)),
            cookies=frozenset(self.cookies),
            under_replicated=len(self.marks),
            auditor="autorecovery-0" if self.auditor_up else None,
            last_audit=self.last_audit,
            autorecovery_enabled=self.autorecovery_enabled,
            lost_bookie_recovery_delay=self.recovery_delay,
            unchecked=frozenset(self.unchecked) if self._tells() else None,
            silent_since=self.elected,
        )

    def _tells(self) -> bool:
        """The auditor has told that it looks at returned bookies."""
        elected = self.elected if self.auditor_up and self.looks_at_returned else None
        return elected is not None and self.now - elected >= CLAIM_SECONDS

    def proof(self, bookie_id: str, accepted: tuple[int, ...] = ()) -> Proof | None:
        if self.facts() is None:
            return None
        named = [key for key in self.naming(bookie_id) if key not in accepted]
        return Proof(
            bookie_id=bookie_id,
            ledgers=len(named),
            marks=len(self.marks & set(named)),
            registered=bookie_id in self.running,
            auditor="autorecovery-0" if self.auditor_up else None,
            last_audit=self.last_audit,
            instance_id=self.instance_id,
            claims=self.recovering,
        )

    def drain_facts(self, bookie_id: str) -> DrainFacts | None:
        if self.facts() is None:
            return None
        drain = self.drains.get(bookie_id)
        if drain is None:
            return DrainFacts(bookie_id, DrainPhase.ABSENT)
        left = self.naming(bookie_id)
        blockers = tuple(f"ledger {key}: no spare" for key in left[:20]) if drain.phase is DrainPhase.BLOCKED else ()
        return DrainFacts(bookie_id, drain.phase, len(left), 1000 * len(left), len(left), blockers)

    def safety(self, bookies: frozenset[str]) -> SafetyFacts | None:
        if self.facts() is None:
            return None
        below, without = [], []
        for key, ledger in sorted(self.ledgers.items()):
            others = sum(self.running.get(one) in ledger.copies for one in ledger.ensemble if one not in bookies)
            if others == 0:
                without.append(key)
            elif others < ACK_QUORUM:
                below.append(key)
        return SafetyFacts(
            bookies,
            len(below) + len(without),
            len(without),
            0,
            tuple(f"{key}: no copy" for key in without[:20]),
            loss_hash(without) if 0 < len(without) <= self.most_named else "",
            tuple(without) if len(without) <= self.most_named else (),
        )
