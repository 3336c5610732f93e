"""The session object that every driver hands out.

Invariants
- Listeners hear every change of state, in order, and nothing twice in a row.
- A listener that raises is reported to the loop's exception handler; the others still hear.

Threads: event loop only; drivers hop before they call `move`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from bookie_protocol.metadata_service.interface import SessionState


class DriverSession:
    """Implements `Session`; `default_timeout` in seconds."""

    def __init__(self, default_timeout: float) -> None:
        self._default_timeout = default_timeout
        self.expires_after = default_timeout
        """A driver that is told another time sets it, from any thread."""
        self._state = SessionState.SUSPENDED
        self._listeners: list[Callable[[SessionState], None]] = []
        self._connected = asyncio.Event()

    @property
    def state(self) -> SessionState:
        return self._state

    @property
    def default_timeout(self) -> float:
        return self._default_timeout

    def add_listener(self, listener: Callable[[SessionState], None]) -> Callable[[], None]:
        self._listeners.append(listener)

        def remove() -> None:
            if listener in self._listeners:
                self._listeners.remove(listener)

        return remove

    def move(self, state: SessionState) -> None:
        """Take a new state and tell everybody."""
        if state is self._state or self._state is SessionState.CLOSED:
            return
        self._state = state
        if state is SessionState.CONNECTED:
            self._connected.set()
        else:
            self._connected.clear()
        for listener in list(self._listeners):
            try:
                listener(state)
            except Exception as error:
                asyncio.get_running_loop().call_exception_handler(
                    {"message": "a metadata session listener failed", "exception": error}
                )

    async def wait_connected(self) -> None:
        """Until the state is CONNECTED; the caller bounds the wait."""
        await self._connected.wait()
