"""The servers to which a bookie and its commands show their token: those of its own configuration."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from bookie_pod.admin.peers import bookie_admin, trust_of
from bookie_pod.config.sections.service import HttpConfig
from bookie_pod.server.http.tls import client_context
from bookie_protocol.admin_api.client import AdminClient, Place
from bookie_protocol.metadata_service.service_info import BookieServiceInfo, Endpoint
from bookie_protocol.metadata_service.tree.service import MetadataService
from tests.support.certificates import Certificates

BOOKIES = ("https://h:8000", "http://127.0.0.1:8000", "http://h:8000")


class Registered:
    """A metadata service with one registration."""

    def __init__(self, *endpoints: Endpoint) -> None:
        self.info = BookieServiceInfo(endpoints)

    @property
    def bookies(self) -> Registered:
        return self

    async def service_info(self, bookie_id: str) -> BookieServiceInfo:
        return self.info


@pytest.mark.parametrize(
    ("settings", "trusted"),
    [
        ({}, []),  # as in a pod without TLS: any port of this machine may be a stranger's
        ({"server_host": "127.0.0.1"}, ["http://127.0.0.1:8000"]),
        ({"server_host": "::1"}, ["http://127.0.0.1:8000"]),
        ({"tls_enable": True}, []),  # any authority of this machine
        ({"trust_store_path": "authority.pem"}, []),
        ({"tls_enable": True, "trust_store_path": "authority.pem"}, ["https://h:8000"]),
    ],
)
def test_a_published_address_is_trusted_only_as_the_configuration_says(
    tmp_path: Path, settings: dict[str, object], trusted: list[str]
) -> None:
    Certificates(tmp_path).make_all()
    config = HttpConfig(tls_client_authentication=False, **settings)  # type: ignore[arg-type]
    if config.trust_store_path is not None:
        config = dataclasses.replace(config, trust_store_path=str(tmp_path / config.trust_store_path))
    tls = client_context(config)
    trust = trust_of(config, tls)
    assert [url for url in BOOKIES if Place("it", url, tls, trust=trust).may_see_token] == trusted


@pytest.mark.parametrize(
    ("endpoint", "options", "may"),
    [
        (Endpoint("httpserver", "127.0.0.1", 1, "http"), {}, False),
        (Endpoint("httpserver", "evil.example", 443, "https"), {}, False),
        (Endpoint("httpserver", "127.0.0.1", 1, "http"), {"url": "http://127.0.0.1:1/"}, True),
        (Endpoint("httpserver", "evil.example", 443, "https"), {"tls": "authority.pem"}, True),
    ],
)
async def test_a_decommission_shows_its_token_only_to_servers_that_an_option_or_the_configuration_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, endpoint: Endpoint, options: dict[str, str], may: bool
) -> None:
    seen: list[Place] = []

    async def fetch(client: AdminClient, at: Place, *_: object) -> bytes:
        seen.append(at)
        return b""

    monkeypatch.setattr(AdminClient, "fetch", fetch)
    Certificates(tmp_path).make_all()
    config = HttpConfig(tls_enable=True, tls_client_authentication=False, trust_store_path=None)
    tls = client_context(dataclasses.replace(config, trust_store_path=str(tmp_path / "authority.pem")))
    metadata: MetadataService = Registered(endpoint)  # type: ignore[assignment]
    admin = bookie_admin(
        metadata, HttpConfig(), url=options.get("url"), token="t", tls=tls if "tls" in options else None
    )
    await admin.set_read_only("other", True)
    assert [place.may_see_token for place in seen] == [may]
