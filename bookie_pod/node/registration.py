"""Keeping the bookie's registration in the metadata service true: writable, read-only, or none.

Invariants
- The wanted group is registered first, then the other one removed, so that the bookie is never in neither
  list while it changes (a moment in both is what clients expect).
- After the session expired the bookie counts as unregistered at once, and is registered again as soon as a
  new session stands. While the metadata service does not answer, this goes on trying: a leader change there
  costs no bookie.
- A new session registers only with the cluster of the first one: behind the same address there may be another by now,
  whose clients would write to this bookie, and whose word on ledgers must not be taken.
- A definite no (another session holds the id, the cluster's root is gone, it is another cluster) is handed to
  `on_failure` once, as `RegistrationFailed` (exit code 4); then nothing more is tried.

Threads: event loop only.

Sources: reference metadata layout, sections 4.1 and 4.3; reference bookie behaviour, section 5.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from enum import IntEnum
from typing import Final

import structlog

from bookie_protocol.errors import MetadataDamaged, MetadataError, MetadataUnavailable, RegistrationFailed
from bookie_protocol.lasting import lasting_task
from bookie_protocol.metadata_service.interface import BookieGroup, MetadataService, SessionState
from bookie_protocol.metadata_service.service_info import BookieServiceInfo

RETRY_SECONDS: Final = 1.0
DEREGISTER_S: Final = 2.0
"""How long a stop waits for the registration to go: a metadata service that is away ends it with the session."""

_log = structlog.get_logger(__name__)


class ServerStatus(IntEnum):
    """Values of the gauge `SERVER_STATUS`."""

    UNREGISTERED = -1
    READ_ONLY = 0
    WRITABLE = 1


_STATUS = {BookieGroup.WRITABLE: ServerStatus.WRITABLE, BookieGroup.READ_ONLY: ServerStatus.READ_ONLY}
_OTHER = {BookieGroup.WRITABLE: BookieGroup.READ_ONLY, BookieGroup.READ_ONLY: BookieGroup.WRITABLE}


class RegistrationManager:
    """Registers one bookie. `timeout` (seconds, None: `zkTimeout`) bounds each request, and the wait for the
    registration of an earlier process of this bookie to go away."""

    def __init__(
        self,
        service: MetadataService,
        bookie_id: str,
        info: BookieServiceInfo,
        on_failure: Callable[[RegistrationFailed], None],
        *,
        timeout: float | None = None,
        retry_seconds: float = RETRY_SECONDS,
    ) -> None:
        self._service = service
        self._bookie_id = bookie_id
        self._info = info
        self._on_failure = on_failure
        self._timeout = timeout
        self._retry_seconds = retry_seconds
        self._wanted: BookieGroup | None = None
        self._status = ServerStatus.UNREGISTERED
        self._sessions_lost = 0
        self._instance_id: str | None = None
        self._sessions_checked = 0
        self._turn = asyncio.Lock()
        self._changed = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None
        self._left = False
        self._remove_listener: Callable[[], None] = lambda: None

    @property
    def address(self) -> tuple[str, int] | None:
        """Host and port that it publishes."""
        return self._info.bookie_address()

    @property
    def status(self) -> ServerStatus:
        """What is known to stand in the metadata service."""
        return self._status

    async def register(self, *, read_only: bool = False, instance_id: str | None = None) -> None:
        """Register for the first time and keep it so, in the cluster of this instance id (None: that of now). Raises
        `RegistrationFailed`, or `MetadataUnavailable`, and then keeps nothing."""
        if self._keeper is not None:
            raise RuntimeError(f"bookie {self._bookie_id} is registered already")
        self._wanted = BookieGroup.READ_ONLY if read_only else BookieGroup.WRITABLE
        self._remove_listener = self._service.session.add_listener(self._on_session)
        try:
            self._instance_id = instance_id or await self._service.cluster.instance_id(timeout=self._timeout)
            await self._reconcile()
        except MetadataError as error:
            self._wanted = None
            self._remove_listener()
            if isinstance(error, MetadataUnavailable):
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
        except MetadataError as error:
            raise self._give_up(error) from error

    async def _reconcile(self) -> None:
        """Make the metadata service say what is wanted; the last wish wins."""
        async with self._turn:
            while (group := self._wanted) is not None and self._status != _STATUS[group]:
                sessions_lost = self._sessions_lost
                await self._check_cluster(sessions_lost)
                bookies = self._service.bookies
                await bookies.register(self._bookie_id, group, self._info, timeout=self._timeout)
                await self._check_instance_id()  # who formats the cluster changes it, and then looks for bookies again
                await bookies.unregister(self._bookie_id, _OTHER[group], timeout=self._timeout)
                if sessions_lost == self._sessions_lost:
                    self._status = _STATUS[group]
                    _log.info("bookie registered", bookie_id=self._bookie_id, group=group.value)

    async def _check_cluster(self, sessions_lost: int) -> None:
        if self._sessions_checked != sessions_lost:
            await self._check_instance_id()
            self._sessions_checked = sessions_lost

    async def _check_instance_id(self) -> None:
        found = await self._service.cluster.instance_id(timeout=self._timeout)
        if found != self._instance_id:
            raise MetadataDamaged(
                f"the metadata service now serves another cluster (instance id {found or '(none)'}, this bookie belongs"
                f" to {self._instance_id or '(none)'}): restore the metadata service, or correct metadataServiceUri"
            )

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
            except MetadataError as error:
                self._give_up(error)

    def _on_session(self, state: SessionState) -> None:
        if state is SessionState.EXPIRED:
            self._status = ServerStatus.UNREGISTERED
            self._sessions_lost += 1
            _log.warning("metadata session expired: registering again", bookie_id=self._bookie_id)
        if state is not SessionState.SUSPENDED:
            self._changed.set()

    def _give_up(self, error: MetadataError) -> RegistrationFailed:
        failure = self._failed(error)
        if self._wanted is not None:
            self._wanted = None
            self._on_failure(failure)
        return failure

    def _failed(self, error: MetadataError) -> RegistrationFailed:
        return RegistrationFailed(f"bookie {self._bookie_id} cannot be registered: {error}")
