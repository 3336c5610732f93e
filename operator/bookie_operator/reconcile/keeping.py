"""A task for each resource makes passes over it, one after the other.

Resources are clusters and BookieJobs, each kind with a keeper of its own. A task is woken by what happens, else when
the last pass asked for it.

Invariants
- Passes over one resource never overlap. A wake-up during a pass makes another one right after it.
- Whatever a pass raises is logged and counted, and the next one comes after a back-off: no resource is forgotten, and
  none holds up another.
- Its task ends when the resource is gone.

Threads: one event loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

import structlog
from prometheus_client import Gauge

from bookie_operator.api.errors import KubernetesError
from bookie_operator.reconcile.carrying_out import NotLeading
from bookie_operator.reconcile.context import OperatorContext
from bookie_operator.reconcile.passing import run_pass

_log = structlog.get_logger(__name__)
SPACING_S: Final = 0.2
"""Seconds between two passes over a cluster, whatever wakes it."""
FOLLOW_S: Final = 1.0
"""Seconds after which a process that may not act looks again whether it may."""
_MOST_S: Final = 60.0
_LONGEST_REST_S: Final = 150.0
"""Shorter than what `lease.Scopes` claims a namespace for."""
_STOP_S: Final = 10.0

Pass = Callable[[OperatorContext, str, str], Awaitable[float | None]]


@dataclass
class _Kept:
    woken: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None
    failures: int = 0
    passing: bool = False


class Keeper:
    """`what`: of the resources, for the log; `kept`: shows how many there are; `unexpected`: counts a pass that raised
    what none should; `peeks`: as in the context, asked while a resource rests."""

    def __init__(
        self,
        context: OperatorContext,
        *,
        one_pass: Pass = run_pass,
        what: str = "cluster",
        kept: Gauge | None = None,
        unexpected: Callable[[str, str, str], None] | None = None,
        peeks: Mapping[tuple[str, str], Callable[[], Awaitable[bool]]] | None = None,
    ) -> None:
        self._context = context
        self._one_pass = one_pass
        self._what = what
        self._gauge = kept if kept is not None else context.metrics.clusters
        self._unexpected = unexpected or context.metrics.failed
        self._peeks = {} if peeks is None else peeks
        self._kept: dict[tuple[str, str], _Kept] = {}
        self._ended_at = time.monotonic()
        self._stopping = False

    def wake(self, namespace: str, name: str, *, new: bool = True) -> None:
        """Something happened to it. `new`: keep it from now on if it is not kept yet."""
        key = (namespace, name)
        kept = self._kept.get(key)
        if kept is None:
            if not new or self._stopping:
                return
            kept = self._kept[key] = _Kept()
            kept.task = asyncio.create_task(self._keep(key, kept), name=f"keep {namespace}/{name}")
            self._gauge.set(len(self._kept))
        kept.woken.set()

    def idle_for(self) -> float:
        """Seconds for which no pass of any cluster has ended although there should have been; 0 where none is due."""
        if not self._kept or not self._context.leading():
            self._ended_at = time.monotonic()
        return time.monotonic() - self._ended_at

    async def stop(self) -> None:
        """A pass that runs may end, for a while; no other begins."""
        self._stopping = True
        tasks = [kept.task for kept in self._kept.values() if kept.task is not None]
        for kept in self._kept.values():
            if not kept.passing and kept.task is not None:
                kept.task.cancel()
        _, late = await asyncio.wait(tasks, timeout=_STOP_S) if tasks else (set(), set())
        for task in late:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _keep(self, key: tuple[str, str], kept: _Kept) -> None:
        try:
            while not self._stopping:
                seconds = await self._pass_or_wait(key, kept)
                if seconds is None or self._stopping:
                    return
                seconds = self._paced(seconds)
                await asyncio.sleep(min(SPACING_S, seconds))
                if seconds > SPACING_S:
                    await self._rest(key, kept, seconds - SPACING_S)
        finally:
            self._kept.pop(key, None)
            self._gauge.set(len(self._kept))
            if kept.woken.is_set() and not self._stopping:  # it was made again while the last pass found it gone
                self.wake(*key)

    async def _rest(self, key: tuple[str, str], kept: _Kept, seconds: float) -> None:
        """Wait until the resource is woken, or its metadata service answers no more, but not for longer."""
        while seconds > 0 and not kept.woken.is_set():
            part = min(seconds, self._context.settings.peek_s)
            await _woken(kept.woken, part)
            seconds -= part
            if seconds > 0 and not kept.woken.is_set() and not await self._answers(key, kept.woken):
                return

    async def _answers(self, key: tuple[str, str], woken: asyncio.Event) -> bool:
        """Peek, but not beyond a wake-up. A peek that fails is like one that says no: the next pass finds out."""
        peek = self._peeks.get(key)
        if peek is None:
            return True
        asked, called = asyncio.ensure_future(peek()), asyncio.ensure_future(woken.wait())
        try:
            await asyncio.wait((asked, called), return_when=asyncio.FIRST_COMPLETED)
            return not asked.done() or asked.result()
        except Exception:
            _log.exception("peek failed", namespace=key[0], **{self._what: key[1]})
            return False
        finally:
            asked.cancel()
            called.cancel()
            await asyncio.gather(asked, called, return_exceptions=True)

    def _paced(self, seconds: float) -> float:
        """Return after how many seconds to look again at one of many that rest.

        One is looked at each second; what happens to one wakes it all the same.
        """
        if seconds < self._context.settings.rest_s:
            return seconds
        return max(seconds, min(_LONGEST_REST_S, float(len(self._kept))))

    async def _pass_or_wait(self, key: tuple[str, str], kept: _Kept) -> float | None:
        """Seconds until the next pass; None: the cluster is gone."""
        async with self._context.passes:
            kept.woken.clear()
            if self._stopping or not self._context.leading():
                return FOLLOW_S
            kept.passing = True
            return await self._pass(key, kept)

    async def _pass(self, key: tuple[str, str], kept: _Kept) -> float | None:
        namespace, name = key
        try:
            seconds = await self._one_pass(self._context, name, namespace)
            kept.failures = 0
            return seconds
        except NotLeading:
            return FOLLOW_S
        except KubernetesError as exc:
            _log.warning("pass failed", namespace=namespace, error=str(exc), **{self._what: name})
        except Exception:
            _log.exception("pass failed", namespace=namespace, **{self._what: name})
            self._unexpected(namespace, name, "Unexpected")
        finally:
            kept.passing = False
            self._ended_at = time.monotonic()
        kept.failures += 1
        return min(_MOST_S, 2.0 ** min(kept.failures - 1, 6))


async def _woken(event: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return
