"""The job `scrub`: a pass is made of waves of pieces, one for each bookie, and of the comparison of what they read.

Invariants
- A wave holds all replicas of its ledgers, so whatever differs is found within it.
- What a wave found is kept before the pass is said to be further.
- Changes are compare-and-set: of two runs of one name the second to save its progress ends with an error.
- What is below `next` was inspected in this pass, and its findings were reported by the run that did it. Pieces whose
  tasks failed are among these findings, as UNKNOWN, and that run says that it is not complete: the next pass inspects
  them again, so that one bookie that is away does not hold a pass up for ever.

How far a pass of the scrub is: a record of the metadata service, kind `scrub-pass`, named by the pass.

Format: JSON, `{"v": 1, "next": the least ledger id that is not done, "seed": of the sample, "begun": ms since 1970,
"ended": the same or null}`. `ended` is set by the run that came to the end; the next one begins a new pass.

Everything belongs to the driver, except the task `compare_replicas`.
"""

from __future__ import annotations

import json
import time
from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from bookie_client.blocking import BlockingClient
from bookie_client.client import Client
from bookie_client.replication.throttle import ReplicationThrottle
from bookie_protocol.errors import UNREADABLE, MetadataDamaged
from bookie_protocol.versioned import Versioned
from pyspark_bookie.jobs.framework.arguments import DURATION, GENTLE_BYTES_PER_SECOND, SIZE, UsageError, argument
from pyspark_bookie.jobs.framework.context import JobContext
from pyspark_bookie.jobs.framework.ledgers import SelectionArguments
from pyspark_bookie.jobs.framework.records import JobRecords, TakenOver
from pyspark_bookie.jobs.framework.registry import job
from pyspark_bookie.jobs.framework.result import Counter as Value
from pyspark_bookie.jobs.framework.result import JobResult
from pyspark_bookie.jobs.framework.tasks import TaskEnvironment
from pyspark_bookie.jobs.replicas.absent import tell_absent
from pyspark_bookie.jobs.replicas.compare import Doubt, compare, differing
from pyspark_bookie.jobs.replicas.findings import Finding, FindingsSpool
from pyspark_bookie.jobs.replicas.inspection import BlockSum, InspectionOptions
from pyspark_bookie.jobs.replicas.tasks import Totals, UnitOptions, inspect_unit
from pyspark_bookie.jobs.replicas.units import Slice, Unit, by_bookie, chosen, groups, sized

KIND: Final = "scrub-pass"
_VERSION: Final = 1
PIECES_PER_SLOT: Final = 8
"""Approximate pieces per slot of one wave: at its end slots wait for the last one."""
MAX_LEDGERS: Final = 5_000
"""Maximum ledgers of one wave."""
DOUBTS_PER_PIECE: Final = 64


@dataclass(frozen=True, slots=True)
class PassState:
    """`name`: of the pass; None: it is not remembered."""

    name: str | None
    next_ledger: int
    seed: int
    begun_ms: int
    ended_ms: int | None = None

    @property
    def key(self) -> str:
        return self.name or ""

    def encode(self) -> bytes:
        document = {
            "v": _VERSION,
            "next": self.next_ledger,
            "seed": self.seed,
            "begun": self.begun_ms,
            "ended": self.ended_ms,
        }
        return json.dumps(document).encode()

    @classmethod
    def decode(cls, name: str, data: bytes) -> PassState:
        """Raises `MetadataDamaged`."""
        try:
            document = json.loads(data)
            if document["v"] != _VERSION:
                raise ValueError(f"version {document['v']} is not known")
            ended = document["ended"]
            return cls(
                name,
                int(document["next"]),
                int(document["seed"]),
                int(document["begun"]),
                None if ended is None else int(ended),
            )
        except UNREADABLE as error:
            raise MetadataDamaged(f"the record of scrub pass {name} cannot be read: {error}; use --restart") from error


