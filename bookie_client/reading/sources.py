"""The sources of the entries of one ledger: which replica is asked, in which order, by which request.

Each answer is also used to choose the next replicas.

Invariants
- Every replica that gave damaged bytes is counted, per bookie, and logged; so is each that its bookie could not read
  from its disk. So often that it is seen and never once per entry of a rotten disk.
- A sticky choice only moves when the chosen bookie failed.
- In the order of asking every replica comes exactly once: the order is a permutation of the write set.
- The sort is stable, so replicas of the same rank keep the order of the striping and the load stays spread.
- Nothing is ever left out: a bookie that looks dead is asked last, for the others may be worse.

Event loop only.

Source: docs/internals/client-protocol.md, sections 11.2 to 11.5 and 17.3.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from typing import Final, NamedTuple

from bookie_client.connection.channel import Channel
from bookie_client.connection.pool import ChannelPool
from bookie_client.context import ClientContext
from bookie_client.placement.topology import UNKNOWN_TOPOLOGY, Location, Topology
from bookie_client.reading.batch_read import BatchAnswer, BatchParts, BatchQuestion, BatchRead
from bookie_client.reading.entry import LedgerEntry, payload_bytes
from bookie_client.reading.entry_read import EntryGroup, ReadPath, read_failure
from bookie_client.reading.origins import Origins
from bookie_client.reading.speculation import SpeculationPolicy, Speculator
from bookie_protocol.digest import DigestManager
from bookie_protocol.errors import DigestMismatch, PodkeeperError, StorageFault, fresh
from bookie_protocol.ledger_metadata.model import LedgerMetadata
from bookie_protocol.logs import get_logger
from bookie_protocol.trace_context import marked

LATEST_PLACE_OF_A_REMOTE_REPLICA = 2
"""Index; so that a dead region of this client costs at most two tries."""
_log = get_logger(__name__)
LEAST_BATCH_SECONDS: Final = 0.05
"""Minimum seconds for a batch read before others are asked too, if nothing else is known; half of the delay."""
BATCH_DECAY: Final = 0.9
"""Factor per batch by which the slowest batch is forgotten."""
LOGGED_ONE_BY_ONE: Final = 10
"""Bad replicas of one bookie that are logged each; after them the 16th, 32nd, 64th and so on."""


class Standing(IntEnum):
    """The reason for a replica's place in the order; smaller is asked earlier."""

    LOCAL = 1
    """Located in this client's region (or no regions are known), without problems."""
    LOCAL_TROUBLED = 2
    """Located in this client's region, quarantined: it failed often recently."""
    REMOTE = 3
    """Located in another region."""
    REMOTE_TROUBLED = 4
    """Located in another region, quarantined."""
    READ_ONLY = 5
    """It takes no writes, which often means a full or failing disk."""
    SLOW = 6
    """It failed a read lately, or answers far slower than its peers."""
    UNREACHABLE = 7
    """A bookie that was not connected recently, or is not registered."""


