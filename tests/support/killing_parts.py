"""The `bookie` command, and somebody who ends one of its threads or tasks from within, as a fault would that nobody
foresaw.

    WarmProcess(killing_parts.PROGRAM, [SOCKET, "serve", "--config", FILE])

Lines on the socket: `threads`, `tasks` (names of those that live), `thread NAME`, `task NAME` (end it). A thread ends
the next time that it runs; with what it was given then, and without a word.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import socket
import threading
from contextlib import suppress
from typing import Any

from bookie_pod.cli.main import run
from bookie_protocol import lasting

PROGRAM = f"{__name__}:main"

_loop: list[asyncio.AbstractEventLoop] = []


def order(path: str, line: str) -> Any:
    """From the test's side: the answer to one line; None if the process ended before it gave one."""
    with socket.socket(socket.AF_UNIX) as asking:
        asking.settimeout(20)
        asking.connect(path)
        asking.sendall(line.encode() + b"\n")
        with asking.makefile() as answers, suppress(ConnectionResetError):
            return json.loads(answers.readline() or "null")
    return None


def _carry_out(line: str) -> object:
    what, _, name = line.partition(" ")
    if what == "threads":
        return [thread.name for thread in threading.enumerate()]
    if what == "thread":
        found = [thread.ident for thread in threading.enumerate() if thread.name == name and thread.ident]
        return [ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(i), ctypes.py_object(Killed)) for i in found]
    if not _loop:
        return []  # it has only just begun
    with suppress(TimeoutError):  # what it is busy with may take a while: ask again
        return asyncio.run_coroutine_threadsafe(_on_tasks(what, name), _loop[0]).result(10)
    return []


async def _on_tasks(what: str, name: str) -> object:
    alive = [task for task in asyncio.all_tasks() if task.get_name().startswith(lasting.PREFIX)]
    if what == "tasks":
        return [task.get_name().removeprefix(lasting.PREFIX) for task in alive]
    for task in alive:
        if task.get_name() == lasting.PREFIX + name:
            while (waits_for := _what_it_waits_for(task)) is None or waits_for.done():  # noqa: ASYNC110 - it goes on now
                await asyncio.sleep(0)
            waits_for.set_exception(Killed())
    return []


def _what_it_waits_for(task: Any) -> asyncio.Future[Any] | None:
    """A task cannot be told; what it waits for can."""
    while isinstance(task, asyncio.Task):
        task = task._fut_waiter  # type: ignore[attr-defined]
    return task


class Killed(BaseException):
    """What a thread or task dies of: what outlives all that is foreseen."""


def _listen(path: str) -> None:
    server = socket.socket(socket.AF_UNIX)
    server.bind(path)
    server.listen()

    def answer() -> None:
        while True:
            with server.accept()[0] as asked, asked.makefile() as lines:
                asked.sendall(json.dumps(_carry_out(lines.readline().strip())).encode() + b"\n")

    threading.Thread(target=answer, daemon=True).start()


def _note_loop() -> None:
    original = asyncio.Runner.get_loop

    def get_loop(self: asyncio.Runner) -> asyncio.AbstractEventLoop:
        loop = original(self)
        _loop[:] = [loop]
        return loop

    asyncio.Runner.get_loop = get_loop  # type: ignore[method-assign]
    run = asyncio.Runner.run

    def noting(self: asyncio.Runner, *arguments: Any, **options: Any) -> Any:
        self.get_loop()
        return run(self, *arguments, **options)

    asyncio.Runner.run = noting  # type: ignore[method-assign]


def main(arguments: list[str]) -> int:
    _note_loop()
    _listen(arguments[0])
    return run(arguments[1:])
