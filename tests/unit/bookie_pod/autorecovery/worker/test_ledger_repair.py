"""What is done to one ledger, with a checker and a replicator that the tests write the parts of.

Which findings a worker acts upon.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

import pytest

from bookie_client.healing import rule
from bookie_client.replication.check import FragmentReport, LedgerChecker, LedgerReport, ReplicaVerdict
from bookie_client.replication.closing import denying
from bookie_client.replication.fragments import Fragment
from bookie_client.replication.replicator import CopyProgress, FragmentReplicator, ProgressListener, ReplicationResult
from bookie_client.replication.tail import Tail
from bookie_pod.autorecovery.worker.ledger_repair import (
    FRESH_SECONDS,
    LedgerRepair,
    Outcome,
    RepairParts,
    RoundResult,
)
from bookie_pod.autorecovery.worker.progress import Phase, WorkerProgress
from bookie_pod.metrics.autorecovery import ReplicationWorkerMetrics
from bookie_pod.metrics.registry import Registry
from bookie_protocol.errors import (
    BookieReadOnly,
    BookieUnavailable,
    EntriesUnreadable,
    LedgerDeleted,
    MetadataUnavailable,
    NoSuchLedger,
    NotEnoughBookies,
    PodkeeperError,
    RecoveryFailed,
)
from bookie_protocol.ledger_metadata.model import LedgerMetadata
from bookie_protocol.metadata_service.findings import Failure, Finding, Reason, Trouble, absences
from bookie_protocol.metadata_service.under_replication import LedgerLock, UnderreplicatedLedger
from bookie_protocol.versioned import Identity, LedgerLife
from tests.unit.bookie_pod.autorecovery.worker.reports import LEDGER, metadata_of, report_of

LOST, MISSING = ReplicaVerdict.LOST, ReplicaVerdict.MISSING
DAMAGED, UNREACHABLE, UNTOLD = ReplicaVerdict.DAMAGED, ReplicaVerdict.UNREACHABLE, ReplicaVerdict.UNTOLD
DIVERGENT = ReplicaVerdict.DIVERGENT

SESSION = 77


class Cluster(LedgerChecker, FragmentReplicator):
    """The checker and the replicator over one ledger. Copies make bookies good; `spares` are taken in order."""

    def __init__(self, metadata: LedgerMetadata, verdicts: Mapping[str, ReplicaVerdict], spares: str = "xyz") -> None:
        self.metadata: LedgerMetadata | None = metadata
        self.looks: list[LedgerMetadata] = []
        """What the next checks find stored."""
        self.verdicts = dict(verdicts)
        self.entries: dict[str, int] = {}
        """The entry that shows a verdict."""
        self.lac = 99
        self.lacking: dict[int, str] = {}
        """Positions whose bookies lack entries behind it."""
        self.lac_error: PodkeeperError | None = None
        self.spares = list(spares)
        self.mark: UnderreplicatedLedger | None = UnderreplicatedLedger(LEDGER, tuple(verdicts))
        self.marked: list[tuple[int, list[str]]] = []
        self.findings: list[list[str]] = []
        """The bookies of the findings that each check was to answer."""
        self.no_list_has: tuple[int, ...] = ()
        self.phases: list[Phase] = []
        """What was told to be done, at each check, copy and recovery."""
        self.copies: list[tuple[int, dict[int, str], tuple[int, ...]]] = []
        """First entry, bad positions, and those filled in place, of each call."""
        self.asked: list[tuple[int, ...]] = []
        self.still_unreadable: tuple[int, ...] = ()
        self.silent: frozenset[str] = frozenset()
        self.refuse: Callable[[Mapping[int, str], Collection[int]], None] = lambda bad, in_place: None
        self.read_only: frozenset[str] = frozenset()
        self.waited_for: LedgerLife | None = LedgerLife(LEDGER, 1)
        """The open ledger whose writer had its time."""
        self.recoveries = 0
        self.on_recovery: Callable[[], None] = lambda: None
        self.on_writable: Callable[[], object] = lambda: None
        self.mends: dict[int, tuple[str, ...]] = {}
        self.mending_error: NotEnoughBookies | None = None
        self.registry = Registry()
        self.now = 1000.0
        self.looked_again: list[tuple[int, list[int], list[str]]] = []
        """First entry, positions, and bookies of the findings, of each further look."""
        self.progress = WorkerProgress(lambda: self.now)
        self.repair = LedgerRepair(
            RepairParts(
                checker=self,
                replicator=self,
                writable=self._writable,
                mark=self._mark,
                mark_more=self._mark_more,
                recover=self._recover,
                progress=self.progress,
                metrics=ReplicationWorkerMetrics(self.registry, embedded=False),
            )
        )

    async def run(self, *, recover: bool = False) -> RoundResult:
        self.note = self.progress.begin(LEDGER)
        lock = LedgerLock(LEDGER, Identity(0, 1), SESSION)
        if recover:
            return await self.repair.recover(lock, self.note, self.waited_for)
        result = await self.repair.repair(lock, self.note)
        self.waited_for = result.life
        return result

    def metric(self, name: str) -> float:
        lines = self.registry.render().splitlines()
        return next(float(line.split()[1]) for line in lines if line.startswith(f"replication_worker_{name} "))

    # --- the checker, the replicator ------------------------------------------------------------------------------

    async def check(self, ledger_id: int, *, findings: Collection[Finding] = ()) -> LedgerReport:
        if self.looks:
            self.metadata = self.looks.pop(0)
        if self.metadata is None:
            raise LedgerDeleted(f"ledger {ledger_id} does not exist")
        self.findings.append(sorted(each.bookie for each in findings))
        self.phases.append(self.note.phase)
        return report_of(self.metadata, self.verdicts, self.lac, self.lac_error, self.entries)

    async def make_durable(self, report: LedgerReport, bookies: Collection[str]) -> str | None:
        return None

    async def tail(self, report: LedgerReport, doubts: Collection[Finding]) -> Tail:
        doubted = {each.bookie for each in doubts}
        lacking = {position: bookie for position, bookie in self.lacking.items() if bookie in doubted}
        return Tail(replace(report.fragments[-1].fragment, last_entry=self.lac + 5), lacking)

    async def check_again(
        self,
        metadata: LedgerMetadata,
        found: FragmentReport,
        positions: Collection[int],
        *,
        findings: Collection[Finding] = (),
    ) -> FragmentReport:
        first = found.fragment.first_entry
        self.looked_again.append((first, sorted(positions), sorted(each.bookie for each in findings)))
        whole = report_of(metadata, self.verdicts, self.lac)
        return next(each for each in whole.fragments if each.fragment.first_entry == first)

    async def replicate(
        self,
        fragment: Fragment,
        bad: Mapping[int, str],
        *,
        in_place: Collection[int] = (),
        by_lists: bool = False,
        excluded: Mapping[str, str] | None = None,
        session_id: int | None = None,
        progress: ProgressListener | None = None,
    ) -> ReplicationResult:
        assert session_id == SESSION, "copies are named in the session that holds the lock"
        assert fragment.is_closed or set(in_place) == bad.keys(), "an open segment keeps its bookies"
        assert self.metadata is not None
        assert self.metadata.ensembles[fragment.first_entry] == fragment.ensemble
        self.copies.append((fragment.first_entry, dict(bad), tuple(sorted(in_place))))
        self.phases.append(self.note.phase)
        self.refuse(bad, in_place)
        ensemble, unfilled = list(fragment.ensemble), {}
        moved = [position for position in bad if position not in in_place]
        if moved and not self.spares:
            raise NotEnoughBookies("no spare")
        for position in moved:
            if self.spares:
                ensemble[position] = self.spares.pop(0)
            else:
                unfilled[position] = "no spare"
        for position in in_place:
            self.verdicts.pop(bad[position], None)
            self.lacking.pop(position, None)
        self._exchange(fragment.first_entry, tuple(ensemble))
        if progress is not None:
            progress(CopyProgress(LEDGER, fragment.first_entry, fragment.count, fragment.count, 10 * fragment.count))
        return ReplicationResult(tuple(ensemble), fragment.count, 10 * fragment.count, unfilled)

    async def mend(
        self, fragment: Fragment, *, session_id: int | None = None, progress: ProgressListener | None = None
    ) -> ReplicationResult:
        assert session_id == SESSION
        self.phases.append(self.note.phase)
        if self.mending_error is not None:
            raise self.mending_error
        ensemble = self.mends.get(fragment.first_entry, fragment.ensemble)
        self._exchange(fragment.first_entry, ensemble)
        return ReplicationResult(ensemble, fragment.count, 10)

    async def ask_for(self, fragment: Fragment, entry_ids: Collection[int]) -> None:
        self.asked.append(tuple(entry_ids))
        if self.still_unreadable:
            error = EntriesUnreadable("no replica can give some entries")
            error.entries, error.silent = self.still_unreadable, self.silent
            raise error

    def _exchange(self, first: int, ensemble: tuple[str, ...]) -> None:
        assert self.metadata is not None
        segments = {**self.metadata.ensembles, first: ensemble}
        self.metadata = metadata_of(segments, self.metadata.last_entry_id if self.metadata.is_closed else None)

    # --- the rest ---------------------------------------------------------------------------------------------

    async def _writable(self) -> frozenset[str]:
        self.on_writable()
        lost = {bookie for bookie, verdict in self.verdicts.items() if verdict is LOST}
        return frozenset("abcdxyz") - lost - self.read_only

    async def _mark(self, ledger_id: int) -> UnderreplicatedLedger | None:
        return self.mark

    async def _mark_more(self, ledger_id: int, findings: Collection[Finding]) -> None:
        self.marked.append((ledger_id, sorted(each.bookie for each in findings)))

    async def holes(self, fragment: Fragment, positions: Collection[int]) -> tuple[int, ...]:
        return self.no_list_has

    async def _recover(self, life: LedgerLife) -> None:
        self.recoveries += 1
        self.phases.append(self.note.phase)
        self.on_recovery()


class TestSegmentsThatMayGrow:
    async def test_what_a_bookie_that_is_there_lacks_is_filled_in_and_the_writer_goes_on(self) -> None:
        cluster = Cluster(metadata_of({0: "abc", 50: "acd"}, None), {"a": MISSING})
        assert (await cluster.run()).outcome is Outcome.REPAIRED
        assert cluster.copies == [(0, {0: "a"}, (0,)), (50, {0: "a"}, (0,))]
        assert cluster.metadata == metadata_of({0: "abc", 50: "acd"}, None)
        assert cluster.recoveries == 0

    async def test_a_lost_bookie_is_left_to_the_writer_while_another_one_is_filled(self) -> None:
        cluster = Cluster(metadata_of({0: "abc"}, None), {"a": LOST, "b": MISSING})
        assert (await cluster.run()).outcome is Outcome.OPEN
        assert cluster.copies == [(0, {1: "b"}, (1,))]

    async def test_a_filling_that_fails_for_a_moment_fences_nobody(self) -> None:
        cluster = Cluster(metadata_of({0: "abc"}, None), {"a": MISSING})

        def refuse(bad: Mapping[int, str], in_place: Collection[int]) -> None:
            raise BookieUnavailable("it is away")

        cluster.refuse = refuse
        for recover in (False, True):
            result = await cluster.run(recover=recover)
            assert (result.outcome, result.reason) == (Outcome.FAILED, "segment at entry 0: it is away")
        cluster.refuse = lambda bad, in_place: None
        assert (await cluster.run(recover=True)).outcome is Outcome.REPAIRED
        assert cluster.recoveries == 0

    @pytest.mark.parametrize("read_only", ["a", "ab"])
    async def test_a_read_only_bookie_that_lacks_entries_is_told_and_fences_nobody(self, read_only: str) -> None:
        cluster = Cluster(metadata_of({0: "abcd"}, None), dict.fromkeys("ab", MISSING))
        cluster.read_only = frozenset(read_only)
        for recover in (False, True):
            result = await cluster.run(recover=recover)
            assert result.outcome is Outcome.FAILED
            assert "may still grow: a" in result.reason
        assert cluster.copies == ([(0, {1: "b"}, (1,))] if read_only == "a" else [])
        assert (cluster.recoveries, cluster.note.done_fragments) == (0, 0)

    @pytest.mark.parametrize("verdict", [DAMAGED, DIVERGENT])
    async def test_no_bookie_of_it_is_replaced_for_bad_copies(self, verdict: ReplicaVerdict) -> None:
        cluster = Cluster(metadata_of({0: "abc"}, None), {"a": verdict})
        assert (await cluster.run()).outcome is Outcome.REPAIRED
        assert (cluster.copies, cluster.recoveries) == ([(0, {0: "a"}, (0,))], 0)

    @pytest.mark.parametrize("reason", Reason)
    @pytest.mark.parametrize("read_only", ["", "a"])
    async def test_what_a_bookie_may_have_lost_behind_its_end_is_filled_in(
        self, reason: Reason, read_only: str
    ) -> None:
        cluster = Cluster(metadata_of({0: "abc"}, None), {})
        cluster.mark = UnderreplicatedLedger(LEDGER, ("a",), findings=(Finding("a", reason, ((3, 3),)),))
        cluster.lacking, cluster.read_only = {0: "a"}, frozenset(read_only)
        result = await cluster.run()
        assert result.outcome is (Outcome.FAILED if read_only else Outcome.REPAIRED)
        assert (cluster.copies, cluster.recoveries) == ([] if read_only else [(0, {0: "a"}, (0,))], 0)

    async def test_with_fewer_good_copies_than_its_writer_promised_it_is_closed(self) -> None:
        """Spares get the copies then."""
        cluster = Cluster(metadata_of({0: "abc"}, None), {"a": MISSING, "b": MISSING})
        cluster.read_only = frozenset("ab")
        cluster.on_recovery = lambda: setattr(cluster, "metadata", metadata_of({0: "abc"}))
        assert (await cluster.run()).outcome is Outcome.OPEN
        assert (await cluster.run(recover=True)).outcome is Outcome.REPAIRED
        assert cluster.recoveries == 1

    @pytest.mark.parametrize("reason", [Reason.MISSING, Reason.ABSENT, Reason.UNKNOWN])
    async def test_one_that_was_marked_for_what_it_lacks_keeps_its_delay_when_it_goes(self, reason: Reason) -> None:
        """Marks of Java's auditors say nothing of reasons."""
        cluster = Cluster(metadata_of({0: "abc"}, None), {"a": LOST})
        cluster.mark = UnderreplicatedLedger(LEDGER, ("a",), findings=(Finding("a", reason, ()),))
        result = await cluster.run()
        assert result.outcome is (Outcome.FAILED if reason is Reason.MISSING else Outcome.OPEN)
        assert "a is registered nowhere" in result.reason
        cluster.metadata = metadata_of({0: "abc", 60: "abd"}, None)
        assert (await cluster.run()).outcome is (Outcome.FAILED if reason is Reason.MISSING else Outcome.OPEN)
        assert [first for first, *_ in cluster.copies] == [0], "who is named is replaced in segments that are closed"

    @pytest.mark.parametrize(
        ("reason", "marked"),
        [
            (None, ["b"]),
            (Reason.ABSENT, ["b"]),
            (Reason.UNKNOWN, ["b"]),
            (Reason.DAMAGED, ["b"]),
            (Reason.MISSING, []),
        ],
    )
    async def test_the_mark_says_what_is_wrong_with_whoever_is_filled(
        self, reason: Reason | None, marked: list[str]
    ) -> None:
        """It is not believed about other entries then. Of one that is away nothing new is said."""
        cluster = Cluster(metadata_of({0: "abc", 50: "abd"}, None), {"a": LOST, "b": MISSING})
        findings = [Finding("a", Reason.MISSING, ((3, 3),)), *([] if reason is None else [Finding("b", reason)])]
        cluster.mark = UnderreplicatedLedger(LEDGER, ("a",), findings=tuple(findings))
        named = []
        cluster.refuse = lambda bad, in_place: named.append((sorted(in_place), len(cluster.marked)))
        await cluster.run()
        assert cluster.marked == ([(LEDGER, marked)] if marked else [])
        assert all(before == len(cluster.marked) for in_place, before in named)

    async def test_what_is_missing_is_filled_before_a_ledger_is_fenced_for_another_one(self) -> None:
        cluster = Cluster(metadata_of({0: "abc"}, None), {"a": LOST, "b": MISSING})
        cluster.on_recovery = lambda: setattr(cluster, "metadata", metadata_of({0: "abc"}))
        assert (await cluster.run(recover=True)).outcome is Outcome.REPAIRED
        assert cluster.phases[:5] == [
            *(Phase.CHECKING, Phase.COPYING, Phase.COPYING, Phase.CHECKING, Phase.RECOVERING),
        ]


