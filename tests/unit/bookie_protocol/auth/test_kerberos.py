"""Kerberos as far as it needs no KDC; what does is in the interop ring."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bookie_protocol.auth import kerberos
from bookie_protocol.auth.kerberos import THREADS, KerberosAuth, KerberosKeys, _Threads
from bookie_protocol.auth.sasl import accounts_of, login_of
from bookie_protocol.errors import InvalidConfiguration, Unauthorized
from bookie_protocol.wire.auth import Peer

MODULE = "com.sun.security.auth.module.Krb5LoginModule required"


class Failed(Exception):
    """As the library's, with its numbers."""

    def __init__(self, minor: int, text: str) -> None:
        super().__init__(f"Major (851968): Unspecified GSS failure.  Minor code may tell, Minor ({minor}): {text}")
        self.min_code = minor


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A double, of which each test has the part that it needs."""
    found = SimpleNamespace(
        exceptions=SimpleNamespace(GSSError=Failed),
        Credentials=lambda **given: given,
        Name=lambda *given: given,
        NameType=SimpleNamespace(kerberos_principal="principal", hostbased_service="service"),
        MechType=SimpleNamespace(kerberos="kerberos"),
        raw=SimpleNamespace(),
    )
    monkeypatch.setitem(sys.modules, "gssapi", found)  # type: ignore[arg-type]
    return found


@pytest.fixture
def keytab(tmp_path: Path) -> str:
    (tmp_path / "keytab").write_bytes(b"")
    return str(tmp_path / "keytab")


def section(options: str, name: str = "Bookie") -> bytes:
    return f"{name} {{ {MODULE} {options}; }};".encode()


def test_without_the_library_it_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch, keytab: str) -> None:
    monkeypatch.setitem(sys.modules, "gssapi", None)  # type: ignore[arg-type]
    content = section(f'useKeyTab=true principal=app keyTab="{keytab}"')
    for read in (accounts_of, login_of):
        with pytest.raises(ValueError, match=r"section Bookie: .*gssapi"):
            read(content, "Bookie")


def test_sections_of_bookies(library: SimpleNamespace, keytab: str) -> None:
    content = section(f'useKeyTab=true storeKey=true keyTab="file:{keytab}" principal="bookkeeper/a@B"')
    accounts = accounts_of(content, "Bookie")
    assert accounts == KerberosKeys("bookkeeper/a@B", keytab)
    assert isinstance(accounts, KerberosKeys)
    name = ("bookkeeper/a@B", "principal")
    only = ["kerberos"]  # else SPNEGO would be served besides, and whatever it brings
    assert accounts.credentials() == {"usage": "accept", "name": name, "mechs": only, "store": {"keytab": keytab}}
    assert accounts_of(section("useKeyTab=TRUE"), "Bookie") == KerberosKeys()


def test_sections_of_clients(library: SimpleNamespace, keytab: str) -> None:
    content = section(f'useKeyTab=true useTicketCache=true keyTab="{keytab}" principal=app serviceName=bk')
    assert login_of(content, "Bookie") == KerberosAuth("app", keytab, service="bk")
    content = section("useTicketCache=true ticketCache=/tmp/cache")
    assert login_of(content, "Bookie") == KerberosAuth(ticket_cache="/tmp/cache")


@pytest.mark.parametrize(
    ("options", "bookies", "clients"),
    [
        ("useTicketCache=true", "needs useKeyTab=true and keyTab", None),
        ("principal=app", "needs useKeyTab=true and keyTab", "keyTab and principal, or useTicketCache=true"),
        ("useKeyTab=true keyTab=/nowhere principal=app", "keytab /nowhere: No such", "keytab /nowhere: No such"),
        ("useKeyTab=true principal=app", None, "useKeyTab=true needs keyTab"),
        ("useKeyTab=true keyTab=/dev/null", None, "/dev/null needs a principal"),
    ],
)
def test_sections_that_are_no_use(
    library: SimpleNamespace, options: str, bookies: str | None, clients: str | None
) -> None:
    for read, says in ((accounts_of, bookies), (login_of, clients)):
        if says is None:
            read(section(options), "Bookie")
        else:
            with pytest.raises(ValueError, match=f"section Bookie: .*{says}"):
                read(section(options), "Bookie")


def test_a_keytab_that_was_replaced_begins_with_tickets_of_its_own(library: SimpleNamespace, keytab: str) -> None:
    auth = KerberosAuth("app", keytab)
    first = auth.credentials()["store"]
    assert first == {"client_keytab": keytab, "ccache": first["ccache"]}
    assert auth.credentials()["store"] == first
    assert KerberosAuth("other", keytab).credentials()["store"] != first
    new = Path(keytab).with_name("new")
    new.write_bytes(b"")
    new.replace(keytab)
    assert auth.credentials()["store"] != first


@pytest.mark.parametrize(
    ("minor", "error"),
    [
        (2529638944, Unauthorized),  # the client's ticket has ended
        (100001, Unauthorized),
        (2529638956, InvalidConfiguration),  # the keytab has not got the newest keys
        (2529639072, InvalidConfiguration),  # the replay cache cannot be used
        (28, InvalidConfiguration),  # the disk is full
    ],
)
async def test_whose_fault_it_is(
    library: SimpleNamespace, keytab: str, minor: int, error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def accept(*_: object) -> Any:
        raise Failed(minor, "it went wrong")

    library.raw.accept_sec_context = accept
    with pytest.raises(error, match=r"Kerberos: .*wrong"):
        await KerberosKeys(None, keytab).new_login().step(b"token")


async def test_what_is_told_of_a_login_has_an_end(library: SimpleNamespace, keytab: str) -> None:
    def accept(*_: object) -> Any:
        raise Failed(100001, "Request ticket server " + 60_000 * "x" + " not found in keytab")

    library.raw.accept_sec_context = accept
    with pytest.raises(Unauthorized, match="xxx") as refused:
        await KerberosKeys(None, keytab).new_login().step(b"token")
    assert len(str(refused.value)) < 1000


def test_a_child_that_was_forked_has_threads_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = _Threads("client", "KDC")

    async def work() -> Any:
        return await threads.run("a login", threading.get_ident)

    before = {asyncio.run(work()) for _ in range(THREADS)}
    process = os.getpid()
    monkeypatch.setattr(kerberos.os, "getpid", lambda: process + 1)
    assert asyncio.run(work()) not in before


async def test_a_kdc_that_does_not_answer_is_not_waited_for_and_keeps_nobody_out(
    library: SimpleNamespace, keytab: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kerberos, "SECONDS", 0.05)
    monkeypatch.setattr(kerberos, "_of_clients", _Threads("client", "KDC"))
    answers, asked = threading.Event(), []

    def silent(usage: str, **_: object) -> Any:
        if usage == "accept":
            return None
        asked.append(threading.current_thread())
        answers.wait(20)
        raise Failed(1, "too late")

    library.Credentials = silent
    auth = KerberosAuth("app", keytab)
    logins = [auth.new_exchange(Peer("host")).start() for _ in range(THREADS + 3)]
    waiting = asyncio.gather(*logins, return_exceptions=True)
    library.raw.accept_sec_context = lambda *_: SimpleNamespace(more_steps=False, context=None, token=b"proof")
    library.SecurityContext = lambda _: None
    assert await KerberosKeys(None, keytab).new_login().step(b"token") == (b"proof", None)
    told = await waiting
    assert {type(each) for each in told} == {InvalidConfiguration}
    assert "bookkeeper@host: no answer within 0 s; does the KDC answer?" in str(told[0])
    assert len(asked) == len(set(asked)) == THREADS  # and nobody waits for the others any more
    assert all(thread.daemon for thread in asked)
    answers.set()
    monkeypatch.setattr(kerberos, "SECONDS", 20.0)
    with pytest.raises(InvalidConfiguration, match=r"\blate\b"):
        await auth.new_exchange(Peer("host")).start()
    assert len(set(asked)) == THREADS
