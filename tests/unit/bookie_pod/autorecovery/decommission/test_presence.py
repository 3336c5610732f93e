"""How a bookie is made read-only: over the endpoint that it publishes, with every answer that it may give."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web

from bookie_pod.autorecovery.decommission.presence import (
    BookieAdmin,
    Presence,
    Vigil,
    make_read_only,
    make_writable,
    presence_of,
)
from bookie_protocol.admin_api.trust import Trust
from bookie_protocol.errors import BookieUnavailable, PodkeeperError, Refused, Unauthorized
from bookie_protocol.metadata_service.service_info import BOOKIE_RPC, BookieServiceInfo, Endpoint
from tests.support.bookie_process import free_port
from tests.support.certificates import Certificates
from tests.support.decommission_rig import GOING, R, Rig, W
from tests.support.until import until


class Api:
    """A bookie's admin API that answers as told."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.status = 200
        self.asked: list[tuple[str, dict[str, object], str | None]] = []
        self.port = 0

    async def start(self, tls: ssl.SSLContext | None = None) -> web.AppRunner:
        app = web.Application()
        app.router.add_put("/api/v1/bookie/state/readonly", self._answer)
        app.router.add_put("/elsewhere", self._answer)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
        await site.start()
        self.port = runner.addresses[0][1]
        return runner

    async def _answer(self, request: web.Request) -> web.Response:
        members = json.loads(await request.text())
        self.asked.append((request.path_qs, members, request.headers.get("Authorization")))
        if members.keys() != {"readOnly"}:
            return web.Response(status=500, text="Failed to deserialize Object from Json string")  # as Apache's do
        if self.status == 200:
            await self.rig.set_registration(R if members["readOnly"] else W)
        elsewhere = {"Location": f"http://127.0.0.1:{self.port}/elsewhere"} if self.status == 308 else None
        return web.Response(status=self.status, text="because\nof something", headers=elsewhere)


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    async with Rig(tmp_path) as made:
        yield made


@pytest.fixture
async def api(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Api]:
    """Published with every registration of the bookie."""
    made = Api(rig)
    runner = await made.start()
    publish(monkeypatch, Endpoint("httpserver", "0.0.0.0", made.port, "http"))
    await rig.stop(GOING)
    await rig.start(GOING)
    yield made
    await runner.cleanup()


def publish(monkeypatch: pytest.MonkeyPatch, *endpoints: Endpoint) -> None:
    made = BookieServiceInfo((*endpoints, Endpoint("bookie", "127.0.0.1", 1, BOOKIE_RPC)))
    monkeypatch.setattr("tests.support.decommission_rig.info", lambda bookie_id: made)


async def test_it_is_asked_where_it_says_that_it_is(rig: Rig, api: Api) -> None:
    trust = Trust(own_machine=True)
    admin = BookieAdmin(rig.service, token="secret", trust=trust)  # which is at any address of its host
    await make_read_only(rig.service, admin, GOING, Presence.WRITABLE, 7)
    assert await presence_of(rig.service, GOING) is Presence.READ_ONLY
    assert await make_writable(rig.service, admin, GOING)
    assert await presence_of(rig.service, GOING) is Presence.WRITABLE
    path = "/api/v1/bookie/state/readonly"
    assert api.asked == [
        (path_and_query, {"readOnly": flag}, "Bearer secret")
        for path_and_query, flag in ((f"{path}?decommission=7", True), (path, False))
    ]


async def test_one_of_somebody_else_is_asked_without_tls_and_without_the_token(
    rig: Rig, api: Api, tmp_path: Path
) -> None:
    folder = Certificates(tmp_path).make_all().folder
    trusting = ssl.create_default_context(cafile=str(folder / "authority.pem"))
    trust = Trust(authorities=trusting, own_machine=True)
    admin = BookieAdmin(rig.service, token="secret", tls=trusting, trust=trust)
    await make_read_only(rig.service, admin, GOING, Presence.WRITABLE)
    assert [token for *_, token in api.asked] == [None]


