"""The role of every route and every call, and what becomes of those who lack it."""

from __future__ import annotations

import json
import socket
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from multidict import CIMultiDict
from structlog.testing import capture_logs

from bookie_pod import audit
from bookie_pod.admin.routes import RESOURCES
from bookie_pod.config.sections.service import AccessConfig, HttpConfig
from bookie_pod.gateway.gateway import ROLES
from bookie_pod.metrics.registry import Registry
from bookie_pod.roles import Role
from bookie_pod.server.http.api.table import Group
from bookie_pod.server.http.routes import resources
from bookie_pod.server.http.start import start_http
from bookie_protocol.digest import DigestType
from bookie_protocol.ledger_metadata.model import LedgerMetadata
from bookie_protocol.ledger_service.ledger_service_pb2 import DESCRIPTOR
from tests.support.certificates import Certificates
from tests.support.fake_admin import FakeAdmin
from tests.support.http_answers import HttpAnswer, ask
from tests.support.until import until
from tests.unit.bookie_pod.server.nodes import FakeNode

ELSEWHERE = {"X-Forwarded-For": "10.0.0.7"}
TABLE = resources(RESOURCES, frozenset())
CHANGE = ("PUT", "/api/v1/bookie/gc")
DELETE = ("DELETE", "/api/v1/ledger/delete?ledger_id=5")
LOOK = ("GET", "/api/v1/bookie/info")


def test_every_route_of_the_admin_api_and_no_other_names_a_role() -> None:
    operations = [(each.group, each.path, operation) for each in TABLE for operation in each.operations]
    assert len(operations) > 60
    for group, path, operation in operations:
        assert (operation.role is not None) is (group is Group.ADMIN), path
        if operation.route.method != "GET" and group is Group.ADMIN and not path.endswith("/decommission/proof"):
            assert operation.role in (Role.OPERATOR, Role.ADMIN), f"{operation.route.method} {path}"


def test_what_gives_data_up_or_shows_secrets_is_for_admins() -> None:
    by_name = {(o.route.method, each.path.removeprefix("/api/v1/")): o.role for each in TABLE for o in each.operations}
    for name in (
        ("DELETE", "ledger/delete"),
        ("GET", "ledger/read"),
        *((method, "bookie/cookie") for method in ("POST", "PUT", "DELETE")),
        ("PUT", "config/server_config"),
        ("PUT", "bookie/expand_storage"),
    ):
        assert by_name[name] is Role.ADMIN, name


def test_every_call_over_grpc_names_a_role() -> None:
    calls = {method.name for method in DESCRIPTOR.services_by_name["LedgerService"].methods}
    assert set(ROLES) == calls
    assert ROLES["Delete"] is Role.ADMIN


class Server:
    def __init__(self, port: int, admin: FakeAdmin, log: Path, registry: Registry) -> None:
        self.port = port
        self._log = log
        self.admin = admin
        self.registry = registry

    async def __call__(self, request: tuple[str, str], body: str | None = None, **headers: str) -> HttpAnswer:
        return await ask(self.port, request[1], request[0], body, **headers)

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._log.read_text().splitlines()]

    def counted(self, outcome: str) -> float:
        found = [line for line in self.registry.render().splitlines() if f'outcome="{outcome}"' in line]
        (line,) = (line for line in found if line.startswith("bookie_audit_ACTIONS"))
        return float(line.rsplit(" ", 1)[1])


@pytest.fixture
async def server(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Server]:
    """Marked with the lines of its tokens, or without any."""
    tokens: str | None = getattr(request, "param", None)
    config = HttpConfig(server_port=0, server_host="127.0.0.1")
    if tokens is not None:
        (tmp_path / "tokens").write_text(tokens)
        config = replace(config, auth_token_file=str(tmp_path / "tokens"))
    admin, log, registry = FakeAdmin(), tmp_path / "audit.log", Registry()
    rules = AccessConfig(audit_log_file=str(log))
    served = await start_http(config, FakeNode(), registry, lambda: admin, table=RESOURCES, rules=rules)
    assert served is not None
    yield Server(served.port, admin, log, registry)
    await served.stop()


