"""The scrubber of one bookie, put together from its configuration.

Damage that is known from earlier passes is refused to readers, and its logs are kept from garbage collection, whether
or not the scrubber is switched on.

Threads: event loop; `start` and `stop` as they say.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from bookie_pod.config.model import BookieConfig
from bookie_pod.metrics.registry import Registry
from bookie_pod.metrics.scrub import ScrubInstruments
from bookie_pod.node import options
from bookie_pod.node.integrity.digests import MetadataDigestTypes
from bookie_pod.storage.clock import steady_now_ms
from bookie_pod.storage.engines.interface import LedgerStorage
from bookie_pod.storage.files import Files
from bookie_pod.storage.gc.collector import GarbageCollector
from bookie_pod.storage.gc.metadata import GcMetadata
from bookie_pod.storage.gc.throttle import Throttle
from bookie_pod.storage.integrity.journal_scrub import JournalScrub
from bookie_pod.storage.integrity.ledger_scrub import LedgerScrub
from bookie_pod.storage.integrity.quarantine import Damage, DamageKind
from bookie_pod.storage.integrity.scrub import Scrubber
from bookie_pod.storage.integrity.scrub_pace import ScrubPace
from bookie_pod.storage.integrity.scrub_part import ScrubPart
from bookie_pod.storage.integrity.scrub_storage import scrubbed
from bookie_pod.storage.journal.marks import LogMark, MarkFiles

AfterPass = Callable[[Sequence[tuple[ScrubPart, Damage]]], None]


def make_scrubber(
    config: BookieConfig,
    files: Files,
    storage: LedgerStorage,
    collectors: Sequence[GarbageCollector],
    metadata: GcMetadata,
    registry: Registry,
    under_pressure: Callable[[], bool],
    after_pass: Callable[[ScrubInstruments], AfterPass | None],
) -> Scrubber:
    """The scrubber, not started. `collectors` in the order of the storage's parts."""
    stopped = threading.Event()
    integrity = config.integrity
    pace = ScrubPace(
        stopped,
        entries_per_second=integrity.local_scrub_rate_limit,
        bytes_per_second=integrity.local_scrub_rate_bytes,
        under_pressure=under_pressure,
    )
    questions = Throttle(config.gc.metadata_op_rate_limit, stopped, by_bytes=False)
    digests = MetadataDigestTypes(metadata, lambda: questions.pay(1, 0))
    instruments = ScrubInstruments(registry)
    folders = options.current_folders(config.directories.ledger)
    parts: list[ScrubPart] = []
    for part, folder, collector in zip(scrubbed(storage), folders, collectors, strict=False):
        scrub = LedgerScrub(
            part,
            files,
            folder,
            pace,
            digests,
            may_be_earlier_life=collector.may_be_earlier_life,
            metrics=instruments,
            now_ms=steady_now_ms,
        )
        collector.excluded = scrub.register.held_logs
        parts.append(scrub)
    journals = options.current_folders(config.directories.journal)
    for index, folder in enumerate(journals):
        marks = _mark_reader(files, folders, index, len(journals))
        parts.append(JournalScrub(files, folder, marks, pace, metrics=instruments, now_ms=steady_now_ms))
    scrubber = Scrubber(
        parts,
        stopped,
        interval_s=integrity.local_scrub_interval_s,
        after_pass=after_pass(instruments),
        metrics=instruments,
        turns=lambda: pace.turns,
    )
    _bind_levels(instruments, scrubber)
    return scrubber


def _mark_reader(files: Files, folders: Sequence[str], index: int, count: int) -> Callable[[], LogMark]:
    return lambda: MarkFiles(files, folders, index, count).read()


def _bind_levels(instruments: ScrubInstruments, scrubber: Scrubber) -> None:
    def count(kind: DamageKind) -> Callable[[], float]:
        return lambda: sum(damage.kind is kind for damage in scrubber.damages())

    instruments.bind_levels(
        damages={kind.name: count(kind) for kind in DamageKind},
        last_pass_ms=lambda: min((part.position.completed_ms for part in scrubber.parts), default=0),
        running=lambda: scrubber.state().running,
    )