class TestLostCopies:
    async def test_each_segment_is_restored(self) -> None:
        cluster = Cluster(metadata_of({0: "abc", 50: "acd", 80: "bcd"}), {"a": LOST})
        assert (await cluster.run()).outcome is Outcome.REPAIRED
        assert cluster.copies == [(0, {0: "a"}, ()), (50, {0: "a"}, ())]
        assert cluster.metadata is not None
        assert "a" not in cluster.metadata.all_bookies()
        assert cluster.findings == [["a"], ["a"]]
        assert (cluster.note.done_fragments, cluster.note.entries_copied, cluster.note.bytes_copied) == (2, 80, 800)
        assert cluster.metric("NUM_FULL_OR_PARTIAL_LEDGERS_REPLICATED") == 1
        assert cluster.metric("NUM_ENTRIES_READ") == 80

    async def test_what_is_being_done_is_told(self) -> None:
        cluster = Cluster(metadata_of({0: "abc"}), {"a": LOST})
        await cluster.run()
        assert cluster.phases == [Phase.CHECKING, Phase.COPYING, Phase.VERIFYING]
        moving = Cluster(metadata_of({0: "abc"}), {})
        moving.mends = {0: ("x", "b", "c")}
        await moving.run()
        assert moving.phases == [Phase.CHECKING, Phase.MOVING, Phase.VERIFYING]
        recovering = Cluster(metadata_of({0: "abc"}, None), {"a": LOST})
        recovering.on_recovery = lambda: setattr(recovering, "metadata", metadata_of({0: "abc"}))
        assert (await recovering.run(recover=True)).outcome is Outcome.REPAIRED
        assert recovering.phases == [
            *(Phase.CHECKING, Phase.CHECKING, Phase.RECOVERING, Phase.CHECKING),
            *(Phase.COPYING, Phase.VERIFYING),
        ]

    async def test_whoever_is_filled_is_named_by_the_mark_first(self) -> None:
        cluster = Cluster(metadata_of({0: "abc"}), {"a": LOST, "b": MISSING})
        cluster.mark = UnderreplicatedLedger(LEDGER, ("a",))
        named = []
        cluster.refuse = lambda bad, in_place: named.append((sorted(in_place), list(cluster.marked)))
        assert (await cluster.run()).outcome is Outcome.REPAIRED
        assert named == [([1], [(LEDGER, ["b"])])]
        assert cluster.marked == [(LEDGER, ["b"])]

    async def test_nothing_is_copied_where_nothing_is_missing(self) -> None:
        cluster = Cluster(metadata_of({0: "abc"}), {})
        assert (await cluster.run()).outcome is Outcome.REPAIRED
        assert cluster.copies == []
        assert cluster.metric("NUM_FULL_OR_PARTIAL_LEDGERS_REPLICATED") == 0

    async def test_a_bookie_that_went_a_moment_ago_is_the_auditors_business(self) -> None:
        cluster = Cluster(metadata_of({0: "abc"}), {"a": LOST, "b": LOST})
        cluster.mark = UnderreplicatedLedger(LEDGER, ("a",))
        assert (await cluster.run()).outcome is Outcome.REPAIRED
        assert cluster.copies == [(0, {0: "a"}, ())]

    async def test_a_bookie_that_does_not_answer_is_neither_replaced_nor_forgotten(self) -> None:
        cluster = Cluster(metadata_of({0: "abc"}), {"a": UNREACHABLE})
        result = await cluster.run()
        assert result.outcome is Outcome.FAILED
        assert "a does not answer" in result.reason
        assert cluster.copies == []

    async def test_one_segment_in_trouble_does_not_hold_up_the_others(self) -> None:
        cluster = Cluster(metadata_of({0: "abc", 50: "acd"}), {"a": LOST})

        def refuse(bad: Mapping[int, str], in_place: Collection[int]) -> None:
            if len(cluster.copies) == 1:
                raise BookieUnavailable("the target hung up")

        cluster.refuse = refuse
        result = await cluster.run()
        assert (result.outcome, result.reason) == (Outcome.FAILED, "segment at entry 0: the target hung up")
        assert cluster.note.done_fragments == 1
        assert cluster.metric("exceptions_BookieUnavailable") == 1

    @pytest.mark.parametrize(
        ("segments", "more"), [(3, ""), (4, "; and 1 more segments"), (5, "; and 2 more segments")]
    )
    async def test_of_very_many_in_trouble_the_first_are_told(self, segments: int, more: str) -> None:
        cluster = Cluster(metadata_of({10 * each: "abc" for each in range(segments)}), {"a": LOST})

        def refuse(bad: Mapping[int, str], in_place: Collection[int]) -> None:
            raise BookieUnavailable("no answer")

        cluster.refuse = refuse
        result = await cluster.run()
        told = "; ".join(f"segment at entry {10 * each}: no answer" for each in range(3))
        assert (result.outcome, result.reason) == (Outcome.FAILED, told + more)

    async def test_the_metadata_service_is_away(self) -> None:
        cluster = Cluster(metadata_of({0: "abc", 50: "acd"}), {"a": LOST})

        def refuse(bad: Mapping[int, str], in_place: Collection[int]) -> None:
            raise MetadataUnavailable("no answer")

        cluster.refuse = refuse
        with pytest.raises(MetadataUnavailable):
            await cluster.run()
        assert len(cluster.copies) == 1

    async def test_deleted_meanwhile(self) -> None:
        cluster = Cluster(metadata_of({0: "abc"}), {"a": LOST})

        def refuse(bad: Mapping[int, str], in_place: Collection[int]) -> None:
            raise LedgerDeleted("deleted")

        cluster.refuse = refuse
        assert (await cluster.run()).outcome is Outcome.DELETED
        cluster.metadata = None
        assert (await cluster.run()).outcome is Outcome.DELETED
        assert (await cluster.run(recover=True)).outcome is Outcome.DELETED

    async def test_a_bookie_that_has_nothing_of_a_ledger_does_not_make_it_deleted(self) -> None:
        cluster = Cluster(metadata_of({0: "abc"}), {"a": LOST})

        def refuse(bad: Mapping[int, str], in_place: Collection[int]) -> None:
            raise NoSuchLedger("bookie x has none of it")

        cluster.refuse = refuse
        result = await cluster.run()
        assert result.outcome is Outcome.FAILED
        assert "bookie x has none of it" in result.reason

    async def test_the_mark_was_withdrawn(self) -> None:
        cluster = Cluster(metadata_of({0: "abc"}), {"a": LOST})
        cluster.mark = None
        assert (await cluster.run()).outcome is Outcome.WITHDRAWN
        assert cluster.copies == []


