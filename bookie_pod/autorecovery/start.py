"""Auditor, worker and the client that they share, made from a configuration: the same inside a bookie and alone.

Invariants
- Everything that copies or checks on the worker's behalf passes one throttle and one budget of bytes.
- `stop` ends within `STOP_SECONDS` whatever the metadata service does.

Event loop only.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Final

from bookie_client.client import Client
from bookie_client.replication.check import CheckOptions, LedgerChecker
from bookie_client.replication.closing import close_checked
from bookie_client.replication.replicator import FragmentReplicator
from bookie_client.replication.throttle import ReplicationThrottle
from bookie_pod.autorecovery.auditor.auditor import Auditor
from bookie_pod.autorecovery.auditor.schedule import wall_clock_ms
from bookie_pod.autorecovery.auditor.term import AuditorStatus
from bookie_pod.autorecovery.daemon import AutoRecovery, AutoRecoveryStatus
from bookie_pod.autorecovery.worker.ledger_repair import LedgerRepair, RepairParts
from bookie_pod.autorecovery.worker.progress import Phase, WorkerProgress
from bookie_pod.autorecovery.worker.worker import ReplicationWorker, WorkerOptions
from bookie_pod.client_options import client_options, client_placement, copying_throttle, replication_options
from bookie_pod.config.model import BookieConfig
from bookie_pod.config.sections.autorecovery import AutoRecoveryConfig
from bookie_pod.metrics.autorecovery import AuditorInstruments, ReplicationWorkerMetrics
from bookie_pod.metrics.registry import Registry
from bookie_protocol.metadata_service.findings import Finding
from bookie_protocol.metadata_service.interface import LedgerLife
from bookie_protocol.metadata_service.tree.service import MetadataService

STOP_SECONDS: Final = 15.0
MANY_READS: Final = 1000
"""Stands for no limit of reads in flight."""


class RunningAutoRecovery:
    """Made by `start`; `stop` it once."""

    def __init__(self, client: Client, auditor: Auditor, worker: ReplicationWorker, daemon: AutoRecovery) -> None:
        self._client = client
        self._auditor = auditor
        self._worker = worker
        self._daemon = daemon

    def complaint(self) -> str | None:
        """Return what is wrong in one line; None: nothing."""
        return self._daemon.complaint()

    def dead(self) -> str | None:
        """Return a fault that only another process mends; None: nothing."""
        return self._daemon.dead()

    def status(self) -> AutoRecoveryStatus:
        """Return what this process does."""
        return self._daemon.status()

    @property
    def auditor(self) -> Auditor:
        """The candidate for the auditor."""
        return self._auditor

    def auditor_status(self) -> AuditorStatus:
        """Return what the auditor, or candidate, shows."""
        return self._auditor.status()

    async def watch(self) -> str:
        """Wait until the session with the metadata service does not come back, or a part is `dead`; return why."""
        return await self._daemon.watch()

    async def stop(self) -> None:
        """Give back locks and the vote, then close the client."""
        with suppress(TimeoutError):
            async with asyncio.timeout(STOP_SECONDS):
                await self._daemon.stop()
        await self._client.close()


async def start(
    config: BookieConfig, metadata: MetadataService, registry: Registry, bookie_id: str, *, embedded: bool
) -> RunningAutoRecovery:
    """Begin. `bookie_id`: what the auditor's vote says. `InvalidConfiguration`: bad keys of placement."""
    options = config.auto_recovery
    local_bookie = bookie_id if embedded else None
    access = client_options(config, repairs=True)
    client = Client(metadata, access, placement=client_placement(config, local_bookie=local_bookie))
    await client.start()
    try:
        instruments = AuditorInstruments(registry, embedded=embedded)
        auditor = Auditor(metadata, client, options, instruments, bookie_id=bookie_id)
        worker = make_worker(metadata, client, options, ReplicationWorkerMetrics(registry, embedded=embedded))
        parts = {"auditor": auditor.run, "replication worker": worker.run}
        daemon = AutoRecovery(
            metadata.session,
            parts,
            worker.progress,
            worker.complaint,
            watch_interval=max(0.1, config.node.death_watch_interval_ms / 1000),
        )
        await daemon.start()
    except BaseException:
        await client.close()
        raise
    return RunningAutoRecovery(client, auditor, worker, daemon)


def make_worker(
    metadata: MetadataService,
    client: Client,
    options: AutoRecoveryConfig,
    metrics: ReplicationWorkerMetrics,
    clock_ms: Callable[[], int] = wall_clock_ms,
) -> ReplicationWorker:
    """A worker over this client. `clock_ms`: the time of day for marks."""
    progress = WorkerProgress()
    throttle = copying_throttle(options)
    reads = options.checker_reads_in_flight if options.checker_reads_in_flight > 0 else MANY_READS
    marks = metadata.under_replication

    async def mark_more(ledger_id: int, findings: Collection[Finding]) -> None:
        now = clock_ms() if options.store_mark_time else None
        await marks.mark(ledger_id, ctime_ms=now, findings=findings)

    check_options = CheckOptions(
        verification_percentage=options.auditor_verification_percentage, max_reads=reads, throttle=throttle
    )
    checker = LedgerChecker(client, check_options)

    async def recover_ledger(life: LedgerLife) -> None:
        await close_checked(client, checker, life)

    parts = RepairParts(
        checker=checker,
        replicator=FragmentReplicator(client, replication_options(options, throttle)),
        writable=client.writable_bookies,
        mark=marks.read,
        mark_more=mark_more,
        recover=recover_ledger,
        progress=progress,
        metrics=metrics,
    )
    worker_id = f"{socket.gethostname()}/{client.context.random.getrandbits(32):08x}"
    worker = ReplicationWorker(metadata, LedgerRepair(parts), _worker_options(options), progress, metrics, worker_id)
    _bind(metrics, worker, throttle)
    return worker


def _worker_options(options: AutoRecoveryConfig) -> WorkerOptions:
    return WorkerOptions(
        ledgers_at_once=options.ledgers_at_once,
        open_ledger_grace=options.open_ledger_grace_period_ms / 1000,
        failed_ledger_backoff=options.failed_ledger_lock_release_ms / 1000,
        pause_after_error=options.worker_backoff_ms / 1000,
        tasks_per_second=options.zk_task_rate_limit,
    )


def _bind(metrics: ReplicationWorkerMetrics, worker: ReplicationWorker, throttle: ReplicationThrottle) -> None:
    notes = worker.progress.notes
    waiting = (Phase.WAITING_FOR_WRITER, Phase.BACKING_OFF)

    def count(*phases: Phase) -> int:
        return sum(note.phase in phases for note in notes.values())

    metrics.bind_levels(
        running=lambda: float(worker.progress.is_running),
        at_work=lambda: len(notes) - count(*waiting),
        waiting=lambda: count(Phase.WAITING_FOR_WRITER),
        failing=lambda: count(Phase.BACKING_OFF),
        losing=lambda: sum(bool(note.lost_entries) for note in notes.values()),
        locks_not_released=lambda: worker.locks_not_released,
        rounds_without_an_answer=lambda: worker.rounds_without_an_answer,
        rate_limit=lambda: throttle.bytes_per_second or 0,
    )
