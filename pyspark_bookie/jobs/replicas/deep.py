"""Reading one replica of a fragment in full: every digest is verified, and only faults and checksums are kept.

Checksums, which show that replicas differ, are made if asked for.

Invariants
- Each piece is one batch read where the bookie serves them; of a striped ledger one for each place in the striping
  period, if it knows batch reads with a step. Otherwise single reads, many at once.
- What is under way is bounded by the window that all replicas of a task share, and all of it passes the throttle.
- A bookie that cannot be reached ends its own scan; what was not read is UNREACHABLE, and nothing else is said of it.
- After `MAX_FAULTS` faults nothing more is read of the replica: it has to be copied again in any case.
- Nothing is under way once `scan` has ended, however it ended.

Checksums: of each block of `BLOCK` ids, and within it of each place in the striping period (one place where every
replica holds everything). A block of which an entry is not good has none.

Event loop only.

Sources: docs/internals/client-protocol.md, section 11.5; docs/internals/auto-recovery.md, section 5;
docs/internals/wire-protocol.md, section 7.2.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import google_crc32c
import numpy as np

from bookie_client.access import LedgerAccess
from bookie_client.client import Client
from bookie_client.patience import Patience
from bookie_client.replication.fragments import Fragment
from bookie_client.replication.source_reads import Outcome, SourceReads
from bookie_client.replication.throttle import ReplicationThrottle, piece_bytes
from bookie_client.writing.window import Window
from bookie_protocol.digest import DigestManager, DigestType
from bookie_protocol.entry import ENTRY_HEADER, ENTRY_HEADER_SIZE, ENTRY_IDS
from bookie_protocol.errors import BookieUnavailable, DigestMismatch, PodkeeperError, TooManyRequests

FINGERPRINT_SIZE: Final = 4

_value: Final = google_crc32c.value
_extend: Final = google_crc32c.extend
BLOCK: Final = 1024
"""Entries of which one checksum tells."""
MAX_FAULTS: Final = 1_000
PIECES_AT_ONCE: Final = 3
"""Pieces of one replica under way: while one piece is verified others travel."""
MAX_PIECE_ENTRIES: Final = 8_192
SINGLES: Final = 256
GUESSED_BYTES: Final = 1_024
BUSY_TRIES: Final = 8
BUSY_SECONDS: Final = 0.05


class BatchVerifier:
    """Verifying a batch of consecutive entries as a whole: the digests of all in one pass, compared at once.

    A batch in which everything is right costs two slices and two calls for each entry, and no object that outlives
    the pass. Only where something differs is the batch looked at entry by entry.

    Invariants
    - A batch counts as good only when for each entry length, digest, ledger id and entry id are all right.
    - `fingerprints` of two replicas are equal where their entries are; they may differ although what the writer
      appended is the same, since recovery rewrites headers (`compare` settles that).

    Verifies entries of one ledger.

    Pure; any thread.
    """

    def __init__(self, digest: DigestManager, ledger_id: int) -> None:
        self._digest = digest
        self._ledger_id = ledger_id
        self._is_crc32c = digest.type is DigestType.CRC32C
        self._payload_at = ENTRY_HEADER_SIZE + digest.size

    def is_good(self, first: int, entries: Sequence[bytes]) -> bool:
        """Return True if the k-th of `entries` is entry `first + k`, undamaged, for all of them."""
        payload_at, header_size = self._payload_at, ENTRY_HEADER_SIZE
        if min(map(len, entries), default=payload_at) < payload_at:
            return False
        if b"".join([entry[:16] for entry in entries]) != self._ids(first, len(entries)):
            return False
        if self._is_crc32c:
            sums = [_extend(_value(entry[:header_size]), entry[payload_at:]) for entry in entries]
            expected = np.array(sums, dtype=">u4").tobytes()
        else:
            digest = self._digest.digest
            expected = b"".join([digest(entry[:header_size], entry[payload_at:]) for entry in entries])
        return expected == b"".join([entry[header_size:payload_at] for entry in entries])

    def fingerprints(self, entries: Sequence[bytes]) -> bytes:
        """`FINGERPRINT_SIZE` bytes for each entry, from what `is_good` accepted."""
        if self._is_crc32c:
            return b"".join([entry[ENTRY_HEADER_SIZE : self._payload_at] for entry in entries])
        start = ENTRY_HEADER_SIZE if not self._digest.size else 0
        return np.array([_value(entry[start:]) for entry in entries], dtype=">u4").tobytes()

    def content(self, entry: bytes) -> tuple[int, bytes]:
        """Return what the writer appended: the ledger's length up to this entry, and the payload. The rest of the
        header may differ between good replicas."""
        length = ENTRY_HEADER.unpack_from(entry)[3]
        return int(length), entry[self._payload_at :]

    def _ids(self, first: int, count: int) -> bytes:
        ids = np.empty((count, 2), dtype=">i8")
        ids[:, 0] = self._ledger_id
        ids[:, 1] = np.arange(first, first + count)
        return ids.tobytes()


assert ENTRY_IDS.size == 16


def checksum(fingerprints: Sequence[bytes]) -> int:
    """One number for a block of entries."""
    return int(_value(b"".join(fingerprints)))


@dataclass(slots=True)
class ReplicaScan:
    """The outcome of a scan.

    `faults`: why an entry is not good, by id. `stopped`: why the rest was not read, from `unread_from` on. `checksums`:
    how many entries, and their checksum, by block and place.
    """

    entries: int = 0
    nbytes: int = 0
    requests: int = 0
    faults: dict[int, PodkeeperError] = field(default_factory=dict)
    stopped: str | None = None
    unread_from: int | None = None
    unreachable: bool = False
    checksums: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict)

    def add(self, part: ReplicaScan) -> None:
        """Add the outcome of one piece, without checksums."""
        self.entries += part.entries
        self.nbytes += part.nbytes
        self.requests += part.requests
        self.faults.update(part.faults)
        self.stopped = self.stopped or part.stopped
        self.unreachable = self.unreachable or part.unreachable
        if part.unread_from is not None and (self.unread_from is None or part.unread_from < self.unread_from):
            self.unread_from = part.unread_from
        if len(self.faults) >= MAX_FAULTS and self.stopped is None:
            self.stopped = f"nothing more was read after {MAX_FAULTS} faults"


@dataclass(frozen=True, slots=True)
class ScanLimits:
    """The limits that all scans of a task share."""

    throttle: ReplicationThrottle
    max_bytes_in_flight: int = 32 * 1024 * 1024
    batch_bytes: int = 1024 * 1024
    window: Window = field(init=False)

    @property
    def piece_bytes(self) -> int:
        """The bytes of one batch read."""
        return piece_bytes(self.throttle.bytes_per_second, self.batch_bytes)

    def __post_init__(self) -> None:
        object.__setattr__(self, "window", Window(1024, self.max_bytes_in_flight, 0))


class ReplicaScanner:
    """Scans replicas of one fragment. `average`: stored bytes of an entry, if known."""

    def __init__(
        self,
        client: Client,
        fragment: Fragment,
        access: LedgerAccess,
        limits: ScanLimits,
        *,
        average: int | None = None,
        checksums: bool = False,
    ) -> None:
        self._client = client
        self._fragment = fragment
        self._digest = access.digest
        self._verifier = BatchVerifier(access.digest, fragment.ledger_id)
        self._limits = limits
        self._average = max(1, average or GUESSED_BYTES)
        self._checksums = checksums
        self._holds_all = fragment.quorums.ensemble == fragment.quorums.write
        self._reads = SourceReads(client.context, fragment, access, (), batch_reads=True)

    async def scan(self, bookie: str, runs: Iterable[range]) -> ReplicaScan:
        """Read these entries, all of which the bookie should have, from it."""
        result = ReplicaScan()
        prints: dict[tuple[int, int], dict[int, bytes]] = defaultdict(dict)
        waiting = iter(self._pieces(bookie, runs))

        async def work() -> None:
            for piece in waiting:
                if result.stopped is not None:
                    if result.unread_from is None or piece[0] < result.unread_from:
                        result.unread_from = piece[0]
                    return
                await self._piece(bookie, piece, result, prints)

        async with asyncio.TaskGroup() as group:
            for _ in range(PIECES_AT_ONCE):
                group.create_task(work())
        spoilt = set(map(self._key, result.faults))
        for key, parts in prints.items():
            if key not in spoilt:
                ordered = [parts[first] for first in sorted(parts)]
                result.checksums[key] = sum(map(len, ordered)) // FINGERPRINT_SIZE, checksum(ordered)
        return result

    # --- pieces -----------------------------------------------------------------------------------------------

    def _pieces(self, bookie: str, runs: Iterable[range]) -> Iterator[Sequence[int]]:
        """Runs cut so that a piece fits one answer and, read by one batch, stays in its block; short runs, as all of a
        striped ledger are, are gathered."""
        gathered: list[int] = []
        for run in runs:
            start = run.start
            while start < run.stop:
                by_batch = self._reads.may_batch(bookie)
                # A little less than would fit: a batch that is cut short costs another request.
                fits = min(max(1, self._limits.piece_bytes * 9 // 10 // (self._average + 4)), MAX_PIECE_ENTRIES)
                if not (by_batch and self._holds_all) or run.stop - start < 2:
                    most = fits if by_batch and not self._holds_all else SINGLES
                    gathered.extend(range(start, min(run.stop, start + max(1, most - len(gathered)))))
                    start = gathered[-1] + 1
                    if len(gathered) >= most:
                        yield gathered
                        gathered = []
                    continue
                stop = min(run.stop, start + fits)
                if self._checksums:
                    stop = min(stop, (start // BLOCK + 1) * BLOCK)
                yield range(start, stop)
                start = stop
        if gathered:
            yield gathered

    async def _piece(
        self, bookie: str, ids: Sequence[int], result: ReplicaScan, prints: dict[tuple[int, int], dict[int, bytes]]
    ) -> None:
        limits, expected, part = self._limits, self._average * len(ids), ReplicaScan()
        await limits.window.acquire(expected)
        try:
            requests = self._reads.requests(ids, bookie)
            await limits.throttle.read(expected, requests)
            done = 0
            if isinstance(ids, range):
                done = await self._by_batch(bookie, ids, part, prints)
            if done < len(ids) and part.stopped is None:
                await self._gathered(bookie, ids[done:], part, prints)
        finally:
            limits.window.release(1, expected)
        limits.throttle.correct_read(part.nbytes - expected, part.requests - requests)
        result.add(part)

    async def _by_batch(
        self, bookie: str, ids: range, result: ReplicaScan, prints: dict[tuple[int, int], dict[int, bytes]]
    ) -> int:
        """Return how many of the ids are settled; less than all if single reads may do better."""
        context, done, patience = self._client.context, 0, Patience(BUSY_TRIES, BUSY_SECONDS)
        while done < len(ids) and result.stopped is None:
            first, left = ids[done], len(ids) - done
            result.requests += 1
            try:
                packed = await context.operations.batch_read(
                    bookie, self._fragment.ledger_id, first, left, self._limits.batch_bytes
                )
                entries = packed.split()[:left]
            except TooManyRequests as error:
                if await patience.again():
                    continue
                self._stop(result, first, error)
                break
            except BookieUnavailable as error:
                self._stop(result, first, error)
                break
            except PodkeeperError as error:
                if context.batch_support.judge(bookie, error, asyncio.get_running_loop().time()):
                    break
                self._fault(result, first, error)
                done += 1
                continue
            context.batch_support.served(bookie)
            self._take(first, entries, result, prints)
            done += len(entries)
        return done

    async def _gathered(
        self, bookie: str, ids: Sequence[int], result: ReplicaScan, prints: dict[tuple[int, int], dict[int, bytes]]
    ) -> None:
        left = list(ids)
        patience = Patience(BUSY_TRIES, BUSY_SECONDS)
        while True:
            outcome = Outcome()
            await self._reads.read_from(bookie, left, self._limits.batch_bytes, outcome)
            result.requests += outcome.requests
            for entry_id, entry in outcome.found.items():
                self._good(entry_id, [entry], result, prints)
            left = []
            for entry_id in sorted(outcome.errors):
                error = outcome.errors[entry_id][bookie]
                if isinstance(error, BookieUnavailable):
                    self._stop(result, entry_id, error)
                    return
                if isinstance(error, TooManyRequests):
                    left.append(entry_id)
                else:
                    self._fault(result, entry_id, error)
            if not left:
                return
            if not await patience.again():
                self._stop(result, left[0], TooManyRequests(f"bookie {bookie} is too busy"))
                return

    # --- what was read ----------------------------------------------------------------------------------------

    def _take(
        self, first: int, entries: Sequence[bytes], result: ReplicaScan, prints: dict[tuple[int, int], dict[int, bytes]]
    ) -> None:
        if self._verifier.is_good(first, entries):
            self._good(first, entries, result, prints)
            return
        for entry_id, entry in enumerate(entries, first):
            try:
                self._digest.verify(entry, self._fragment.ledger_id, entry_id)
            except DigestMismatch as error:
                result.nbytes += len(entry)
                self._fault(result, entry_id, error)
            else:
                self._good(entry_id, [entry], result, prints)

    def _good(
        self, first: int, entries: Sequence[bytes], result: ReplicaScan, prints: dict[tuple[int, int], dict[int, bytes]]
    ) -> None:
        nbytes = sum(map(len, entries))
        result.entries += len(entries)
        result.nbytes += nbytes
        self._average = max(1, (7 * self._average + nbytes // len(entries)) // 8)
        if not self._checksums:
            return
        found = self._verifier.fingerprints(entries)
        if self._holds_all:
            prints[self._key(first)][first] = found
            return
        for place, entry_id in enumerate(range(first, first + len(entries))):
            prints[self._key(entry_id)][entry_id] = found[place * FINGERPRINT_SIZE : (place + 1) * FINGERPRINT_SIZE]

    def _key(self, entry_id: int) -> tuple[int, int]:
        return entry_id // BLOCK, 0 if self._holds_all else entry_id % self._fragment.quorums.ensemble

    def _fault(self, result: ReplicaScan, entry_id: int, error: PodkeeperError) -> None:
        result.faults[entry_id] = error

    def _stop(self, result: ReplicaScan, entry_id: int, error: PodkeeperError) -> None:
        result.stopped, result.unread_from, result.unreachable = str(error), entry_id, True
