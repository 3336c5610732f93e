"""The admin API of the cluster's pods (`docs/http-api.md`): facts and requests.

Invariants
- A fact that could not be had is None: no answer in time, no answer that can be read, or one that says so itself.
- Requests for changes raise: `AdminRefused` (understood, and why not), `AdminUnreachable` (it may have been done).
- Pods are addressed by IP, since names of new pods may not resolve yet. One whose spec has the Secret for it is spoken
  to by HTTPS and must prove who it is (`api.trust`); who may ask is told by the token.

Threads: one event loop.
"""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import aiohttp
import structlog

from bookie_operator.api import answers
from bookie_operator.api.trust import Trust, Untrusted
from bookie_operator.world.facts import BookieFacts, ClusterFacts, DrainFacts, Outlook, Proof, SafetyFacts
from bookie_protocol.addresses import host_and_port

_T = TypeVar("_T")
_log = structlog.get_logger(__name__)
_MAX_BODY: Final = 8 * 1024 * 1024
_MOST_IN_LINE: Final = 4000
"""Characters of ledger ids in a request line, of which a bookie takes 8190 bytes; more go in a body."""
_MAX_WORDS: Final = 500
_SLOW_S: Final = 40.0
"""Time-out of what waits for a record to be stored, in seconds: somewhat more than the pod's own."""
_LISTING_S: Final = 300.0
"""Time-out of what lists all ledgers."""


class AdminError(Exception):
    """A request was not carried out, or nobody knows whether it was."""


class AdminRefused(AdminError):
    """4xx: it was understood and not done; the text is the pod's."""


class AdminAbsent(AdminRefused):
    """404: what it is about is not there."""


class AdminUnreachable(AdminError):
    """No answer, a fault (5xx), or an answer that cannot be read."""


@dataclass(frozen=True)
class Endpoint:
    """Where a pod's admin API is."""

    pod: str
    host: str
    """IP address."""
    port: int = 8000
    secret: str = ""
    """Name of the Secret with its certificate; empty: it speaks plain HTTP."""

    @property
    def url(self) -> str:
        return f"{'https' if self.secret else 'http'}://{host_and_port(self.host, self.port)}"