class TestWhatChangesMeanwhile:
    """Each segment takes so long that what was found of the others is old when their turn comes."""

    async def run(
        self, cluster: Cluster, change: Callable[[], None], seconds: float = FRESH_SECONDS + 1
    ) -> RoundResult:
        def pass_time(bad: Mapping[int, str], in_place: Collection[int]) -> None:
            if len(cluster.copies) == 1:
                cluster.now += seconds
                change()

        cluster.refuse = pass_time
        return await cluster.run()

    async def test_the_copies_of_a_bookie_that_is_back_stay(self) -> None:
        cluster = Cluster(metadata_of({0: "abc", 50: "acd", 80: "bca"}), {"a": LOST})
        result = await self.run(cluster, cluster.verdicts.clear)
        assert result.outcome is Outcome.REPAIRED
        assert cluster.copies == [(0, {0: "a"}, ())]
        assert cluster.looked_again == [(50, [0], ["a"]), (80, [2], ["a"])]
        assert cluster.metadata is not None
        assert [cluster.metadata.ensembles[first] for first in (50, 80)] == [tuple("acd"), tuple("bca")]
        assert len(cluster.findings) == 2, "the whole ledger is looked at once more before the mark goes"
        assert (cluster.note.done_fragments, cluster.note.entries_to_copy) == (3, 50)

    async def test_what_is_still_bad_is_copied(self) -> None:
        cluster = Cluster(metadata_of({0: "abc", 50: "bac"}), {"a": LOST, "b": LOST})
        assert (await self.run(cluster, lambda: cluster.verdicts.pop("b") and None)).outcome is Outcome.REPAIRED
        assert cluster.copies == [(0, {0: "a", 1: "b"}, ()), (50, {1: "a"}, ())]

    async def test_a_bookie_that_is_back_without_its_copies_is_filled_in_place(self) -> None:
        cluster = Cluster(metadata_of({0: "abc", 50: "acd"}), {"a": LOST})
        assert (await self.run(cluster, lambda: cluster.verdicts.update(a=MISSING))).outcome is Outcome.REPAIRED
        assert cluster.copies == [(0, {0: "a"}, ()), (50, {0: "a"}, (0,))]

    async def test_one_that_is_back_and_does_not_answer_is_not_forgotten(self) -> None:
        cluster = Cluster(metadata_of({0: "abc", 50: "acd"}), {"a": LOST})
        result = await self.run(cluster, lambda: cluster.verdicts.update(a=UNREACHABLE))
        assert (result.outcome, cluster.copies) == (Outcome.FAILED, [(0, {0: "a"}, ())])
        assert "a does not answer" in result.reason

    async def test_nothing_is_looked_at_twice_within_a_moment(self) -> None:
        cluster = Cluster(metadata_of({0: "abc", 50: "acd"}), {"a": LOST})
        assert (await self.run(cluster, cluster.verdicts.clear, FRESH_SECONDS)).outcome is Outcome.REPAIRED
        assert cluster.looked_again == []
        assert [copy[0] for copy in cluster.copies] == [0, 50]

    async def test_where_all_copies_are_back_none_was_made(self) -> None:
        cluster = Cluster(metadata_of({0: "abc", 50: "acd"}), {"a": LOST})
        cluster.on_writable = lambda: (
            setattr(cluster, "now", cluster.now + FRESH_SECONDS + 1) or cluster.verdicts.clear()
        )
        assert (await cluster.run()).outcome is Outcome.REPAIRED
        assert (cluster.copies, len(cluster.findings)) == ([], 2)
        assert cluster.metric("NUM_FULL_OR_PARTIAL_LEDGERS_REPLICATED") == 0