async def test_without_credentials_strangers_look_and_change_nothing(server: Server) -> None:
    assert (await server(LOOK, **ELSEWHERE)).status == 200
    assert (await server(("GET", "/metrics"), **ELSEWHERE)).status == 200
    for change in (CHANGE, DELETE):
        refused = await server(change, "{}", **ELSEWHERE)
        assert refused.status == 403
        assert "allowInsecureAccess" in refused.body
        assert "httpServerAuthTokenFile" in refused.body
    assert server.admin.gc.forced == []
    assert (await server(CHANGE, "{}")).status == 200
    assert len(server.admin.gc.forced) == 1


TOKENS = "all-of-the-roles\nlooks-and-no-more viewer\nruns-the-cluster operator ci\n"


@pytest.mark.parametrize("server", [TOKENS], indirect=True)
async def test_a_change_for_which_nobody_waits_any_more_is_not_made(server: Server) -> None:
    """As if the bookie had stood still for so long that the operator which asked has a successor by now."""
    body = b'{"readOnly": true}'
    head = "PUT /api/v1/bookie/state/readonly HTTP/1.1\r\nHost: bookie\r\nAuthorization: Bearer runs-the-cluster\r\n"
    head += f"Content-Length: {len(body)}\r\n\r\n"
    with capture_logs():
        with socket.create_connection(("127.0.0.1", server.port)) as asker:
            asker.sendall(head.encode() + body)
        await until(server.lines)
    (line,) = server.lines()
    assert line["outcome"] == "failed"
    assert not server.admin.node.flags.read_only


@pytest.mark.parametrize("server", [TOKENS], indirect=True)
@pytest.mark.parametrize(
    ("token", "statuses"),
    [
        ("looks-and-no-more", (200, 403, 403)),
        ("runs-the-cluster", (200, 200, 403)),
        ("all-of-the-roles", (200, 200, 200)),
    ],
)
async def test_each_token_may_what_its_roles_allow(server: Server, token: str, statuses: tuple[int, ...]) -> None:
    shown = {"Authorization": f"Bearer {token}"}
    assert tuple([(await server(each, **shown)).status for each in (LOOK, CHANGE, DELETE)]) == statuses


@pytest.mark.parametrize("server", [TOKENS], indirect=True)
async def test_tokens_that_are_shown_twice_count_as_none(server: Server) -> None:
    shown = [("Authorization", f"Bearer {token}") for token in ("all-of-the-roles", "looks-and-no-more")]
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://127.0.0.1:{server.port}{LOOK[1]}", headers=CIMultiDict(shown)) as answer,
    ):
        assert answer.status == 401


@pytest.mark.parametrize("server", [TOKENS], indirect=True)
async def test_every_route_refuses_whoever_lacks_its_role(server: Server) -> None:
    """Before it looks at what is asked: none of these requests has what its route needs."""
    lacking = {Role.VIEWER: "", Role.OPERATOR: "looks-and-no-more", Role.ADMIN: "runs-the-cluster"}
    asked = 0
    for each in TABLE:
        for operation in each.operations:
            if operation.role in lacking:
                token = lacking[operation.role]
                answer = await server((operation.route.method, each.path), "{}", Authorization=f"Bearer {token}")
                assert answer.status == (403 if token else 401), f"{operation.route.method} {each.path}"
                asked += 1
    assert asked > 60
    assert server.counted("refused") == asked
    assert server.admin.gc.forced == []


@pytest.mark.parametrize("server", [TOKENS], indirect=True)
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("autorecovery/decommission", {"bookie_src": "b:1", "delete_cookie": "true"}),
        ("autorecovery/decommission", {"bookie_src": "b:1", "accept_loss": "7"}),
        ("autorecovery/bookie", {"bookie_src": ["b:1"], "delete_cookie": True}),
        ("bookie/index_rebuild", {"acceptDamage": True}),
    ],
)
async def test_an_operator_gives_no_data_up(server: Server, path: str, body: dict[str, object]) -> None:
    request = ("PUT", f"/api/v1/{path}")
    refused = await server(request, json.dumps(body), Authorization="Bearer runs-the-cluster")
    assert refused.status == 403
    assert "needs the role admin" in refused.body
    assert (await server(request, json.dumps(body), Authorization="Bearer all-of-the-roles")).status == 200
    assert [line["outcome"] for line in server.lines()] == ["refused", "done"]


