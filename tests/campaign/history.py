"""What clients were told of each ledger, what the faults destroyed of it, and every breach of what must hold.

Invariants
- An entry's bytes follow from its ledger's nonce and its id, so whoever reads one can tell it from all others.
- `Ledger.destroyed` names the bookies whose copies of this ledger a fault may have destroyed since the last time every
  copy was seen to be sound. What was acknowledged must be there while they are fewer than the ack quorum.
- A breach is counted and kept with its words; nothing is ever taken back.

Event loop only.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TextIO

from bookie_client.reading.entry import LedgerEntry
from tests.interop.java_client import PASSWORD as JAVA_PASSWORD
from tests.interop.java_client import payload as java_payload

PASSWORD = b"campaign"
CLOSERS = ("its writer", "the gateway")
"""Who knows the length. A recovery that cannot reach the bookies of the last entry that is confirmed stores the length
that it heard of, and says so in its log, rather than leave the ledger open."""


def payload(nonce: int, entry_id: int) -> bytes:
    """What entry `entry_id` of the ledger with this nonce holds: 20 to some 700 bytes, now and then 9 KB."""
    mark = b"%d/%d;" % (nonce, entry_id)
    size = 9_000 if entry_id % 97 == 5 else 20 + (entry_id * 7_919 + nonce) % 700
    return (mark * (size // len(mark) + 1))[:size]


@dataclass(slots=True)
class Ledger:
    """One ledger, as its clients know it."""

    ledger_id: int
    nonce: int
    quorums: tuple[int, int, int]
    """Ensemble, write quorum, ack quorum."""
    digest: str
    writer: str
    """Which kind of client writes it."""
    sent: int = 0
    """Entries that its writer has begun to append."""
    acked: int = -1
    """The last entry that was acknowledged; those before it were, too."""
    fenced_from: int | None = None
    """Entries from this one on were appended when a recovery had ended."""
    end: tuple[int, int] | None = None
    """Last entry and length, as soon as anybody was told."""
    heard: int = -1
    """The highest last-add-confirmed that a reader was told."""
    read: int = -1
    """The highest entry that a reader was given as confirmed."""
    is_written: bool = True
    """Its writer goes on."""
    is_closed_by_writer: bool = False
    """Its writer tried to, so nobody need have fenced it."""
    fence_judged: bool = False
    writes_to: tuple[str, ...] = ()
    """The ensemble that its writer would send the next entry to; empty where that is not known."""
    is_deleted: bool = False
    bookies: set[str] = field(default_factory=set)
    """All that its metadata ever named, as far as anybody looked."""
    destroyed: set[str] = field(default_factory=set)
    given_up: bool = False
    """So much of it was destroyed that nothing is promised of it any more."""

    @property
    def password(self) -> bytes:
        return JAVA_PASSWORD if self.is_java else PASSWORD

    @property
    def is_java(self) -> bool:
        """Java's program makes its own entries."""
        return self.writer == "java"

    def payload(self, entry_id: int) -> bytes:
        """What this entry has to hold."""
        return java_payload(self.ledger_id, entry_id) if self.is_java else payload(self.nonce, entry_id)

    @property
    def is_promised(self) -> bool:
        return len(self.destroyed) < self.quorums[2] and not self.given_up

    def __str__(self) -> str:
        shape = "/".join(map(str, self.quorums))
        return f"ledger {self.ledger_id} ({shape}, {self.digest}, {self.writer}, acknowledged to {self.acked})"