class TestTargets:
    async def test_an_emptied_bookie_is_filled_in_place(self) -> None:
        cluster = Cluster(metadata_of({0: "abc"}), {"a": MISSING}, spares="x")
        assert (await cluster.run()).outcome is Outcome.REPAIRED
        assert cluster.copies == [(0, {0: "a"}, (0,))]

    async def test_one_that_cannot_be_filled_is_replaced(self) -> None:
        cluster = Cluster(metadata_of({0: "abc"}), {"a": MISSING})

        def refuse(bad: Mapping[int, str], in_place: Collection[int]) -> None:
            if in_place:
                raise BookieReadOnly("a is read-only")

        cluster.refuse = refuse
        assert (await cluster.run()).outcome is Outcome.REPAIRED
        assert cluster.copies == [(0, {0: "a"}, (0,)), (0, {0: "a"}, ())]

    async def test_a_damaged_disk_is_not_trusted_unless_there_is_no_other(self) -> None:
        cluster = Cluster(metadata_of({0: "abc"}), {"a": DAMAGED})
        await cluster.run()
        assert cluster.copies == [(0, {0: "a"}, ())]
        cluster = Cluster(metadata_of({0: "abc"}), {"a": DAMAGED}, spares="")
        assert (await cluster.run()).outcome is Outcome.REPAIRED
        assert cluster.copies == [(0, {0: "a"}, ()), (0, {0: "a"}, (0,))]

    async def test_no_spare_at_all(self) -> None:
        cluster = Cluster(metadata_of({0: "abc"}), {"a": LOST}, spares="")
        result = await cluster.run()
        assert (result.outcome, result.reason) == (Outcome.FAILED, "segment at entry 0: a: no spare")

    async def test_an_emptied_one_is_filled_though_a_lost_one_finds_no_spare(self) -> None:
        cluster = Cluster(metadata_of({0: "abc"}), {"a": MISSING, "b": LOST}, spares="")
        result = await cluster.run()
        assert "b: no spare" in result.reason
        assert cluster.copies[1:] == [(0, {0: "a"}, (0,))]
        assert "a" not in cluster.verdicts

    async def test_fewer_spares_than_lost_copies(self) -> None:
        cluster = Cluster(metadata_of({0: "abc"}), {"a": LOST, "b": LOST}, spares="x")
        assert "b: no spare" in (await cluster.run()).reason
        assert cluster.metadata is not None
        assert cluster.metadata.ensembles[0] == ("x", "b", "c")