class Rank(NamedTuple):
    """The sort key of a replica."""

    standing: Standing
    distance: int
    """Parts of this client's network location that the bookie does not share; 0: the same, or not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaView:
    """A snapshot of what is known about bookies."""

    unreachable: frozenset[str] = frozenset()
    troubled: frozenset[str] = frozenset()
    slow: frozenset[str] = frozenset()
    writable: frozenset[str] | None = None
    """Registered writable bookies. None: the registry has reported nothing yet, so no bookie counts as not
    registered."""
    read_only: frozenset[str] = frozenset()
    topology: Topology = UNKNOWN_TOPOLOGY

    def registered(self, bookie: str) -> bool:
        return self.writable is None or bookie in self.writable or bookie in self.read_only


NOTHING_KNOWN = ReplicaView()


def rank(bookie: str, view: ReplicaView) -> Rank:
    """The rank of one replica."""
    local, location = view.topology.local, view.topology.location(bookie)
    return Rank(_standing(bookie, view, _is_remote(local, location)), _distance(local, location))


def replica_order(replicas: Sequence[str], view: ReplicaView = NOTHING_KNOWN) -> list[str]:
    """`replicas` (in the order of the striping, or of a sticky choice), best first."""
    ranks = {bookie: rank(bookie, view) for bookie in replicas}
    order = sorted(replicas, key=ranks.__getitem__)
    remote = next((i for i, bookie in enumerate(order) if ranks[bookie].standing is Standing.REMOTE), 0)
    if remote > LATEST_PLACE_OF_A_REMOTE_REPLICA:
        order.insert(LATEST_PLACE_OF_A_REMOTE_REPLICA, order.pop(remote))
    return order


def least_busy_first(replicas: Sequence[str], outstanding: Callable[[str], int], threshold: int) -> list[str]:
    """The replica with the fewest waiting requests to the front, if the first one has at least `threshold` more;
    0: never."""
    order = list(replicas)
    if threshold > 0:
        least = min(order, key=outstanding)
        if outstanding(order[0]) - outstanding(least) >= threshold:
            order.remove(least)
            order.insert(0, least)
    return order


def _standing(bookie: str, view: ReplicaView, is_remote: bool) -> Standing:
    if bookie in view.unreachable or not view.registered(bookie):
        return Standing.UNREACHABLE
    if bookie in view.slow:
        return Standing.SLOW
    if bookie in view.read_only:
        return Standing.READ_ONLY
    if bookie in view.troubled:
        return Standing.REMOTE_TROUBLED if is_remote else Standing.LOCAL_TROUBLED
    return Standing.REMOTE if is_remote else Standing.LOCAL


def _is_remote(local: Location | None, location: Location | None) -> bool:
    """Return True if the bookie is in another region. A location of one part is a rack: there are no regions then."""
    if local is None or len(local) < 2:
        return False
    return location is None or location[0] != local[0]


def _distance(local: Location | None, location: Location | None) -> int:
    if local is None:
        return 0
    shared = 0
    for mine, other in zip(local, location or (), strict=False):
        if mine != other:
            break
        shared += 1
    return len(local) - shared


class Fetched(NamedTuple):
    """Consecutive entries, and what the one behind them met; `nbytes` of payload."""

    entries: Sequence[LedgerEntry]
    nbytes: int
    error: PodkeeperError | None


def interleaved(columns: Sequence[Fetched], count: int) -> Fetched:
    """Put together what came of `count` entries at each place modulo the number of columns: up to the first that is
    missing."""
    if len(columns) == 1:
        return columns[0]
    step = len(columns)
    stop = min(count, *(place + len(column.entries) * step for place, column in enumerate(columns)))
    entries: list[LedgerEntry] = [None] * stop  # type: ignore[list-item]
    nbytes = 0
    for place, column in enumerate(columns):
        taken = column.entries[: len(range(place, stop, step))]
        entries[place::step] = taken
        nbytes += column.nbytes if len(taken) == len(column.entries) else payload_bytes(taken)
    return Fetched(entries, nbytes, columns[stop % step].error if stop < count else None)


def fetched(answers: Iterable[LedgerEntry | PodkeeperError]) -> Fetched:
    """The entries in front of the first error."""
    entries: list[LedgerEntry] = []
    nbytes = 0
    for answer in answers:
        if not isinstance(answer, LedgerEntry):
            return Fetched(entries, nbytes, answer)
        entries.append(answer)
        nbytes += len(answer.payload)
    return Fetched(entries, nbytes, None)


class Channels(dict[str, Channel]):
    """The channels that one ledger's reads use, by bookie: looked up once for each bookie, not for each entry."""

    def __init__(self, pool: ChannelPool, ledger_id: int) -> None:
        super().__init__()
        self._pool = pool
        self._ledger_id = ledger_id

    def __missing__(self, bookie: str) -> Channel:
        channel = self[bookie] = self._pool.channel(bookie, self._ledger_id)
        return channel