class PassRecord:
    """The record of one pass."""

    def __init__(self, client: BlockingClient, name: str) -> None:
        self._name = name
        self._records = JobRecords(client, KIND, self._decoded)
        self._stored: Versioned[PassState] | None = None
        self._restart = False

    def load(self, *, restart: bool) -> PassState:
        """Return where to continue; a new pass if the last one ended. Raises `MetadataDamaged`."""
        self._restart = restart
        self._stored = self._records.find(self._name)
        now = int(time.time() * 1000)
        if self._stored is None:
            return PassState(self._name, 0, 0, now)
        last = self._stored.value
        if last.ended_ms is None and not restart:
            return last
        return PassState(self._name, 0, last.seed + 1, now)

    def save(self, state: PassState) -> None:
        """Store it over what was loaded or saved before. Raises `UsageError` when another run did so meanwhile."""
        records, stored = self._records, self._stored
        try:
            self._stored = records.create(state) if stored is None else records.update(stored, state)
        except TakenOver:
            raise UsageError(
                f"another run of pass {self._name} is under way: wait for its end, or name this one by --pass-name"
            ) from None

    def _decoded(self, data: bytes) -> PassState:
        try:
            return PassState.decode(self._name, data)
        except MetadataDamaged:
            if not self._restart:
                raise
            return PassState(self._name, 0, -1, 0)  # the first seed follows


@dataclass(frozen=True, kw_only=True)
class ScrubArguments(SelectionArguments):
    """The arguments of `scrub`, by default about all ledgers."""

    slot_bytes_per_second = GENTLE_BYTES_PER_SECOND

    sample: int = argument(100, help="Percent of the data to read, another part in each pass.", metavar="PERCENT")
    pass_name: str | None = argument(
        None,
        help="Name under which is remembered how far a pass is; runs of one name go on with it. Default: 'all' where"
        " all ledgers are read; a choice of ledgers is remembered only under a name.",
        metavar="NAME",
    )
    restart: bool = argument(False, help="Begin a new pass, whatever the last run of this name left.")
    mark: bool = argument(False, help="Mark ledgers that lost copies, so that auto-recovery restores them.")
    recheck: float = argument(
        5.0, help="Pause before a suspected fault is inspected again; only confirmed ones are reported.", kind=DURATION
    )
    piece_bytes: int = argument(256 << 20, help="Data of one bookie in one piece of work.", kind=SIZE)


@job("scrub")
class ScrubJob:
    """Read every copy of every entry, verify its digest, and compare the copies with each other.

    Each bookie is read in the order of ledger ids, about the order in which its disk has them. With --time-limit the
    next run goes on where this one ended; a pass that was interrupted loses little. Exit code 2: there are findings.
    """

    Arguments = ScrubArguments

    def run(self, context: JobContext[ScrubArguments]) -> JobResult:
        """See the class."""
        return scrub(context)


def scrub(context: JobContext[ScrubArguments]) -> JobResult:
    """Raises `UsageError`, `PodkeeperError`; what goes wrong with single ledgers is a finding."""
    args = context.args
    if not 1 <= args.sample <= 100:
        raise UsageError(f"scrub: --sample must be from 1 to 100 percent, not {args.sample}")
    context.open_spark()
    name = pass_name(args)
    record = None if name is None else PassRecord(context.client(), name)
    state = PassState(None, 0, int(time.time()), 0) if record is None else record.load(restart=args.restart)
    if context.dry_run:
        record = None
    choice = chosen(context)
    everything = choice.ids
    ids = everything[bisect_left(everything, state.next_ledger) :]
    if record is not None:
        record.save(state)
    with FindingsSpool() as spool:
        run = _Pass(context, state, Totals(spool), len(everything) - len(ids), len(everything))
        ended = True
        run.tell()
        for wave in run.waves(ids):
            if not context.in_time or not run.wave(wave):
                ended = False
                break
            if record is not None:
                state = replace(state, next_ledger=run.behind(wave))
                record.save(state)
        if ended and record is not None:
            record.save(replace(state, ended_ms=int(time.time() * 1000)))
        more: dict[str, Value] = {"blocks_compared": run.compared, "blocks_differing": run.doubts}
        more |= tell_absent(context, choice.missing, spool)
        if not ended:
            more["next_ledger"] = run.next_ledger
        return run.totals.result(complete=ended, more=more)


def pass_name(args: ScrubArguments) -> str | None:
    """Under which name the pass is remembered; None: it is not. A run over some ledgers must not pass for one over all
    of them."""
    if args.pass_name is not None:
        return args.pass_name
    return None if args.is_narrowed else "all"


