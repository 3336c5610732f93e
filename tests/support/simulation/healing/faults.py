"""What goes wrong while a cluster heals, beside everything that may go wrong anyway.

Data are destroyed only while every write set keeps so many sound members that fewer than its ack quorum are lost:
members count again once their copies are restored. Then nothing that was acknowledged may ever be lost.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING

from tests.support.simulation.bookie import VirtualBookie
from tests.support.simulation.faults import Faults
from tests.support.simulation.healing import copies
from tests.support.simulation.healing.drainer import Drainer
from tests.support.simulation.healing.judge import HEALERS

if TYPE_CHECKING:
    from tests.support.simulation.actors import Actor
    from tests.support.simulation.healing.world import HealingWorld

EMPTY_RETRY_SECONDS = 0.5
NOTICED_SECONDS = 1.0
"""After the end of a registration everybody knows of it."""


class HealingFaults(Faults):
    """Carries out the plan of a scenario with healing."""

    def __init__(self, world: HealingWorld, random: Random) -> None:
        super().__init__(world, random)
        self._healing = world
        self._strikes |= {
            "lost disk": self._lose,
            "emptied": self._empty,
            "late": self._late,
            "rot": self._rot,
            "bad reads": self._bad_reads_told,
            "kill healer": self._kill_healer,
            "stop healer": self._stop_healer,
            "freeze healer": self._freeze_healer,
            "hold": self._hold,
            "kill drainer": self._kill_drainer,
            "expire drainer": self._expire_drainer,
            "second drainer": self._second_drainer,
            "undo": self._undo,
            "restore": self._restore,
            "disable": self._disable,
            "audit": self._audit,
        }

    def mend(self) -> None:
        super().mend()
        self._healing.ask(lambda service: service.under_replication.enable())

    # --- bookies --------------------------------------------------------------------------------------------

    def _may_lose_data(self, host: str) -> VirtualBookie | None:
        history, now, judge = self._world.history, self._world.loop.time(), self._healing.judge
        if any(now < judge.gone_at(lost) + NOTICED_SECONDS for lost in judge.lost_at):
            return None  # new ledgers may still be put on it
        return self._bookie(host, lambda bookie: bookie.is_running and copies.may_lose(history, bookie))

    def _lost(self, bookie: VirtualBookie) -> None:
        self._healing.judge.lost_at[bookie.bookie_id] = self._world.loop.time()
        self.event("lost", bookie.host)

    def _lose(self, host: str) -> None:
        """A bookie dies for good; another one comes in its place."""
        bookie = self._may_lose_data(host)
        if bookie is not None:
            self._world.trace(bookie.host, "loses its disk")
            bookie.lose_disk()
            self._lost(bookie)
            self._world.add_bookie().start()

    def _empty(self, host: str) -> None:
        """A bookie comes back empty under its id, once nobody counts on what it promised."""
        bookie = self._may_lose_data(host)
        if bookie is not None:
            self._world.trace(bookie.host, "loses its disk and gets an empty one")
            bookie.empty_disk()
            self._lost(bookie)
            promised = copies.ledgers_of(self._world.history, bookie)
            self._world.loop.call_later(self._random.expovariate(0.5), self._come_back_empty, bookie, promised)

    def _rot(self, host: str) -> None:
        """A copy in the middle of a closed ledger is damaged, and its bookie lists it all the same."""
        bookie = self._may_lose_data(host)
        found = [] if bookie is None else copies.may_rot(self._world.history, bookie)
        if bookie is not None and found:
            bookie.rot(*self._random.choice(found))
            self._world.history.count("rotten")

    def _come_back_empty(self, bookie: VirtualBookie, promised: dict[int, None]) -> None:
        if self._healing.is_closing:
            return
        if copies.may_come_back_empty(self._world.history, bookie, promised):
            self._healing.begin_empty(bookie)
        else:
            self._world.loop.call_later(EMPTY_RETRY_SECONDS, self._come_back_empty, bookie, promised)

    def _late(self, host: str) -> None:
        """A bookie is away for longer than the delay, as a rule."""
        bookie = self._running(host)
        if bookie is not None:
            (bookie.kill if self._random.random() < 0.5 else bookie.power_off)()
            self._later(4.0, bookie.start)

    def _bad_reads_told(self, host: str) -> None:
        self._bad_reads(host)
        for bookie in self._world.bookies:
            if bookie.bad_reads_until:
                self._healing.judge.had_bad_reads[bookie.bookie_id] = None

    # --- healers --------------------------------------------------------------------------------------------

    def _healers(self, host: str) -> Actor | None:
        healers = self._clients("healer")
        here = [healer for healer in healers if healer.host.host == host]
        if here and self._random.random() < 0.7:
            return here[0]
        return self._random.choice(healers) if healers else None

    def _kill_healer(self, host: str) -> None:
        healer = self._healers(host)
        if healer is not None:
            healer.host.kill()
            self._world.loop.call_later(self._random.expovariate(1.0), self._unless_mended, self._healing.add_healer)

    def _stop_healer(self, host: str) -> None:
        healer = self._healers(host)
        if healer is not None and healer.task is not None:
            self._world.trace(healer.name, "is stopped")
            healer.task.cancel()
            healer.task.add_done_callback(lambda done: healer.host.kill())  # its process ends, and so does its session
            self._world.loop.call_later(self._random.expovariate(1.0), self._unless_mended, self._healing.add_healer)

    def _freeze_healer(self, host: str) -> None:
        """It reaches nobody for a while, perhaps until its session is over."""
        healer = self._healers(host)
        if healer is None:
            return
        self._cut_off(healer.host.host, 2.0)

    # --- steps that take long -------------------------------------------------------------------------------

    def _hold(self, host: str) -> None:
        """A request to the metadata service takes its whole time-out, or longer; the session lives on.

        Only whoever works under a lock is held longer than a client waits: others are what `settle` is for.
        """
        actor = self._anybody(host)
        if actor is not None:
            timeout = self._world.metadata.options.session_timeout
            longest = 1.5 if actor.name.startswith(HEALERS) else 0.8
            self._world.metadata.hold(actor.host.host, timeout * (0.2 + (longest - 0.2) * self._random.random()))

    # --- decommissions --------------------------------------------------------------------------------------

    def _kill_drainer(self, host: str) -> None:
        drainers = self._clients("drainer")
        if drainers:
            killed = self._random.choice(drainers)
            killed.host.kill()
            again: Callable[[], None] = lambda: self._healing.resume_drain(killed)  # noqa: E731
            self._world.loop.call_later(self._random.expovariate(1.0), again)

    def _expire_drainer(self, host: str) -> None:
        """It lives, and reaches every bookie, but was away from the metadata service for longer than its session."""
        drainers = self._clients("drainer")
        if drainers:
            self._world.metadata.expire(self._random.choice(drainers).host.host)

    def _second_drainer(self, host: str) -> None:
        drainers = self._clients("drainer")
        if drainers:
            self._healing.resume_drain(self._random.choice(drainers))

    def _undo(self, host: str) -> None:
        """Somebody wants a bookie back; whoever undoes it may die, and it is undone again."""
        drainers = [drainer for drainer in self._clients("drainer") if isinstance(drainer, Drainer)]
        going = [drainer for drainer in drainers if not drainer.bookie.is_retired]
        if not going:
            return
        here = [drainer for drainer in going if drainer.host.host == host]
        undoer = self._healing.undo_drain(self._random.choice(here or going))
        if self._random.random() < 0.2:
            self._world.loop.call_later(self._random.expovariate(5.0), self._unless_mended, undoer.host.kill)

    # --- operators ------------------------------------------------------------------------------------------

    def _restore(self, host: str) -> None:
        """Somebody recovers a bookie that is gone for good, and does not wait for auto-recovery."""
        lost = [bookie for bookie in self._world.bookies if bookie.disk.lost]
        if lost:
            self._healing.restore(self._random.choice([bookie for bookie in lost if bookie.host == host] or lost))

    def _disable(self, host: str) -> None:
        self._world.trace("FAULTS", "auto-recovery is disabled")
        self._healing.ask(lambda service: service.under_replication.disable())
        self._later(2.0, lambda: self._healing.ask(lambda service: service.under_replication.enable()))

    def _audit(self, host: str) -> None:
        self._world.trace("FAULTS", "an audit is asked for")
        self._healing.ask(lambda service: service.under_replication.set_lost_bookie_recovery_delay(0))
