"""The console of a live bookie in a real browser."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bookie_client import Client
from bookie_client.streams import Streams, StreamSettings
from bookie_client.streams.model import START
from bookie_protocol.web_console.site import PAGES
from tests.support.browser import CHROMIUM, Tab, browser
from tests.support.live_bookie import live_bookie

pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed"),
    pytest.mark.timeout(240),
]
TOKEN = "look-of-sixteen-characters"
HOSTILE = "\"'><img src=x onerror=alert(1)><script>alert(2)</script>"
BUDGET = 200_000


class Live:
    def __init__(self, url: str, ledger_id: int, bookie_id: str) -> None:
        self.url = url
        self.ledger_id = ledger_id
        self.bookie_id = bookie_id


@pytest.fixture
async def live(tmp_path: Path) -> AsyncIterator[Live]:
    """A bookie with a token, a ledger whose metadata attack, and a stream with a consumer."""
    (tmp_path / "tokens").write_text(f"{TOKEN} viewer\n")
    settings = {"httpServerAuthTokenFile": str(tmp_path / "tokens"), "networkLocation": "/zone-a/<b>rack"}
    async with live_bookie(tmp_path, settings) as bookie, Client(bookie._metadata) as client:
        attack = {HOSTILE: HOSTILE.encode()}
        async with client.create(ensemble=1, write_quorum=1, ack_quorum=1, metadata=attack) as ledger:
            await ledger.append_many([b"x" * 1000] * 20)
        streams = Streams(client)
        await streams.create("orders", StreamSettings(ensemble=1, write_quorum=1, ack_quorum=1))
        async with streams.writer("orders") as writer:
            await writer.append(b"first")
        await streams.move_cursor("orders", "billing", START)
        url = f"http://127.0.0.1:{bookie.config.http.server_port}/ui"
        yield Live(url, ledger.ledger_id, bookie.bookie_id)


async def test_a_person_logs_in_looks_at_everything_and_nothing_runs_that_is_not_ours(
    live: Live, tmp_path: Path
) -> None:
    paths = [
        "",
        "/bookies",
        f"/bookie?id={live.bookie_id}",
        f"/log?bookie={live.bookie_id}&entryLog=0.log",
        "/ledgers",
        f"/ledger?id={live.ledger_id}&replicas=true",
        "/streams",
        "/stream?name=orders",
        "/healing",
    ]
    assert [path.partition("?")[0] for path in paths] == [page.path for page in PAGES]
    async with browser(tmp_path, TOKEN) as tab:
        for path in paths:
            await tab.go(live.url + path)
            assert await tab.value("document.querySelector('h1').textContent") not in ("", "401", "500", "503"), path
            assert await tab.value("document.documentElement.outerHTML.length") < BUDGET
            assert await tab.value("document.querySelectorAll('img').length") == 0
        await tab.go(f"{live.url}/ledger?id={live.ledger_id}")
        assert await tab.value("document.body.innerText.includes('<img src=x onerror=alert(1)>')")
        await tab.go(f"{live.url}/streams")
        assert await tab.value("document.body.innerText.includes('1 entry behind')")
        await _keys_lead_everywhere(tab)
        await _it_is_live(tab, live)
        assert tab.complaints == []
        assert {url.partition("/ui")[0] + "/ui" for url in tab.requests} == {live.url}, "nothing else was asked for"
        attack = (
            '<img src="data:x" onerror="document.title = 1"><script>document.title = 2</script><b style="color:red">'
        )
        await tab.value(f"document.body.insertAdjacentHTML('beforeend', {attack!r})")
        await tab.until("document.images.length === 1")
        async with asyncio.timeout(20):
            while len(tab.complaints) < 2:  # noqa: ASYNC110  # of the picture and of the style
                await asyncio.sleep(0.05)
        assert await tab.value("document.title") not in ("1", "2"), "the policy lets nothing run, whatever comes in"


async def _keys_lead_everywhere(tab: Tab) -> None:
    for key, heading in (("b", "Bookies"), ("l", "Ledgers"), ("h", "Healing"), ("o", "Overview"), ("s", "Streams")):
        await tab.press(key)
        await tab.until(f"document.querySelector('h1')?.textContent === '{heading}'")
        await tab.until("document.readyState === 'complete'")
    await tab.press("/")
    assert await tab.value("document.activeElement.name") == "prefix"
    await tab.press("b")  # a letter of a search, not a key
    assert await tab.value("document.querySelector('h1').textContent") == "Streams"
    await tab.press("Escape")
    await tab.press("?")
    assert await tab.value("document.getElementById('help').open")


async def _it_is_live(tab: Tab, live: Live) -> None:
    await tab.go(live.url)
    await tab.value("document.querySelector('.figures').dataset.old = 'yes'")
    await tab.until("document.querySelector('.figures').dataset.old !== 'yes'")
    await tab.press("p")
    assert await tab.value("document.getElementById('pause').getAttribute('aria-pressed')") == "true"
    ground = "getComputedStyle(document.body).backgroundColor"
    await tab.likes("light")
    light = await tab.value(ground)
    await tab.likes("dark")
    assert await tab.value(ground) != light