class TestUnreadableEntries:
    @pytest.fixture
    async def cluster(self) -> Cluster:
        made = Cluster(metadata_of({0: "abc"}), {"a": LOST, "b": LOST, "c": MISSING})

        def refuse(bad: Mapping[int, str], in_place: Collection[int]) -> None:
            error = EntriesUnreadable("no copy of entries 3 and 4")
            error.entries = (3, 4)
            raise error

        made.refuse = refuse
        return made

    async def test_they_are_told_and_nothing_is_exchanged(self, cluster: Cluster) -> None:
        before = cluster.metadata
        result = await cluster.run()
        assert (result.outcome, result.lost_entries) == (Outcome.FAILED, (3, 4))
        assert cluster.metadata == before
        assert cluster.metric("NUM_ENTRIES_UNABLE_TO_READ_FOR_REPLICATION") == 2

    async def test_they_are_not_lost_while_somebody_may_have_them(self, cluster: Cluster) -> None:
        cluster.verdicts["c"] = UNREACHABLE
        assert (await cluster.run()).lost_entries == ()

    async def test_they_are_not_lost_if_somebody_who_was_asked_for_them_did_not_tell(self, cluster: Cluster) -> None:
        def refuse(bad: Mapping[int, str], in_place: Collection[int]) -> None:
            error = EntriesUnreadable("c did not answer, and a is gone")
            error.entries, error.silent = (3, 4), frozenset("ac")
            raise error

        cluster.refuse = refuse
        result = await cluster.run()
        assert (result.outcome, result.lost_entries) == (Outcome.FAILED, ())

    async def test_what_another_worker_found_is_asked_for_before_the_first_byte(self, cluster: Cluster) -> None:
        cluster.mark = UnderreplicatedLedger(
            LEDGER, ("a", "b"), failures=(Failure("another", Trouble.NO_COPY, 3, (3, 4), "no copy"),)
        )
        cluster.still_unreadable = (4,)
        result = await cluster.run()
        assert (result.lost_entries, result.trouble) == ((4,), Trouble.NO_COPY)
        assert (cluster.copies, cluster.asked) == ([], [(3, 4)])
        assert (cluster.note.attempts, cluster.note.reason) == (3, "no copy")
        cluster.silent = frozenset("c")
        result = await cluster.run()
        assert (result.lost_entries, result.trouble is Trouble.NO_COPY) == ((), False), "c may have it"
        cluster.still_unreadable, cluster.refuse = (), lambda bad, in_place: None
        assert (await cluster.run()).outcome is Outcome.REPAIRED

    async def test_what_no_bookie_lists_is_asked_for_before_the_first_byte(self, cluster: Cluster) -> None:
        cluster.no_list_has = cluster.still_unreadable = (7,)
        assert (await cluster.run()).lost_entries == (7,)
        assert (cluster.copies, cluster.asked) == ([], [(7,)])

    async def test_what_a_look_found_missing_is_asked_for_before_the_first_byte(self) -> None:
        cluster = Cluster(metadata_of({0: "abc"}), {"a": LOST, "b": MISSING, "c": DAMAGED})
        cluster.entries = {"b": 99, "c": 5}
        cluster.still_unreadable = (99,)
        assert (await cluster.run()).lost_entries == (99,)
        assert ([sorted(each) for each in cluster.asked], cluster.copies) == ([[5, 99]], [])


