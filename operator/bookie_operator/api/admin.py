"""The admin API of the cluster's pods (`docs/http-api.md`): facts and requests.

Invariants
- A fact that could not be had is None: no answer in time, no answer that can be read, or one that says so itself.
- Requests for changes raise: `AdminRefused` (understood, and why not), `AdminUnreachable` (it may have been done).
- Pods are addressed by IP, since names of new pods may not resolve yet. One whose spec has the Secret for it is spoken
  to by HTTPS and must prove who it is (`api.trust`); the token says who may ask.

Threads: one event loop.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

import aiohttp
import structlog

from bookie_operator.api import answers
from bookie_operator.api.trust import Trust, Untrusted
from bookie_operator.world.facts import BookieFacts, ClusterFacts, DrainFacts, Outlook, Proof, SafetyFacts
from bookie_protocol.addresses import host_and_port
from bookie_protocol.admin_api import autorecovery, bookie, cluster, decommission
from bookie_protocol.admin_api.bodies import NOTHING, Query, Route
from bookie_protocol.admin_api.client import AdminClient, Place, Sent
from bookie_protocol.admin_api.trust import named
from bookie_protocol.errors import (
    CouldNotTell,
    NoCookie,
    NotDecommissioned,
    NotThere,
    PodkeeperError,
    Unauthorized,
)

_T = TypeVar("_T")
_log = structlog.get_logger(__name__)
_MAX_BODY: Final = 8 * 1024 * 1024
_MAX_FOR_PAGES: Final = 256 * 1024
"""Bytes of an answer that is shown to people: to make a page of megabytes would keep the event loop for seconds."""
_OF_ALL: Final = frozenset({cluster.KNOWN, cluster.STATE})
"""Lists of all bookies, of which pages show a part."""
_MOST_IN_LINE: Final = 4000
"""Characters of ledger ids in a request line, of which a bookie takes 8190 bytes; more go in a body."""
_SLOW_S: Final = 40.0
"""Time-out of what waits for a record to be stored, in seconds: somewhat more than the pod's own."""
_LISTING_S: Final = 300.0
"""Time-out of what lists all ledgers."""


class AdminError(Exception):
    """The request was not carried out, or its outcome is unknown."""


class AdminRefused(AdminError):
    """It was understood and not done; the text is the pod's."""


class AdminAbsent(AdminRefused):
    """The decommission, or the cookie, that the request is about does not exist."""


class AdminUnknown(AdminRefused):
    """The pod has no such path, as its release is an earlier one."""


class AdminUnreachable(AdminError):
    """The pod did not answer, has a fault, does not know the token, or gave an answer that cannot be read."""


