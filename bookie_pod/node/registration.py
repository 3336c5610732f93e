"""Keeping the bookie's registration in the metadata service true: writable, read-only, or none.

Invariants
- The wanted group is registered first, then the other one removed, so that the bookie is never in neither list while it
  changes (a moment in both is what clients expect).
- After the session expired the bookie counts as unregistered at once, and is registered again as soon as there is a new
  session. While the metadata service does not answer, this goes on trying: a leader change there costs no bookie.
- A session begins as a start does: `admit` looks at what is stored, before the bookie is registered and once more when
  it is, read-only first. So of a bookie that registers and a decommission that deletes its cookie, or a command that
  formats the cluster, one sees the other; and no client finds the bookie writable before that is settled.
- Without a session for `AWAY_SESSIONS` time-outs the bookie counts as unregistered too (`status`), until the session
  goes on or there is another one: the service may have ended it, and lost all that it knew of it.
- A definite no (another session holds the id, the cluster's root is gone) is handed to `on_failure` once, as
  `RegistrationFailed` (exit code 4), and a start error of `admit` as it is; then nothing more is tried.

Threads: event loop only.

Sources: docs/internals/metadata-layout.md, sections 4.1 and 4.3; docs/internals/bookie-behaviour.md, section 5.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from enum import IntEnum
from typing import Final

import structlog

from bookie_protocol.errors import MetadataError, MetadataUnavailable, RegistrationFailed, StartupError
from bookie_protocol.lasting import lasting_task
from bookie_protocol.metadata_service.interface import BookieGroup, SessionState
from bookie_protocol.metadata_service.service_info import BookieServiceInfo
from bookie_protocol.metadata_service.tree.service import MetadataService

RETRY_SECONDS: Final = 1.0
AWAY_SESSIONS: Final = 3
"""The number of session time-outs without an answer after which the registration counts as unknown."""
DEREGISTER_S: Final = 2.0
"""Seconds that a stop waits for the registration to go: a metadata service that is away ends it with the session."""

_log = structlog.get_logger(__name__)
_OTHER = {BookieGroup.WRITABLE: BookieGroup.READ_ONLY, BookieGroup.READ_ONLY: BookieGroup.WRITABLE}


class ServerStatus(IntEnum):
    """Values of the gauge `SERVER_STATUS`."""

    UNREGISTERED = -1
    READ_ONLY = 0
    WRITABLE = 1


_STATUS = {BookieGroup.WRITABLE: ServerStatus.WRITABLE, BookieGroup.READ_ONLY: ServerStatus.READ_ONLY}


class RegistrationManager:
    """Registers one bookie. `timeout` (seconds, None: `zkTimeout`) bounds each request, and the wait for the
    registration of an earlier process of this bookie to go away."""

    def __init__(
        self,
        service: MetadataService,
        bookie_id: str,
        info: BookieServiceInfo,
        on_failure: Callable[[StartupError], None],
        admit: Callable[[], Awaitable[bool]],
        *,
        timeout: float | None = None,
        retry_seconds: float = RETRY_SECONDS,
    ) -> None:
        """`admit` tells whether the bookie has to be read-only (`Membership.check`); it raises `StartupError` if the
        bookie must not be registered, and `MetadataError`."""
        self._service = service
        self._bookie_id = bookie_id
        self._info = info
        self._on_failure = on_failure
        self._timeout = timeout
        self._retry_seconds = retry_seconds
        self._wanted: BookieGroup | None = None
        self._status = ServerStatus.UNREGISTERED
        self.admit = admit
        self._sessions_lost = 0
        self._away_since: float | None = None
        self._entered: int | None = None
        """The session (`_sessions_lost` of then) in which the bookie was admitted last."""
        self._turn = asyncio.Lock()
        self._changed = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None
        self._left = False
        # From now on, not from the first registration: a session that ends between two tries of it is over, too.
        self._remove_listener = service.session.add_listener(self._on_session)

    @property
    def address(self) -> tuple[str, int] | None:
        """Host and port that it publishes."""
        return self._info.bookie_address()

    @property
    def wants_read_only(self) -> bool:
        """Return whether the list in which it is, or will be, is the read-only one."""
        return self._wanted is BookieGroup.READ_ONLY

    @property
    def status(self) -> ServerStatus:
        """Return the known registration in the metadata service. Any thread."""
        longest = AWAY_SESSIONS * self._service.session.expires_after
        return self._status if self.away_s <= longest else ServerStatus.UNREGISTERED

    @property
    def away_s(self) -> float:
        """Seconds since the metadata service answered last, as far as its session tells; 0: it does. Any thread."""
        since = self._away_since
        return 0.0 if since is None else time.monotonic() - since

    async def register(self, *, read_only: bool = False) -> None:
        """Register for the first time and keep it so. Raises `RegistrationFailed`, `MetadataUnavailable`, or what
        `admit` raises, and then keeps nothing."""
        if self._keeper is not None:
            raise RuntimeError(f"bookie {self._bookie_id} is registered already")
        self._wanted = BookieGroup.READ_ONLY if read_only else BookieGroup.WRITABLE
        try:
            await self._reconcile()
        except (MetadataError, StartupError) as error:
            self._wanted = None
            if isinstance(error, MetadataUnavailable | StartupError):
                raise
            raise self._failed(error) from error
        self._keeper = lasting_task(self._keep(), "registration")

    async def to_read_only(self) -> None:
        """Move to the read-only list. `MetadataUnavailable`: not yet, but it goes on trying."""
        await self._change(BookieGroup.READ_ONLY)

    async def to_writable(self) -> None:
        """Move to the writable list. `MetadataUnavailable`: not yet, but it goes on trying."""
        await self._change(BookieGroup.WRITABLE)

    async def deregister(self) -> None:
        """Stop keeping, and remove the registration if the metadata service answers (else it ends with the
        session). The second time nothing is left to do.
        """
        if self._left:
            return
        self._left = True
        self._wanted = None
        self._remove_listener()
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.wait([self._keeper])
            self._keeper = None
        self._status = ServerStatus.UNREGISTERED
        with suppress(MetadataError, TimeoutError):
            async with asyncio.timeout(DEREGISTER_S), self._turn:
                self._status = ServerStatus.UNREGISTERED
                for group in _STATUS:
                    await self._service.bookies.unregister(self._bookie_id, group, timeout=self._timeout)

    async def _change(self, group: BookieGroup) -> None:
        if self._keeper is None or self._wanted is None:
            raise RegistrationFailed(f"bookie {self._bookie_id} is not registered: register it first")
        self._wanted = group
        self._changed.set()
        try:
            await self._reconcile()
        except MetadataUnavailable:
            raise
        except (MetadataError, StartupError) as error:
            raise self._give_up(error) from error

    async def _reconcile(self) -> None:
        """Make the metadata service say what is wanted; the last wish wins."""
        async with self._turn:
            while (group := self._wanted) is not None and self._status != _STATUS[group]:
                session = self._sessions_lost
                if self._entered != session:
                    await self._enter(session)
                    continue
                await self._service.bookies.register(self._bookie_id, group, self._info, timeout=self._timeout)
                await self._service.bookies.unregister(self._bookie_id, _OTHER[group], timeout=self._timeout)
                if session == self._sessions_lost:
                    self._status = _STATUS[group]
                    _log.info("bookie registered", bookie_id=self._bookie_id, group=group.value)

    async def _enter(self, session: int) -> None:
        """Begin a session: the bookie is admitted, or this raises."""
        read_only = BookieGroup.READ_ONLY
        await self.admit()
        await self._service.bookies.register(self._bookie_id, read_only, self._info, timeout=self._timeout)
        # Who deletes the cookie or formats the cluster looks for registrations: from here on it finds this one. The
        # answer before may be older than the last wish.
        if await self.admit() and self._wanted is not None:
            self._wanted = read_only
        if session == self._sessions_lost:
            self._entered = session

    async def _keep(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                await self._reconcile()
            except MetadataUnavailable as error:
                _log.warning("registration is delayed", bookie_id=self._bookie_id, reason=str(error))
                await asyncio.sleep(self._retry_seconds)
                self._changed.set()
            except (MetadataError, StartupError) as error:
                self._give_up(error)

    def _on_session(self, state: SessionState) -> None:
        if state is SessionState.EXPIRED:
            self._status = ServerStatus.UNREGISTERED
            self._sessions_lost += 1
            _log.warning("metadata session expired: registering again", bookie_id=self._bookie_id)
        if state is SessionState.CONNECTED:
            self._away_since = None
        elif self._away_since is None:
            self._away_since = time.monotonic()
        if state is not SessionState.SUSPENDED:
            self._changed.set()

    def _give_up(self, error: MetadataError | StartupError) -> StartupError:
        failure = self._failed(error)
        if self._wanted is not None:
            self._wanted = None
            self._on_failure(failure)
        return failure

    def _failed(self, error: MetadataError | StartupError) -> StartupError:
        if isinstance(error, StartupError):
            return error
        return RegistrationFailed(f"bookie {self._bookie_id} cannot be registered: {error}")
