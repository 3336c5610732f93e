"""The BookKeeper cluster that the pods would be: who is registered, cookies, ledgers, drains, the auditor. No bytes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass
class Drain:
    phase: str = "draining"
    total: int = 0
    delete_cookie: bool = False
    is_worked: bool = True
    """Somebody works on it."""


@dataclass
class FakeBookKeeper:
    clock: Callable[[], float]
    """Seconds since 1970."""
    instance_id: str = ""
    """Empty: there is no cluster in the metadata service yet."""
    writable: set[str] = field(default_factory=set)
    read_only: set[str] = field(default_factory=set)
    cookies: set[str] = field(default_factory=set)
    ledgers: dict[int, set[str]] = field(default_factory=dict)
    """Bookie ids that each ledger names."""
    marks: dict[int, set[str]] = field(default_factory=dict)
    drains: dict[str, Drain] = field(default_factory=dict)
    auditor: str | None = None
    unchecked: list[str] | None = field(default_factory=list)
    """Bookies that its auditor looks at; None: it does not list them."""
    last_audit: float | None = None
    """When the last complete audit began; seconds since 1970."""
    delay: int = 300
    reachable: bool = True
    """The metadata service answers."""
    checks: list[str] = field(default_factory=list)
    """Checks that somebody asked the auditor for."""
    returned: list[str] = field(default_factory=list)
    """Bookies that the auditor was asked to look at."""
    stamped: set[str] = field(default_factory=set)
    """UIDs of claims that a bookie has served from."""
    deleted_cookies: list[str] = field(default_factory=list)
    config: dict[str, dict[str, str]] = field(default_factory=dict)
    """Dynamic keys, by bookie id."""

    _audited: frozenset[str] = frozenset()

    def start(self, bookie_id: str) -> None:
        """A bookie comes up: with a cookie from its first start on, read-only while it is drained."""
        self.cookies.add(bookie_id)
        drained = bookie_id in self.drains and not (
            self.drains[bookie_id].phase == "done" and self.drains[bookie_id].delete_cookie
        )
        (self.read_only if drained else self.writable).add(bookie_id)

    def stop(self, bookie_id: str) -> None:
        self.writable.discard(bookie_id)
        self.read_only.discard(bookie_id)
        self.config.pop(bookie_id, None)

    def set_read_only(self, bookie_id: str, read_only: bool) -> None:
        if bookie_id in self.writable | self.read_only:
            self.writable.discard(bookie_id)
            self.read_only.discard(bookie_id)
            (self.read_only if read_only else self.writable).add(bookie_id)

    def elect(self, auditor: str | None) -> None:
        """The auditor is this one now. It audits when it is elected, when bookies come or go, and once an hour."""
        registered = frozenset(self.writable | self.read_only)
        due = self.last_audit is None or self.clock() - self.last_audit > 3600
        if auditor is not None and (auditor != self.auditor or registered != self._audited or due):
            self._audited = registered
            self.audit()
        self.auditor = auditor

    def audit(self) -> None:
        """It begins somewhat after it was asked for."""
        self.last_audit = self.clock() + 0.02

    def drain_refusal(self, bookie_id: str) -> str:
        """Why not; empty: it may begin."""
        others = self.writable - {bookie_id}
        if any(others <= self.ledgers[each] for each in self.naming(bookie_id)):
            return f"some ledger of {bookie_id} has no other writable bookie to go to"
        return ""

    def begin_drain(self, bookie_id: str, *, delete_cookie: bool = False) -> str | None:
        """Why not; None: it is begun, or goes on."""
        naming = self.naming(bookie_id)
        if refusal := self.drain_refusal(bookie_id):
            return refusal
        if bookie_id not in self.drains or self.drains[bookie_id].phase == "done":
            self.drains[bookie_id] = Drain(total=len(naming), delete_cookie=delete_cookie)
        self.drains[bookie_id].is_worked = True
        self.set_read_only(bookie_id, True)
        return None

    def work(self) -> None:
        """One ledger further in each drain; what is named no more is done."""
        for bookie_id, drain in self.drains.items():
            if drain.phase != "draining" or not drain.is_worked:
                continue
            naming = self.naming(bookie_id)
            if not naming:
                drain.phase = "done"
                if drain.delete_cookie:
                    self.cookies.discard(bookie_id)
                continue
            members = self.ledgers[naming[0]]
            targets = sorted(self.writable - members)
            if targets:
                members.remove(bookie_id)
                members.add(targets[0])

    def undo_drain(self, bookie_id: str) -> bool:
        found = self.drains.pop(bookie_id, None) is not None
        if found:
            self.set_read_only(bookie_id, False)
        return found

    def naming(self, bookie_id: str) -> list[int]:
        return sorted(ledger for ledger, bookies in self.ledgers.items() if bookie_id in bookies)

    def delete_cookie(self, bookie_id: str) -> str | None:
        """Why not; None: it is gone. Raises KeyError: there is none."""
        if bookie_id not in self.cookies:
            raise KeyError(bookie_id)
        if bookie_id in self.writable | self.read_only:
            return f"{bookie_id} is registered"
        if self.naming(bookie_id):
            return f"ledgers name {bookie_id}"
        self.cookies.discard(bookie_id)
        self.deleted_cookies.append(bookie_id)
        return None