class EntrySources:
    """The sources of one handle.

    `metadata` gives the segments as the handle knows them at that moment; `on_lac` gets the last add confirmed that
    bookies report (v3 reads); `recovering`: a recovery waits for the reads.
    """

    def __init__(
        self,
        context: ClientContext,
        metadata: Callable[[], LedgerMetadata],
        digest: DigestManager,
        on_lac: Callable[[int], None] | None,
        *,
        recovering: bool = False,
    ) -> None:
        options, value = context.options, metadata()
        self.context = context
        self.metadata = metadata
        self.digest = digest
        self.ledger_id = value.ledger_id
        self.served_by: Counter[str] = Counter()
        self.damaged_at: Counter[str] = Counter()
        self._faults_at: Counter[str] = Counter()
        self.origins: Origins | None = None
        self.is_striped = value.ensemble_size != value.write_quorum_size
        self.step = value.ensemble_size if self.is_striped else 1
        """Distance between two entries of a batch read: no bookie has all entries of a striped ledger."""
        self.support = context.batch_support.stepped if self.is_striped else context.batch_support
        self.policy = SpeculationPolicy.of(options)
        fan_out = value.write_quorum_size if options.parallel_reads else 1
        self.path = ReadPath(Channels(context.pool, self.ledger_id), digest, self, fan_out)
        self._clock = asyncio.get_running_loop().time
        self._batch_parts = BatchParts(
            context.operations, self.support, digest, self, self.policy, fan_out, self._clock
        )
        self._slowest_batch = LEAST_BATCH_SECONDS
        self._on_lac = on_lac
        self._batch_class = options.reads_are_batch and not recovering
        self._reorders = options.reorder_reads and value.write_quorum_size > 1  # of one replica there is no order
        self._sticky: int | None = None
        if options.sticky_reads and not self.is_striped:
            self._sticky = context.random.randrange(value.ensemble_size)

    # --- which replica --------------------------------------------------------------------------------------

    def batch_order(self, entry_id: int, ordinal: int) -> list[str]:
        """The bookies that may be asked for a batch from this entry on. Consecutive pieces (`ordinal`) begin
        with different bookies, so that all of an ensemble work for one scan; a sticky reader stays with
        one. Of a striped ledger those of the write set."""
        if self.is_striped:
            order = self.order(entry_id)
        else:
            ensemble = self.metadata().ensemble_for(entry_id)
            first = (ordinal if self._sticky is None else self._sticky) % len(ensemble)
            order = self._reordered(ensemble[first:] + ensemble[:first], self._view(ensemble))
        now = self._clock()
        return [bookie for bookie in order if self.support.may_ask(bookie, now)]

    def order(self, entry_id: int) -> list[str]:
        """The bookies of the entry's write set, in the order in which they are asked."""
        replicas = self._write_set(self.metadata(), entry_id)
        return self._reordered(replicas, self._view(replicas))

    def segment_end(self, entry_id: int) -> int:
        """The first entry of the segment behind the one that holds this entry; far away if there is none."""
        starts = self.metadata().first_entry_ids
        behind = bisect_right(starts, entry_id)
        return starts[behind] if behind < len(starts) else 1 << 63

    def average(self) -> int | None:
        """Payload bytes of an entry, if the metadata tells."""
        metadata = self.metadata()
        count = metadata.last_entry_id + 1
        return metadata.length // count if metadata.is_closed and count else None

    def _write_set(self, metadata: LedgerMetadata, entry_id: int) -> Sequence[str]:
        if self._sticky is None:
            return metadata.bookies_for(entry_id)
        ensemble = metadata.ensemble_for(entry_id)
        return ensemble[self._sticky :] + ensemble[: self._sticky]

    def _reordered(self, replicas: Sequence[str], view: ReplicaView) -> list[str]:
        if view is NOTHING_KNOWN:
            return list(replicas)
        options, random, health = self.context.options, self.context.random, self.context.health
        if options.random_read_order and self._sticky is None:
            replicas = random.sample(replicas, len(replicas))
        return replica_order(least_busy_first(replicas, health.outstanding, options.read_reorder_threshold), view)

    def _view(self, bookies: Sequence[str]) -> ReplicaView:
        """Good for these."""
        context = self.context
        if not self._reorders:
            return NOTHING_KNOWN
        troubles, registered = context.health.troubles(bookies), context.bookies
        writable, read_only = registered.known_writable, registered.known_read_only
        return ReplicaView(
            unreachable=troubles.failed_lately,
            troubled=troubles.quarantined,
            slow=troubles.slow,
            writable=writable if writable or read_only else None,
            read_only=read_only,
            topology=context.topology,
        )

    # --- asking ---------------------------------------------------------------------------------------------

    def group(
        self, done: Callable[[EntryGroup], None], known: Mapping[str, PodkeeperError] | None = None
    ) -> EntryGroup:
        """A group to `send`."""
        return EntryGroup(self.ledger_id, self.path, self.policy, done, known, self.origins)

    def send(
        self, group: EntryGroup, entry_ids: Sequence[int], order: Sequence[str] | None = None, mark: bytes = b""
    ) -> None:
        """Ask for entries of ascending ids one by one; `order` instead of that of each entry's write set. `mark`: of
        the trace that the first request carries (`trace_context`)."""
        context, metadata, ledger_id, view = self.context, self.metadata(), self.ledger_id, NOTHING_KNOWN
        transactions, size = context.transactions, metadata.ensemble_size
        read = partial(context.pool.dialect.read, batch_class=True) if self._batch_class else context.pool.dialect.read
        chosen: dict[int, Sequence[str]] = {}
        firsts: set[str] = set()
        requests, end = [], -1
        for entry_id in entry_ids:
            if entry_id >= end:
                chosen, end = {}, self.segment_end(entry_id)
                view = self._view(metadata.ensemble_for(entry_id))
            # Entries of one segment with the same place in the striping are asked in the same order.
            replicas = chosen.get(entry_id % size)
            if replicas is None:
                replicas = order or self._reordered(self._write_set(metadata, entry_id), view)
                chosen[entry_id % size] = replicas
                firsts.add(replicas[0])
            requests.append((entry_id, replicas, read(next(transactions), ledger_id, entry_id)))
        if mark:
            entry_id, replicas, (key, frame) = requests[0]
            requests[0] = entry_id, replicas, (key, marked(frame, mark))
        expected = max(map(context.health.expected_read_seconds, firsts))
        group.send(requests, self._clock(), self.policy.first_delay(expected))

    async def read_one(
        self,
        entry_id: int,
        order: Sequence[str] | None = None,
        known: Mapping[str, PodkeeperError] | None = None,
        mark: bytes = b"",
    ) -> LedgerEntry:
        """One entry from the first replica that serves it; `mark` as in `send`. Raises what counts when none does."""
        loop = asyncio.get_running_loop()
        ended = asyncio.Event()
        group = self.group(lambda _: ended.set(), known)
        speculator = Speculator(loop, self.served_by)
        try:
            self.send(group, [entry_id], order, mark)
            speculator.watch(group)
            await ended.wait()
        finally:
            group.abandon()
            speculator.stop()
        answer = group.answers[entry_id]
        if isinstance(answer, LedgerEntry):
            return answer
        raise fresh(answer)

    def read_batch(
        self,
        first: int,
        count: int,
        max_bytes: int,
        order: Sequence[str],
        done: Callable[[BatchRead, BatchAnswer | Exception], None],
    ) -> BatchRead:
        """Ask for up to `count` entries from `first` on, one step apart; `done` gets the outcome later."""
        question = BatchQuestion(self.ledger_id, first, count, max_bytes, self.step)
        read = BatchRead(self._batch_parts, question, order, done)
        expected = self._slowest_batch
        if len(order) > 1:
            expected = max(self.context.health.expected_read_seconds(order[0]), expected)
        read.send(self.policy.first_delay(expected))
        return read

    def took_batch(self, read: BatchRead, answer: BatchAnswer) -> Fetched:
        """Learn from it. Its entries, unless some are damaged: then `mended` has them."""
        bookie, first, verified, step = answer
        took = self._clock() - read.started
        self._slowest_batch = max(LEAST_BATCH_SECONDS, BATCH_DECAY * self._slowest_batch, took)
        if self.origins is not None:
            self.origins.batch(bookie, range(first, first + len(verified.entries) * step, step), took)
        self.served_by[bookie] += len(verified.entries) - len(verified.damaged)
        return Fetched(verified.entries, verified.nbytes, None)

    async def mended(self, answer: BatchAnswer) -> Fetched:
        """Return the entries of a batch, with the damaged ones read elsewhere; up to the first that no replica
        serves."""
        bookie, first, verified, step = answer
        answers: list[LedgerEntry | PodkeeperError] = list(verified.entries)
        for place, error in verified.damaged.items():
            self.damaged(bookie, first + place * step, error)
            self.failed(bookie, error)
        reads = (self._read_elsewhere(first + place * step, bookie, error) for place, error in verified.damaged.items())
        for place, got in zip(verified.damaged, await asyncio.gather(*reads), strict=True):
            answers[place] = got
        return fetched(answers)

    async def _read_elsewhere(self, entry_id: int, bookie: str, error: DigestMismatch) -> LedgerEntry | PodkeeperError:
        others = [other for other in self.order(entry_id) if other != bookie]
        if not others:
            return read_failure(self.ledger_id, entry_id, {bookie: error})
        try:
            return await self.read_one(entry_id, others, {bookie: error})
        except PodkeeperError as problem:
            return fresh(problem)

    # --- what came of it -------------------------------------------------------------------------------------

    def served(self, bookie: str, entry_id: int) -> None:
        """A replica served an entry."""
        self.served_by[bookie] += 1
        if self.origins is not None:
            self.origins.served(bookie, entry_id)

    def damaged(self, bookie: str, entry_id: int, error: DigestMismatch) -> None:
        """A replica served bytes that are not the entry."""
        self.damaged_at[bookie] += 1
        self.context.damaged_replicas[bookie] += 1
        self._tell("damaged replica", self.damaged_at[bookie], error, entry=entry_id, bookie=bookie)

    def failed(self, bookie: str, error: PodkeeperError) -> None:
        """A replica did not serve an entry: a sticky reader turns to the next one."""
        if isinstance(error, StorageFault):
            self._faults_at[bookie] += 1
            self._tell("a bookie cannot read its replica", self._faults_at[bookie], error, bookie=bookie)
        if self._sticky is not None:
            metadata = self.metadata()
            if any(ensemble[self._sticky] == bookie for ensemble in metadata.ensembles.values()):
                self._sticky = (self._sticky + 1) % metadata.ensemble_size

    def outrun(self, bookies: Sequence[str]) -> None:
        """Replicas asked before the one that served."""
        for bookie in bookies:
            self.context.health.mark_slow(bookie)

    def heard_lac(self, lac: int) -> None:
        """Pass on a last add confirmed that a bookie reported."""
        if self._on_lac is not None:
            self._on_lac(lac)

    def _tell(self, what: str, so_far: int, error: PodkeeperError, **where: object) -> None:
        if so_far <= LOGGED_ONE_BY_ONE or so_far.bit_count() == 1:
            _log.warning(what, ledger=self.ledger_id, **where, error=str(error), so_far=so_far)
