"""Defects in what streams, their publication and their archives rest on, to be put in on purpose: the judge of streams
must find each of them.

Each of them stood in the code once, or in what others have built.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from bookie_client.streams import publishing, streams
from bookie_client.streams.cursors import StreamCursors, _encode, _record
from bookie_client.streams.manifest import Manifest
from bookie_client.streams.model import StreamPosition
from bookie_client.streams.store import ManifestStore
from bookie_client.streams.streams import Streams
from bookie_protocol.archive import LedgerIdentity
from bookie_protocol.errors import MetadataExists, MetadataNotFound, MetadataVersionConflict
from bookie_protocol.versioned import Identity
from pyspark_bookie.jobs.framework.owners import Owners
from pyspark_bookie.jobs.offload.deletion import Deleter
from tests.simulation.planted import Bug
from tests.simulation.stream_focus import (
    cursors_are_made_while_streams_are_cut,
    ledgers_are_archived_under_change,
    ledgers_wait_for_their_stream,
    names_are_used_again,
    numbers_are_used_again,
    streams_are_overwritten,
    streams_want_the_same_ledgers,
)
from tests.support.simulation import nodes
from tests.support.simulation.nodes import NodeRecord
from tests.support.simulation.streams.plan import draw_streams


async def _anybodys(*_: object) -> None:
    """As if the ledgers were sound, and nobody else's."""


def _take_what_another_stream_has(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(streams, "own_ledgers", _anybodys)


def _ask_the_stream_that_a_tag_names(patch: pytest.MonkeyPatch) -> None:
    """Deletions did, and ledgers were published without one."""

    async def check(client: Any, stream: str, ledgers: Any) -> None:
        for ledger in ledgers:
            publishing._check(await client.metadata(ledger.ledger_id), ledger)

    patch.setattr(streams, "own_ledgers", check)
    patch.setattr(Deleter, "_listing", lambda self, ledger_id: frozenset())


def _know_a_ledger_by_its_size(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LedgerIdentity, "is_surely", LedgerIdentity.has_size_of)


def _look_before_the_proof_alone(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Deleter, "_overtake", lambda self, metadata: None)
    patch.setattr(Deleter, "obstacle", lambda self, record: None)


def _compare_versions_alone(patch: pytest.MonkeyPatch) -> None:
    """Of two things of one name, one after the other. A deleted stream leaves nothing behind, so that the versions of
    the next one begin again."""

    def check(path: str, record: NodeRecord, this: Identity | None) -> None:
        if this is not None and record.version != this.version:
            raise MetadataVersionConflict(path)

    async def bury(self: ManifestStore, manifest: Manifest, now_ms: int) -> None:
        with suppress(MetadataNotFound, MetadataVersionConflict):
            await self._heads.delete_this(manifest.name, (await self._heads.read(manifest.name)).identity)

    patch.setattr(ManifestStore, "bury", bury)
    patch.setattr(nodes, "_check", check)


def _tell_the_second_mover_at_once(patch: pytest.MonkeyPatch) -> None:
    """Only who makes a cursor sees to it that the stream knows of it."""
    original = StreamCursors.move

    async def move(self: StreamCursors, name: str, cursor_id: str, position: StreamPosition) -> Any:
        manifest = (await self._store.read(name)).manifest
        with suppress(MetadataNotFound, MetadataExists, MetadataVersionConflict):
            stored = await self._read(name, cursor_id)
            ordinal = manifest.ordinal(position)
            if ordinal < stored.value.ordinal:
                return stored.value
            moved = replace(stored.value, position=position, ordinal=ordinal)
            await self._records.update(_record(name, cursor_id), _encode(moved), stored.identity)
            return moved
        return await original(self, name, cursor_id, position)

    patch.setattr(StreamCursors, "move", move)


def _ask_no_transfer(patch: pytest.MonkeyPatch) -> None:
    """Whatever its stream does not list was an orphan."""

    async def none(self: Owners, transfer: str) -> frozenset[str]:
        return frozenset()

    patch.setattr(Owners, "_uuids_of", none)


def _leave_what_is_due_to_writers(patch: pytest.MonkeyPatch) -> None:
    async def tidy(self: Streams, manifest: Manifest, at_most: int) -> None:
        return

    patch.setattr(Streams, "_tidy", tidy)


STREAM_BUGS = (
    Bug(
        "take what another stream has",
        _take_what_another_stream_has,
        ("T3", "T1"),
        20,
        streams_want_the_same_ledgers,
        draw_streams,
    ),
    Bug(
        "ask the stream that a tag names",
        _ask_the_stream_that_a_tag_names,
        ("T2", "T6", "T9"),
        20,
        ledgers_are_archived_under_change,
        draw_streams,
    ),
    Bug("know a ledger by its size", _know_a_ledger_by_its_size, ("T8",), 20, numbers_are_used_again, draw_streams),
    Bug(
        "look before the proof alone",
        _look_before_the_proof_alone,
        ("T1", "T2", "T6", "T9"),
        20,
        ledgers_are_archived_under_change,
        draw_streams,
        first=7,
    ),
    Bug(
        "compare versions alone",
        _compare_versions_alone,
        ("T1", "T2", "T3", "T4"),
        60,
        names_are_used_again,
        draw_streams,
        first=41,
    ),
    Bug(
        "tell the second mover at once",
        _tell_the_second_mover_at_once,
        ("T6",),
        60,
        cursors_are_made_while_streams_are_cut,
        draw_streams,
        first=18,
    ),
    Bug("ask no transfer", _ask_no_transfer, ("T2",), 20, ledgers_wait_for_their_stream, draw_streams),
    Bug(
        "leave what is due to writers",
        _leave_what_is_due_to_writers,
        ("T9",),
        20,
        streams_are_overwritten,
        draw_streams,
    ),
)