class Admin:
    """Of the pods of one cluster. `token`: their bearer token. `trust`: of those that speak HTTPS; without it none of
    them is reached."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        token: str = "",
        *,
        trust: Trust | None = None,
        timeout_s: float = 5.0,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._session = session
        self._trust = trust
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._timeout_s = timeout_s
        self._now = now

    # --- facts --------------------------------------------------------------------------------------------------------

    async def bookie_facts(self, at: Endpoint) -> BookieFacts | None:
        """Mode, space and configuration of one bookie, over one connection: to begin one costs more than to wait."""

        async def ask() -> BookieFacts:
            mode = await self._get(at, "/api/v1/bookie/state/readonly")
            space = await self._get(at, "/api/v1/bookie/info", {"fullest": "true"})
            config = await self._get(at, "/api/v1/config/server_config")
            return answers.bookie_facts(mode, space, config)

        return await self._fact(at, "bookie", ask)

    async def settings(self, at: Endpoint) -> Mapping[str, str] | None:
        """What is set in the configuration of a bookie of any make."""

        async def ask() -> Mapping[str, str]:
            return answers.settings(await self._get(at, "/api/v1/config/server_config"))

        return await self._fact(at, "settings", ask)

    async def cluster_facts(self, at: Endpoint) -> ClusterFacts:
        """What the metadata service says, by this pod's session.

        Raises AdminError.
        """
        return _read(answers.cluster_facts, await self._get(at, "/api/v1/cluster/state", timeout_s=_SLOW_S))

    async def proof(self, at: Endpoint, bookie_id: str, accepted_losses: Sequence[int] = ()) -> Proof | None:
        """A full listing, now; ledgers of `accepted_losses` do not count."""

        async def ask() -> Proof:
            path, losses = "/api/v1/autorecovery/decommission/proof", _listed(accepted_losses)
            if len(losses) <= _MOST_IN_LINE:
                return answers.proof(await self._get(at, path, _about(bookie_id, losses), _LISTING_S), bookie_id)
            body = await self._call("POST", at, path, None, _about(bookie_id, losses), _LISTING_S)
            return answers.proof(_decoded(f"POST {path} of {at.pod}", body), bookie_id)

        return await self._fact(at, "proof", ask)

    async def drain(self, at: Endpoint, bookie_id: str) -> DrainFacts | None:
        """How far the drain of a bookie is, whoever works on it."""

        async def ask() -> DrainFacts:
            path = "/api/v1/autorecovery/decommission/progress"
            try:
                return answers.drain_facts(await self._get(at, path, {"bookie_id": bookie_id}), bookie_id, self._now())
            except AdminAbsent as absent:
                return answers.no_drain(bookie_id, str(absent))

        return await self._fact(at, "drain", ask)

    async def outlook(self, at: Endpoint, bookie_id: str) -> Outlook | None:
        """What a drain of a bookie would have to do."""

        async def ask() -> Outlook:
            path = "/api/v1/autorecovery/decommission/plan"
            return answers.outlook(await self._get(at, path, {"bookie_id": bookie_id}, _LISTING_S), bookie_id)

        return await self._fact(at, "outlook", ask)

    async def safety(self, at: Endpoint, bookies: frozenset[str]) -> SafetyFacts | None:
        """What would become of ledgers if these bookies went now."""

        async def ask() -> SafetyFacts:
            query = {"bookies": ",".join(sorted(bookies))}
            body = await self._get(at, "/api/v1/autorecovery/safety_check", query, _LISTING_S)
            return answers.safety_facts(body, bookies)

        return await self._fact(at, "safety", ask)

    # --- requests -----------------------------------------------------------------------------------------------------

    async def set_read_only(self, at: Endpoint, read_only: bool) -> None:
        await self._put(at, "/api/v1/bookie/state/readonly", {"readOnly": read_only})

    async def set_config(self, at: Endpoint, values: Mapping[str, str]) -> None:
        """Keys that count without a restart, until the next one."""
        await self._put(at, "/api/v1/config/server_config", dict(values))

    async def begin_drain(
        self, at: Endpoint, bookie_id: str, accepted_losses: Sequence[int] = (), *, delete_cookie: bool = False
    ) -> None:
        """Begin, or resume. The pod that is asked works on it. `delete_cookie`: in the end, on its own proof."""
        body: dict[str, Any] = {"bookie_src": bookie_id, "delete_cookie": delete_cookie}
        if accepted_losses:
            body["accept_loss"] = _listed(accepted_losses)
        await self._put(at, "/api/v1/autorecovery/decommission", body, _SLOW_S)

    async def undo_drain(self, at: Endpoint, bookie_id: str) -> None:
        """AdminAbsent: there is none."""
        await self._put(at, "/api/v1/autorecovery/decommission/undo", {"bookie_src": bookie_id}, _SLOW_S)

    async def trigger_audit(self, at: Endpoint) -> None:
        await self._put(at, "/api/v1/autorecovery/trigger_audit", None)

    async def set_recovery_delay(self, at: Endpoint, seconds: int) -> None:
        await self._put(at, "/api/v1/autorecovery/lost_bookie_recovery_delay", {"delay_seconds": seconds})

    async def delete_cookie(self, at: Endpoint, bookie_id: str, accepted_losses: Sequence[int] = ()) -> None:
        """The pod proves once more that no ledger needs the bookie. AdminAbsent: it has none."""
        losses = _listed(accepted_losses)
        in_line = losses if len(losses) <= _MOST_IN_LINE else ""
        body = {"accept_loss": losses} if losses != in_line else None
        await self._call("DELETE", at, "/api/v1/bookie/cookie", _about(bookie_id, in_line), body, _LISTING_S)

    # --- calls --------------------------------------------------------------------------------------------------------

    async def _fact(self, at: Endpoint, what: str, ask: Callable[[], Awaitable[_T]]) -> _T | None:
        try:
            return await ask()
        except (AdminError, answers.Undecodable) as exc:
            _log.debug("a fact could not be had", fact=what, pod=at.pod, reason=str(exc))
            return None

    async def _get(self, at: Endpoint, path: str, query: Mapping[str, str] | None = None, timeout_s: float = 0) -> Any:
        return _decoded(f"GET {path} of {at.pod}", await self._call("GET", at, path, query, None, timeout_s))

    async def _put(self, at: Endpoint, path: str, body: Any, timeout_s: float = 0) -> None:
        await self._call("PUT", at, path, None, body, timeout_s)

    async def _call(
        self, method: str, at: Endpoint, path: str, query: Mapping[str, str] | None, body: Any, timeout_s: float
    ) -> bytes:
        # A pod that is gone takes no connection, and nobody says so: that is not waited for as long as an answer.
        timeout = aiohttp.ClientTimeout(total=timeout_s or self._timeout_s, sock_connect=self._timeout_s)
        options: dict[str, Any] = {"json": body} if body is not None else {}
        options |= await self.encryption(at)
        try:
            async with self._session.request(
                method,
                f"{at.url}{path}",
                params=query,
                headers=self._headers,
                timeout=timeout,
                allow_redirects=False,
                **options,
            ) as answer:
                content = await _body(answer)
                status = answer.status
        except (aiohttp.ClientError, TimeoutError, OSError) as exc:
            raise AdminUnreachable(f"{method} {path} of {at.pod}: {type(exc).__name__}: {exc}") from exc
        return _judged(f"{method} {path} of {at.pod}", status, content)

    async def encryption(self, at: Endpoint) -> dict[str, Any]:
        """Arguments for the session. Raises AdminUnreachable."""
        if not at.secret:
            return {}
        try:
            if self._trust is None:
                raise Untrusted(f"nobody vouches for Secret {at.secret}")
            tls = await self._trust.of(at.secret)
        except Untrusted as exc:
            raise AdminUnreachable(f"{at.pod}: {exc}") from exc
        return {"ssl": tls.context, "server_hostname": tls.server_name}


def _listed(ledgers: Sequence[int]) -> str:
    return ",".join(map(str, sorted(ledgers)))


def _about(bookie_id: str, losses: str) -> dict[str, str]:
    return {"bookie_id": bookie_id} | ({"accept_loss": losses} if losses else {})


def _decoded(call: str, body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError as exc:
        raise AdminUnreachable(f"{call}: the answer is no JSON: {body[:80]!r}") from exc


async def _body(answer: aiohttp.ClientResponse) -> bytes:
    pieces = bytearray()
    async for piece in answer.content.iter_chunked(65536):
        pieces += piece
        if len(pieces) > _MAX_BODY:
            raise aiohttp.ClientPayloadError(f"more than {_MAX_BODY} bytes")
    return bytes(pieces)


def _judged(call: str, status: int, content: bytes) -> bytes:
    if status == 200:
        return content
    words = content[:_MAX_WORDS].decode(errors="replace").strip()
    if status == 404:
        raise AdminAbsent(words)
    if status in (400, 409):
        raise AdminRefused(words)
    raise AdminUnreachable(f"{call}: {status}: {words}")


def _read(decode: Callable[[Any], _T], body: Any) -> _T:
    try:
        return decode(body)
    except answers.Undecodable as exc:
        raise AdminUnreachable(f"undecodable answer: {exc}") from exc