@dataclass
class History:
    """`clock`: seconds since the campaign began."""

    began: float = field(default_factory=time.monotonic)
    ledgers: dict[int, Ledger] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    """Of what was done and judged."""
    faults: Counter[str] = field(default_factory=Counter)
    journal: TextIO | None = None
    """Where everything is noted as it happens."""
    breaches: list[str] = field(default_factory=list)
    rules: Counter[str] = field(default_factory=Counter)
    breached: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def clock(self) -> float:
        return time.monotonic() - self.began

    def fault(self, began: float, kind: str, where: str, detail: str) -> None:
        """One that has ended."""
        self.faults[kind] += 1
        self.note(f"{kind}  {where}  {detail}".rstrip(), began)

    def breach(self, rule: str, words: str) -> None:
        """Something that must hold does not."""
        self.rules[rule] += 1
        self.breached.set()
        line = f"{self.clock:7.1f}  BREACH of {rule}: {words}"
        self.breaches.append(line)
        self.note(f"BREACH of {rule}: {words}")
        print(line, flush=True)

    def note(self, words: str, began: float | None = None) -> None:
        if self.journal is not None:
            start = "" if began is None else f"from {began:.1f} "
            self.journal.write(f"{self.clock:7.1f}  {start}{words}\n")
            self.journal.flush()

    def live(self) -> list[Ledger]:
        return [ledger for ledger in self.ledgers.values() if not ledger.is_deleted]

    # --- what writers are told --------------------------------------------------------------------------------

    def acknowledged(self, ledger: Ledger, entry_id: int) -> None:
        self.counts["entries acknowledged"] += 1
        if entry_id != ledger.acked + 1:
            self.breach("order", f"{ledger}: entry {entry_id} was acknowledged behind {ledger.acked}")
        ledger.acked = max(ledger.acked, entry_id)
        if ledger.fenced_from is not None and entry_id >= ledger.fenced_from:
            self.breach(
                "fence", f"{ledger}: entry {entry_id} was appended behind the end of a recovery and acknowledged"
            )
        if ledger.end is not None and entry_id > ledger.end[0]:
            self.lost(ledger, f"entry {entry_id} is acknowledged, and the ledger ends at {ledger.end[0]}")

    def ended(self, ledger: Ledger, last: int, length: int, who: str) -> None:
        """Somebody was told the end of a ledger."""
        self.counts["ends told"] += 1
        if ledger.end is not None and ledger.end != (last, length):
            self.breach("recovery", f"{ledger}: {who} was told the end {(last, length)}, another {ledger.end}")
        ledger.end = (last, length)
        if ledger.acked > last:
            self.lost(ledger, f"it ends at {last} ({who})")
        if ledger.heard > last:
            self.breach("LAC", f"{ledger}: a reader heard of entry {ledger.heard}, it ends at {last}")
        if ledger.read > last:
            self.breach("LAC", f"{ledger}: a reader was given entry {ledger.read}, it ends at {last}")
        if last >= ledger.sent:
            self.breach("content", f"{ledger}: it ends at {last}, and only {ledger.sent} entries were ever appended")
        expected = sum(len(ledger.payload(entry)) for entry in range(last + 1))
        if length != expected and who in CLOSERS:
            self.breach("content", f"{ledger}: {who} closed it with length {length}, its entries have {expected}")
        elif length != expected:
            self.counts["lengths that a recovery could not tell exactly"] += 1

    def lost(self, ledger: Ledger, words: str) -> None:
        """Something that was acknowledged is not there."""
        if ledger.is_promised:
            destroyed = f"copies were destroyed on {sorted(ledger.destroyed)}" if ledger.destroyed else "none destroyed"
            self.breach("durability", f"{ledger}: {words}; {destroyed}")
        else:
            self.counts["losses beyond what is promised"] += 1

    # --- what readers are told --------------------------------------------------------------------------------

    def read_entry(self, ledger: Ledger, entry_id: int, found: bytes, who: str) -> None:
        """Whatever was destroyed, no reader is ever given other bytes."""
        self.counts["entries read and compared"] += 1
        if found != ledger.payload(entry_id):
            self.breach("content", f"{ledger}: {who} was given other bytes for entry {entry_id}: {found[:60]!r}")

    def read_range(self, ledger: Ledger, span: tuple[int, int], found: Sequence[LedgerEntry], who: str) -> None:
        """What a read of all from the first to the last brought: each of them, once and in order."""
        first, last = span
        ids = [each.entry_id for each in found]
        if ids != list(range(first, last + 1)):
            missing = sorted(set(range(first, last + 1)) - set(ids))
            self.breach(
                "order", f"{ledger}: {who} asked for {first} to {last}, was given {len(ids)}, not {missing[:9]}"
            )
        for each in found:
            self.read_entry(ledger, each.entry_id, bytes(each.payload), who)

    def heard_lac(self, ledger: Ledger, lac: int, before: int) -> None:
        if lac < before:
            self.breach("LAC", f"{ledger}: a reader's last add confirmed went from {before} to {lac}")
        if lac >= ledger.sent:
            self.breach("LAC", f"{ledger}: a reader heard of entry {lac}, and only {ledger.sent} were ever appended")
        ledger.heard = max(ledger.heard, lac)
        if ledger.end is not None and lac > ledger.end[0]:
            self.breach("LAC", f"{ledger}: a reader heard of entry {lac}, it ends at {ledger.end[0]}")
