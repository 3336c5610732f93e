"""Defects of healing, to be put into auditors, workers and decommissions on purpose: the checkers must find each.

Each is a mistake that implementations have made or that looks harmless.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from bookie_client.replication import check, exchange
from bookie_client.replication.copying import FragmentCopy
from bookie_client.replication.fragments import Fragment, fragments
from bookie_client.replication.replicator import FragmentReplicator
from bookie_client.replication.report import ReplicaVerdict
from bookie_pod.autorecovery.decommission import drain, survey
from bookie_pod.autorecovery.decommission.ledger_drain import LedgerDrain
from bookie_pod.autorecovery.locks import LockKeeper
from bookie_pod.autorecovery.worker import judgement, ledger_repair
from bookie_protocol.errors import BookieUnavailable, MetadataExists, PodkeeperError
from bookie_protocol.metadata_service.tree.under_replication.locks import Locks
from bookie_protocol.metadata_service.tree.under_replication.marks import Marks
from bookie_protocol.metadata_service.versioned import ANY_VERSION
from tests.simulation.healing_focus import (
    healers_die_while_they_fill,
    many_drains,
    one_loss_after_another,
    silent_bookies,
    writers_leave_holes,
)
from tests.simulation.planted import Bug
from tests.support.simulation.healing.draw import draw_healing

HealingBug = partial(Bug, draw=draw_healing)


def _metadata_before_data(patch: pytest.MonkeyPatch) -> None:
    original = FragmentReplicator._restore

    async def restore(
        self: Any, stored: Any, fragment: Fragment, targets: Any, refilled: Any, bad: Any, progress: Any
    ) -> Any:
        if targets.chosen:
            await exchange.exchange_bookies(self._client, stored, fragment, targets.chosen)
        return await original(self, stored, fragment, targets, refilled, bad, progress)

    patch.setattr(FragmentReplicator, "_restore", restore)


def _leave_out_an_entry_of_each_piece(patch: pytest.MonkeyPatch) -> None:
    original = FragmentCopy._piece

    async def piece(self: Any, ids: Any, ordinal: int, expected: int) -> None:
        await original(self, ids[1:] or ids, ordinal, expected)

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
            metadata = await self._read(ledger_id)
            if metadata is not None and self._names(metadata):
                return await self._mover.move(metadata, self._bookies, progress) or None
        except PodkeeperError as error:
            return str(error)
        return None

    patch.setattr(LedgerDrain, "drain", unlocked)


def _remove_marks_that_were_renewed(patch: pytest.MonkeyPatch) -> None:
    original = Marks.remove

    async def remove(self: Any, ledger_id: int, version: int, timeout: float | None) -> bool:
        return await original(self, ledger_id, ANY_VERSION, timeout)

    patch.setattr(Marks, "remove", remove)


def _remove_marks_without_a_look(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(judgement, "what_is_left", lambda report, named: None)
    patch.setattr(judgement, "bad_positions", lambda report, named: {})
    patch.setattr(judgement, "waits_for", lambda report, named: None)


def _look_at_the_ends_only(patch: pytest.MonkeyPatch) -> None:
    original = check.LedgerChecker.check

    async def look(self: Any, ledger_id: int, *, complete: Any = ()) -> Any:
        return await original(self, ledger_id)

    patch.setattr(check.LedgerChecker, "check", look)


def _keep_locks(patch: pytest.MonkeyPatch) -> None:
    async def give_back(self: Any, lock: Any) -> None:
        return None

    async def finish(self: Any, lock: Any) -> None:
        await self._marks.unmark(lock.ledger_id)

    patch.setattr(LockKeeper, "give_back", give_back)
    patch.setattr(LockKeeper, "finish", finish)


def _delete_the_cookie_without_a_proof(patch: pytest.MonkeyPatch) -> None:
    """Ledgers that were tried once count as drained."""
    patch.setattr(drain.DrainMeter, "blocked", {})
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

    async def check_position(self: Any, fragment: Any, position: int, *arguments: Any) -> Any:
        found = await original(self, fragment, position, *arguments)
        if found.verdict is ReplicaVerdict.GOOD and found.bookie in self._client.bookies.known_read_only:
            return replace(found, verdict=ReplicaVerdict.MISSING)
        return found

    patch.setattr(check.LedgerChecker, "_check_position", check_position)


def _close_where_they_seem_to_end(patch: pytest.MonkeyPatch) -> None:
    """Marks of open ledgers are settled by closing them where the worker believes that they end."""

    async def recover(self: Any, report: Any) -> None:
        client = self._parts.replicator._client
        stored = await client.stored_metadata(report.ledger_id)
        if not stored.value.is_closed:
            closed = stored.value.in_recovery().closed(report.lac, 0)
            await client.metadata_service.ledgers.write(closed, stored.version)

    original = ledger_repair.LedgerRepair.__init__

    def init(self: Any, parts: Any) -> None:
        original(self, replace(parts, recover=lambda report: recover(self, report)))

    patch.setattr(ledger_repair.LedgerRepair, "__init__", init)


def _fill_whom_the_mark_does_not_name(patch: pytest.MonkeyPatch) -> None:
    async def nobody(ledger_id: int, bookies: Any) -> None:
        return None

    original = ledger_repair.LedgerRepair.__init__

    def init(self: Any, parts: Any) -> None:
        original(self, replace(parts, mark_lost=nobody))

    patch.setattr(ledger_repair.LedgerRepair, "__init__", init)


DATA = ("H1", "H2")

HEALING_BUGS = (
    HealingBug("metadata before data", _metadata_before_data, DATA, 20),
    HealingBug("leave out an entry of each piece", _leave_out_an_entry_of_each_piece, DATA, 40),
    HealingBug("take silence for a loss", _silence_is_a_loss, ("H5", "L", "L1"), 200, silent_bookies),
    HealingBug("a drain that counts its own copy", _drain_counts_its_own_copy, DATA, 20, many_drains),
    HealingBug("do not respect locks", _do_not_respect_locks, ("H4",), 60, many_drains),
    HealingBug("drain without a lock", _drain_without_a_lock, ("H4",), 20, many_drains),
    HealingBug(
        "remove marks that were renewed",
        _remove_marks_that_were_renewed,
        ("H3",),
        260,
        one_loss_after_another,
        first=50,
    ),
    HealingBug("remove marks without a look", _remove_marks_without_a_look, ("H3", "L"), 60),
    HealingBug("look at the ends only", _look_at_the_ends_only, ("L", "H3"), 60, writers_leave_holes),
    HealingBug(
        "fill whom the mark does not name",
        _fill_whom_the_mark_does_not_name,
        ("H3",),
        200,
        healers_die_while_they_fill,
        first=200,
    ),
    HealingBug("keep locks", _keep_locks, ("L", "H3", "H4"), 40),
    HealingBug("delete a cookie without a proof", _delete_the_cookie_without_a_proof, ("H6",), 60, many_drains),
    HealingBug("exchange bookies in open segments", _exchange_in_open_segments, ("H7", "S10", "S5"), 100),
    HealingBug(
        "replace copies of read-only bookies", _replace_whoever_is_gone_for_a_moment, ("H5", "L"), 100, many_drains
    ),
    HealingBug(
        "close open ledgers without finding their end", _close_where_they_seem_to_end, ("S14", "S3", "S16"), 100
    ),
)
