"""Defects of healing, to be put into auditors, workers and decommissions on purpose: the checkers must find each.

Each is a mistake that implementations have made or that looks harmless.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from bookie_client.healing import settling
from bookie_client.replication import check, exchange, replicator, targets
from bookie_client.replication.check import ReplicaVerdict
from bookie_client.replication.copying import FragmentCopy
from bookie_client.replication.exchange import NewCopies
from bookie_client.replication.fragments import Fragment, fragments
from bookie_client.replication.replicator import FragmentReplicator
from bookie_pod.autorecovery.decommission import coordinator, recover, store, survey, undo
from bookie_pod.autorecovery.decommission.drain import LedgerDrain
from bookie_pod.autorecovery.decommission.state import Phase
from bookie_pod.autorecovery.decommission.survey import Claims
from bookie_pod.autorecovery.worker import ledger_repair
from bookie_protocol.errors import BookieUnavailable, MetadataExists, MetadataNotFound, PodkeeperError
from bookie_protocol.metadata_service.ledger_guard import LedgerGuard
from bookie_protocol.metadata_service.tree.retrying import RetryingTree
from bookie_protocol.metadata_service.tree.under_replication.locks import Locks
from bookie_protocol.versioned import LedgerLife
from tests.simulation.healing_focus import (
    copies_rot,
    decommissions_are_undone,
    exchanges_are_late,
    healers_die_while_they_fill,
    ids_are_used_again,
    locks_end_under_drains,
    lost_bookies_are_recovered,
    many_drains,
    racks_are_minded,
    silent_bookies,
    writers_leave_holes,
)
from tests.simulation.planted import Bug
from tests.support.simulation.healing.draw import draw_calm

HealingBug = partial(Bug, draw=draw_calm)


def _metadata_before_data(patch: pytest.MonkeyPatch) -> None:
    original = FragmentReplicator._restore

    async def restore(self: Any, job: Any, targets: Any) -> Any:
        if targets.chosen:
            await exchange.exchange_bookies(self._client, job.stored, job.fragment, targets.chosen)
        return await original(self, job, targets)

    patch.setattr(FragmentReplicator, "_restore", restore)


def _leave_out_an_entry_of_each_piece(patch: pytest.MonkeyPatch) -> None:
    original = FragmentCopy._piece

    async def piece(self: Any, ids: Any, *others: Any) -> None:
        await original(self, ids[1:] or ids, *others)

    patch.setattr(FragmentCopy, "_piece", piece)


def _silence_is_a_loss(patch: pytest.MonkeyPatch) -> None:
    original = check.verdict_of

    def verdict_of(error: PodkeeperError) -> ReplicaVerdict:
        return ReplicaVerdict.DAMAGED if isinstance(error, BookieUnavailable) else original(error)

    patch.setattr(check, "verdict_of", verdict_of)


def _drain_counts_its_own_copy(patch: pytest.MonkeyPatch) -> None:
    """The copy on the leaving bookie stands for the one that it should make."""

    def receivers(self: Any, metadata: Any, fragment: Any, access: Any, sources: Any, receivers: Any, told: Any) -> Any:
        class Nothing:
            entries = nbytes = 0

            async def run(self) -> None:
                return None

        leaving = {fragment.ensemble[position] for position in receivers}
        known = self._client.bookies.known_writable | self._client.bookies.known_read_only
        return Nothing() if leaving <= known else copy(self, metadata, fragment, access, sources, receivers, told)

    async def read_back(self: Any, fragment: Any, sources: Any, receivers: Any) -> None:
        return None

    copy = FragmentReplicator._copy

    async def is_there(self: Any, fragment: Any, position: int, bookie: str) -> None:
        return None

    patch.setattr(NewCopies, "check", is_there)
    patch.setattr(FragmentReplicator, "_copy", receivers)
    patch.setattr(FragmentReplicator, "_read_back", read_back)


def _do_not_respect_locks(patch: pytest.MonkeyPatch) -> None:
    original = Locks._create

    async def create(self: Any, path: str, timeout: float | None) -> None:
        try:
            await original(self, path, timeout)
        except MetadataExists:
            return

    patch.setattr(Locks, "_create", create)


def _drain_without_a_lock(patch: pytest.MonkeyPatch) -> None:
    async def unlocked(self: Any, ledger_id: int, progress: Any) -> str | None:
        try:
            stored = await self._read(ledger_id)
            if stored is not None and self._names(stored.value):
                return await self._mover.move(stored.value, self._bookies, None, progress) or None
        except PodkeeperError as error:
            return str(error)
        return None

    patch.setattr(LedgerDrain, "drain", unlocked)


def _remove_marks_without_a_look(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ledger_repair, "bad_positions", lambda report, named: {})
    patch.setattr(ledger_repair, "waits_for", lambda report, named: None)
    patch.setattr(settling, "what_is_left", lambda report, named: None)


def _look_at_the_ends_only(patch: pytest.MonkeyPatch) -> None:
    original = check.LedgerChecker.check

    async def look(self: Any, ledger_id: int, *, findings: Any = ()) -> Any:
        return await original(self, ledger_id)

    patch.setattr(check.LedgerChecker, "check", look)


def _forget_which_entries_were_found(patch: pytest.MonkeyPatch) -> None:
    """Whoever comes after the finder looks at lists, and at first and last entries."""
    patch.setattr(check, "entries_to_read", lambda findings: ())


def _keep_locks(patch: pytest.MonkeyPatch) -> None:
    async def release(self: Any, lock: Any, timeout: Any) -> None:
        return None

    patch.setattr(Locks, "release", release)


def _delete_the_cookie_without_a_proof(patch: pytest.MonkeyPatch) -> None:
    """Ledgers that were tried once count as drained."""

    async def drain_once(self: Any, held: Any, vigil: Any, drain: Any) -> None:
        meter = self.watched.meter = coordinator.DrainMeter(asyncio.get_running_loop().time)
        found = await survey.survey(self._service, held.record.bookie_id)
        await coordinator.drain_all(sorted(found.ledgers), drain, meter, self._parts.options.ledgers_at_once)
        await held.advance(coordinator.Drained())

    patch.setattr(coordinator.Coordinator, "_drain", drain_once)
    patch.setattr(survey.Survey, "left", lambda self, accepted=(): set())


def _exchange_in_open_segments(patch: pytest.MonkeyPatch) -> None:
    original = fragments

    def closed(ledger_id: int, metadata: Any, lac: int) -> Any:
        return tuple(replace(each, is_closed=True) for each in original(ledger_id, metadata, lac))

    patch.setattr(exchange, "fragments", closed)
    patch.setattr(check, "fragments", closed)


def _replace_whoever_is_gone_for_a_moment(patch: pytest.MonkeyPatch) -> None:
    """A copy of a bookie that is read-only counts as lost."""
    original = check.LedgerChecker._check_position

    async def check_position(self: Any, *arguments: Any) -> Any:
        found = await original(self, *arguments)
        if found.verdict is ReplicaVerdict.GOOD and found.bookie in self._client.bookies.known_read_only:
            return replace(found, verdict=ReplicaVerdict.MISSING)
        return found

    patch.setattr(check.LedgerChecker, "_check_position", check_position)


def _close_where_they_seem_to_end(patch: pytest.MonkeyPatch) -> None:
    """Marks of open ledgers are settled by closing them where the worker believes that they end."""

    async def recover(self: Any, life: LedgerLife) -> None:
        client = self._parts.replicator._client
        end = (await self._parts.checker.check(life.ledger_id)).lac
        stored = await client.stored_metadata(life.ledger_id)
        if not stored.value.is_closed:
            closed = stored.value.in_recovery().closed(end, 0)
            await client.metadata_service.ledgers.write(closed, stored.identity)

    original = ledger_repair.LedgerRepair.__init__

    def init(self: Any, parts: Any) -> None:
        original(self, replace(parts, recover=partial(recover, self)))

    patch.setattr(ledger_repair.LedgerRepair, "__init__", init)


def _fill_whom_the_mark_does_not_name(patch: pytest.MonkeyPatch) -> None:
    async def nobody(ledger_id: int, findings: Any) -> None:
        return None

    original = ledger_repair.LedgerRepair.__init__

    def init(self: Any, parts: Any) -> None:
        original(self, replace(parts, mark_more=nobody))

    patch.setattr(ledger_repair.LedgerRepair, "__init__", init)


def _take_over_without_fencing_the_cookie(patch: pytest.MonkeyPatch) -> None:
    """Who was about to delete it still can: the bookie whose decommission is undone may be writable without a cookie,
    and be named again."""

    async def is_there(cookies: Any, bookie_id: str, proven: int | None) -> bool:
        try:
            await cookies.read(bookie_id)
        except MetadataNotFound:
            return False
        return True

    patch.setattr(store, "fence_cookie", is_there)
    patch.setattr(undo, "fence_cookie", is_there)


def _recover_all_but_the_last_ledger(patch: pytest.MonkeyPatch) -> None:
    original = recover.bounded

    async def but_the_last(ledger_ids: Any, restore: Any, at_a_time: int) -> None:
        await original(list(ledger_ids)[:-1], restore, at_a_time)

    patch.setattr(recover, "bounded", but_the_last)


def _remove_marks_of_placement_without_a_move(patch: pytest.MonkeyPatch) -> None:
    async def nothing(self: Any, report: Any, note: Any) -> bool:
        return False

    patch.setattr(ledger_repair.LedgerRepair, "_mend", nothing)


def _move_copies_that_stand_well(patch: pytest.MonkeyPatch) -> None:
    """Of a ledger that is marked for its placement a copy is moved in every segment."""
    original = targets.choose_mending

    async def choose(client: Any, leaving: Any, fragment: Fragment, bad: Any, excluded: Any) -> Any:
        chosen = await original(client, leaving, fragment, bad, excluded)
        if chosen.chosen or bad:
            return chosen
        return await targets.choose_targets(client, leaving, fragment, {0: fragment.ensemble[0]}, excluded)

    patch.setattr(replicator, "choose_mending", choose)


def _go_on_after_the_session_of_the_lock(patch: pytest.MonkeyPatch) -> None:
    """What was copied so far may have been collected since."""
    original = RetryingTree.set

    async def write(self: Any, path: str, data: bytes, version: int, *, session_id: Any = None, **options: Any) -> int:
        return await original(self, path, data, version, **options)

    async def whatever_becomes_of_it(self: Any, lock: Any, work: Any) -> Any:
        return await work

    async def is_there(self: Any, fragment: Any, position: int, bookie: str) -> None:
        return None

    patch.setattr(RetryingTree, "set", write)
    patch.setattr(LedgerGuard, "work", whatever_becomes_of_it)
    patch.setattr(NewCopies, "check", is_there)


def _prove_without_waiting_for_locks(patch: pytest.MonkeyPatch) -> None:
    """Who copies a ledger chose its target before, and names it when everything is copied."""

    async def at_once(self: Any, wait: Any) -> None:
        return None

    patch.setattr(Claims, "locks_end", at_once)


def _take_a_finished_decommission_for_that_of_the_next_bookie(patch: pytest.MonkeyPatch) -> None:
    original = store.DecommissionStore.begin

    async def begin(self: Any, request: Any) -> Any:
        found = await self.active(request.bookie_id)
        if found is not None and found.value.phase is Phase.DONE:
            return store.HeldRecord(self, found.value, found.version, owner=found.value.coordinator)
        return await original(self, request)

    patch.setattr(store.DecommissionStore, "begin", begin)


DATA = ("H1", "H2")

HEALING_BUGS = (
    HealingBug("metadata before data", _metadata_before_data, DATA, 20),
    HealingBug("leave out an entry of each piece", _leave_out_an_entry_of_each_piece, (*DATA, "L"), 40),
    HealingBug("take silence for a loss", _silence_is_a_loss, ("H5", "L", "L1"), 200, silent_bookies),
    HealingBug("a drain that counts its own copy", _drain_counts_its_own_copy, DATA, 20, many_drains),
    HealingBug("do not respect locks", _do_not_respect_locks, ("H4",), 60, many_drains, first=14),
    HealingBug(
        "go on after the session of the lock",
        _go_on_after_the_session_of_the_lock,
        (*DATA, "H4"),
        20,
        locks_end_under_drains,
    ),
    HealingBug(
        "prove without waiting for locks",
        _prove_without_waiting_for_locks,
        ("H6", "H10"),
        60,
        exchanges_are_late,
        first=13,
    ),
    HealingBug(
        "take a finished decommission for that of the next bookie",
        _take_a_finished_decommission_for_that_of_the_next_bookie,
        ("H6",),
        40,
        ids_are_used_again,
    ),
    HealingBug("drain without a lock", _drain_without_a_lock, ("H4",), 20, many_drains),
    HealingBug("remove marks without a look", _remove_marks_without_a_look, ("H3", "L"), 60),
    HealingBug("look at the ends only", _look_at_the_ends_only, ("L", "H3"), 60, writers_leave_holes),
    HealingBug(
        "fill whom the mark does not name",
        _fill_whom_the_mark_does_not_name,
        ("H3",),
        40,
        healers_die_while_they_fill,
        first=60,
    ),
    HealingBug("forget which entries were found", _forget_which_entries_were_found, ("L",), 5, copies_rot),
    HealingBug("keep locks", _keep_locks, ("L", "H3", "H4"), 40),
    HealingBug("delete a cookie without a proof", _delete_the_cookie_without_a_proof, ("H6",), 60, many_drains),
    HealingBug("exchange bookies in open segments", _exchange_in_open_segments, ("H7", "S10", "S5"), 100),
    HealingBug(
        "replace copies of read-only bookies", _replace_whoever_is_gone_for_a_moment, ("H5", "L"), 100, many_drains
    ),
    HealingBug(
        "close open ledgers without finding their end", _close_where_they_seem_to_end, ("S14", "S3", "S16"), 100
    ),
    HealingBug(
        "take a decommission over without fencing the cookie",
        _take_over_without_fencing_the_cookie,
        ("H8", "H6"),
        100,
        decommissions_are_undone,
    ),
    HealingBug(
        "recover all but the last ledger", _recover_all_but_the_last_ledger, ("H9",), 20, lost_bookies_are_recovered
    ),
    HealingBug(
        "remove marks of placement without a move",
        _remove_marks_of_placement_without_a_move,
        ("L",),
        20,
        racks_are_minded,
    ),
    HealingBug("move copies that stand well", _move_copies_that_stand_well, ("H5",), 60, racks_are_minded),
)