class TestFindings:
    async def test_a_finding_is_looked_at_again_before_its_mark_goes(self) -> None:
        cluster = Cluster(metadata_of({0: "abc"}), {"b": DAMAGED})
        cluster.mark = UnderreplicatedLedger(LEDGER, ("b",), findings=(Finding("b", Reason.DAMAGED, ((7, 7),)),))
        assert (await cluster.run()).outcome is Outcome.REPAIRED
        assert cluster.copies == [(0, {1: "b"}, ())]
        assert cluster.findings == [["b"], ["b"]]

    async def test_one_that_cannot_tell_is_replaced_only_if_it_was_found_so(self) -> None:
        cluster = Cluster(metadata_of({0: "abc"}), {"b": UNTOLD})
        cluster.mark = UnderreplicatedLedger(LEDGER, ("b",), findings=(Finding("b", Reason.UNTOLD, ((7, 7),)),))
        assert (await cluster.run()).outcome is Outcome.REPAIRED
        assert cluster.copies == [(0, {1: "b"}, ())]
        cluster = Cluster(metadata_of({0: "abc"}), {"b": UNTOLD})
        cluster.mark = UnderreplicatedLedger(LEDGER, ("b",), findings=(Finding("b", Reason.ABSENT),))
        assert (await cluster.run()).outcome is Outcome.FAILED
        assert cluster.copies == []

    async def test_copies_behind_the_end_of_an_open_ledger_are_not_compared(self) -> None:
        cluster = Cluster(metadata_of({0: "abc"}, None), {})
        cluster.mark = UnderreplicatedLedger(LEDGER, ("b",), findings=(Finding("b", Reason.DIVERGENT, ((100, 100),)),))
        assert (await cluster.run()).outcome is Outcome.FAILED
        cluster.lac = 100
        assert (await cluster.run()).outcome is Outcome.REPAIRED

    async def test_a_worker_to_which_nobody_answers_says_so(self) -> None:
        cluster = Cluster(metadata_of({0: "abc"}), dict.fromkeys("abc", UNREACHABLE))
        assert (await cluster.run()).trouble is Trouble.UNREACHABLE
        cluster = Cluster(metadata_of({0: "abc"}), dict.fromkeys("ab", UNREACHABLE))
        assert (await cluster.run()).trouble is Trouble.OTHER


