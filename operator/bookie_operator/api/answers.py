"""What the bodies of the pods' admin API mean (`docs/http-api.md`), as values of `world.model`.

Invariants
- A member that is missing or of another type raises `Undecodable`: it is never taken for zero or for nothing.

Threads: pure functions, any thread.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from bookie_operator.world.facts import BookieFacts, ClusterFacts, DrainFacts, DrainPhase, Outlook, Proof, SafetyFacts

SILENT_S: Final = 120.0
"""A drain of which nothing was heard for so long is worked on by nobody; unless whoever is asked works on it, as its
clock may be another one."""
_UNDER_WAY: Final = frozenset({"requested", "draining", "proving", "removing"})
_SHOWN: Final = 20
_T = TypeVar("_T")


class Undecodable(ValueError):
    """The body is not what the admin API promises."""


def whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise Undecodable(f"{value!r} is no whole number")
    return value


def number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Undecodable(f"{value!r} is no number")
    return float(value)


def flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise Undecodable(f"{value!r} is neither true nor false")
    return value


def text(value: Any) -> str:
    if not isinstance(value, str):
        raise Undecodable(f"{value!r} is no text")
    return value


def texts(value: Any) -> frozenset[str]:
    return frozenset(text(each) for each in array(value))


def array(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise Undecodable(f"{value!r} is no array")
    return value


def members(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise Undecodable(f"{str(value)[:80]!r} is no object")
    return value


def _member(body: Mapping[str, Any], name: str, read: Callable[[Any], _T]) -> _T:
    if name not in body:
        raise Undecodable(f"no member {name}")
    try:
        return read(body[name])
    except Undecodable as exc:
        raise Undecodable(f"{name}: {exc}") from exc


def _or_none(read: Callable[[Any], _T]) -> Callable[[Any], _T | None]:
    return lambda value: None if value is None else read(value)


def _seconds(milliseconds: Any) -> float:
    return whole(milliseconds) / 1000


def bookie_facts(mode: Any, space: Any, config: Any = None) -> BookieFacts:
    """`mode`: of `/bookie/state/readonly`; `space`: of `/bookie/info`, which counts each file system once; `config`: of
    `/config/server_config`, None: it did not tell."""
    total = _member(members(space), "totalSpace", whole)
    free = _member(members(space), "freeSpace", whole)
    if total <= 0 or not 0 <= free <= total:
        raise Undecodable(f"{free} free bytes of {total}")
    fullest = members(space).get("fullestUsedPercent")  # older bookies do not tell
    used = total - free
    return BookieFacts(
        read_only=_member(members(mode), "readOnly", flag),
        used_bytes=used,
        total_bytes=total,
        used_percent=number(fullest) if fullest is not None else 100.0 * used / total,
        config=None if config is None else {key: text(value) for key, value in members(config).items()},
    )


def settings(body: Any) -> Mapping[str, str]:
    """Of `/config/server_config` of a bookie of any make: Apache's tell numbers and lists too; lists are left out."""
    words = {True: "true", False: "false"}
    return {
        key: words[value] if isinstance(value, bool) else str(value)
        for key, value in members(body).items()
        if isinstance(value, str | int | float)
    }


def cluster_facts(body: Any) -> ClusterFacts:
    """Of `/cluster/state`."""
    found = members(body)
    return ClusterFacts(
        instance_id=_member(found, "instanceId", text),
        writable=_member(found, "writable", texts),
        read_only=_member(found, "readOnly", texts),
        cookies=_member(found, "cookies", texts),
        under_replicated=_member(found, "underReplicated", whole),
        auditor=_member(found, "auditor", _or_none(text)) or None,
        last_audit=_member(found, "lastAuditMs", _or_none(_seconds)),
        autorecovery_enabled=_member(found, "autorecoveryEnabled", flag),
        lost_bookie_recovery_delay=_member(found, "lostBookieRecoveryDelaySeconds", whole),
        unrecoverable=_member(found, "unrecoverable", _or_none(whole)),
    )


def proof(body: Any, bookie_id: str) -> Proof:
    """Of `/autorecovery/decommission/proof`; one about another bookie is none."""
    found = members(body)
    if _member(found, "bookieId", text) != bookie_id:
        raise Undecodable(f"bookieId: {found['bookieId']!r} instead of {bookie_id!r}")
    claims = found.get("claims")  # older bookies do not tell, and look for themselves before a cookie goes
    return Proof(
        bookie_id=bookie_id,
        ledgers=_member(found, "ledgers", whole),
        marks=_member(found, "marks", whole),
        registered=_member(found, "registered", flag),
        auditor=_member(found, "auditor", _or_none(text)) or None,
        last_audit=_member(found, "lastAuditMs", _or_none(_seconds)),
        instance_id=_member(found, "instanceId", text),
        claims=whole(claims) if claims is not None else 0,
    )


