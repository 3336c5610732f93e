"""The answers of the pods' admin API (`bookie_protocol.admin_api`), as values of `world.facts`.

Invariants
- An answer that cannot be, or is about something else than was asked, raises `ProtocolViolation`; one with a member
  that is missing or of another type has done so before. Nothing of it is ever taken for zero or for nothing.

Threads: pure functions, any thread.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Final

from msgspec import UNSET

from bookie_operator.world import facts
from bookie_operator.world.facts import BookieFacts, DrainFacts, DrainPhase, Outlook, Proof, SafetyFacts
from bookie_protocol.admin_api.bookie import BookieSpace, ReadOnlyState
from bookie_protocol.admin_api.cluster import ClusterFacts
from bookie_protocol.admin_api.decommission import DecommissionOutlook, DecommissionState, DrainProof, Safety
from bookie_protocol.errors import ProtocolViolation

SILENT_S: Final = 120.0
"""Seconds without news after which no process counts as working on a drain.

That holds unless the process that is asked works on it, as its clock may be another one.
"""
_SHOWN: Final = 20
_WORDS: Final = {True: "true", False: "false"}


def bookie_facts(mode: ReadOnlyState, space: BookieSpace, config: Mapping[str, Any]) -> BookieFacts:
    """The facts of one bookie: its mode, its space, which counts each file system once, and its configuration."""
    total, free = space.total_space, space.free_space
    if total <= 0 or not 0 <= free <= total:
        raise ProtocolViolation(f"{free} free bytes of {total}")
    used = total - free
    fullest = space.fullest_used_percent  # older bookies do not tell
    return BookieFacts(
        read_only=mode.read_only,
        used_bytes=used,
        total_bytes=total,
        used_percent=100.0 * used / total if fullest is UNSET else fullest,
        config=settings(config),
        entry_log_bytes=None if space.entry_log_bytes is UNSET else space.entry_log_bytes,
        file_systems=frozenset() if space.file_systems is UNSET else frozenset(space.file_systems),
    )


def settings(config: Mapping[str, Any]) -> Mapping[str, str]:
    """The settings of a bookie of any make as texts: Apache's tell numbers and lists too; lists are left out."""
    return {
        key: _WORDS[value] if isinstance(value, bool) else str(value)
        for key, value in config.items()
        if isinstance(value, str | int | float)
    }


def cluster_facts(found: ClusterFacts) -> facts.ClusterFacts:
    """Return what the metadata service says."""
    return facts.ClusterFacts(
        instance_id=found.instance_id,
        writable=frozenset(found.writable),
        read_only=frozenset(found.read_only),
        cookies=frozenset(found.cookies),
        under_replicated=found.under_replicated,
        auditor=found.auditor or None,
        last_audit=_seconds(found.last_audit_ms),
        autorecovery_enabled=found.autorecovery_enabled,
        lost_bookie_recovery_delay=found.lost_bookie_recovery_delay_seconds,
        unrecoverable=found.unrecoverable,
        unchecked=frozenset(found.unchecked) if isinstance(found.unchecked, list) else None,
    )


def proof(found: DrainProof, bookie_id: str) -> Proof:
    """Return what a listing proves of a bookie. One about another bookie proves nothing."""
    _check(found.bookie_id, bookie_id)
    return Proof(
        bookie_id=bookie_id,
        ledgers=found.ledgers,
        marks=found.marks,
        registered=found.registered,
        auditor=found.auditor or None,
        last_audit=_seconds(found.last_audit_ms),
        instance_id=found.instance_id,
        claims=found.claims,
    )


def drain_facts(found: DecommissionState, bookie_id: str, now: float) -> DrainFacts:
    """Return the progress of a drain. `now` in seconds since 1970."""
    _check(found.bookie_id, bookie_id)
    silent = now - found.updated_time / 1000 > SILENT_S
    if found.phase == "done":
        phase = DrainPhase.DRAINED
    elif found.phase == "undoing" or (not found.running_here and (silent or found.problem)):
        phase = DrainPhase.INTERRUPTED
    else:
        phase = DrainPhase.BLOCKED if 0 < found.ledgers_left <= found.blocked else DrainPhase.RUNNING
    return DrainFacts(
        bookie_id=bookie_id,
        phase=phase,
        ledgers_left=found.ledgers_left,
        bytes_left=found.bytes_left,
        eta_seconds=None if found.seconds_left is None else round(found.seconds_left),
        blockers=tuple(f"{each.ledger_id}: {each.reason}" for each in found.blockers[:_SHOWN]),
        message="it is being taken back" if found.phase == "undoing" else found.problem,
        proven_ledgers=found.proven_ledgers,
    )


def no_drain(bookie_id: str, refusal: str) -> DrainFacts:
    """Return the facts of a bookie that is not drained: the drain was refused, and why, or was not asked for."""
    return DrainFacts(bookie_id, DrainPhase.REFUSED if refusal else DrainPhase.ABSENT, message=refusal)


def outlook(found: DecommissionOutlook, bookie_id: str) -> Outlook:
    """Return what a drain would have to do."""
    _check(found.bookie_id, bookie_id)
    return Outlook(
        bookie_id,
        ledgers=found.ledgers,
        refusals=tuple(found.refusals[:_SHOWN]),
        open_ledgers=found.open_ledgers,
        nbytes=found.bytes,
        largest_ensemble=found.largest_ensemble,
        warnings=tuple(found.warnings[:_SHOWN]),
    )


def safety_facts(found: Safety, bookies: frozenset[str]) -> SafetyFacts:
    """Return what would happen to ledgers."""
    if frozenset(found.going) != bookies:
        raise ProtocolViolation(f"the answer is about {found.going!r} instead of {sorted(bookies)!r}")
    gone = sorted({each.ledger_id for each in found.ledgers if each.risk == "no copy"})
    all_are_known = len(gone) == found.no_copy
    return SafetyFacts(
        bookies=bookies,
        # A pod of a version that does not tell them apart counts them here: then they are in the way, as it knew.
        below_ack_quorum=found.below_ack_quorum,
        without_copy=found.no_copy,
        unknown=found.unknown,
        examples=tuple(f"{each.ledger_id}: {each.risk}: {each.detail}" for each in found.ledgers[:_SHOWN]),
        unrecoverable_hash=_hash_of(gone) if gone and all_are_known else "",
        unrecoverable=tuple(gone) if all_are_known else (),
    )


def _check(told: str, asked: str) -> None:
    if told != asked:
        raise ProtocolViolation(f"the answer is about bookie {told!r} instead of {asked!r}")


def _seconds(milliseconds: int | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000


def _hash_of(ledgers: Sequence[int]) -> str:
    """Return the hash that a person accepts: SHA-256 of the sorted ids with commas; none where not all of them are
    known."""
    return hashlib.sha256(",".join(map(str, ledgers)).encode()).hexdigest()