class TestOpenLedgers:
    async def test_segments_that_the_writer_left_are_restored_and_the_last_one_waits(self) -> None:
        cluster = Cluster(metadata_of({0: "abc", 50: "acd"}, None), {"a": LOST})
        result = await cluster.run()
        assert result.outcome is Outcome.OPEN
        assert result.reason == "the ledger is OPEN, and a is registered nowhere"
        assert [copy[0] for copy in cluster.copies] == [0]
        assert cluster.recoveries == 0

    @pytest.mark.parametrize(
        ("reason", "marked"), [(Reason.ABSENT, ["a"]), (Reason.UNTOLD, ["a"]), (Reason.MISSING, []), (None, [])]
    )
    async def test_a_bookie_whose_tail_is_filled_is_marked_as_one_that_lost_entries_before(
        self, reason: Reason | None, marked: list[str]
    ) -> None:
        """If the worker dies in between, what the bookie got would vouch for it."""
        cluster = Cluster(metadata_of({0: "abc"}, None), {})
        findings = (Finding("a", reason),) if reason else ()
        cluster.mark, cluster.lacking = UnderreplicatedLedger(LEDGER, ("a",), findings=findings), {0: "a"}
        before: list[int] = []
        cluster.refuse = lambda bad, in_place: before.append(len(cluster.marked))
        assert (await cluster.run()).outcome is Outcome.REPAIRED
        assert cluster.marked == ([(LEDGER, marked)] if marked else [])
        assert (cluster.copies, before) == ([(0, {0: "a"}, (0,))], [len(cluster.marked)])

    async def test_a_writer_that_went_on_is_not_fenced(self) -> None:
        cluster = Cluster(metadata_of({0: "abc"}, None), {"a": LOST})
        assert (await cluster.run()).outcome is Outcome.OPEN
        cluster.metadata = metadata_of({0: "abc", 60: "bcd"}, None)
        assert (await cluster.run(recover=True)).outcome is Outcome.REPAIRED
        assert cluster.recoveries == 0
        assert cluster.copies == [(0, {0: "a"}, ())]

    @pytest.mark.parametrize("looks", [1, 2])
    async def test_the_next_ledger_of_its_id_is_not_fenced_for_it(self, looks: int) -> None:
        """It is made while its former one waits, or between the two looks before a recovery."""
        old, new = (replace(metadata_of({0: "abc"}, None), creation_token=token) for token in (1, 2))
        cluster = Cluster(old, {"a": LOST})
        assert (await cluster.run()).life == LedgerLife(LEDGER, 0, 1)
        cluster.looks = [old, new][-looks:]
        result = await cluster.run(recover=True)
        assert (result.outcome, cluster.recoveries) == (Outcome.OPEN, 0)
        assert cluster.looks == []
        cluster.on_recovery = lambda: setattr(cluster, "metadata", metadata_of({0: "abc"}))
        assert (await cluster.run()).life == LedgerLife(LEDGER, 0, 2)
        assert (await cluster.run(recover=True)).outcome is Outcome.REPAIRED
        assert cluster.recoveries == 1

    async def test_one_that_did_not_is_fenced_and_repaired(self) -> None:
        cluster = Cluster(metadata_of({0: "abc"}, None), {"a": LOST})
        phases: list[Phase] = []

        def close() -> None:
            phases.append(cluster.note.phase)
            cluster.metadata = metadata_of({0: "abc"}, 99)

        cluster.on_recovery = close
        assert (await cluster.run(recover=True)).outcome is Outcome.REPAIRED
        assert phases == [Phase.RECOVERING]
        assert cluster.copies == [(0, {0: "a"}, ())]
        assert cluster.metric("NUM_OPEN_LEDGERS_RECOVERED") == 1

    async def test_a_recovery_that_fails_changes_nothing(self) -> None:
        cluster = Cluster(metadata_of({0: "abc"}, None), {"a": LOST, "b": LOST})

        def fail() -> None:
            raise RecoveryFailed("two of three bookies are away")

        cluster.on_recovery = fail
        with pytest.raises(RecoveryFailed):
            await cluster.run(recover=True)
        assert cluster.metric("NUM_OPEN_LEDGERS_RECOVERED") == 0

    async def test_a_read_only_bookie_is_no_reason(self) -> None:
        """It is in no list of writable ones, and every copy is there: nobody waits, nobody is fenced."""
        cluster = Cluster(metadata_of({0: "abe"}, None), {})
        cluster.mark = UnderreplicatedLedger(LEDGER, ("e",))
        assert (await cluster.run()).outcome is Outcome.REPAIRED