def drain_facts(body: Any, bookie_id: str, now: float) -> DrainFacts:
    """Of `/autorecovery/decommission/progress`; `now` in seconds since 1970."""
    found = members(body)
    if _member(found, "bookieId", text) != bookie_id:
        raise Undecodable(f"bookieId: {found['bookieId']!r} instead of {bookie_id!r}")
    phase = _member(found, "phase", text)
    left, blocked = _member(found, "ledgersLeft", whole), _member(found, "blocked", whole)
    is_here = _member(found, "runningHere", flag)
    silent = now - _member(found, "updatedTime", _seconds) > SILENT_S
    problem = _member(found, "problem", text)
    seconds = _member(found, "secondsLeft", _or_none(number))
    blockers = tuple(
        f"{_member(members(each), 'ledgerId', whole)}: {_member(members(each), 'reason', text)}"
        for each in _member(found, "blockers", array)[:_SHOWN]
    )
    if phase == "done":
        state = DrainPhase.DRAINED
    elif phase == "undoing":
        state = DrainPhase.INTERRUPTED
    elif phase not in _UNDER_WAY:
        raise Undecodable(f"phase: {phase!r} is unknown")
    elif not is_here and (silent or problem):
        state = DrainPhase.INTERRUPTED
    else:
        state = DrainPhase.BLOCKED if 0 < left <= blocked else DrainPhase.RUNNING
    return DrainFacts(
        bookie_id=bookie_id,
        phase=state,
        ledgers_left=left,
        bytes_left=_member(found, "bytesLeft", whole),
        eta_seconds=None if seconds is None else round(seconds),
        blockers=blockers,
        message="it is being taken back" if phase == "undoing" else problem,
        proven_ledgers=_or_none(whole)(found.get("provenLedgers")),
    )


def no_drain(bookie_id: str, words: str) -> DrainFacts:
    """Of the 404 of `/autorecovery/decommission/progress`: nobody drains it, or it was refused, and why.

    Raises Undecodable for the 404 of anything else: a proxy, or a pod that does not know the path.
    """
    expected = f"bookie {bookie_id} is not being decommissioned"
    words = words.strip()
    if not words.startswith(expected):
        raise Undecodable(f"404 without its words: {words[:80]!r}")
    problem = words[len(expected) :].lstrip(": ")
    return DrainFacts(bookie_id, DrainPhase.REFUSED if problem else DrainPhase.ABSENT, message=problem)


def outlook(body: Any, bookie_id: str) -> Outlook:
    """Of `/autorecovery/decommission/plan`."""
    found = members(body)
    if _member(found, "bookieId", text) != bookie_id:
        raise Undecodable(f"bookieId: {found['bookieId']!r} instead of {bookie_id!r}")
    refusals = tuple(text(each) for each in _member(found, "refusals", array)[:_SHOWN])
    return Outlook(
        bookie_id,
        ledgers=_member(found, "ledgers", whole),
        refusals=refusals,
        open_ledgers=_member(found, "openLedgers", whole),
        nbytes=_member(found, "bytes", whole),
        largest_ensemble=whole(found.get("largestEnsemble", 0)),
        warnings=tuple(text(each) for each in _member(found, "warnings", array)[:_SHOWN]),
    )


def safety_facts(body: Any, bookies: frozenset[str]) -> SafetyFacts:
    """Of `/autorecovery/safety_check`."""
    found = members(body)
    if _member(found, "going", texts) != bookies:
        raise Undecodable(f"going: {found['going']!r} instead of {sorted(bookies)!r}")
    risky = [members(each) for each in _member(found, "ledgers", array)]
    without_copy = _member(found, "noCopy", whole)
    gone = sorted({_member(each, "ledgerId", whole) for each in risky if _member(each, "risk", text) == "no copy"})
    return SafetyFacts(
        bookies=bookies,
        # A pod of a version that does not tell them apart counts them here: then they are in the way, as it knew.
        below_ack_quorum=_member(found, "belowAckQuorum", whole),
        without_copy=without_copy,
        unknown=_member(found, "unknown", whole),
        examples=tuple(
            f"{each['ledgerId']}: {_member(each, 'risk', text)}: {_member(each, 'detail', text)}"
            for each in risky[:_SHOWN]
        ),
        unrecoverable_hash=_hash_of(gone) if gone and len(gone) == without_copy else "",
        unrecoverable=tuple(gone) if len(gone) == without_copy else (),
    )


def _hash_of(ledgers: list[int]) -> str:
    """What a person accepts: SHA-256 of the sorted ids with commas; none where not all of them are known."""
    return hashlib.sha256(",".join(map(str, ledgers)).encode()).hexdigest()
