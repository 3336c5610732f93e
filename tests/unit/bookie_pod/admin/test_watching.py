"""How the console of one bookie asks the others."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import DummyCookieJar

from bookie_pod.admin.routes import RESOURCES
from bookie_pod.admin.watching import MAX_BYTES, TIMEOUT_S, Watching
from bookie_pod.config.sections.service import HttpConfig
from bookie_pod.metrics.registry import Registry
from bookie_pod.server.http.server import HttpServer
from bookie_pod.server.http.start import start_http
from bookie_protocol.admin_api.bookie import LOAD
from bookie_protocol.admin_api.client import AdminClient, Place
from bookie_protocol.errors import BadRequest, BookieUnavailable, CouldNotTell, Unauthorized
from bookie_protocol.metadata_service.service_info import BOOKIE_RPC, BookieServiceInfo, Endpoint
from tests.support.certificates import Certificates
from tests.support.fake_admin import FakeAdmin
from tests.unit.bookie_pod.server.nodes import FakeNode

TOKEN = "look-of-sixteen-characters"


class Metadata:
    """What the other bookie publishes."""

    def __init__(self) -> None:
        self.info = BookieServiceInfo(())

    @property
    def bookies(self) -> Metadata:
        return self

    async def service_info(self, bookie_id: str) -> BookieServiceInfo:
        return self.info

    def publish(self, server: HttpServer, protocol: str) -> None:
        self.info = BookieServiceInfo(
            (
                Endpoint("bookie", "127.0.0.1", 3181, BOOKIE_RPC),
                Endpoint("httpserver", "127.0.0.1", server.port, protocol),
            )
        )


@pytest.fixture
async def https(tmp_path: Path) -> AsyncIterator[tuple[HttpServer, HttpConfig]]:
    """A bookie with tokens and HTTPS, and the configuration of all bookies of its cluster."""
    certificates = Certificates(tmp_path).make_all()
    certificates.make_named("named", "IP:127.0.0.1")
    (tmp_path / "tokens").write_text(f"{TOKEN} viewer\n")
    config = HttpConfig(
        server_host="127.0.0.1",
        server_port=0,
        auth_token_file=str(tmp_path / "tokens"),
        tls_enable=True,
        tls_client_authentication=False,
        key_store_path=str(tmp_path / "named.key"),
        certificate_path=str(tmp_path / "named.pem"),
        trust_store_path=str(tmp_path / "authority.pem"),
    )
    server = await start_http(config, FakeNode(), Registry(), FakeAdmin, table=RESOURCES)
    assert server is not None
    yield server, config
    await server.stop()


async def test_another_bookie_is_asked_over_tls_with_the_token_of_who_looks(
    https: tuple[HttpServer, HttpConfig],
) -> None:
    server, config = https
    metadata = Metadata()
    metadata.publish(server, "http")  # as bookies publish it, whatever they speak
    watching = Watching(metadata, config)  # type: ignore[arg-type]
    load = await watching.ask("other", LOAD, None, TOKEN)
    assert load.total_space == 100
    for token in (None, "wrong-of-sixteen-characters"):
        with pytest.raises(Unauthorized):
            await watching.ask("other", LOAD, None, token)
    await watching.stop()
    with pytest.raises(CouldNotTell):
        await watching.ask("other", LOAD, None, TOKEN)


async def test_who_cannot_prove_that_it_is_the_bookie_gets_no_token(
    https: tuple[HttpServer, HttpConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    server, config = https
    metadata = Metadata()
    metadata.publish(server, "https")
    monkeypatch.setattr("bookie_pod.admin.watching.client_context", lambda config: ssl.create_default_context())
    watching = Watching(metadata, config)  # type: ignore[arg-type]
    with pytest.raises(CouldNotTell):
        await watching.ask("other", LOAD, None, TOKEN)
    await watching.stop()


async def test_a_registration_without_tls_here_gets_no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Place] = []

    async def ask(client: AdminClient, at: Place, *_: object, **__: object) -> None:
        seen.append(at)

    monkeypatch.setattr(AdminClient, "ask", ask)
    metadata = Metadata()
    metadata.info = BookieServiceInfo((Endpoint("httpserver", "evil.example", 443, "https"),))
    watching = Watching(metadata, HttpConfig())  # type: ignore[arg-type]
    await watching.ask("other", LOAD, None, TOKEN)
    await watching.stop()
    assert [place.may_see_token for place in seen] == [False]


async def test_one_bookie_takes_few_connections_few_bytes_and_sets_no_cookie() -> None:
    watching = Watching(Metadata(), HttpConfig())  # type: ignore[arg-type]
    session = watching._open()
    assert session.connector is not None
    assert 1 <= session.connector.limit_per_host <= session.connector.limit // 4
    assert isinstance(session.cookie_jar, DummyCookieJar)
    assert (MAX_BYTES <= 256 * 1024, TIMEOUT_S <= 5) == (True, True)
    await watching.stop()


async def test_what_is_no_bookie_id_names_no_node() -> None:
    watching = Watching(Metadata(), HttpConfig())  # type: ignore[arg-type]
    for wrong in ("readonly/other", "..", "", "a b", "readonly"):
        with pytest.raises(BadRequest):
            await watching.ask(wrong, LOAD, None, None)
    await watching.stop()


async def test_a_bookie_without_an_http_port_says_so() -> None:
    watching = Watching(Metadata(), HttpConfig())  # type: ignore[arg-type]
    with pytest.raises(BookieUnavailable, match="httpServerEnabled"):
        await watching.ask("other", LOAD, None, None)
    await watching.stop()
