"""Space: by owner from metadata, by bookie from a real admin API, and the forecast."""

from __future__ import annotations

import aiohttp
import pytest

from bookie_client import Client
from bookie_client.bookies import Bookies
from bookie_client.streams import Streams
from bookie_client.streams.model import STREAM_KEY, PublishedLedger, StreamSettings
from bookie_pod.node.identity.bookie_id import bookie_service_info
from bookie_protocol.admin_api.client import AdminClient, Place
from bookie_protocol.admin_api.trust import Trust
from pyspark_bookie.jobs.replicas.units import Slice, Unit
from pyspark_bookie.jobs.space import (
    AdminAccess,
    Stock,
    StockQuestion,
    admin_places,
    ask_bookies,
    bookie_rows,
    bytes_per_day,
    days_until_full,
    log_rows,
    owner_rows,
    stock_of,
    table_of,
)
from tests.support.bookie_process import free_port
from tests.support.certificates import Certificates
from tests.support.live_bookie import live_bookie

NOW = 1 << 60


async def write(client, size, copies=2, **tags):
    metadata = {name.replace("__", "/"): value for name, value in tags.items()}
    async with client.create(ensemble=3, write_quorum=copies, ack_quorum=copies, metadata=metadata) as ledger:
        await ledger.append_many([bytes(size)] * 3)
    return ledger.ledger_id


async def test_bytes_by_owner_and_by_bookie(models):
    async with models.of(*"abc") as client:
        await Streams(client).create("orders", StreamSettings(ensemble=3, write_quorum=3, ack_quorum=2))
        listed = await write(client, 100, 3, podkeeper__stream=b"orders", application=b"podkeeper-stream")
        await Streams(client).publish("orders", [PublishedLedger(listed, 3, 300)])
        await write(client, 10, 3, podkeeper__stream=b"orders", application=b"podkeeper-stream")
        await write(client, 1000, 2, application=b"other")
        still_open = await client.create(ensemble=3, write_quorum=3)
        assert STREAM_KEY == "podkeeper/stream"
        unit = Unit(0, tuple(Slice(each, 0, None, 0) for each in [e async for e in client.list()]))
        stock = await stock_of(client, StockQuestion(0, NOW, "/managed-ledgers"), unit)
        rows = {row["name"]: row for row in owner_rows(stock)}
        assert list(rows) == ["application other", "stream orders", "none"]
        assert (rows["application other"]["payload_bytes"], rows["application other"]["replica_bytes"]) == (3000, 6000)
        orders = rows["stream orders"]
        assert (orders["ledgers"], orders["replica_bytes"]) == (2, 990)
        assert (orders["leaked_ledgers"], orders["leaked_bytes"]) == (1, 90)
        assert (rows["none"]["open_ledgers"], rows["none"]["replica_bytes"]) == (1, 0)
        assert stock.recent_bytes == sum(stock.by_bookie.values()) == 6990
        young = await stock_of(client, StockQuestion(NOW, 0, "/managed-ledgers"), unit)
        assert young.recent_bytes == 0
        assert not any(space.leaked_ledgers for space in young.by_owner.values()), "too young to be leaked"
        twice = Stock()
        twice.add(stock)
        twice.add(stock)
        assert sum(twice.by_bookie.values()) == 2 * 6990
        assert twice.by_owner["stream", "orders"].leaked_bytes == 180
        await still_open.close()


async def test_what_bookies_say_of_their_disks(tmp_path):
    async with live_bookie(tmp_path) as bookie, Client(bookie._metadata) as client:
        (place,) = (await admin_places(client, AdminAccess().context(), Trust())).values()
        down_at = Place("it", f"http://127.0.0.1:{free_port()}")
        async with aiohttp.ClientSession() as session:
            places = {"here": place, "silent": None, "down": down_at}
            down, here, silent = await ask_bookies(AdminClient(session), places, 10)
        assert here.problem == ""
        assert here.total_bytes > here.free_bytes > 0
        assert "publishes no admin API" in silent.problem
        assert "cannot be reached" in down.problem
        rows = {row["name"]: row for row in bookie_rows([down, here, silent], {"here": 17})}
        assert rows["here"]["replica_bytes"] == 17
        assert rows["here"]["used_bytes"] == here.used_bytes
        assert rows["down"]["used_bytes"] is None
        table = table_of([*bookie_rows([here], {}), *log_rows([here])])
        assert table.column("section").to_pylist() == ["bookie"] + ["entry log"] * len(here.logs)


async def test_a_bookie_without_an_admin_api_is_told(models):
    async with models.of("a") as client:
        assert await admin_places(client, AdminAccess().context(), Trust()) == {"a": None}


@pytest.mark.parametrize(("names_authorities", "may"), [(False, False), (True, True)])
def test_a_published_address_gets_the_token_only_by_authorities_that_an_argument_names(
    tmp_path, names_authorities, may
):
    Certificates(tmp_path).make_all()
    access = AdminAccess(ca_file=str(tmp_path / "authority.pem") if names_authorities else None)
    tls = access.context()
    urls = ("https://h:8000", "http://127.0.0.1:8000")
    found = [Place("it", url, tls, trust=access.trust(tls)).may_see_token for url in urls]
    assert found == [may, False]


@pytest.mark.parametrize(("encrypted", "scheme"), [(False, "http"), (True, "https")])
async def test_a_bookie_tells_whether_its_admin_api_is_encrypted(models, monkeypatch, encrypted, scheme):
    async def info(self, bookie_id):
        return bookie_service_info("a-host", 3181, http_port=8000, http_tls=encrypted)

    await models.add("a")
    monkeypatch.setattr(Bookies, "info", info)
    async with models.client() as client:
        (place,) = (await admin_places(client, AdminAccess().context(), Trust())).values()
        assert place.url == f"{scheme}://a-host:8000"


def test_a_forecast_goes_by_the_past():
    assert bytes_per_day(700, 7 * 86_400) == 100
    assert days_until_full(1000, 100.0) == 10
    assert days_until_full(1000, 0.0) is None