@pytest.mark.parametrize("server", [TOKENS], indirect=True)
@pytest.mark.parametrize("query", ["", "&decode_meta=true"])
async def test_passwords_are_for_admins(server: Server, query: str) -> None:
    ledger_id = 5
    server.admin.ledgers.ledgers[ledger_id] = LedgerMetadata(
        5, 1, 1, 1, {0: ("b1",)}, digest_type=DigestType.MAC, password=b"hunter2"
    )
    hidden = ("hunter2", "aHVudGVyMg==")
    for path in (f"ledger/metadata?ledger_id={ledger_id}", f"ledger/list?print_metadata=true{query}"):
        answers = {
            token: (await server(("GET", f"/api/v1/{path}"), Authorization=f"Bearer {token}")).body
            for token in ("looks-and-no-more", "runs-the-cluster", "all-of-the-roles")
        }
        assert [any(secret in answers[token] for secret in hidden) for token in answers] == [False, False, True], path


@pytest.mark.parametrize(
    ("name", "statuses"),
    [("viewer", (200, 403)), ("unknown", (403, 403)), ("admin", (200, 200)), ("client", (200, 403))],
)
async def test_a_certificate_may_what_the_role_in_its_subject_allows(
    tmp_path: Path, name: str, statuses: tuple[int, ...]
) -> None:
    certificates = Certificates(tmp_path).make_all()
    certificates.make_named("server", "IP:127.0.0.1")
    for unit, role in (("viewer", "viewer"), ("unknown", "vewer"), ("admin", "client,admin")):
        certificates.make_unit(unit, f"0:{role}")
    config = HttpConfig(
        server_port=0,
        server_host="127.0.0.1",
        tls_enable=True,
        certificate_path=str(tmp_path / "server.pem"),
        key_store_path=str(tmp_path / "server.key"),
        trust_store_path=str(tmp_path / "authority.pem"),
    )
    admin = FakeAdmin()
    server = await start_http(config, FakeNode(), Registry(), lambda: admin, table=RESOURCES)
    assert server is not None
    found = []
    async with aiohttp.ClientSession(headers=ELSEWHERE) as session:
        for method, path in (LOOK, DELETE):
            url, tls = f"https://127.0.0.1:{server.port}{path}", certificates.client_context(name)
            async with session.request(method, url, ssl=tls) as answer:
                found.append(answer.status)
    await server.stop()
    assert tuple(found) == statuses


# --- the audit trail --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("server", [TOKENS], indirect=True)
async def test_each_change_is_one_line(server: Server) -> None:
    answer = await server(DELETE, Authorization="Bearer all-of-the-roles", **{"X-Request-Id": "from-ci.7"})
    assert {name.lower(): value for name, value in answer.headers.items()}["x-request-id"] == "from-ci.7"
    await server(CHANGE, "s3cret is no JSON", Authorization="Bearer runs-the-cluster", **{"X-Request-Id": "no\tid"})
    await server(LOOK, Authorization="Bearer all-of-the-roles")
    deleted, wrong = server.lines()
    assert deleted.pop("time").endswith("Z")
    assert deleted == {
        "via": "http",
        "who": "token of line 1",
        "from": "127.0.0.1",
        "request": "from-ci.7",
        "what": "DELETE /api/v1/ledger/delete",
        "of": {"ledger_id": 5},
        "outcome": "done",
    }
    assert (wrong["who"], wrong["what"], wrong["outcome"]) == ("ci", "PUT /api/v1/bookie/gc", "failed")
    assert wrong["reason"] == "HTTP 400"  # its text repeats what was sent
    assert wrong["request"] not in ("no\tid", "from-ci.7")


@pytest.mark.parametrize("server", [TOKENS], indirect=True)
async def test_strangers_do_not_fill_the_log_but_are_counted(server: Server) -> None:
    for _ in range(30):
        assert (await server(DELETE, Authorization="Bearer s3cret")).status == 401
    lines = server.lines()
    assert len(lines) == 20
    assert {(line["who"], line["outcome"]) for line in lines} == {("a stranger", "refused")}
    assert server.counted("refused") == 30
    assert "s3cret" not in json.dumps(lines)


async def test_a_log_that_cannot_be_written_costs_a_line_and_no_request(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: str, text: str) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(audit, "append", full)
    assert (await server(DELETE)).status == 200
    assert server.counted("lost") == 1
    assert server.counted("done") == 1


async def test_the_log_may_be_moved_away(server: Server, tmp_path: Path) -> None:
    await server(DELETE)
    (tmp_path / "audit.log").rename(tmp_path / "audit.log.1")
    await server(CHANGE, "{}")
    assert [line["what"] for line in server.lines()] == ["PUT /api/v1/bookie/gc"]
