"""The thread that owns the store, with group commit.

Invariants
- Calls run one after the other, in the order they were accepted. All calls that wait are run, then synced once, then
  answered: every caller, reader or writer, sees only what is durable.
- A call may have steps (`post_steps`). Between two of them only calls that read are run, and few of these: those that
  may write wait until it is over, in their order.
- A failed sync fails every call of its group that got a result.
- A store that is broken, or a thread that ended by a fault of its own, is reported to `on_broken`, once. Then callers
  that wait for the thread are refused.
- At most `places` calls are accepted and not answered; beyond, callers wait for their turn, in the order they came. A
  call whose caller gave up keeps its place until its turn, but nothing else, and is not run if that has not come.
- `stop` runs what was accepted before it, then closes the store. Who still waits for a place is refused.

Threads: `post` and `stop` from the event loop; the calls run on the thread `metadata-store`.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Generator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, TypeVar, cast

from bookie_protocol.errors import MetadataUnavailable
from bookie_protocol.metadata_service.embedded.notices import News
from bookie_protocol.metadata_service.embedded.store import NodeStore

T = TypeVar("T")
MAX_GROUP: Final = 256
MAX_READS: Final = 16
"""Calls that are run between two steps of another, at most: all that may write wait for its end."""
MAX_PENDING: Final = 4096


@dataclass(slots=True, eq=False)
class _Call:
    run: Callable[[NodeStore], Any]
    future: asyncio.Future[Any]
    only_reads: bool
    has_steps: bool
    steps: Generator[None, None, Any] | None = None
    """The steps that are left of a call that has begun."""
    result: Any = None
    error: Exception | None = None


def _given_up(_: NodeStore) -> None:
    """Do nothing, in place of a call whose caller gave up."""


class StoreThread:
    """Runs calls on a store. `on_news` gets, on the loop, what each group changed, before its answers.

    `on_broken` gets, on the loop, why the store refuses everything from now on.
    """

    def __init__(
        self,
        store: NodeStore,
        on_news: Callable[[News], None],
        on_broken: Callable[[str], None],
        places: int = MAX_PENDING,
    ) -> None:
        self.pending = 0
        """Calls that were accepted and are not answered yet."""
        self._places = asyncio.Semaphore(places)
        self._store = store
        self._on_news = on_news
        self._on_broken = on_broken
        self._loop = asyncio.get_running_loop()
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._under_way: _Call | None = None
        """The call of which some steps are left."""
        self._held: list[_Call] = []
        """The calls that wait until that is over."""
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="metadata-store", daemon=True)
        self._thread.start()

    async def post(
        self, run: Callable[[NodeStore], T], accept: Callable[[], None] | None = None, *, only_reads: bool = False
    ) -> T:
        """Run a call once there is a place for it; its result or its error. `MetadataUnavailable`: the store is closed.

        `accept` is called when there is a place, right before the call is queued; what it raises refuses the call.
        """
        return cast("T", await self._post(run, accept, only_reads, False))

    async def post_steps(
        self, run: Callable[[NodeStore], Generator[None, None, T]], accept: Callable[[], None] | None = None
    ) -> T:
        """Run a call that may take long, and changes nothing before its last step; else as `post`."""
        return cast("T", await self._post(run, accept, False, True))

    async def _post(
        self, run: Callable[[NodeStore], Any], accept: Callable[[], None] | None, only_reads: bool, has_steps: bool
    ) -> Any:
        await self._places.acquire()
        try:
            if self._stopping:
                raise MetadataUnavailable("the embedded metadata store was closed")
            if accept is not None:
                accept()
        except BaseException:
            self._places.release()
            raise
        future: asyncio.Future[Any] = self._loop.create_future()
        self.pending += 1
        self._calls.put(call := _Call(run, future, only_reads, has_steps))
        try:
            return await future
        except asyncio.CancelledError:
            call.run = _given_up  # with what it holds: neither that nor its answer is counted any more
            raise

    async def stop(self) -> None:
        """Finish, and close the store. Calling it again is fine."""
        if not self._stopping:
            self._stopping = True
            self._calls.put(None)
        await asyncio.to_thread(self._thread.join)

    def _run(self) -> None:
        going_on, told = True, False
        group: list[_Call] = []
        try:
            while going_on or self._held or self._under_way is not None:
                group = []
                if self._under_way is not None:
                    self._run_group([self._under_way])
                going_on = self._collect(group, going_on)
                self._run_group(group)
                if self._store.broken is not None and not told:
                    told = True
                    self._tell(self._on_broken, self._store.broken)
        except BaseException as error:
            reason = f"the thread of the embedded metadata store ended: {error!r}; restart its owner"
            self._tell(self._ended, group, reason)
            raise
        finally:
            self._store.close()

    def _collect(self, group: list[_Call], going_on: bool) -> bool:
        """Take the calls that wait, and wait for one if there is nothing else to do. False: none comes any more, which
        is said only once (`going_on`)."""
        room = MAX_READS
        if self._under_way is None:
            group += self._held
            self._held.clear()
            room = MAX_GROUP - len(group)
        idle = going_on and not group and self._under_way is None
        while idle or (room > 0 and not self._calls.empty()):
            if (call := self._calls.get()) is None:
                return False
            group.append(call)
            if self._under_way is None or call.only_reads:  # others are only put aside
                room -= 1
            idle = False
        return going_on

    def _run_group(self, group: list[_Call]) -> None:
        over = []
        for call in group:
            if self._under_way not in (None, call) and not call.only_reads:
                self._held.append(call)
                continue
            is_over = self._step(call)
            if is_over:
                over.append(call)
            if not call.only_reads:
                self._under_way = None if is_over else call
        if not over:
            return
        news = self._store.take_news()
        try:
            self._store.sync()
        except MetadataUnavailable as error:
            for call in over:
                call.error = call.error or error
        self._tell(self._answer, over, news)

    def _step(self, call: _Call) -> bool:
        """Run a call, or a step of it. Return True if it is over."""
        try:
            if not call.has_steps or call.run is _given_up:
                call.result = call.run(self._store)
                return True
            call.steps = call.steps or call.run(self._store)
            try:
                next(call.steps)
            except StopIteration as end:
                call.result = end.value
                return True
            return False
        except Exception as error:  # handed to the caller
            call.error = error
            return True

    def _tell(self, callback: Callable[..., None], *arguments: object) -> None:
        with suppress(RuntimeError):  # the loop is closed: no caller waits any more
            self._loop.call_soon_threadsafe(callback, *arguments)

    def _ended(self, group: list[_Call], reason: str) -> None:
        self._stopping = True
        self._on_broken(reason)
        group += self._held
        if self._under_way is not None:
            group.append(self._under_way)
        group = list(dict.fromkeys(group))  # some of the group may have been put aside
        while not self._calls.empty():
            call = self._calls.get_nowait()
            if call is not None:
                group.append(call)
        for call in group:
            call.error = MetadataUnavailable(reason)
        self._answer(group, News())

    def _answer(self, group: list[_Call], news: News) -> None:
        self._on_news(news)
        self.pending -= len(group)
        for call in group:
            self._places.release()
            if call.future.done():
                continue
            if call.error is not None:
                call.future.set_exception(call.error)
            else:
                call.future.set_result(call.result)