async def test_who_speaks_tls_without_saying_so_gets_the_token_and_no_other_does(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made = Certificates(tmp_path).make_all()
    made.make_named("here", "IP:127.0.0.1")
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server.load_cert_chain(made.folder / "here.pem", made.folder / "here.key")
    api = Api(rig)
    runner = await api.start(server)
    publish(monkeypatch, Endpoint("httpserver", "127.0.0.1", api.port, "http"))
    await rig.stop(GOING)
    await rig.start(GOING)
    try:
        tls = ssl.create_default_context(cafile=str(made.folder / "authority.pem"))
        trusting = BookieAdmin(rig.service, token="secret", tls=tls, trust=Trust(authorities=tls))
        await make_read_only(rig.service, trusting, GOING, Presence.WRITABLE)
        assert [token for *_, token in api.asked] == ["Bearer secret"]
        doubting = BookieAdmin(rig.service, token="secret", tls=ssl.create_default_context())
        with pytest.raises(BookieUnavailable, match=r"at https://.*certificate"):
            await doubting.set_read_only(GOING, False)
        assert len(api.asked) == 1
    finally:
        await runner.cleanup()


async def test_one_that_says_that_it_speaks_tls_is_never_asked_without(
    rig: Rig, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(monkeypatch, Endpoint("httpserver", "127.0.0.1", api.port, "http", extensions=("tls",)))
    await rig.stop(GOING)
    await rig.start(GOING)
    with pytest.raises(BookieUnavailable, match="speak TLS"):
        await BookieAdmin(rig.service, token="secret", tls=ssl.create_default_context()).set_read_only(GOING, True)
    assert api.asked == []


async def test_a_registered_address_that_the_configuration_does_not_name_gets_no_token_and_is_not_repeated(
    rig: Rig, api: Api
) -> None:
    api.status = 403
    with pytest.raises(Unauthorized) as caught:
        await BookieAdmin(rig.service, token="secret", trust=Trust()).set_read_only(GOING, True)
    assert ([token for *_, token in api.asked], "because" in str(caught.value)) == ([None], False)


async def test_a_url_wins(rig: Rig, api: Api) -> None:
    admin = BookieAdmin(rig.service, url="http://127.0.0.1:1/")
    with pytest.raises(BookieUnavailable, match="reached"):
        await admin.set_read_only(GOING, True)


@pytest.mark.parametrize(
    ("status", "kind", "words"),
    [
        (401, Unauthorized, "demands"),
        (403, Unauthorized, "something"),
        (400, Refused, "mode: .*something"),
        (404, Refused, "mode: .*something"),
        (503, BookieUnavailable, "something"),
    ],
)
async def test_what_it_answers_is_told(rig: Rig, api: Api, status: int, kind: type[PodkeeperError], words: str) -> None:
    api.status = status
    admin = BookieAdmin(rig.service, trust=Trust(own_machine=True))
    with pytest.raises(kind, match=words):
        await admin.set_read_only(GOING, True)
    with pytest.raises(Refused, match=r"still .*read-only"):
        await make_read_only(rig.service, admin, GOING, Presence.WRITABLE)
    await make_read_only(rig.service, admin, GOING, Presence.READ_ONLY)  # it is already


async def test_nobody_is_sent_elsewhere(rig: Rig, api: Api) -> None:
    api.status = 308
    with pytest.raises(BookieUnavailable, match="something"):
        await BookieAdmin(rig.service, token="t0k", trust=Trust(own_machine=True)).set_read_only(GOING, True)
    assert len(api.asked) == 1


async def test_one_that_publishes_nothing(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    admin = BookieAdmin(rig.service)
    with pytest.raises(BookieUnavailable, match="httpServerEnabled=true"):
        await admin.set_read_only(GOING, True)
    await rig.stop(GOING)
    with pytest.raises(BookieUnavailable, match="registered"):
        await admin.set_read_only(GOING, True)
    assert not await make_writable(rig.service, admin, GOING)
    publish(monkeypatch, Endpoint("httpserver", "127.0.0.1", free_port(), "http"))
    await rig.start(GOING)
    with pytest.raises(BookieUnavailable, match="reached"):
        await admin.set_read_only(GOING, True)


async def test_one_whose_registration_does_not_show_it_is_waited_for_no_longer_than_that_takes(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bookie_pod.autorecovery.decommission.presence.ANNOUNCED_S", 0.0)
    monkeypatch.setattr(rig, "set_registration", lambda group, bookie: asyncio.sleep(0))
    with pytest.raises(BookieUnavailable, match="registration"):
        await make_read_only(rig.service, rig, GOING, Presence.WRITABLE)


async def test_a_vigil_remembers(rig: Rig) -> None:
    await rig.set_registration(R)
    async with Vigil(rig.service, GOING) as vigil:
        assert await vigil.check() is Presence.READ_ONLY
        await rig.stop(GOING)
        assert await vigil.check() is Presence.ABSENT
        assert not vigil.seen_writable
        await rig.start(GOING, W)
        await until(lambda: vigil.seen_writable)  # without being asked
        await rig.set_registration(R)
        assert await vigil.check() is Presence.READ_ONLY
        assert vigil.seen_writable
        vigil.reset()
        assert not vigil.seen_writable
