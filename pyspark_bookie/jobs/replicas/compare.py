"""Telling replicas apart that are undamaged, and yet not the same.

Checksums of blocks, which the tasks made while they read, say where to look. There every replica is read again and what
its writer appended is compared: headers may differ, since recovery rewrites them.

Invariants
- The majority is right. Where there is none, nobody is accused: the finding is UNKNOWN, and names all of them.
- Replicas that lack an entry, or of which it is damaged, do not take part: those are findings of their own.

`differing` is pure; the rest belongs to an event loop.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from bookie_client.client import Client
from bookie_client.replication.access import replica_access
from bookie_client.replication.fragments import Fragment, fragments
from bookie_client.replication.source_reads import Outcome, SourceReads
from bookie_client.replication.throttle import ReplicationThrottle
from bookie_protocol.errors import NoSuchLedger
from pyspark_bookie.jobs.replicas.coverage import runs_of_entries
from pyspark_bookie.jobs.replicas.deep import BLOCK
from pyspark_bookie.jobs.replicas.digests import BatchVerifier
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
    """Where complete replicas differ; ascending."""
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
    undecided: list[int] = []
    for start in range(0, len(ids), PIECE):
        piece = ids[start : start + PIECE]
        positions = part.write_set(piece[0])
        contents = {at: await _contents(part.ensemble[at], piece, reads, verifier, throttle) for at in positions}
        for entry_id in piece:
            given = {at: found[entry_id] for at, found in contents.items() if entry_id in found}
            counts = Counter(given.values()).most_common(2)
            if len(counts) < 2:
                continue
            if 2 * counts[0][1] > len(given):
                for at, content in given.items():
                    if content != counts[0][0]:
                        odd[at].append(entry_id)
            else:
                undecided.append(entry_id)
    found = [
        Finding(
            part.ledger_id,
            part.first_entry,
            run.first,
            run.last,
            run.count,
            part.ensemble[at],
            at,
            Verdict.DIVERGENT,
            "undamaged, and not what most replicas hold",
        )
        for at, entries in sorted(odd.items())
        for run in runs_of_entries(part, at, entries)
    ]
    if undecided:
        names = ", ".join(part.ensemble[at] for at in part.write_set(undecided[0]))
        detail = f"undamaged replicas differ and none is in the majority: {names}"
        span = undecided[0], undecided[-1], len(undecided)
        found.append(Finding(part.ledger_id, part.first_entry, *span, "", -1, Verdict.UNKNOWN, detail))
    return found


async def _contents(
    bookie: str, ids: list[int], reads: SourceReads, verifier: BatchVerifier, throttle: ReplicationThrottle
) -> dict[int, tuple[int, bytes]]:
    outcome, requests = Outcome(), reads.requests(ids, bookie)
    await throttle.read(0, requests)
    await reads.read_from(bookie, ids, BATCH_BYTES, outcome)
    throttle.correct_read(outcome.nbytes, outcome.requests - requests)
    return {entry_id: verifier.content(entry) for entry_id, entry in outcome.found.items()}
