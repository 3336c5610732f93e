"""The table `entrylogs`: what bookies tell over HTTP, and a row for each that does not."""

from __future__ import annotations

from contextlib import contextmanager

import msgspec
import pytest
from aiohttp import web

from bookie_protocol.admin_api.bodies import API
from bookie_protocol.admin_api.gc import LedgerShare, LogWhy
from bookie_protocol.metadata_service.service_info import BOOKIE_RPC, Endpoint
from pyspark_bookie.source.tables.entry_logs import _place
from tests.support.certificates import Certificates
from tests.unit.pyspark_bookie.source.reads import options
from tests.unit.pyspark_bookie.source.tables.tables import reader_of, register, table

MEASURED = {"usage": 0.5, "live_bytes": 50, "in_doubt_bytes": 5}


def why(directory, owners=None, **measured):
    nothing = dict.fromkeys(MEASURED)
    return LogWhy(directory, "1a.log", 26, "/path", 100, **{**nothing, **measured}, owners=owners, reason="it is young")


class Asked:
    """A bookie that has two entry logs, and tells of one."""

    def __init__(self) -> None:
        self.tokens: set[str | None] = set()

    async def files(self, request):
        self.tokens.add(request.headers.get("Authorization"))
        assert request.query["file_type"] == "entrylog"
        return web.json_response({"/d": "1a.log 2.log lost+found", "/e": "1a.log"})

    async def why(self, request):
        if request.query["entryLog"] != "1a.log":
            raise web.HTTPNotFound
        told = [why("/d", [LedgerShare(7, 50)], **MEASURED), why("/e")]
        return web.json_response(body=msgspec.json.encode(told))


@contextmanager
def served(shelf, asked):
    """Its port; on the client's event loop."""
    application = web.Application()
    application.router.add_get(f"{API}/bookie/list_disk_file", asked.files)
    application.router.add_get(f"{API}/bookie/gc/why", asked.why)
    runner = web.AppRunner(application)

    async def start(_):
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        return runner.addresses[0][1]

    yield shelf.run(start)
    shelf.run(lambda _: runner.cleanup())


def test_what_bookies_tell_and_what_they_do_not(shelf, tmp_path):
    (tmp_path / "token").write_text("s3cret")
    asked = Asked()
    with served(shelf, asked) as port:
        register(shelf, "b1", endpoints=(Endpoint("http", "127.0.0.1", port, "http"),))
        register(shelf, "b2")
        register(shelf, "b3", endpoints=(Endpoint("bookie", "127.0.0.1", 1, BOOKIE_RPC),))
        register(shelf, "b4", endpoints=(Endpoint("http", "127.0.0.1", 1, "http"),))
        found = table("entrylogs", **{"admin.tokenFile": tmp_path / "token"})
    assert asked.tokens == {None}, "anybody who can write metadata can register an address"
    told = {"bookie": "b1", "entry_log": "1a.log", "entry_log_id": 26, "bytes": 100, "reason": "it is young"}
    nothing = dict.fromkeys(found[0])
    assert found[:3] == [
        {**nothing, **told, "directory": "/d", **MEASURED, "owners": [(7, 50)]},
        {**nothing, **told, "directory": "/e"},
        {**nothing, "bookie": "b1", "entry_log": "2.log", "entry_log_id": 2},
    ]
    assert [(row["bookie"], {**row, "error": None}) for row in found[3:]] == [
        (name, {**nothing, "bookie": name}) for name in ("b2", "b3", "b4")
    ]
    errors = [row["error"] for row in found[3:]]
    assert errors[0].startswith("bookie b2 registered without an address")
    assert errors[1] == "it has no HTTP server (httpServerEnabled=true)"
    assert "http://127.0.0.1:1" in errors[2]


@pytest.mark.parametrize(("count", "sizes"), [(0, []), (4, [4]), (5, [4, 1])])
def test_few_bookies_are_one_task(shelf, count, sizes):
    for number in range(count):
        register(shelf, f"b{number}")
    assert [len(part.names) for part in reader_of("entrylogs").partitions()] == sizes


@pytest.mark.parametrize("checked", [True, False])
def test_certificates_are_for_the_host_unless_told_otherwise(checked):
    wanted = options(table="entrylogs", **{"tls.checkHostname": str(checked).lower()})
    tls = _place("https://h:1", wanted).tls
    assert tls is not None
    assert tls.check_hostname is checked


@pytest.mark.parametrize(("names_authorities", "may"), [(False, False), (True, True)])
def test_only_authorities_that_an_option_names_prove_who_may_see_the_token(tmp_path, names_authorities, may):
    Certificates(tmp_path).make_all()
    given = {"tls.caFile": str(tmp_path / "authority.pem")} if names_authorities else {}
    wanted = options(table="entrylogs", **given)
    urls = ("https://h:1", "http://127.0.0.1:1", "http://h:1")
    assert [_place(url, wanted).may_see_token for url in urls] == [may, False, False]


def test_https_can_be_asked_for_of_bookies_that_do_not_say_it(shelf):
    register(shelf, "b1", endpoints=(Endpoint("http", "127.0.0.1", 1, "http"),))
    (row,) = table("entrylogs", **{"admin.tls": "true"})
    assert "https://127.0.0.1:1" in row["error"]
