"""Troubles of one virtual bookie: how it fails the adds of writers, until that ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bookie_pod.server.tcp.requests import AddRequest
from bookie_protocol.errors import MetadataUnavailable, PodkeeperError
from bookie_protocol.ledger_metadata.model import LedgerMetadata
from tests.support.simulation.bookie import VirtualBookie

Trouble = Callable[[VirtualBookie], Callable[[], None]]
"""Begins at a bookie; returns what ends it."""
_Add = Callable[[Any, AddRequest, Any], None]


def cannot_ask(bookie: VirtualBookie) -> Callable[[], None]:
    """The bookie does not hear from the metadata service whether a ledger is open."""
    questions = bookie.process.handlers.questions
    assert questions is not None
    look = questions._look

    async def ask(ledger_id: int) -> LedgerMetadata | None:
        raise MetadataUnavailable("its session is gone for a moment")

    def end() -> None:
        questions._look = look

    questions._look = ask
    return end


def refuses(error: type[PodkeeperError]) -> Trouble:
    """The bookie refuses all adds."""

    def begin(bookie: VirtualBookie) -> Callable[[], None]:
        handlers: Any = bookie.process.handlers
        return _instead(bookie, lambda conn, request, reply: handlers._refuse_add(error("it refuses"), reply))

    return begin


def ignores(bookie: VirtualBookie) -> Callable[[], None]:
    """The bookie answers everything but adds."""
    return _instead(bookie, lambda conn, request, reply: None)


def delays(seconds: float) -> Trouble:
    """The bookie takes adds so much later."""

    def begin(bookie: VirtualBookie) -> Callable[[], None]:
        add = bookie.process.handlers.add
        return _instead(bookie, lambda *arguments: _later(bookie, seconds, add, arguments))

    return begin


def _later(bookie: VirtualBookie, seconds: float, add: _Add, arguments: Any) -> None:
    bookie.loop.call_later(seconds, add, *arguments)


def dies(bookie: VirtualBookie) -> Callable[[], None]:
    """The bookie dies of the next add."""

    def die(conn: Any, request: AddRequest, reply: Any) -> None:
        bookie.loop.call_soon(bookie.kill)

    process, end = bookie.process, _instead(bookie, die)

    def revive() -> None:
        if bookie.is_running and bookie.process is process:
            end()
        bookie.start()

    return revive


def is_dead(bookie: VirtualBookie) -> Callable[[], None]:
    """The bookie is dead."""
    bookie.kill()
    return bookie.start


def is_silent(bookie: VirtualBookie) -> Callable[[], None]:
    """Nothing gets to the writer "next" from the bookie."""
    bookie.network.block(bookie.host, "next")
    return lambda: bookie.network.unblock(bookie.host, "next")


def _instead(bookie: VirtualBookie, act: _Add) -> Callable[[], None]:
    """Let the bookie do this with adds."""
    handlers: Any = bookie.process.handlers
    admission: Any = bookie.process.admission
    add = handlers.add

    def end() -> None:
        handlers.add = add
        del admission._blocked
        admission.refresh()

    handlers.add = act
    admission._blocked = lambda: True  # then no add takes the hot path, which does not call the handlers
    admission.refresh()
    return end
