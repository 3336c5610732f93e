"""From kazoo's threads to the event loop.

Invariants
- The loop never waits for kazoo: requests are queued by kazoo and answered through `call_soon_threadsafe`.
- A loop that is gone swallows what still arrives: kazoo's threads never see an error of ours.

Threads: `await_result` and `hop` are called on the loop; what they hand to kazoo runs on kazoo's threads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any


def hop(loop: asyncio.AbstractEventLoop, callback: Callable[..., None]) -> Callable[..., None]:
    """A function for any thread that runs `callback` on the loop."""

    def from_any_thread(*arguments: object) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(callback, *arguments)

    return from_any_thread


async def await_result(result: Any) -> Any:
    """The value of a kazoo `IAsyncResult`, or its exception."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()

    def settle(_: object) -> None:
        if future.done():
            return
        error = result.exception
        if error is None:
            future.set_result(result.value)
        else:
            future.set_exception(error)

    result.rawlink(hop(loop, settle))
    return await future
