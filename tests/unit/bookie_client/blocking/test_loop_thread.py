"""A loop on a thread of its own, and what becomes of those who wait for it when it ends."""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from bookie_client.blocking.appends import AppendQueue
from bookie_client.blocking.loop_thread import LoopEnded, LoopThread


@pytest.mark.parametrize("how", ["coroutine", "call-back"])
def test_whatever_ends_the_loop_everybody_who_waits_is_told(how):
    cleaned, under_way = threading.Event(), threading.Event()

    async def clean():
        cleaned.set()

    async def for_ever():
        under_way.set()
        await asyncio.Event().wait()

    async def exits():
        sys.exit(3)

    loop = LoopThread("loop", clean)
    with ThreadPoolExecutor(2) as threads:
        innocent = threads.submit(loop.run, for_ever)
        assert under_way.wait(30)
        if how == "coroutine":
            with pytest.raises(SystemExit):
                loop.run(exits)
        else:
            loop.post(lambda: sys.exit(3))
        with pytest.raises(RuntimeError, match="closed"):
            innocent.result(30)
    assert cleaned.wait(30)
    with pytest.raises(RuntimeError, match="closed"):
        loop.run(for_ever)
    loop.stop()
    loop.stop()


def test_being_stopped_once_more_while_it_ends_keeps_nobody_waiting():
    under_way = threading.Event()

    async def stops():
        asyncio.get_running_loop().stop()  # as when its owner is forgotten just now
        await asyncio.Event().wait()

    async def for_ever():
        under_way.set()
        await asyncio.Event().wait()

    loop = LoopThread("loop", stops)
    with ThreadPoolExecutor(1) as threads:
        innocent = threads.submit(loop.run, for_ever)
        assert under_way.wait(30)
        loop.stop()
        with pytest.raises(RuntimeError, match="closed"):
            innocent.result(30)


class ClosingThread:
    """Closed between the look whether it is and the first call; somebody else queues meanwhile."""

    def __init__(self):
        self.queue = None
        self.others = []

    def check(self):
        pass

    def post(self, callback):
        if not self.others:
            self.others.append(None)
            self.others = [self.queue.submit(b"other")]
        raise RuntimeError("this client was closed")


def test_appends_that_queue_while_the_client_is_closed_end():
    thread = ClosingThread()
    thread.queue = AppendQueue(thread, None, None)
    mine: Future[int] = thread.queue.submit(b"mine")
    for future in (mine, *thread.others):
        with pytest.raises(RuntimeError, match="closed"):
            future.result(5)


@pytest.mark.timeout(20)
def test_signal_handler_that_interrupts_a_call_may_stop_the_loop(monkeypatch):
    """The interrupted call holds the lock that the loop's thread asks for at its end."""
    loop = LoopThread("loop")
    post = loop._loop.call_soon_threadsafe

    class Interrupted:
        def __init__(self, real):
            self._real, self._interrupted = real, False

        def __getattr__(self, name):
            return getattr(self._real, name)

        def call_soon_threadsafe(self, callback):
            if not self._interrupted:
                self._interrupted = True
                signal.raise_signal(signal.SIGUSR1)
            return post(callback)

    monkeypatch.setattr(loop, "_loop", Interrupted(loop._loop))
    before = signal.signal(signal.SIGUSR1, lambda *_: loop.stop())
    try:
        with pytest.raises(LoopEnded):
            loop.run(asyncio.sleep, 0)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert not loop._thread.is_alive()