@dataclass(frozen=True)
class Endpoint:
    """The address of a pod's admin API."""

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
    """The admin API of the pods of one cluster.

    `token`: their bearer token. `trust`: authorities of the pods that speak HTTPS; without it none of them is reached.
    """

    def __init__(
        self,
        session: aiohttp.ClientSession,
        token: str = "",
        *,
        trust: Trust | None = None,
        timeout_s: float = 5.0,
        now: Callable[[], float] = time.time,
    ) -> None:
        # A pod that is gone takes no connection, and nothing says so: that is not waited for as long as an answer.
        self._client = AdminClient(session, token, timeout_s=timeout_s, connect_s=timeout_s, max_bytes=_MAX_BODY)
        self._pages = AdminClient(session, token, timeout_s=timeout_s, connect_s=timeout_s, max_bytes=_MAX_FOR_PAGES)
        self._trust = trust
        self._now = now

    # --- facts --------------------------------------------------------------------------------------------------------

    async def bookie_facts(self, at: Endpoint) -> BookieFacts | None:
        """Mode, space and configuration of one bookie, over one connection: to begin one costs more than to wait."""

        async def ask() -> BookieFacts:
            mode = await self._ask(at, bookie.READ_ONLY)
            space = await self._ask(at, bookie.INFO, query=bookie.SpaceQuery(fullest=True))
            return answers.bookie_facts(mode, space, await self._ask(at, bookie.CONFIG))

        return await self._fact(at, "bookie", ask)

    async def settings(self, at: Endpoint) -> Mapping[str, str] | None:
        """Return the settings in the configuration of a bookie of any make."""

        async def ask() -> Mapping[str, str]:
            return answers.settings(await self._ask(at, bookie.CONFIG))

        return await self._fact(at, "settings", ask)

    async def cluster_facts(self, at: Endpoint, timeout_s: float = _SLOW_S) -> ClusterFacts:
        """Return what the metadata service says, by this pod's session.

        Raises AdminError.
        """
        return answers.cluster_facts(await self._ask(at, cluster.STATE, timeout_s=timeout_s))

    async def tells(self, at: Endpoint) -> bool:
        """Return whether the metadata service answers this pod, by one read."""
        try:
            await self._ask(at, autorecovery.STATUS)
        except AdminError:
            return False
        return True

    async def proof(self, at: Endpoint, bookie_id: str, accepted_losses: Sequence[int] = ()) -> Proof | None:
        """A full listing, now; ledgers of `accepted_losses` do not count."""

        async def ask() -> Proof:
            losses = _listed(accepted_losses)
            asked = decommission.ProofQuery(bookie_id, losses)
            if len(losses) <= _MOST_IN_LINE:
                found = await self._ask(at, decommission.PROOF, query=asked, timeout_s=_LISTING_S)
            else:
                found = await self._ask(at, decommission.LONG_PROOF, asked, timeout_s=_LISTING_S)
            return answers.proof(found, bookie_id)

        return await self._fact(at, "proof", ask)

    async def drain(self, at: Endpoint, bookie_id: str) -> DrainFacts | None:
        """Return the progress of a bookie's drain, whichever process works on it."""

        async def ask() -> DrainFacts:
            try:
                query = decommission.BookieQuery(bookie_id)
                found = await self._client.ask(await self.place(at), decommission.PROGRESS, query=query)
            except NotDecommissioned as absent:
                return answers.no_drain(bookie_id, absent.refusal)
            return answers.drain_facts(found, bookie_id, self._now())

        return await self._fact(at, "drain", ask)

    async def outlook(self, at: Endpoint, bookie_id: str) -> Outlook | None:
        """Return what a drain of a bookie would have to do."""

        async def ask() -> Outlook:
            query = decommission.BookieQuery(bookie_id)
            found = await self._ask(at, decommission.OUTLOOK, query=query, timeout_s=_LISTING_S)
            return answers.outlook(found, bookie_id)

        return await self._fact(at, "outlook", ask)

    async def safety(self, at: Endpoint, bookies: frozenset[str]) -> SafetyFacts | None:
        """Return what would happen to ledgers if these bookies went now."""

        async def ask() -> SafetyFacts:
            query = decommission.SafetyQuery(",".join(sorted(bookies)))
            found = await self._ask(at, decommission.SAFETY, query=query, timeout_s=_LISTING_S)
            return answers.safety_facts(found, bookies)

        return await self._fact(at, "safety", ask)

    # --- requests -----------------------------------------------------------------------------------------------------

    async def set_read_only(self, at: Endpoint, read_only: bool) -> None:
        await self._ask(at, bookie.SET_READ_ONLY, bookie.ReadOnlyBody(read_only))

    async def set_config(self, at: Endpoint, values: Mapping[str, str]) -> None:
        """Keys that count without a restart, until the next one."""
        await self._ask(at, bookie.SET_CONFIG, values)

    async def begin_drain(
        self, at: Endpoint, bookie_id: str, accepted_losses: Sequence[int] = (), *, delete_cookie: bool = False
    ) -> None:
        """Begin, or resume. The pod that is asked works on it. `delete_cookie`: in the end, on its own proof."""
        body = decommission.DecommissionBody(bookie_id, delete_cookie, _listed(accepted_losses))
        await self._ask(at, decommission.DECOMMISSION, body, timeout_s=_SLOW_S)

    async def undo_drain(self, at: Endpoint, bookie_id: str) -> None:
        """AdminAbsent: there is none."""
        await self._ask(at, decommission.UNDO, decommission.UndoBody(bookie_id), timeout_s=_SLOW_S)

    async def trigger_audit(self, at: Endpoint) -> None:
        await self._ask(at, autorecovery.TRIGGER_AUDIT)

    async def check_replicas(self, at: Endpoint) -> None:
        await self._ask(at, autorecovery.FORCE_CHECKS, autorecovery.ChecksBody(["replicas"]))

    async def look_at_returned(self, at: Endpoint, bookies: Sequence[str]) -> None:
        await self._ask(at, autorecovery.LOOK_AT_RETURNED, autorecovery.ReturnedBody(sorted(bookies)))

    async def set_recovery_delay(self, at: Endpoint, seconds: int) -> None:
        await self._ask(at, autorecovery.SET_DELAY, autorecovery.DelayBody(seconds))

    async def delete_cookie(self, at: Endpoint, bookie_id: str, accepted_losses: Sequence[int] = ()) -> None:
        """The pod proves once more that no ledger needs the bookie. AdminAbsent: it has none."""
        losses = _listed(accepted_losses)
        body = decommission.LossesBody(losses) if losses else None
        query = decommission.ProofQuery(bookie_id)
        await self._ask(at, decommission.DELETE_COOKIE, body, query, timeout_s=_LISTING_S)

    # --- calls --------------------------------------------------------------------------------------------------------

    async def _fact(self, at: Endpoint, what: str, ask: Callable[[], Awaitable[_T]]) -> _T | None:
        try:
            return await ask()
        except (AdminError, PodkeeperError) as exc:
            _log.debug("a fact could not be had", fact=what, pod=at.pod, reason=str(exc))
            return None

    async def _ask(
        self,
        at: Endpoint,
        route: Route[_T],
        body: Sent = None,
        query: Query | None = None,
        *,
        timeout_s: float | None = None,
    ) -> _T:
        try:
            return await self._client.ask(await self.place(at), route, body, query, timeout_s=timeout_s)
        except (NotDecommissioned, NoCookie) as exc:
            raise AdminAbsent(str(exc)) from exc
        except (CouldNotTell, Unauthorized) as exc:
            raise AdminUnreachable(f"{route.method} {route.path} of {at.pod}: {exc}") from exc
        except PodkeeperError as exc:
            kind = AdminUnknown if type(exc) is NotThere else AdminRefused
            raise kind(str(exc)) from exc

    async def raw(self, at: Endpoint, path: str, timeout_s: float) -> bytes:
        """Return what any path answers, as it is. Raises PodkeeperError, AdminUnreachable."""
        return await self._client.fetch(await self.place(at), Route("GET", path, NOTHING), timeout_s=timeout_s)

    async def look(self, at: Endpoint, route: Route[_T], query: Query | None = None) -> _T:
        """Return the answer of a pod to a question of a page. Raises PodkeeperError; `CouldNotTell`: it is unknown whom
        to trust; `ProtocolViolation`: it answers more than a page can show."""
        try:
            place = await self.place(at)
        except AdminUnreachable as exc:
            raise CouldNotTell(str(exc)) from exc
        client = self._client if route in _OF_ALL else self._pages
        return await client.ask(place, route, query=query)

    async def place(self, at: Endpoint) -> Place:
        """Return where to ask. Raises AdminUnreachable: it is unknown whom to trust."""
        if not at.secret:
            # As `spec.tls.adminApi` asks for, or until the pod is replaced; the API server has given the address.
            return Place(at.pod, at.url, trust=named(at.url, in_plain=True))
        try:
            if self._trust is None:
                raise Untrusted(f"no authority is known for Secret {at.secret}")
            tls = await self._trust.of(at.secret)
        except Untrusted as exc:
            raise AdminUnreachable(f"{at.pod}: {exc}") from exc
        return Place(at.pod, at.url, tls.context, tls.server_name, named(at.url))


def _listed(ledgers: Sequence[int]) -> str:
    return ",".join(map(str, sorted(ledgers)))
