"""The sources of pages, and the state of the bookies, which is read every few seconds for all viewers.

Invariants
- However many people watch, one look at the cluster is under way, and the next one begins `AGE_S` later, or after
  `PAUSE` times as long as the last one took. Without anybody who watches nothing is asked.
- A look asks at most `MOST_BOOKIES` bookies, `AT_A_TIME` at a time, for `ASK_S` a question, and none after `LOOK_S`.
  Those that answered are asked first, so bookies that hang cost the others nothing.
- A look that takes long hides no earlier one: after `PATIENCE_S` that is shown, if it is younger than `RECENT_S`.
- What a bookie answers is cut (`limits.py`), and whatever its answer does is a problem of that bookie alone.
- What could not be found out appears in its place as an error, never as a number.

Event loop only.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeVar

import msgspec

from bookie_protocol.admin_api import autorecovery as autorecovery_api
from bookie_protocol.admin_api import bookie as bookie_api
from bookie_protocol.admin_api import cluster as cluster_api
from bookie_protocol.admin_api.autorecovery import AutoRecoveryProcessState
from bookie_protocol.admin_api.bodies import Query, Route
from bookie_protocol.admin_api.bookie import BookieLoad
from bookie_protocol.admin_api.cluster import ClusterFacts, KnownBookie
from bookie_protocol.errors import CouldNotTell, PodkeeperError, fresh
from bookie_protocol.together import bounded
from bookie_protocol.web_console.limits import TEXT, cut, short

T = TypeVar("T")
AGE_S: Final = 2.0
PAUSE: Final = 4.0
LONGEST_S: Final = 30.0
"""Seconds of the longest pause between two looks."""
AT_A_TIME: Final = 16
MOST_BOOKIES: Final = 500
ASK_S: Final = 3.0
LOOK_S: Final = 10.0
"""Seconds in which the bookies are asked; for those that are left, a look says that they were not."""
PATIENCE_S: Final = 1.0
RECENT_S: Final = 60.0
MOST_KNOWN: Final = 5000
"""Bookies of which a look tells: a cookie or a registration costs a stranger nothing."""
_LONGEST_ID: Final = 300
FACTS_AGE_S: Final = 10.0
FACTS_S: Final = 20.0
KEPT_S: Final = 600.0
"""Seconds for which the number of under-replicated ledgers is remembered, for an estimate."""
_SHORTEST_S: Final = 0.5
"""Rates need two looks that are so far apart."""


class Source(Protocol):
    """The admin APIs of one cluster, as one caller may ask them. Raises as `AdminClient.ask`."""

    @property
    def own_bookie(self) -> str | None:
        """Id of the bookie that serves the page; None: none does."""
        ...

    async def cluster(self, route: Route[T], query: Query | None = None) -> T:
        """The answer of any process of the cluster."""
        ...

    async def bookie(self, bookie_id: str, route: Route[T], query: Query | None = None) -> T:
        """The answer of one bookie."""
        ...


@dataclass(frozen=True, slots=True)
class Rates:
    """The work of a bookie between two looks, each second."""

    adds: float
    reads: float
    written_bytes: float
    read_bytes: float


@dataclass(frozen=True, slots=True)
class Seen:
    """One bookie at one look."""

    known: KnownBookie
    load: BookieLoad | None
    """None: it was not asked, or did not answer."""
    problem: str | None
    """Reason why it has no load; None: it has one, or is not registered."""
    rates: Rates | None
    """None: the bookie was seen once since it started."""
    healing: AutoRecoveryProcessState | None
    """Auto-recovery in its process; None: it runs none, or did not answer."""


@dataclass(frozen=True, slots=True)
class Healing:
    """The way in which the number of under-replicated ledgers moves."""

    marked: int
    per_second: float | None
    """Ledgers that were restored each second, on balance; None: too little was seen, or their number does not fall."""
    seconds: float
    """Seconds that this was watched for."""

    @property
    def seconds_left(self) -> float | None:
        return self.marked / self.per_second if self.per_second else None


@dataclass(frozen=True, slots=True)
class Look:
    """The cluster at one moment."""

    at: float
    bookies: Mapping[str, Seen]
    left_out: int
    """Bookies that were not asked, as there are too many, or their ids are too long."""
    facts: ClusterFacts | None
    """The numbers of the cluster, with the beginnings of its lists."""
    facts_problem: str | None
    healing: Healing | None


@dataclass
class Watcher:
    """The looks at one cluster."""

    clock: Callable[[], float] = time.monotonic
    _newest: Look | None = None
    _failure: PodkeeperError | None = None
    """Error of the last look: until the next one may begin, it is the answer, not what an earlier look saw."""
    _may_begin: float = 0.0
    _looking: asyncio.Task[Look] | None = None
    _began: float = 0.0
    _silent: dict[str, float] = field(default_factory=dict)
    """Bookies that did not answer, with the time at which they were asked last."""
    _facts: ClusterFacts | None = None
    _facts_problem: str | None = None
    _facts_due: float = 0.0
    _marks: deque[tuple[float, int]] = field(default_factory=deque)

    async def look(self, source: Source) -> Look:
        """The newest look that is to be had soon. Raises what asking for the bookies of the cluster raises."""
        if self._looking is None:
            if self.clock() < self._may_begin:
                if self._failure is not None:
                    raise fresh(self._failure)  # for any number of pages
                if self._newest is not None:
                    return self._newest
            self._began = self.clock()
            self._looking = asyncio.create_task(self._look(source), name="console")
            self._looking.add_done_callback(self._looked)
        looking = self._looking
        if self._newest is not None and self._failure is None:
            await asyncio.wait([looking], timeout=max(0.0, self._began + PATIENCE_S - self.clock()))
            if not looking.done() and self.clock() < self._newest.at + RECENT_S:
                return self._newest
        try:
            return await asyncio.shield(looking)
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if looking.cancelled() and (caller is None or not caller.cancelling()):
                raise CouldNotTell("the console stopped looking at this cluster; try again") from None
            raise

    async def stop(self) -> None:
        """End a look that is under way."""
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.wait([self._looking])

    def _looked(self, task: asyncio.Task[Look]) -> None:
        self._looking = None
        if not task.cancelled():
            task.exception()  # who waited has heard it

    async def _look(self, source: Source) -> Look:
        began = self.clock()
        try:
            before = self._newest.bookies if self._newest is not None else {}
            found = await _asked(source.cluster(cluster_api.KNOWN), LOOK_S)
            known = [_placed(each, before.get(each.bookie_id)) for each in _known(found, before)]
            registered = [each for each in known if each.registration != "none"]
            async with asyncio.TaskGroup() as both:
                both.create_task(self._renew_facts(source))
                seen = both.create_task(self._see_all(source, registered, before))
            bookies = seen.result()
            self._newest = Look(
                at=began,
                bookies={each.bookie_id: bookies.get(each.bookie_id) or _unasked(each) for each in known},
                left_out=max(0, len(registered) - MOST_BOOKIES) + len(found) - len(known),
                facts=self._facts,
                facts_problem=self._facts_problem,
                healing=self._healing(),
            )
            self._failure = None
            return self._newest
        except PodkeeperError as error:
            self._failure = fresh(error)
            raise
        finally:
            ended = self.clock()
            self._may_begin = max(began + AGE_S, ended + min(PAUSE * (ended - began), LONGEST_S))

    async def _renew_facts(self, source: Source) -> None:
        """They count every mark, so they are asked for less often."""
        began = self.clock()
        if began < self._facts_due:
            return
        try:
            facts = await _asked(source.cluster(cluster_api.STATE), FACTS_S)
            self._facts, self._facts_problem = short(facts), None
            self._marks.append((began, self._facts.under_replicated))
        except PodkeeperError as error:
            self._facts, self._facts_problem = None, cut(str(error))
        except Exception as error:
            self._facts, self._facts_problem = None, f"an answer that cannot be read: {type(error).__name__}"
        while self._marks and self._marks[0][0] < began - KEPT_S:
            self._marks.popleft()
        ended = self.clock()
        self._facts_due = max(began + FACTS_AGE_S, ended + PAUSE * (ended - began))

    async def _see_all(
        self, source: Source, registered: Sequence[KnownBookie], before: Mapping[str, Seen]
    ) -> dict[str, Seen]:
        """Return the bookies that were asked: those that answered before come first, then those that never were asked,
        then the one that was asked least lately. So registrations of strangers push out no bookie that answers."""
        until = self.clock() + LOOK_S
        wanted = {each.bookie_id for each in registered}
        self._silent = {each: at for each, at in self._silent.items() if each in wanted}

        async def see(each: KnownBookie) -> Seen:
            left = until - self.clock()
            if left <= 0:
                return Seen(each, None, f"not asked, as others took {LOOK_S:g} s", None, None)
            self._silent[each.bookie_id] = self.clock()
            seen = await _see(source, each, before.get(each.bookie_id), min(ASK_S, left))
            if seen.load is not None:
                self._silent.pop(each.bookie_id, None)
            return seen

        def turn(each: KnownBookie) -> tuple[bool, float]:
            return not _answered(each, before), self._silent.get(each.bookie_id, float("-inf"))

        ordered = sorted(registered, key=turn)[:MOST_BOOKIES]
        return {each.known.bookie_id: each for each in await bounded(ordered, see, AT_A_TIME)}

    def _healing(self) -> Healing | None:
        if self._facts is None or not self._marks:
            return None
        (first_at, first), (last_at, last) = self._marks[0], self._marks[-1]
        seconds = last_at - first_at
        speed = (first - last) / seconds if seconds > 0 and first > last else None
        return Healing(last, speed, seconds)


def _placed(known: KnownBookie, before: Seen | None) -> KnownBookie:
    """A bookie that is away where it was before: it publishes no place any more."""
    if known.registration != "none" or before is None:
        return known
    return msgspec.structs.replace(known, location=before.known.location, host=before.known.host)


def _answered(known: KnownBookie, before: Mapping[str, Seen]) -> bool:
    last = before.get(known.bookie_id)
    return last is not None and last.load is not None


def _known(found: Sequence[KnownBookie], before: Mapping[str, Seen]) -> list[KnownBookie]:
    """Return those that a look tells of, with what they publish about themselves cut. Of too many, those that answered
    before come first, then the registered ones."""
    named = [each for each in found if len(each.bookie_id) <= _LONGEST_ID]
    if len(named) > MOST_KNOWN:
        named = sorted(named, key=lambda each: (not _answered(each, before), each.registration == "none"))[:MOST_KNOWN]
    return [
        msgspec.structs.replace(
            each, location=cut(each.location or "") or None, host=cut(each.host or "") or None, admin_url=_url(each)
        )
        for each in named
    ]


def _url(known: KnownBookie) -> str | None:
    """None: so long that it is none."""
    return known.admin_url if len(known.admin_url or "") <= TEXT else None


def _unasked(known: KnownBookie) -> Seen:
    return Seen(known, None, None, None, None)


async def _see(source: Source, known: KnownBookie, before: Seen | None, seconds: float) -> Seen:
    """A bookie, with whatever went wrong as its problem: what one of them answers must not hide the others."""
    try:
        load = short(await _asked(source.bookie(known.bookie_id, bookie_api.LOAD), seconds))
        last = before.load if before is not None else None
        rates = _rates(last, load) if last is not None else None
    except PodkeeperError as error:
        return Seen(known, None, cut(str(error)), None, None)
    except Exception as error:
        return Seen(known, None, cut(f"an answer that cannot be read: {type(error).__name__}"), None, None)
    try:
        healing = short(await _asked(source.bookie(known.bookie_id, autorecovery_api.PROCESS), seconds))
    except Exception:
        healing = None  # most often it runs none
    return Seen(known, load, None, rates, healing)


async def _asked(answer: Awaitable[T], seconds: float) -> T:
    try:
        async with asyncio.timeout(seconds):
            return await answer
    except TimeoutError:
        raise CouldNotTell(f"no answer within {seconds:.3g} s") from None


def _rates(before: BookieLoad, now: BookieLoad) -> Rates | None:
    """None: the bookie started again, or the looks are too close."""
    seconds = now.clock_seconds - before.clock_seconds
    if seconds < _SHORTEST_S or now.adds < before.adds or now.reads < before.reads:
        return None
    return Rates(
        (now.adds - before.adds) / seconds,
        (now.reads - before.reads) / seconds,
        max(0, now.written_bytes - before.written_bytes) / seconds,
        max(0, now.read_bytes - before.read_bytes) / seconds,
    )
