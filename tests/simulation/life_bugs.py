"""Defects in what tells one life of a ledger id from another, to be put in on purpose: the judge of lives must find
each of them. Each of them stood in the code once, or in what others have built."""

from __future__ import annotations

from typing import Any

import pytest

from bookie_client import metadata_update
from bookie_protocol.errors import MetadataVersionConflict
from bookie_protocol.metadata_service.tree.ledgers import LedgerStore
from bookie_protocol.versioned import Identity
from tests.simulation.planted import Bug
from tests.support.simulation import nodes
from tests.support.simulation.disk import Disk
from tests.support.simulation.lives.plan import draw_lives
from tests.support.simulation.nodes import NodeRecord
from tests.support.simulation.process import BookieProcess


def _update_whatever_has_the_id(patch: pytest.MonkeyPatch) -> None:
    async def read(store: Any, life: Any) -> Any:
        return await store.read(life.ledger_id, fresh=True)

    patch.setattr(metadata_update, "read_same", read)


def _compare_versions_alone(patch: pytest.MonkeyPatch) -> None:
    """As ZooKeeper does, whose versions begin again with each node."""

    def check(path: str, record: NodeRecord, this: Identity | None) -> None:
        if this is not None and record.version != this.version:
            raise MetadataVersionConflict(path)

    patch.setattr(nodes, "_check", check)


def _take_anybodys_ledger_for_ones_own(patch: pytest.MonkeyPatch) -> None:
    """A creation that finds the id taken believes that its first try came through."""

    async def creation(self: Any, path: str, metadata: Any, timeout: float | None) -> int:
        return int((await self._tree.get(path, timeout=timeout)).stat.creation)

    patch.setattr(LedgerStore, "_creation_of_ours", creation)


def _leave_entries_to_the_next_life(patch: pytest.MonkeyPatch) -> None:
    """Garbage collection forgets the ledger, and its entries stay."""
    patch.setattr(Disk, "forget", lambda self, ledger_id: None)
    patch.setattr(BookieProcess, "collect", lambda self, ledger_id: None)


LIFE_BUGS = (
    Bug(
        "update whatever has the id",
        _update_whatever_has_the_id,
        ("I1", "S1", "S2", "S3", "S4", "S5", "S6", "S10"),
        40,
        draw=draw_lives,
    ),
    Bug("compare versions alone", _compare_versions_alone, ("I1", "S2", "S3", "S10"), 40, draw=draw_lives),
    Bug(
        "take anybody's ledger for one's own",
        _take_anybodys_ledger_for_ones_own,
        ("I1",),
        40,
        draw=draw_lives,
    ),
    Bug(
        "leave entries to the next life",
        _leave_entries_to_the_next_life,
        ("F", "S2", "S4", "S6", "S7", "S8", "S9", "S13", "S14", "S16"),
        60,
        draw=draw_lives,
    ),
)
