"""The status that a bookie shows to probes, the admin API and its metrics, and to its cluster when it joins it.

Invariants of joining
- Each session begins with `Membership.check`, also the first: a bookie that is being decommissioned joins read-only, so
  that no client ever sees it writable, and one that lost its cookie since its start ends.
- The mode speaks for the registration from then on, and no more once the bookie leaves.

Threads: event loop; `server_status` may be read by any.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import structlog

from bookie_pod.config.model import BookieConfig
from bookie_pod.config.sections.network import NetworkConfig
from bookie_pod.node.identity.cookie_check import StoredCookie
from bookie_pod.node.identity.membership import Membership
from bookie_pod.node.identity.published import service_info
from bookie_pod.node.metadata import with_patience
from bookie_pod.node.mode import BookieMode
from bookie_pod.node.processes.background import BackgroundTasks
from bookie_pod.node.registration import RegistrationManager, ServerStatus
from bookie_pod.server.status import NodeState
from bookie_protocol.errors import PodkeeperError, StorageFault
from bookie_protocol.metadata_service.tree.service import MetadataService

if TYPE_CHECKING:
    from bookie_pod.autorecovery.start import RunningAutoRecovery

_log = structlog.get_logger(__name__)


class LiveStatus:
    """`NodeStatus`. The bookie sets what it has as soon as it has it; `failed` resolves with the error that ends it."""

    def __init__(self, failed: asyncio.Future[PodkeeperError]) -> None:
        self.failed = failed
        self.phase = "starting"
        self.waits_for: str | None = None
        """The cause that keeps it in this phase."""
        self.running = False
        self.opening: str | None = None
        """Which port for clients does not listen yet."""
        self.stopping = False
        self.mode: BookieMode | None = None
        self.registration: RegistrationManager | None = None
        self.slow_parts: Callable[[], Sequence[str]] = tuple
        """The parts that make no progress, a line each."""
        self.starting_auto_recovery: asyncio.Task[RunningAutoRecovery | None] | None = None

    def enter(self, phase: str) -> None:
        """Enter this phase of the bookie."""
        self.phase, self.waits_for = phase, None
        _log.info("phase", phase=phase)

    def wait_for_metadata(self, reason: str) -> None:
        """The metadata service has not answered so far, for this reason."""
        self.waits_for = f"no answer from the metadata service so far: {reason}"

    def fail(self, error: BaseException) -> None:
        """A part cannot go on: the bookie ends."""
        if not self.failed.done():
            known = error if isinstance(error, PodkeeperError) else StorageFault(f"unexpected fault: {error!r}")
            _log.critical("bookie fails", reason=str(known))
            self.failed.set_result(known)

    @property
    def server_status(self) -> ServerStatus:
        return ServerStatus.UNREGISTERED if self.registration is None else self.registration.status

    @property
    def auto_recovery(self) -> RunningAutoRecovery | None:
        """Return the auto-recovery that runs here; None if none does, or not yet."""
        starting = self.starting_auto_recovery
        if starting is None or not starting.done() or starting.cancelled() or starting.exception() is not None:
            return None
        return starting.result()

    # --- NodeStatus -----------------------------------------------------------------------------------------

    def state(self) -> NodeState:
        mode = self.mode
        return NodeState(
            self.running, mode is not None and mode.read_only, self.stopping, mode is None or mode.high_priority_writes
        )

    def unhealthy_reason(self) -> str | None:
        return str(self.failed.result()) if self.failed.done() else None

    def complaint(self) -> str | None:
        running = self.auto_recovery
        return None if running is None else running.complaint()

    def unready_reason(self) -> str | None:
        if not self.running:
            return self.phase if self.waits_for is None else f"{self.phase}: {self.waits_for}"
        if self.opening is not None:
            return self.opening
        if slow := self.slow_parts():
            return slow[0]
        if self.server_status is not ServerStatus.UNREGISTERED:
            return None
        away_s = 0.0 if self.registration is None else self.registration.away_s
        reason = "not registered in the metadata service"
        return f"{reason}, which has not answered for {away_s:.0f} s" if away_s >= 1 else reason


async def join_cluster(
    config: BookieConfig,
    *,
    metadata: MetadataService,
    own: StoredCookie,
    address: NetworkConfig,
    http_port: int | None,
    mode: BookieMode,
    status: LiveStatus,
    tasks: BackgroundTasks,
    undo: AsyncExitStack,
) -> RegistrationManager:
    """Register the bookie whose cookie this is; `undo` takes it back. `http_port`: that of its HTTP server, which has
    one by now also where any would do. Raises `RegistrationFailed`, `NotAMember`, `MetadataError`."""
    info = await service_info(config, address, http_port)
    membership = Membership(metadata, own, mode, tasks.run)
    registration = status.registration = RegistrationManager(
        metadata, own.cookie.bookie_id, info, status.fail, membership.check
    )
    read_only = mode.read_only
    await with_patience(
        config.metadata,
        lambda: registration.register(read_only=read_only),
        status.wait_for_metadata,
    )
    undo.push_async_callback(registration.deregister)
    mode.attach(registration, announced_read_only=registration.wants_read_only)
    undo.callback(mode.detach)
    return registration