@dataclass
class _Pass:
    context: JobContext[ScrubArguments]
    state: PassState
    totals: Totals
    done: int
    total: int
    compared: int = 0
    doubts: int = 0
    next_ledger: int | None = None

    def waves(self, ids: Sequence[int]) -> Iterator[tuple[Slice, ...]]:
        """Ledgers in ascending order; no ledger is in two waves, unless it is larger than one."""
        args = self.context.args
        size = args.piece_bytes * PIECES_PER_SLOT * self.context.concurrent
        return groups(sized(self.context, array("q", ids)), size, MAX_LEDGERS)

    def behind(self, wave: tuple[Slice, ...]) -> int:
        """Return the least ledger that is not done after this wave."""
        self.next_ledger = wave[-1].next_ledger
        return self.next_ledger

    def wave(self, wave: tuple[Slice, ...]) -> bool:
        """Inspect a wave. Return True if all of it was done."""
        blocks: list[BlockSum] = []
        planned = pieces(wave, self.context.args.piece_bytes)
        ended = 0
        for outcome in self.context.run_tasks(partial(inspect_unit, self._unit_options()), planned):
            ended += 1
            self.totals.take(self.context, outcome)
            if outcome.result is not None:
                blocks.extend(outcome.result.blocks)
            self.tell()
        self._compare(blocks)
        self.done += len({each.ledger_id for each in wave if each.first == 0})
        self.tell()
        return ended == len(planned)

    def _unit_options(self) -> UnitOptions:
        args = self.context.args
        inspection = InspectionOptions(digests=True, checksums=True, sample=args.sample, seed=self.state.seed)
        return UnitOptions(
            inspection=inspection, recheck_seconds=args.recheck, mark=args.mark and not self.context.dry_run
        )

    def _compare(self, blocks: list[BlockSum]) -> None:
        doubts = differing(blocks)
        self.compared += len({(each.ledger_id, each.fragment, each.block, each.place) for each in blocks})
        self.doubts += len(doubts)
        parts = [doubts[start : start + DOUBTS_PER_PIECE] for start in range(0, len(doubts), DOUBTS_PER_PIECE)]
        for outcome in self.context.run_tasks(compare_replicas, parts):
            if outcome.result is not None:
                self.totals.spool.add(outcome.result)
            else:
                slices = tuple(Slice(each.ledger_id, 0, None, 0) for each in outcome.item)
                self.totals.add_failed(self.context, Unit(0, slices), outcome.failure)

    def tell(self) -> None:
        """Report the progress of the pass."""
        found = sum(self.totals.spool.counts.values())
        note = f"{self.totals.sums['nbytes'] / 1e6:,.0f} MB, {found} findings"
        self.context.progress(self.done, self.total, "ledgers", note)


def pieces(wave: tuple[Slice, ...], piece_bytes: int) -> list[Unit]:
    """Cut the wave into pieces of single bookies, each in ascending order, so that neighbours are of different
    bookies. Ledgers without a bookie, whose metadata cannot be read, are a piece of their own."""
    of_bookies: list[list[Unit]] = []
    for unit in by_bookie(wave, 0):
        parts: list[list[Slice]] = [[]]
        for each in unit.slices:
            if parts[-1] and sum(part.nbytes for part in parts[-1]) + each.nbytes > piece_bytes:
                parts.append([])
            parts[-1].append(each)
        of_bookies.append([Unit(0, tuple(part), unit.bookie) for part in parts])
    ordered = [
        units[place]
        for place in range(max(map(len, of_bookies), default=0))
        for units in of_bookies
        if place < len(units)
    ]
    nameless = tuple(each for each in wave if not each.bookies)
    if nameless:
        ordered.append(Unit(0, nameless))
    return [replace(unit, number=number) for number, unit in enumerate(ordered)]


def compare_replicas(doubts: Sequence[Doubt], environment: TaskEnvironment) -> list[Finding]:
    """The task that reads blocks again which differ."""
    options = InspectionOptions(password=environment.access.password.read() or b"")
    rate = environment.bytes_per_second

    async def run(client: Client) -> list[Finding]:
        return await compare(client, doubts, options, ReplicationThrottle(rate))

    return environment.client().run(run)
