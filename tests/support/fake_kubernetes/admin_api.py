"""The admin API of every pod on one socket: pods are told apart by the loopback address that was called, and serve
HTTPS with the Secret that their spec has for it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import lru_cache
from typing import Any

from aiohttp import web

from bookie_protocol.admin_api.bodies import PROBLEM_TYPE, plain, problem_of
from bookie_protocol.admin_api.bookie import BookieLoad
from bookie_protocol.admin_api.cluster import KnownBookie, Registration
from bookie_protocol.errors import NoCookie, NotDecommissioned, NotThere
from tests.support.fake_kubernetes.bookkeeper import FakeBookKeeper

_CLUSTER_STATE = "/api/v1/cluster/state"


class AdminApi:
    def __init__(
        self,
        bookkeeper: FakeBookKeeper,
        bookie_at: Callable[[str], str | None],
        certificate_at: Callable[[str], tuple[str, str] | None] = lambda address: None,
    ) -> None:
        """`bookie_at`: bookie id of the pod with this address, empty for an auto-recovery pod; None: nobody.
        `certificate_at`: chain and key of the pod with this address; None: it speaks plain HTTP."""
        self.bookkeeper = bookkeeper
        self._bookie_at = bookie_at
        self.certificate_at = certificate_at
        self.encrypted = 0
        """Requests that came by HTTPS."""
        self.token = ""
        """That requests have to bear; empty: any."""
        self.shown_to_strangers: set[str | None] = set()
        self.requests: list[str] = []
        self.used: dict[str, int] = {}
        """Bytes by bookie id, of a thousand million."""
        self.silent: set[str] = set()
        """Bookie ids whose pods do not answer."""

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        transport = request.transport
        address = transport.get_extra_info("sockname")[0] if transport is not None else ""
        bookie_id = self._bookie_at(address)
        if bookie_id is None or bookie_id in self.silent:
            if transport is not None:
                transport.abort()
            raise ConnectionResetError
        if ".svc.cluster.local" in bookie_id:  # of somebody else, who knows no token and should hear of none
            self.shown_to_strangers.add(request.headers.get("Authorization"))
        elif self.token and request.headers.get("Authorization") != f"Bearer {self.token}":
            return web.Response(status=401, text="no token")
        self.requests.append(f"{request.method} {request.path}")
        self.encrypted += request.secure
        body: Any = await request.json() if request.can_read_body else None
        if "/autorecovery/" in request.path or request.path == _CLUSTER_STATE:
            return self._of_the_cluster(request, body)
        return self._of_the_bookie(request, bookie_id, body)

    def _of_the_bookie(self, request: web.BaseRequest, bookie_id: str, body: Any) -> web.Response:
        keeper = self.bookkeeper
        match request.method, request.path:
            case "GET", "/api/v1/bookie/state/readonly":
                return web.json_response({"readOnly": bookie_id in keeper.read_only})
            case "GET", "/api/v1/cluster/bookies":
                return web.json_response(plain([_known(keeper, each) for each in sorted(keeper.cookies)]))
            case "GET", "/api/v1/bookie/load":
                return web.json_response(plain(_load(bookie_id, self.used.get(bookie_id, 10**8))))
            case "PUT", "/api/v1/bookie/state/readonly":
                keeper.set_read_only(bookie_id, body["readOnly"])
                return web.json_response({"readOnly": body["readOnly"]})
            case "GET", "/api/v1/bookie/info":
                return web.json_response({"totalSpace": 10**9, "freeSpace": 10**9 - self.used.get(bookie_id, 10**8)})
            case "GET", "/api/v1/config/server_config":
                return web.json_response(keeper.config.get(bookie_id, {}))
            case "PUT", "/api/v1/config/server_config":
                keeper.config.setdefault(bookie_id, {}).update(body)
                return web.Response(text="Success")
            case "DELETE", "/api/v1/bookie/cookie":
                return self._delete_cookie(request.query["bookie_id"])
        return web.Response(status=404, text="Resource not found")

    def _of_the_cluster(self, request: web.BaseRequest, body: Any) -> web.Response:
        keeper = self.bookkeeper
        if not keeper.reachable:
            return web.Response(status=503, text="the metadata service does not answer")
        match request.method, request.path:
            case "GET", "/api/v1/cluster/state":
                return web.json_response(self._state())
            case "GET", "/api/v1/autorecovery/status":
                return web.json_response({"enabled": True})
            case "GET", "/api/v1/autorecovery/decommission/proof":
                return web.json_response(self._proof(request.query["bookie_id"]))
            case "GET", "/api/v1/autorecovery/decommission/plan":
                bookie_id = request.query["bookie_id"]
                refusal, ledgers = keeper.drain_refusal(bookie_id), len(keeper.naming(bookie_id))
                return web.json_response(
                    {
                        "bookieId": bookie_id,
                        "presence": "writable",
                        "form": "live",
                        "hasCookie": True,
                        "ledgers": ledgers,
                        "openLedgers": 0,
                        "bytes": ledgers * 1000,
                        "targets": 3,
                        "freeBytes": 10**9,
                        "autoRecoveryEnabled": True,
                        "auditor": None,
                        "underReplicated": 0,
                        "underReplicatedHere": 0,
                        "largestEnsemble": max((len(named) for named in keeper.ledgers.values()), default=0),
                        "refusals": [refusal] if refusal else [],
                        "warnings": [],
                    }
                )
            case "GET", "/api/v1/autorecovery/decommission/progress":
                return self._progress(request.query["bookie_id"])
            case "PUT", "/api/v1/autorecovery/decommission":
                refusal = keeper.begin_drain(body["bookie_src"], delete_cookie=body.get("delete_cookie", False))
                return web.Response(status=409 if refusal else 200, text=refusal or "Success")
            case "PUT", "/api/v1/autorecovery/decommission/undo":
                found = keeper.undo_drain(body["bookie_src"])
                return web.json_response({"madeWritable": True}) if found else _problem(NotDecommissioned("none"))
            case "GET", "/api/v1/autorecovery/safety_check":
                return web.json_response(self._safety(request.query["bookies"].split(",")))
            case "PUT", "/api/v1/autorecovery/trigger_audit":
                keeper.audit()
                return web.Response(text="Success")
            case "PUT", "/api/v1/autorecovery/returned_bookies":
                keeper.returned += body["bookies"]
                return web.Response(text="Success")
            case "PUT", "/api/v1/autorecovery/checks":
                keeper.checks += body["checks"]
                return web.json_response(body["checks"])
            case "PUT", "/api/v1/autorecovery/lost_bookie_recovery_delay":
                keeper.delay = body["delay_seconds"]
                return web.Response(text="Success")
        return web.Response(status=404, text="Resource not found")

    def _state(self) -> dict[str, Any]:
        keeper = self.bookkeeper
        return {
            "instanceId": keeper.instance_id,
            "writable": sorted(keeper.writable),
            "readOnly": sorted(keeper.read_only),
            "cookies": sorted(keeper.cookies),
            "underReplicated": len(keeper.marks),
            "auditor": keeper.auditor,
            "lastAuditMs": None if keeper.last_audit is None else int(keeper.last_audit * 1000),
            "autorecoveryEnabled": True,
            "lostBookieRecoveryDelaySeconds": keeper.delay,
            "unrecoverable": None,
            "unchecked": keeper.unchecked,
        }

    def _proof(self, bookie_id: str) -> dict[str, Any]:
        keeper, state = self.bookkeeper, self._state()
        return {
            "bookieId": bookie_id,
            "ledgers": len(keeper.naming(bookie_id)),
            "openLedgers": 0,
            "marks": sum(bookie_id in named for named in keeper.marks.values()),
            "acceptedLosses": 0,
            "firstLedgers": keeper.naming(bookie_id)[:20],
            "registered": bookie_id in keeper.writable | keeper.read_only,
            **{name: state[name] for name in ("auditor", "lastAuditMs", "instanceId")},
            "ledgersSeen": len(keeper.ledgers),
            "begunMs": int(keeper.clock() * 1000),
        }

    def _progress(self, bookie_id: str) -> web.Response:
        self.bookkeeper.work()
        drain = self.bookkeeper.drains.get(bookie_id)
        if drain is None:
            return _problem(NotDecommissioned(f"bookie {bookie_id} is not being decommissioned"))
        left = len(self.bookkeeper.naming(bookie_id))
        body = {
            "bookieId": bookie_id,
            "phase": drain.phase,
            "form": "live",
            "coordinator": "fake",
            "runningHere": drain.is_worked,
            "problem": "",
            "startedTime": 0,
            "updatedTime": int(self.bookkeeper.clock() * 1000) if drain.is_worked else 0,
            "deleteCookie": False,
            "ledgersTotal": drain.total,
            "ledgersLeft": left,
            "bytesTotal": drain.total * 1000,
            "bytesLeft": left * 1000,
            "bytesCopied": 0,
            "secondsLeft": None,
            "blocked": 0,
            "blockers": [],
            "provenLedgers": len(self.bookkeeper.ledgers) if drain.phase == "done" else None,
        }
        return web.json_response(body)

    def _safety(self, going: list[str]) -> dict[str, Any]:
        keeper = self.bookkeeper
        here = (keeper.writable | keeper.read_only) - set(going)
        left = {ledger: len(bookies & here) for ledger, bookies in keeper.ledgers.items() if bookies & set(going)}
        none = [ledger for ledger, count in left.items() if count == 0]
        few = [ledger for ledger, count in left.items() if count == 1]
        risky = [(ledger, "no copy") for ledger in none] + [(ledger, "below ack quorum") for ledger in few]
        return {
            "safe": not risky,
            "going": going,
            "ledgersSeen": len(keeper.ledgers),
            "ledgersConcerned": len(left),
            "noCopy": len(none),
            "belowAckQuorum": len(few),
            "noSlack": 0,
            "unknown": 0,
            "ledgers": [
                {
                    "ledgerId": ledger,
                    "risk": risk,
                    "firstEntry": 0,
                    "copiesLeft": left[ledger],
                    "ackQuorum": 2,
                    "detail": "",
                }
                for ledger, risk in risky
            ],
        }

    def _delete_cookie(self, bookie_id: str) -> web.Response:
        try:
            refusal = self.bookkeeper.delete_cookie(bookie_id)
        except KeyError:
            return _problem(NoCookie("there is none"))
        return web.Response(status=409 if refusal else 200, text=refusal or "Deleted")


def _problem(error: NotThere) -> web.Response:
    body = plain(problem_of(404, "Not Found", str(error), error))
    return web.json_response(body, status=404, content_type=PROBLEM_TYPE)


@asynccontextmanager
async def serving(api: AdminApi) -> AsyncIterator[int]:
    """The port, on every loopback address."""
    runner = web.ServerRunner(web.Server(api.handle, access_log=None), shutdown_timeout=0.1)
    await runner.setup()
    listener = socket.create_server(("0.0.0.0", 0), backlog=128)
    listener.setblocking(False)
    accepting = asyncio.create_task(_accept(listener, runner, api))
    try:
        yield int(listener.getsockname()[1])
    finally:
        accepting.cancel()
        await asyncio.gather(accepting, return_exceptions=True)
        listener.close()
        await runner.cleanup()


async def _accept(listener: socket.socket, runner: web.ServerRunner, api: AdminApi) -> None:
    """By HTTPS or not, as the pod that was called serves; who speaks the other one gets nothing."""
    loop, server = asyncio.get_running_loop(), runner.server
    assert server is not None, "the runner was set up"
    shaking: set[asyncio.Task[None]] = set()

    async def serve(connection: socket.socket) -> None:
        pair = api.certificate_at(connection.getsockname()[0])
        with contextlib.suppress(OSError):
            await loop.connect_accepted_socket(server, connection, ssl=_served_with(*pair) if pair else None)

    while True:
        connection, _ = await loop.sock_accept(listener)
        task = asyncio.create_task(serve(connection))
        shaking.add(task)
        task.add_done_callback(shaking.discard)


@lru_cache(maxsize=64)
def _served_with(chain: str, key: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with tempfile.NamedTemporaryFile("w") as file:
        file.write(key + chain)
        file.flush()
        context.load_cert_chain(file.name)
    return context


def _known(keeper: FakeBookKeeper, bookie_id: str) -> KnownBookie:
    registration: Registration = "writable" if bookie_id in keeper.writable else "none"
    if bookie_id in keeper.read_only:
        registration = "read-only"
    return KnownBookie(bookie_id, registration, True, False, None, "/zone-a/node-1")


def _load(bookie_id: str, used: int) -> BookieLoad:
    """Of a bookie that is idle."""
    return BookieLoad(
        bookie_id=bookie_id,
        read_only=False,
        complaint=None,
        clock_seconds=1.0,
        free_space=10**9 - used,
        total_space=10**9,
        fullest_used_percent=used / 10**7,
        file_systems=[],
        adds=0,
        adds_failed=0,
        reads=0,
        reads_failed=0,
        written_bytes=0,
        read_bytes=0,
        add_p50_ms=None,
        add_p99_ms=None,
        read_p50_ms=None,
        read_p99_ms=None,
        sync_p99_ms=None,
        write_cache_bytes=0,
        write_cache_max_bytes=0,
        read_cache_bytes=0,
        read_cache_max_bytes=0,
        entry_log_bytes=0,
        live_bytes=0,
        ledgers=0,
    )