class TestPlacement:
    async def test_a_mark_without_replicas_moves_copies(self) -> None:
        cluster = Cluster(metadata_of({0: "abc", 50: "abd"}), {})
        cluster.mends = {50: ("a", "x", "d")}
        assert (await cluster.run()).outcome is Outcome.REPAIRED
        assert cluster.metadata is not None
        assert cluster.metadata.ensembles[50] == ("a", "x", "d")
        assert cluster.metric("NUM_NOT_ADHERING_PLACEMENT_LEDGERS_REPLICATED") == 1

    async def test_other_marks_move_nothing(self) -> None:
        cluster = Cluster(metadata_of({0: "abc"}), {"a": LOST})
        cluster.mends = {0: ("a", "x", "d")}
        await cluster.run()
        assert cluster.metric("NUM_NOT_ADHERING_PLACEMENT_LEDGERS_REPLICATED") == 0

    async def test_where_nothing_helps_the_mark_goes(self) -> None:
        cluster = Cluster(metadata_of({0: "abc"}), {})
        cluster.mending_error = NotEnoughBookies("one rack only")
        assert (await cluster.run()).outcome is Outcome.REPAIRED

    async def test_open_ledgers_are_left_to_their_writer(self) -> None:
        cluster = Cluster(metadata_of({0: "abc"}, None), {})
        cluster.mends = {0: ("a", "x", "d")}
        await cluster.run()
        assert cluster.metadata is not None
        assert cluster.metadata.ensembles[0] == ("a", "b", "c")


LOST, MISSING = ReplicaVerdict.LOST, ReplicaVerdict.MISSING
DAMAGED, UNREACHABLE, EMPTY = ReplicaVerdict.DAMAGED, ReplicaVerdict.UNREACHABLE, ReplicaVerdict.EMPTY


@pytest.mark.parametrize(
    ("verdict", "named", "bad"),
    [
        (LOST, {"a"}, True),
        (LOST, {"b"}, False),
        (MISSING, {"b"}, True),
        (DAMAGED, set(), True),
        (UNREACHABLE, {"a"}, False),
        (EMPTY, {"a"}, False),
    ],
)
def test_what_wants_a_new_copy(verdict: ReplicaVerdict, named: set[str], bad: bool) -> None:
    report = report_of(metadata_of({0: "abc"}), {"a": verdict})
    assert rule.bad_positions(report.fragments[0], absences(named)) == ({0: "a"} if bad else {})


@pytest.mark.parametrize(
    ("verdict", "named", "stays"),
    [(LOST, "a", True), (LOST, "b", False), (UNREACHABLE, "a", True), (UNREACHABLE, "b", False), (MISSING, "b", True)],
)
def test_when_a_mark_may_go(verdict: ReplicaVerdict, named: str, stays: bool) -> None:
    report = report_of(metadata_of({0: "abc"}), {"a": verdict})
    left = rule.what_is_left(report, absences([named]))
    assert (left is not None) is stays
    assert left is None or "segment at entry 0: a " in left


def test_a_mark_stays_while_the_end_is_not_known() -> None:
    report = report_of(metadata_of({0: "abc"}, None), lac=-1, lac_error=BookieUnavailable("nobody answers"))
    assert rule.what_is_left(report, ()) == "the end of the ledger is not known: nobody answers"


@pytest.mark.parametrize(
    ("last_entry", "verdicts", "waits"),
    [
        (None, {"c": LOST}, True),
        (None, {"c": MISSING}, False),  # enough others have what it lacks
        (None, {"c": MISSING, "d": MISSING}, True),
        (None, {"a": LOST}, False),  # of a segment that the writer has left
        (None, {"d": LOST}, False),  # went a moment ago, the mark does not name it
        (None, {"c": UNREACHABLE}, False),
        (None, {}, False),  # a bookie that is read-only is none of the verdicts
        (99, {"c": LOST}, False),
    ],
)
def test_when_a_writer_is_waited_for(last_entry: int | None, verdicts: dict[str, ReplicaVerdict], waits: bool) -> None:
    report = report_of(metadata_of({0: "abe", 50: "bcd"}, last_entry), verdicts)
    assert (rule.waits_for(report, absences("ac")) is not None) is waits


def test_whose_no_counts_for_nothing() -> None:
    report = report_of(metadata_of({0: "abcd"}), {"a": MISSING, "b": DAMAGED, "c": LOST, "d": UNREACHABLE})
    assert denying(report) == {"a", "b"}
    assert rule.may_be_read_later(report.fragments[0], 3)
    assert not rule.may_be_read_later(report_of(metadata_of({0: "abc"}), {"a": LOST}).fragments[0], 3)
