"""The check whether this bookie still belongs to its cluster.

It is made when a session with the metadata service begins, that of the start and every later one, before the bookie is
registered.

A bookie that was suspended, or cut off, does not know what happened after its session had ended: it may have been
decommissioned, another bookie may have its id, the cluster may be another one. So each session begins with what is
stored: the instance id, the bookie's own cookie, the record of its decommission. Records that an earlier cluster left
tell nothing of this one: as long as they are there the bookie does not start.

Invariants
- A bookie without its cookie ends (`NotAMember`, the exit code of a cookie that forbids a start). The cookie is known
  by its creation and by what it says; its other fields may be changed by this bookie's own expansion.
- A bookie whose decommission is under way is read-only from the first moment of the session.
- "Could not tell" is raised: the bookie is not registered before its membership is known.

Threads: event loop.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace

from bookie_pod.node.identity.cookie_check import StoredCookie
from bookie_pod.node.identity.cookies import Cookie, parse_cookie
from bookie_pod.node.identity.leaving import Leaving
from bookie_pod.node.mode import BookieMode
from bookie_protocol.errors import InvalidCookie, MetadataNotFound
from bookie_protocol.metadata_service.tree.service import MetadataService
from bookie_protocol.versioned import may_be_one_life


class NotAMember(InvalidCookie):
    """The bookie runs, and its cluster has no cookie of it any more, or that of another bookie."""


class Membership:
    """The membership of one bookie, which knows the cookie that its start found or made. `run` takes the following of
    its decommission, as long as one is under way."""

    def __init__(
        self, metadata: MetadataService, own: StoredCookie, mode: BookieMode, run: Callable[[Awaitable[None]], None]
    ) -> None:
        self._metadata = metadata
        self._own = own
        self._mode = mode
        self._run = run
        self._leaving = Leaving(metadata, own.cookie.bookie_id, mode)
        self._following = False

    async def check(self) -> bool:
        """Return whether the bookie has to be read-only. Raises `NotAMember`, `MetadataError`."""
        await self._check_cluster()
        await self._check_cookie()
        if await self._leaving.look() and not self._following:
            self._following = True
            self._run(self._follow())
        return self._mode.read_only

    async def _follow(self) -> None:
        try:
            await self._leaving.follow()
        finally:
            self._following = False

    async def _check_cluster(self) -> None:
        found, own = await self._metadata.cluster.instance_id(), self._own.cookie.instance_id
        if found != own:
            raise NotAMember(
                f"the metadata service now serves another cluster (instance id {found or '(none)'}, this bookie belongs"
                f" to {own or '(none)'}): restore the metadata service, or correct metadataServiceUri"
            )
        of = await self._metadata.cluster.records_instance_id()
        if of not in (None, own):
            raise NotAMember(
                "the metadata service holds records of an earlier cluster (decommissions, streams): something that does"
                f" not know them has formatted it, since they were stored for instance id {of}, and this cluster's is"
                f" {own or '(none)'}; remove them (the node `podkeeper` below the cluster's root, with all below it),"
                " then start the bookie"
            )

    async def _check_cookie(self) -> None:
        own = self._own
        try:
            stored = await self._metadata.cookies.read(own.bookie_id)
        except MetadataNotFound:
            raise NotAMember(
                f"the cookie of bookie {own.bookie_id} is gone: the bookie was decommissioned while it did not reach"
                " the metadata service, or its cookie was deleted by hand; the bookie ends and takes no more data"
            ) from None
        found = parse_cookie(stored.value, f"the metadata service under {own.bookie_id}")
        if not may_be_one_life(stored.identity.creation, own.identity.creation):
            raise NotAMember(
                f"the cookie of bookie {own.bookie_id} is another one than at the start of this bookie: another bookie"
                " has the id now, or the cookie was deleted and stored again; stop the other bookie, or start this one"
                " again"
            )
        if _who(found) != _who(own.cookie):
            raise NotAMember(
                f"the cookie of bookie {own.bookie_id} was changed while the bookie did not reach the metadata service,"
                f" and now names bookie {found.bookie_id}: finish what changed it (such as"
                " `bookie cluster rename-bookie`), then start the bookie"
            )
        self._own = replace(own, identity=stored.identity)  # another kind of creation behind a move of the metadata


def _who(cookie: Cookie) -> tuple[str, str, str | None]:
    return cookie.bookie_id, cookie.journal_dirs, cookie.instance_id
