"""Defects of the protocol, to be put into clients and bookies on purpose: the checkers must find each of them.

Each is a mistake that implementations have made or that looks harmless.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from functools import partialmethod
from typing import Any

import pytest

from bookie_client.connection import connection
from bookie_client.connection.connection import BookieConnection
from bookie_client.connection.dialect_v2 import V2Dialect
from bookie_client.connection.dialect_v3 import V3Dialect
from bookie_client.connection.latency import Lateness
from bookie_client.connection.operations import BookieOperations
from bookie_client.connection.request import BookieRequest, Outstanding
from bookie_client.reading import lac
from bookie_client.reading.lac import LacVote
from bookie_client.recovery import forward_read
from bookie_client.recovery.forward_read import RecoveryParts
from bookie_client.recovery.recovery import Rewriter, _Forward, _Rewrites
from bookie_client.writing import writer
from bookie_client.writing.add_state import AddState
from bookie_client.writing.doubt import Doubt
from bookie_client.writing.ensemble_change import Refusals, find_spares, replace_bookies
from bookie_client.writing.pending_add import PendingAdd
from bookie_client.writing.writer import UnsyncedWatch, WriteHandle
from bookie_pod.ledgers.state import LedgerState
from bookie_pod.node.recovery import ReplayIntoStorage
from bookie_protocol.errors import (
    BookieUnavailable,
    LedgerStateUnknown,
    MetadataVersionConflict,
    NoSuchEntry,
    NoSuchLedger,
    PodkeeperError,
)
from bookie_protocol.ledger_metadata.codec import encode_ledger_metadata
from bookie_protocol.ledger_metadata.model import LedgerMetadata
from bookie_protocol.metadata_service.tree.ledgers import LedgerStore
from bookie_protocol.versioned import Identity, Versioned
from tests.simulation.focus import (
    answers_come_again,
    bookies_are_replaced_in_turn,
    bookies_die_of_fences,
    bookies_fail_as_recovery_begins,
    bookies_lose_their_power,
    bookies_stall,
    deferred_sync_and_restarts,
    many_recoveries,
)
from tests.simulation.planted import Bug


def _acknowledge_one_early(patch: pytest.MonkeyPatch) -> None:
    original = AddState.__init__

    def init(self: AddState, *arguments: Any, **options: Any) -> None:
        original(self, *arguments, **options)
        self._ack = max(1, self._ack - 1)

    patch.setattr(AddState, "__init__", init)


def _skip_the_fence(patch: pytest.MonkeyPatch) -> None:
    original = BookieOperations.read_entry

    async def read_entry(
        self: BookieOperations, *arguments: Any, fence_key: bytes | None = None, **options: Any
    ) -> Any:
        return await original(self, *arguments, **options)

    patch.setattr(BookieOperations, "read_entry", read_entry)


def _fence_only_to_learn_the_lac(patch: pytest.MonkeyPatch) -> None:
    original = forward_read._ForwardRead.__init__

    def init(self: Any, parts: RecoveryParts, entry_id: int) -> None:
        original(self, replace(parts, master_key=None), entry_id)  # type: ignore[arg-type]

    patch.setattr(forward_read._ForwardRead, "__init__", init)


def _time_outs_are_negatives(patch: pytest.MonkeyPatch) -> None:
    def is_negative(error: PodkeeperError) -> bool:
        return isinstance(error, (NoSuchEntry, NoSuchLedger, BookieUnavailable))

    patch.setattr(forward_read, "is_negative", is_negative)


def _limbo_is_negative(patch: pytest.MonkeyPatch) -> None:
    def is_negative(error: PodkeeperError) -> bool:
        return isinstance(error, (NoSuchEntry, NoSuchLedger, LedgerStateUnknown))

    patch.setattr(forward_read, "is_negative", is_negative)


def _send_before_metadata(patch: pytest.MonkeyPatch) -> None:
    original = WriteHandle._change_ensemble

    async def change(self: Any, failed: Mapping[int, str], refusals: Refusals) -> tuple[str, ...]:
        context, quorums, may_acknowledge = self._context, self._state.quorums, self._state.may_acknowledge
        spares = await find_spares(context, quorums, self.metadata.last_ensemble, failed, refusals, may_acknowledge)
        chosen = replace_bookies(
            self._state.ensemble, failed, quorums, spares, context.placement, context.random, may_acknowledge
        ).ensemble
        task = asyncio.get_running_loop().create_task(original(self, failed, refusals), name="the metadata, later")
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        return chosen

    patch.setattr(WriteHandle, "_change_ensemble", change)


def _close_at_the_lac(patch: pytest.MonkeyPatch) -> None:
    async def run(self: _Forward) -> None:
        return None

    patch.setattr(_Forward, "run", run)


def _one_bookie_is_enough(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(lac, "is_covered", lambda quorums, known: bool(known))


def _keep_acknowledgements_of_replaced(patch: pytest.MonkeyPatch) -> None:
    def move(self: AddState, ensemble: tuple[str, ...]) -> list[Any]:
        resend = []
        for add in self._pending:
            before, add.ensemble = add.ensemble, ensemble
            for position in self.quorums.write_set(add.entry_id):
                if before[position] != ensemble[position] and not add.acked >> position & 1:
                    add.forget(position)
                    resend.append((add, position))
        return resend

    patch.setattr(AddState, "_move_pending", move)


def _last_entry_is_confirmed(patch: pytest.MonkeyPatch) -> None:
    original = LacVote._heard

    def heard(self: LacVote, last: Any, explicit_lac: int) -> None:
        original(self, last, explicit_lac if last is None else max(explicit_lac, last.entry_id))

    patch.setattr(LacVote, "_heard", heard)


def _do_not_store_again(patch: pytest.MonkeyPatch) -> None:
    def store(self: Rewriter, entry: Any) -> None:
        self._state.lac = self._state.last_pushed = entry.entry_id
        self._state._next = entry.entry_id + 1

    patch.setattr(Rewriter, "store", store)


def _readers_hear_how_far_recovery_is(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(_Rewrites, "piggy_back", AddState.piggy_back)


def _change_the_ensemble_of_a_ledger_in_recovery(patch: pytest.MonkeyPatch) -> None:
    def needed(metadata: LedgerMetadata, failed: Mapping[int, str]) -> bool:
        return any(metadata.last_ensemble[position] == bookie for position, bookie in failed.items())

    patch.setattr(writer, "change_needed", needed)


def _force_in_spite_of_a_restart(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(UnsyncedWatch, "_lost", lambda self, bookie: None)


class _Answered(Outstanding):
    """What waits in a connection, where an add goes on waiting when it was answered."""

    def pop(self, key: bytes, *default: Any) -> Any:
        request = self.get(key)
        return request if isinstance(request, PendingAdd) else super().pop(key, *default)


def _count_answers_that_come_again(patch: pytest.MonkeyPatch) -> None:
    count = AddState.acknowledged

    def acknowledged(self: AddState, add: PendingAdd, bookie: str) -> bool:
        again = bookie in add.ensemble and bool(add.acked >> add.ensemble.index(bookie) & 1)
        complete = count(self, add, bookie)
        if again:
            add.acks += 1
            complete = add.acks >= self._ack and add.entry_id == self._next and self._ensemble.changing is None
        return complete

    def acknowledged_run(self: AddState, add: PendingAdd, run: Any, at: int, bookie: str) -> int:
        self.acknowledged(add, bookie)
        return at + 1

    patch.setattr(connection, "Outstanding", _Answered)
    patch.setattr(AddState, "acknowledged", acknowledged)
    patch.setattr(AddState, "acknowledged_run", acknowledged_run)


def _acknowledge_what_is_given_up_early(patch: pytest.MonkeyPatch) -> None:
    original = BookieConnection._give_up

    def give_up(self: BookieConnection, key: bytes, request: BookieRequest) -> None:
        if isinstance(request, PendingAdd) and self._lateness is not None and request.deadline > self._ticker.now:
            request.acknowledged(self.bookie_id)
        else:
            original(self, key, request)

    patch.setattr(BookieConnection, "_give_up", give_up)


def _count_whoever_acknowledges(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Doubt, "arises", lambda self: False)


def _adaptive_time_outs_never_come(patch: pytest.MonkeyPatch) -> None:
    def shift(self: Lateness, *measured: object) -> int:
        return self._ticker.now

    patch.setattr(Lateness, "_shift", shift)


def _forget_the_fence_in_a_crash(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ReplayIntoStorage, "on_fence", lambda self, ledger_id: None)


def _stay_hot_behind_the_fence(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LedgerState, "cool_down", lambda self: None)


def _flag_adds_of_writers_as_recovery(patch: pytest.MonkeyPatch) -> None:
    for dialect in (V2Dialect, V3Dialect):
        patch.setattr(dialect, "add_encoder", partialmethod(dialect.add_encoder, recovery=True))


def _write_over_what_others_wrote(patch: pytest.MonkeyPatch) -> None:
    original = LedgerStore.write

    async def write(self: Any, metadata: LedgerMetadata, replaced: Identity, **options: Any) -> Any:
        try:
            return await original(self, metadata, replaced, **options)
        except MetadataVersionConflict:
            path = await self._path(metadata.ledger_id, None)
            written = await self._tree.overwrite(path, encode_ledger_metadata(metadata))
            return Versioned(metadata, written)

    patch.setattr(LedgerStore, "write", write)


def _name_the_version_of_a_later_look(patch: pytest.MonkeyPatch) -> None:
    original = LedgerStore.write

    async def write(self: Any, metadata: LedgerMetadata, replaced: Identity, **options: Any) -> Any:
        while True:
            try:
                return await original(self, metadata, replaced, **options)
            except MetadataVersionConflict:
                replaced = (await self.read(metadata.ledger_id)).identity

    patch.setattr(LedgerStore, "write", write)


BUGS = (
    Bug("acknowledge at Qa - 1", _acknowledge_one_early, ("S5", "S3", "S4"), 20),
    Bug("skip the fence", _skip_the_fence, ("S14", "S3", "S5"), 20),
    Bug("fence only to learn the LAC", _fence_only_to_learn_the_lac, ("S14", "S3", "S7"), 20),
    Bug("count time-outs as negatives", _time_outs_are_negatives, ("S14", "S3", "S5"), 250, first=20),
    Bug("count a ledger in limbo as negative", _limbo_is_negative, ("S14", "S3", "S5"), 250, first=40),
    Bug("send again before the metadata is written", _send_before_metadata, ("S11", "S5", "S10", "S3"), 60),
    Bug("close at the LAC without reading forward", _close_at_the_lac, ("S14", "S3"), 20),
    Bug("take the LAC of one bookie", _one_bookie_is_enough, ("F", "S3", "S14"), 200, first=50),
    Bug(
        "keep the acknowledgements of replaced bookies", _keep_acknowledgements_of_replaced, ("S5", "S4"), 250, first=40
    ),
    Bug("take the last entry for confirmed", _last_entry_is_confirmed, ("S7", "S13", "S4", "L"), 20),
    Bug(
        "readers hear how far a recovery is",
        _readers_hear_how_far_recovery_is,
        ("S7", "S13"),
        200,
        many_recoveries,
        first=488,
    ),
    Bug(
        "change the ensemble of a ledger in recovery",
        _change_the_ensemble_of_a_ledger_in_recovery,
        ("S3", "S4", "S5", "S14", "S10", "S7", "S9"),
        200,
        bookies_fail_as_recovery_begins,
        first=700,
    ),
    Bug(
        "force in spite of a restart",
        _force_in_spite_of_a_restart,
        ("S5", "S4"),
        300,
        deferred_sync_and_restarts,
        first=30,
    ),
    Bug("count answers that come again", _count_answers_that_come_again, ("S5", "S4", "S3"), 20, answers_come_again),
    Bug(
        "acknowledge what an adaptive time-out gives up early",
        _acknowledge_what_is_given_up_early,
        ("S5", "S4", "S3"),
        20,
        bookies_stall,
    ),
    Bug(
        "a writer counts a replaced bookie",
        _count_whoever_acknowledges,
        ("S3",),
        20,
        bookies_are_replaced_in_turn,
    ),
    Bug(
        "adaptive time-outs that never come",
        _adaptive_time_outs_never_come,
        ("L",),
        100,
        bookies_lose_their_power,
    ),
    Bug("a crash makes a bookie forget its fences", _forget_the_fence_in_a_crash, ("S9",), 20, bookies_die_of_fences),
    Bug("a bookie takes hot adds behind its fence", _stay_hot_behind_the_fence, ("S9",), 20),
    Bug("send adds of writers as those of recoveries", _flag_adds_of_writers_as_recovery, ("S9",), 20),
    Bug("write over the metadata of others", _write_over_what_others_wrote, ("S15",), 20),
    Bug("name the version of a later look", _name_the_version_of_a_later_look, ("S1", "S2", "S10", "S3"), 50),
    Bug("do not store again what recovery finds", _do_not_store_again, ("S4", "S5", "S6"), 100),
)
