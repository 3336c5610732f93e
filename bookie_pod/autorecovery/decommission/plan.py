"""The plan of a decommission: its work, and what speaks against it. Changes nothing.

Threads: event loop.

Source: docs/internals/auto-recovery.md, section 13.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from bookie_client.client import Client
from bookie_pod.autorecovery.decommission.presence import Presence, presence_of
from bookie_pod.autorecovery.decommission.proof import stored_cookie
from bookie_pod.autorecovery.decommission.state import SHOWN_BLOCKERS, DecommissionRecord, Form
from bookie_pod.autorecovery.decommission.store import DecommissionStore
from bookie_pod.autorecovery.decommission.survey import Survey, remedy_of, survey
from bookie_protocol.errors import PodkeeperError
from bookie_protocol.ledger_metadata.model import LedgerMetadata
from bookie_protocol.metadata_service.interface import BookieGroup
from bookie_protocol.metadata_service.tree.service import MetadataService
from bookie_protocol.together import bounded

_ASKED_AT_A_TIME: Final = 32
_NAMED: Final = 20
"""Bookies that a warning names."""
SPACE_MARGIN: Final = 1.1
"""Entries take more room on disk than their payload: headers, indexes."""


@dataclass(frozen=True, slots=True)
class Target:
    """A bookie that can take copies. `free_bytes` None: unknown."""

    bookie_id: str
    free_bytes: int | None


@dataclass(frozen=True, slots=True)
class DecommissionPlan:
    """Numbers of one moment. `nbytes`: payload to copy, of closed ledgers; the payload of open ones is unknown."""

    bookie_id: str
    presence: str
    form: Form
    has_cookie: bool
    under_way: DecommissionRecord | None
    ledgers_in_cluster: int
    ledgers: int
    open_ledgers: int
    nbytes: int
    targets: tuple[Target, ...]
    largest_ensemble: int
    without_spare: tuple[int, ...]
    """Ledgers for which no other bookie could take the copies; the first ones."""
    without_spare_count: int
    auto_recovery_enabled: bool
    auditor: str | None
    ledgers_locked: int
    under_replicated: int
    """Marks in the whole cluster."""
    needing: tuple[int, ...]
    """Marked ledgers that also name this bookie, so it may hold a last copy; the first ones."""
    needing_count: int
    other_lost: tuple[str, ...]
    """Other bookies that have a cookie and are registered nowhere."""
    refusals: tuple[str, ...] = ()
    """Reasons why the decommission would be refused."""
    warnings: tuple[str, ...] = ()

    @property
    def free_bytes(self) -> int:
        return sum(target.free_bytes or 0 for target in self.targets)


class _Spares:
    """Counts ledgers that no other writable bookie can help."""

    def __init__(self, bookie_id: str, writable: frozenset[str]) -> None:
        self._bookie_id = bookie_id
        self._others = writable - {bookie_id}
        self.count = 0
        self.first: list[int] = []

    def look(self, metadata: LedgerMetadata) -> None:
        for ensemble in metadata.ensembles.values():
            if self._bookie_id in ensemble and self._others.issubset(ensemble):
                self.count += 1
                if len(self.first) < SHOWN_BLOCKERS:
                    self.first.append(metadata.ledger_id)
                return


async def make_plan(client: Client, service: MetadataService, bookie_id: str) -> DecommissionPlan:
    """Look at everything that counts. Raises `MetadataError`."""
    presence = await presence_of(service, bookie_id)
    writable = (await service.bookies.list(BookieGroup.WRITABLE)).bookies
    read_only = (await service.bookies.list(BookieGroup.READ_ONLY)).bookies
    known = (await service.bookies.list(BookieGroup.ALL)).bookies
    draining = await DecommissionStore(service).bookies()
    active = await DecommissionStore(service).active(bookie_id)
    usable = writable - draining - {bookie_id}
    spares = _Spares(bookie_id, usable)
    found = await survey(service, bookie_id, look=spares.look, keep_unreadable=True)
    needing = await _marked(service, found)
    marks = service.under_replication
    plan = DecommissionPlan(
        bookie_id=bookie_id,
        presence=presence.value,
        form=Form.STOPPED if presence is Presence.ABSENT else Form.LIVE,
        has_cookie=await stored_cookie(service, bookie_id) is not None,
        under_way=active.value if active is not None else None,
        ledgers_in_cluster=found.ledgers_seen,
        ledgers=len(found.ledgers),
        open_ledgers=found.open_ledgers,
        nbytes=found.nbytes,
        targets=await _targets(client, usable),
        largest_ensemble=found.largest_ensemble,
        without_spare=tuple(spares.first),
        without_spare_count=spares.count,
        auto_recovery_enabled=await marks.is_enabled(),
        auditor=await service.auditor_election.current_auditor(),
        ledgers_locked=len(await marks.locks()),
        under_replicated=found.marks_seen,
        needing=tuple(needing[:SHOWN_BLOCKERS]),
        needing_count=len(needing),
        other_lost=tuple(sorted(known - writable - read_only - {bookie_id})),
    )
    if found.unreadable:
        ledger_id, reason = min(found.unreadable.items())
        plan = replace(plan, warnings=(f"it will not end: {remedy_of(ledger_id, reason)}",))
    return _judged(plan, is_known=bookie_id in known or presence is not Presence.ABSENT or bool(found.ledgers))


async def _marked(service: MetadataService, found: Survey) -> list[int]:
    return [mark.ledger_id async for mark in service.under_replication.list() if mark.ledger_id in found.ledgers]


async def _targets(client: Client, bookies: frozenset[str]) -> tuple[Target, ...]:
    async def ask(bookie_id: str) -> Target:
        try:
            return Target(bookie_id, (await client.bookie_info(bookie_id)).free_bytes)
        except PodkeeperError:
            return Target(bookie_id, None)

    return tuple(await bounded(sorted(bookies), ask, _ASKED_AT_A_TIME))


def _judged(plan: DecommissionPlan, *, is_known: bool) -> DecommissionPlan:
    refusals, warnings = list(plan.refusals), list(plan.warnings)
    if not is_known:
        refusals.append("this bookie is unknown: it has no cookie, is not registered, and no ledger names it")
    if plan.without_spare_count:
        refusals.append(
            f"{plan.without_spare_count} ledgers have no other writable bookie to go to, such as"
            f" {_some(plan.without_spare)}: add a bookie"
        )
    all_told = all(target.free_bytes is not None for target in plan.targets)
    if plan.ledgers and all_told and plan.nbytes * SPACE_MARGIN > plan.free_bytes:
        refusals.append(f"{plan.nbytes} bytes are to be copied, and the others have {plan.free_bytes} bytes free")
    if len(plan.targets) < plan.largest_ensemble:
        warnings.append(
            f"{len(plan.targets)} writable bookies are left, and there are ledgers on {plan.largest_ensemble}: new"
            " ledgers of that size, or the next repair, will find too few"
        )
    if silent := [target.bookie_id for target in plan.targets if target.free_bytes is None]:
        warnings.append(f"{_named(silent)} did not report their free space")
    if plan.needing_count:
        warnings.append(
            f"{plan.needing_count} ledgers on it are under-replicated, such as {_some(plan.needing)}: it may hold their"
            " last copies"
        )
    if plan.other_lost:
        warnings.append(f"other bookies are down: {_named(plan.other_lost)}")
    if not plan.auto_recovery_enabled:
        warnings.append("auto-recovery is disabled: what fails meanwhile is not restored")
    elif plan.auditor is None:
        warnings.append("no auditor is elected: a bookie that fails meanwhile is not noticed")
    return replace(plan, refusals=tuple(refusals), warnings=tuple(warnings))


def _some(ids: tuple[int, ...]) -> str:
    return ", ".join(map(str, ids[:5]))


def _named(bookies: Sequence[str]) -> str:
    shown = ", ".join(bookies[:_NAMED])
    return shown if len(bookies) <= _NAMED else f"{shown} and {len(bookies) - _NAMED} more"
