"""Logins of kazoo's connections: what ends a session, and what only delays it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from kazoo.exceptions import AuthFailedError, ConnectionDropped

from bookie_protocol.errors import InvalidConfiguration, Unauthorized
from bookie_protocol.metadata_service.options import SaslLogin
from bookie_protocol.metadata_service.zookeeper import client as module

SECONDS = 10.0
HUNG_UP = ConnectionDropped("socket connection broken")
NO_TICKET = InvalidConfiguration("there is no Kerberos ticket; run kinit")
REFUSED = Unauthorized("the server does not prove who it is")


class Client:
    """A client of kazoo whose exchanges end as they are told to; `now` is the clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._connection = SimpleNamespace()
        self._session_timeout = int(SECONDS * 1000)
        self.handler = SimpleNamespace(failure="")
        self.now = 100.0
        self._outcome: Exception | None = None
        monkeypatch.setattr(module.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(module, "_exchange", self._exchange)
        module.log_in_by(self, SaslLogin(username="bookie", password="s3cret"))

    def _exchange(self, *_: Any) -> None:
        if self._outcome is not None:
            raise self._outcome

    def log_in(self, outcome: Exception | None = None) -> None:
        self._outcome = outcome
        self._connection._authenticate_with_sasl("zk-1", 1.0)


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Client:
    return Client(monkeypatch)


@pytest.mark.parametrize("outcome", [HUNG_UP, NO_TICKET, REFUSED])
def test_first_login_is_refused_whatever_fails(client: Client, outcome: Exception) -> None:
    with pytest.raises(AuthFailedError):
        client.log_in(outcome)


@pytest.mark.parametrize("outcome", [HUNG_UP, NO_TICKET])
def test_login_that_nobody_refused_does_not_end_a_session(client: Client, outcome: Exception) -> None:
    for _ in range(2):  # the time counts anew after each login
        client.log_in()
        assert client.handler.failure == ""
        client.now += 1000
        for _ in range(3):
            with pytest.raises(ConnectionDropped):
                client.log_in(outcome)
            client.now += SECONDS / 3 - 0.1
        assert client.handler.failure
    client.now += SECONDS
    with pytest.raises(AuthFailedError):
        client.log_in(outcome)


def test_refusal_ends_a_session_at_once(client: Client) -> None:
    client.log_in()
    with pytest.raises(AuthFailedError):
        client.log_in(REFUSED)
