"""Telling replicas apart that are undamaged, and yet not the same.

Checksums of blocks, which the tasks made while they read, say where to look. There every replica is read again and what
its writer appended is compared: headers may differ, since recovery rewrites them.

Invariants
- The majority is right. Where there is none, no replica is accused: the finding is UNKNOWN, and names all of them.
- Replicas that lack an entry, or of which it is damaged, do not take part: those are findings of their own.
- A replica that cannot be read again is UNREACHABLE: a doubt about it never ends as if there had been none.

`differing` is pure; the rest belongs to an event loop.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from bookie_client.access import replica_access
from bookie_client.client import Client
from bookie_client.patience import Patience
from bookie_client.replication.check import verdict_of
from bookie_client.replication.fragments import Fragment, fragments
from bookie_client.replication.source_reads import Outcome, SourceReads
from bookie_client.replication.throttle import ReplicationThrottle
from bookie_protocol.errors import NoSuchLedger, PodkeeperError, TooManyRequests
from pyspark_bookie.jobs.replicas.coverage import runs_of_entries
from pyspark_bookie.jobs.replicas.deep import BLOCK, BUSY_SECONDS, BUSY_TRIES, BatchVerifier
from pyspark_bookie.jobs.replicas.findings import Finding, Verdict
from pyspark_bookie.jobs.replicas.inspection import BlockSum, InspectionOptions

PIECE: Final = 32
"""Entries of each replica that are held at a time."""
BATCH_BYTES: Final = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Doubt:
    """A block of which the replicas have different checksums. `place`: see `deep`."""

    ledger_id: int
    fragment: int
    block: int
    place: int


def differing(blocks: Iterable[BlockSum]) -> list[Doubt]:
    """Return the blocks in which complete replicas differ; ascending."""
    found: dict[Doubt, list[BlockSum]] = defaultdict(list)
    for each in blocks:
        found[Doubt(each.ledger_id, each.fragment, each.block, each.place)].append(each)
    doubts = []
    for doubt, sums in found.items():
        most = max(each.entries for each in sums)
        if len({each.checksum for each in sums if each.entries == most}) > 1:
            doubts.append(doubt)
    return sorted(doubts, key=lambda each: (each.ledger_id, each.fragment, each.block, each.place))


async def compare(
    client: Client, doubts: Sequence[Doubt], options: InspectionOptions, throttle: ReplicationThrottle
) -> list[Finding]:
    """Read the blocks again, and tell what really differs. Raises `MetadataUnavailable`."""
    findings: list[Finding] = []
    for doubt in doubts:
        try:
            metadata = await client.metadata(doubt.ledger_id)
        except NoSuchLedger:
            continue
        access = replica_access(metadata, options.digest, options.password)
        last = (doubt.block + 1) * BLOCK - 1
        for part in fragments(doubt.ledger_id, metadata, metadata.last_entry_id if metadata.is_closed else last):
            if part.first_entry != doubt.fragment:
                continue
            reads = SourceReads(client.context, part, access, (), batch_reads=True)
            verifier = BatchVerifier(access.digest, doubt.ledger_id)
            findings.extend(await _compare(part, doubt, reads, verifier, throttle))
    return findings


# --- inside -------------------------------------------------------------------------------------------------------


async def _compare(
    part: Fragment, doubt: Doubt, reads: SourceReads, verifier: BatchVerifier, throttle: ReplicationThrottle
) -> list[Finding]:
    size = part.quorums.ensemble
    first, last = max(part.first_entry, doubt.block * BLOCK), min(part.last_entry, (doubt.block + 1) * BLOCK - 1)
    ids = [each for each in range(first, last + 1) if size == part.quorums.write or each % size == doubt.place]
    odd: dict[int, list[int]] = defaultdict(list)
    unread: dict[int, dict[int, PodkeeperError]] = {}
    undecided: list[int] = []
    for start in range(0, len(ids), PIECE):
        piece = ids[start : start + PIECE]
        positions = part.write_set(piece[0])
        contents = {}
        for at in positions:
            if at in unread:  # it is not waited for again in each piece
                unread[at] |= dict.fromkeys(piece, next(iter(unread[at].values())))
                continue
            contents[at], errors = await _contents(part.ensemble[at], piece, reads, verifier, throttle)
            if errors:
                unread[at] = errors
        for entry_id in piece:
            given = {at: found[entry_id] for at, found in contents.items() if entry_id in found}
            minority = _minority(given)
            if minority is None:
                undecided.append(entry_id)
                continue
            for at in minority:
                odd[at].append(entry_id)
    found: list[Finding] = []

    def tell(at: int, entries: Iterable[int], verdict: Verdict, detail: str) -> None:
        for run in runs_of_entries(part, at, entries):
            span = run.first, run.last, run.count
            found.append(Finding(part.ledger_id, part.first_entry, *span, part.ensemble[at], at, verdict, detail))

    for at, entries in sorted(odd.items()):
        tell(at, entries, Verdict.DIVERGENT, "undamaged, and not what most replicas hold")
    for at, errors in sorted(unread.items()):
        reason = next(iter(errors.values()))
        tell(at, sorted(errors), Verdict.UNREACHABLE, f"replicas differ, and this one could not be compared: {reason}")
    if undecided:
        names = ", ".join(part.ensemble[at] for at in part.write_set(undecided[0]))
        detail = f"undamaged replicas differ and none is in the majority: {names}"
        span = undecided[0], undecided[-1], len(undecided)
        found.append(Finding(part.ledger_id, part.first_entry, *span, "", -1, Verdict.UNKNOWN, detail))
    return found


def _minority(given: Mapping[int, tuple[int, bytes]]) -> list[int] | None:
    """The positions that hold something else than most; None: there is no majority."""
    counts = Counter(given.values()).most_common(2)
    if len(counts) < 2:
        return []
    content, times = counts[0]
    return [at for at, its in given.items() if its != content] if 2 * times > len(given) else None


async def _contents(
    bookie: str, ids: list[int], reads: SourceReads, verifier: BatchVerifier, throttle: ReplicationThrottle
) -> tuple[dict[int, tuple[int, bytes]], dict[int, PodkeeperError]]:
    """Return the content of the replica by entry, and the error of each entry that could not be read; a busy
    bookie is asked again for a limited time."""
    contents: dict[int, tuple[int, bytes]] = {}
    unread: dict[int, PodkeeperError] = {}
    left = ids
    patience = Patience(BUSY_TRIES, BUSY_SECONDS)
    while True:
        outcome, requests = Outcome(), reads.requests(left, bookie)
        await throttle.read(0, requests)
        await reads.read_from(bookie, left, BATCH_BYTES, outcome)
        throttle.correct_read(outcome.nbytes, outcome.requests - requests)
        contents |= {entry_id: verifier.content(entry) for entry_id, entry in outcome.found.items()}
        unread = {each: error for each, error in unread.items() if each not in left}
        for entry_id in left:
            error = outcome.errors[entry_id].get(bookie)
            if error is not None and verdict_of(error).is_unknown:
                unread[entry_id] = error
        left = [entry_id for entry_id, error in unread.items() if isinstance(error, TooManyRequests)]
        if not (left and await patience.again()):
            return contents, unread
