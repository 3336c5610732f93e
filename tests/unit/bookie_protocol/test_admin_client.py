"""To whom the client of the admin API shows a token."""

from __future__ import annotations

import ssl

import aiohttp
import pytest
from aiohttp import web

from bookie_protocol.admin_api.bodies import NOTHING, Route
from bookie_protocol.admin_api.client import AdminClient, Place
from bookie_protocol.errors import Unauthorized

TRUSTS_ANYBODY = ssl.create_default_context()
TRUSTS_ANYBODY.check_hostname = False
TRUSTS_ANYBODY.verify_mode = ssl.CERT_NONE


@pytest.mark.parametrize(
    ("place", "may"),
    [
        (Place("it", "http://bookie-1:8000"), False),
        (Place("it", "http://10.0.0.7:8000"), False),
        (Place("it", "http://127.0.0.1.example.org:8000"), False),
        (Place("it", "http://127.0.0.1@example.org:8000"), False),
        (Place("it", "http://localhost:8000"), True),
        (Place("it", "http://[::1]:8000"), True),
        (Place("it", "https://bookie-1:8000"), True),
        (Place("it", "https://bookie-1:8000", ssl.create_default_context()), True),
        (Place("it", "https://bookie-1:8000", TRUSTS_ANYBODY), False),
        (Place("it", "http://10.0.0.7:8000", shows_token_in_plain=True), True),
    ],
)
def test_a_token_goes_where_nobody_else_can_read_it(place: Place, may: bool) -> None:
    assert place.may_see_token is may


async def test_a_token_that_is_kept_is_not_sent_and_who_demands_it_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str | None] = []

    async def answer(request: web.Request) -> web.Response:
        seen.append(request.headers.get("Authorization"))
        return web.Response(status=401 if seen[-1] is None else 200)

    application = web.Application()
    application.router.add_get("/x", answer)
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    here = Place("it", f"http://127.0.0.1:{runner.addresses[0][1]}")
    route = Route("GET", "/x", NOTHING)
    try:
        async with aiohttp.ClientSession() as session:
            client = AdminClient(session, "a-secret")
            await client.fetch(here, route)
            monkeypatch.setattr("bookie_protocol.admin_api.client.is_loopback", lambda host: False)
            with pytest.raises(Unauthorized, match="demands a token, which is shown over https") as caught:
                await client.fetch(here, route)
        assert seen == ["Bearer a-secret", None]
        assert "a-secret" not in str(caught.value)
    finally:
        await runner.cleanup()
