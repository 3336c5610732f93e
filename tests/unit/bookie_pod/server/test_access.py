"""Who may do what, for both ports: tokens with roles, certificates, this machine, strangers."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from bookie_pod.config.sections.service import AccessConfig
from bookie_pod.roles import EVERYTHING, Role
from bookie_pod.server import tokens
from bookie_pod.server.access import Access, Shown
from bookie_pod.server.tokens import CHECK_S, Tokens
from bookie_protocol.bearer_tokens import MAX_BYTES
from bookie_protocol.errors import InvalidConfiguration
from tests.support.until import until

KEY = "httpServerAuthTokenFile"
OLD, LOOK, DRAIN, WRITE = (f"{name}-of-sixteen-characters" for name in ("old", "look", "drain", "write"))


def shown(address: str = "10.0.0.7", subject: object = None, **headers: str) -> Shown:
    found = {name.replace("_", "-"): value for name, value in headers.items()}
    return Shown(address, found.get, subject)  # type: ignore[arg-type]


async def access(path: Path | None = None, *, certificates: bool = False, **rules: object) -> Access:
    tokens = await Tokens.load(KEY, str(path) if path is not None else None)
    return Access(AccessConfig(**rules), KEY, tokens, certificates=certificates)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("request_", "trusted"),
    [
        (shown("127.0.0.1"), True),
        (shown("127.0.0.6", host="localhost:8000"), True),
        (shown("::1", host="[::1]:8000"), True),
        (shown("::ffff:127.0.0.1", host="127.0.0.1"), True),
        (shown("10.0.0.7", host="127.0.0.1"), False),
        (shown("fe80::1%eth0"), False),
        (shown("?"), False),
        (shown("unix:"), False),
        (shown("127.0.0.1", host="bookie-0.example"), False),  # a page of elsewhere, or a proxy beside us
        (shown("127.0.0.1", host="127.0.0.1.example"), False),
        (shown("127.0.0.1", host="[::1"), False),
        (shown("127.0.0.1", x_forwarded_for="10.0.0.7"), False),
        (shown("127.0.0.1", forwarded="for=127.0.0.1"), False),
        (shown("127.0.0.1", via="1.1 proxy"), False),
        (shown("127.0.0.6", host="localhost", x_forwarded_proto="http"), False),  # Envoy beside us
        (shown("127.0.0.1", host="localhost", origin="http://localhost:3000"), True),
        (shown("127.0.0.1", host="localhost", origin="http://page.example"), False),  # a form of elsewhere's
        (shown("127.0.0.1", host="localhost", origin="null"), False),
        (shown("127.0.0.1", host="localhost", origin="http://[::1"), False),
        (shown("127.0.0.1", host="localhost", sec_fetch_site="cross-site"), False),  # a picture of elsewhere's
        (shown("127.0.0.1", host="localhost", sec_fetch_site="none"), True),
    ],
)
async def test_without_credentials_only_this_machine_is_trusted(request_: Shown, trusted: bool) -> None:
    rules = await access()
    caller = await rules.caller(request_)
    assert rules.knows_nobody
    assert caller.roles == (EVERYTHING if trusted else {Role.VIEWER})
    assert (rules.refusal(caller, Role.WRITER) is None) is trusted
    assert rules.refusal(caller, Role.VIEWER) is None


async def test_who_means_it_lets_everybody_in() -> None:
    rules = await access(allow_insecure=True)
    assert (await rules.caller(shown())).roles == EVERYTHING


async def test_with_tokens_neither_this_machine_nor_the_switch_counts(tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text("secret-of-the-port\n")
    rules = await access(tmp_path / "tokens", allow_insecure=True)
    caller = await rules.caller(shown("127.0.0.1"))
    assert (caller.roles, caller.is_known) == (frozenset(), False)
    refusal = rules.refusal(caller, Role.VIEWER)
    assert refusal is not None
    assert KEY in refusal


async def test_a_token_has_the_roles_of_its_line(tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text(
        f"# of people\n{OLD}\n{LOOK} viewer\n  {DRAIN} operator,reader ci \n\n{WRITE} writer\n# old viewer\n"
    )
    rules = await access(tmp_path / "tokens")

    async def of(token: str) -> tuple[str, frozenset[Role]]:
        caller = await rules.caller(shown(authorization=f"Bearer {token}"))
        return caller.name, caller.roles

    assert await of(OLD) == ("token of line 2", EVERYTHING)
    assert await of(LOOK) == ("token of line 3", {Role.VIEWER})
    assert await of(DRAIN) == ("ci", {Role.OPERATOR, Role.READER, Role.VIEWER})
    assert await of(WRITE) == ("token of line 6", {Role.WRITER, Role.READER, Role.VIEWER})
    for wrong in (f"{LOOK} viewer", "#", "viewer", ""):
        assert (await of(wrong))[1] == frozenset(), wrong
    known = await rules.caller(shown(authorization=f"Bearer {LOOK}"))
    refusal = rules.refusal(known, Role.ADMIN)
    assert refusal is not None
    assert "the role admin" in refusal
    assert "token of line 3" in refusal


async def test_a_file_that_is_too_long_is_not_read_in_part(tmp_path: Path) -> None:
    comment = "#" * (MAX_BYTES - len("\n" + OLD))
    (tmp_path / "tokens").write_text(f"{comment}\n{OLD} viewer\n")  # cut there, the token would be admin's
    with pytest.raises(InvalidConfiguration, match=str(MAX_BYTES)):
        await access(tmp_path / "tokens")


@pytest.mark.parametrize(
    "line",
    [
        "s3cret-of-18-bytes root",
        "s3cret-of-18-bytes viewer,",
        "s3cret-of-18-bytes viewer a name",
        "viewer",  # `echo "$(a command that failed) viewer"`
        "viewer dashboards",
        "Viewer,reader,operator dashboards",
        "s3cret-of-15byt",
    ],
)
async def test_a_line_that_is_wrong_ends_the_start_and_is_not_shown(tmp_path: Path, line: str) -> None:
    (tmp_path / "tokens").write_text(f"good-and-long-enough\n{line}\n")
    with pytest.raises(InvalidConfiguration, match=r"httpServerAuthTokenFile=.*line 2") as raised:
        await access(tmp_path / "tokens")
    assert "s3cret" not in str(raised.value)


@pytest.mark.parametrize("content", ["", "\n", " \n\n", "# s3cret\n"])
async def test_a_file_without_a_token_is_not_taken_for_no_file(tmp_path: Path, content: str) -> None:
    path = tmp_path / "tokens"
    path.write_text(content)
    with pytest.raises(InvalidConfiguration, match=f"{KEY}=.* token"):
        await access(path)
    path.write_text(f"{OLD}\r\n")
    rules = await access(path, allow_insecure=True)
    assert (await rules.caller(shown(authorization=f"Bearer {OLD}"))).roles == EVERYTHING
    assert rules._tokens is not None
    for emptied in (content, f"{OLD} root\n"):  # later on: nobody is let in, whoever asks from where
        path.write_text(emptied)
        rules._tokens._looked_at = -CHECK_S
        for asks in (shown("127.0.0.1"), shown(authorization=f"Bearer {OLD}"), shown(authorization="Bearer ")):
            assert (await rules.caller(asks)).roles == frozenset()


async def test_a_caller_that_goes_while_the_file_is_read_does_not_keep_a_revoked_token_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "tokens"
    path.write_text(f"{OLD}\n")
    rules = await access(path)
    assert rules._tokens is not None
    path.unlink()
    rules._tokens._looked_at = -CHECK_S
    begun, go, read = threading.Event(), threading.Event(), Tokens._read

    def slow_read(tokens: Tokens) -> None:
        begun.set()
        assert go.wait(10)
        read(tokens)

    monkeypatch.setattr(Tokens, "_read", slow_read)
    goes = asyncio.create_task(rules.caller(shown(authorization=f"Bearer {OLD}")))
    assert await asyncio.to_thread(begun.wait, 10)
    goes.cancel()
    await asyncio.wait([goes])
    go.set()
    await until(lambda: not rules._tokens._lines)
    assert (await rules.caller(shown(authorization=f"Bearer {OLD}"))).roles == frozenset()


async def test_no_token_counts_while_a_read_of_the_file_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "tokens"
    path.write_text(f"{OLD}\n")
    rules = await access(path)
    assert rules._tokens is not None
    rules._tokens._looked_at = -CHECK_S
    begun, go, read = threading.Event(), threading.Event(), Tokens._read

    def hung_read(tokens: Tokens) -> None:
        begun.set()
        assert go.wait(30)
        read(tokens)

    async def roles() -> frozenset[Role]:
        return (await rules.caller(shown(authorization=f"Bearer {OLD}"))).roles

    monkeypatch.setattr(Tokens, "_read", hung_read)
    monkeypatch.setattr(tokens, "GRACE_S", 0.1, raising=False)
    first = asyncio.create_task(roles())
    try:
        assert await asyncio.to_thread(begun.wait, 10)
        assert await roles() == frozenset()  # it waits for the read too, and no longer than the first
        assert await asyncio.wait_for(first, 10) == frozenset()
        assert await asyncio.wait_for(roles(), 10) == frozenset()
    finally:
        go.set()
    await until(lambda: rules._tokens._reading is None)
    assert await roles() == EVERYTHING


def subject(unit: str) -> object:
    return ((("commonName", "ci"),), (("organizationalUnitName", unit),), (("commonName", "second"),))


@pytest.mark.parametrize(
    ("unit", "roles"),
    [
        ("0:viewer", {Role.VIEWER}),
        ("0:operator;1:cluster", {Role.VIEWER, Role.OPERATOR}),
        ("0:bookie,operator", {Role.VIEWER, Role.OPERATOR}),
        ("0:client", set()),  # a role on port 3181
        ("0:vewer", set()),
        ("0:vewer,bookie", set()),
        ("0:,", set()),
        ("people", {Role.VIEWER, Role.READER}),
    ],
)
async def test_a_certificate_has_the_role_that_its_subject_names(unit: str, roles: set[Role]) -> None:
    rules = await access(certificates=True, certificate_roles=("reader",))
    caller = await rules.caller(shown(subject=subject(unit)))
    assert (caller.name, caller.roles, caller.is_known) == ("ci", roles, True)


async def test_by_default_a_certificate_without_a_role_looks_and_changes_nothing() -> None:
    rules = await access(certificates=True)
    assert (await rules.caller(shown(subject=subject("people")))).roles == {Role.VIEWER}


@pytest.mark.parametrize("roles", [("viewer",), ("admin",)])
async def test_who_shows_no_certificate_that_can_be_read_has_no_rights(roles: tuple[str, ...]) -> None:
    rules = await access(certificates=True, certificate_roles=roles)
    caller = await rules.caller(shown())  # its connection is gone, say
    assert (caller.roles, caller.is_known) == (frozenset(), False)
    assert rules.refusal(caller, Role.VIEWER) is not None
