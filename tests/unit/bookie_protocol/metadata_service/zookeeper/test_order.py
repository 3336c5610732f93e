"""The event loop hears what ZooKeeper says in the order in which ZooKeeper said it."""

from __future__ import annotations

import asyncio
import threading

from kazoo.protocol.states import Callback

from bookie_protocol.metadata_service.zookeeper.client import await_result, make_client
from bookie_protocol.metadata_service.zookeeper.driver import ZooKeeperTree


async def test_watch_is_heard_before_an_answer_that_came_behind_it() -> None:
    """A watch that was not heard is taken for a node that has not changed. kazoo has a thread for watches alone, which
    may be late; here it does nothing at all."""
    handler = make_client("127.0.0.1:1", 1.0, (), None, lambda _: None, secure=False, tls=None).handler
    goes_on = threading.Event()
    said: list[str] = []
    watch = ZooKeeperTree("127.0.0.1:1", 1.0)._watcher(lambda: said.append("changed"))
    handler.start()
    try:
        handler.callback_queue.put(goes_on.wait)
        result = handler.async_result()
        answer = asyncio.ensure_future(await_result(result))
        await asyncio.sleep(0)

        def read_both() -> None:  # as kazoo's connection thread
            handler.dispatch_callback(Callback("watch", watch, (None,)))
            result.set("answer")

        await asyncio.to_thread(read_both)
        said.append(await answer)
    finally:
        goes_on.set()
        handler.stop()
    assert said == ["changed", "answer"]


async def test_watch_of_a_loop_that_is_gone_is_swallowed() -> None:
    """It would end kazoo's connection thread."""
    gone = asyncio.new_event_loop()
    tree = ZooKeeperTree("127.0.0.1:1", 1.0)
    tree._loop = gone
    watch = tree._watcher(lambda: None)
    gone.close()
    tree._client.handler.dispatch_callback(Callback("watch", watch, (None,)))


async def test_watch_that_fails_keeps_no_other_one_from_being_called() -> None:
    """kazoo calls all watches of an event in a row, on the thread that reads the connection."""
    handler = make_client("127.0.0.1:1", 1.0, (), None, lambda _: None, secure=False, tls=None).handler
    called: list[object] = []

    def fails(_: object) -> None:
        raise ZeroDivisionError

    for watch in (fails, called.append):
        handler.dispatch_callback(Callback("watch", watch, ("changed",)))
    assert called == ["changed"]
