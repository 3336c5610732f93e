"""How long a process without a bookie waits for its session, and when it gives it up. On a virtual clock."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import cast

import pytest

from bookie_pod.config.load import load_config
from bookie_pod.node.processes import service
from bookie_pod.node.processes.service import PATIENCE_S, PROBE_PAUSE_S, RETURN_S, SessionNotRenewed, watch_session
from bookie_protocol.errors import ExitCode, MetadataUnavailable
from bookie_protocol.metadata_service.interface import SessionState
from bookie_protocol.metadata_service.tree.service import MetadataService
from tests.support.virtual_loop import VirtualLoop

CONFIG = load_config(environ={}, overrides={"metadataServiceUri": "zk://nowhere/l"})
A_DAY_S = 86400.0


class Session:
    state = SessionState.CONNECTED


class Service:
    """As much of a metadata service as is asked for."""

    def __init__(self) -> None:
        self.session = Session()
        self.cluster = self
        self.answers = True
        self.closed = 0

    async def exists(self) -> bool:
        if not self.answers:
            raise MetadataUnavailable("nobody answers")
        return True

    async def close(self) -> None:
        self.closed += 1


class Watch:
    """A watched session, and what a new connection would meet."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, loop: VirtualLoop) -> None:
        self.loop = loop
        self.mine, self.another = Service(), Service()
        self.takes_connections = True
        self.opened = 0
        self.told: SessionNotRenewed | None = None
        monkeypatch.setattr(service, "open_metadata", self._open)

    async def _open(self, config: object, uri: str) -> Service:
        if not self.takes_connections:
            raise MetadataUnavailable("nobody answers")
        self.opened += 1
        return self.another

    def at(self, seconds: float, state: SessionState) -> None:
        """The session's state from then on."""
        self.loop.call_at(seconds, lambda: setattr(self.mine.session, "state", state))

    def ends_at(self, within: float = A_DAY_S) -> float | None:
        """When the process gives up; None: not within so many seconds."""

        async def run() -> float | None:
            try:
                async with asyncio.timeout_at(within):
                    await watch_session(CONFIG, cast("MetadataService", self.mine))
            except TimeoutError:
                return None
            except SessionNotRenewed as error:
                self.told = error
                return self.loop.time()

        return self.loop.run_until_complete(run())


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Iterator[Watch]:
    loop = VirtualLoop()
    yield Watch(monkeypatch, loop)
    loop.close()


@pytest.mark.parametrize("state", [SessionState.EXPIRED, SessionState.SUSPENDED])
def test_it_ends_once_it_was_away_for_its_patience_and_others_get_sessions(watch: Watch, state: SessionState) -> None:
    watch.at(1000.0, state)
    ended = watch.ends_at()
    assert ended is not None
    assert 1000.0 + PATIENCE_S <= ended <= 1000.0 + PATIENCE_S + RETURN_S + 2 * PROBE_PAUSE_S
    assert watch.opened == watch.another.closed == 1 + RETURN_S // PROBE_PAUSE_S
    assert watch.told is not None
    assert watch.told.exit_code is ExitCode.METADATA_SESSION_EXPIRED
    assert "although it takes new connections" in str(watch.told)


def test_as_long_as_it_is_connected_nobody_else_is_asked(watch: Watch) -> None:
    assert watch.ends_at() is None
    assert watch.opened == 0


def test_a_service_that_is_back_is_not_left_before_its_clients_had_time_to_come(watch: Watch) -> None:
    """Whoever asks for a new connection then is served before those that wait between two tries."""
    watch.takes_connections = False
    for start in (0.0, 1000.0):
        watch.at(start, SessionState.SUSPENDED)
        watch.loop.call_at(start + 95.0, lambda: setattr(watch, "takes_connections", True))
        watch.at(start + 95.0 + RETURN_S - 1, SessionState.CONNECTED)
        watch.loop.call_at(start + 500.0, lambda: setattr(watch, "takes_connections", False))
    assert watch.ends_at(2000.0) is None
    assert watch.opened > 0


def test_short_absences_do_not_add_up(watch: Watch) -> None:
    for start in range(100, 5000, 100):
        watch.at(start, SessionState.SUSPENDED)
        watch.at(start + PATIENCE_S - PROBE_PAUSE_S, SessionState.CONNECTED)
    assert watch.ends_at(6000.0) is None
    assert watch.opened == 0


def test_while_the_service_takes_no_connections_it_waits(watch: Watch) -> None:
    watch.takes_connections = False
    watch.at(0.0, SessionState.EXPIRED)
    assert watch.ends_at() is None


def test_a_connection_that_gets_no_answers_is_none(watch: Watch) -> None:
    watch.another.answers = False
    watch.at(0.0, SessionState.EXPIRED)
    assert watch.ends_at(1000.0) is None
    assert watch.another.closed == watch.opened > 1


def test_a_session_that_came_back_meanwhile_stands(watch: Watch) -> None:
    """While another one was opened."""
    watch.at(0.0, SessionState.EXPIRED)

    async def open_metadata(config: object, uri: str) -> Service:
        watch.mine.session.state = SessionState.CONNECTED
        return watch.another

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(service, "open_metadata", open_metadata)
        assert watch.ends_at() is None
    assert watch.another.closed == 1
