"""The decommission of one bookie as a state machine, and the record that keeps it.

    REQUESTED ──Quiesced──▶ DRAINING ──Drained──▶ PROVING ──Proved──▶ REMOVING ─CookieGone, CookieKept─▶ DONE
        ▲                      │  ▲                  │ │                  │
        └─────── SeenWritable ─┴──┼── Disproved ─────┘ └─ SeenWritable    │ CookieChanged, Resumed: back to PROVING
                                  └────────────────────────────────────────┘
    UndoRequested leads from everything before DONE to UNDOING, from which nothing leads on: the record is removed.

Invariants
- The record is written before the first side effect, and each phase before the effects of that phase.
- A cookie is deleted only in REMOVING, only the version that was read before the proof, and only by the coordinator
  that made the proof: one that takes over proves again.
- A bookie that was seen writable since the drain began is drained and proven again.
- Once UNDOING is stored the cookie is not deleted: a request for the undo in REMOVING changes the cookie's version
  first, so that a deletion under way fails (`proof.fence_cookie`). A coordinator that takes over in REMOVING does so
  too.

Format: JSON object, `format` 1; fields as in `DecommissionRecord`, enumerations by value, times in ms since the epoch.
Members that this version does not know are refused, because they may forbid what it would do.

Pure; any thread.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from enum import Enum
from typing import Any, Final

from bookie_pod.autorecovery.well_typed import is_well_typed
from bookie_protocol.errors import UNREADABLE, MetadataDamaged, Refused

FORMAT: Final = 1
SHOWN_BLOCKERS: Final = 20
"""Number of blockers that a record names; all of them are counted."""


class Phase(Enum):
    """The phase of a decommission."""

    REQUESTED = "requested"
    """The bookie is to take no new data: read-only, or stopped."""
    DRAINING = "draining"
    """Its replicas are being copied to others."""
    PROVING = "proving"
    """The drain left nothing to copy; a full listing has to confirm it."""
    REMOVING = "removing"
    """Proven; its cookie goes."""
    DONE = "done"
    UNDOING = "undoing"
    """The bookie becomes writable again, then the record goes."""


class Form(Enum):
    """LIVE: the bookie serves, read-only, and is a source of copies. STOPPED: it is registered nowhere."""

    LIVE = "live"
    STOPPED = "stopped"


# --- events ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Quiescing:
    """The bookie is writable and is about to be made read-only, which an undo takes back."""


@dataclass(frozen=True, slots=True)
class Quiesced:
    """The bookie takes no new data."""

    form: Form


@dataclass(frozen=True, slots=True)
class FormChanged:
    """The bookie was stopped, or came back read-only, while being drained."""

    form: Form


@dataclass(frozen=True, slots=True)
class SeenWritable:
    """The bookie is registered writable, so it may have taken new data."""


@dataclass(frozen=True, slots=True)
class Drained:
    """A listing found nothing that names the bookie."""


@dataclass(frozen=True, slots=True)
class Disproved:
    """The proof found ledgers or marks that name the bookie."""


@dataclass(frozen=True, slots=True)
class Proved:
    """`cookie_version`: read before the proof began; None: there was no cookie."""

    proof: Proof
    cookie_version: int | None


@dataclass(frozen=True, slots=True)
class CookieChanged:
    """The cookie has another version than the one that was read before the proof."""


@dataclass(frozen=True, slots=True)
class CookieGone:
    """There is no cookie (any more)."""


@dataclass(frozen=True, slots=True)
class CookieKept:
    """The proof is valid, and the cookie is to stay (`delete_cookie` is false)."""


@dataclass(frozen=True, slots=True)
class Resumed:
    """Another coordinator takes over."""

    coordinator: str


@dataclass(frozen=True, slots=True)
class UndoRequested:
    """A request to keep the bookie."""


Event = (
    Quiescing
    | Quiesced
    | FormChanged
    | SeenWritable
    | Drained
    | Disproved
    | Proved
    | CookieChanged
    | CookieGone
    | CookieKept
    | Resumed
    | UndoRequested
)


# --- the record -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Proof:
    """The record of what was looked at. `begun_ms` and `ended_ms` since the epoch."""

    begun_ms: int
    ended_ms: int
    ledgers: int
    """All ledgers of the cluster: none names the bookie."""
    marks: int
    """All marks of under-replicated ledgers: none names the bookie."""


@dataclass(frozen=True, slots=True)
class Blocker:
    """A ledger that cannot be drained at present, and why."""

    ledger_id: int
    reason: str


@dataclass(frozen=True, slots=True)
class DrainProgress:
    """The progress of the drain. Bytes are estimates from metadata until a ledger is copied."""

    ledgers_total: int = 0
    ledgers_left: int = 0
    bytes_total: int = 0
    bytes_left: int = 0
    bytes_copied: int = 0
    eta_s: float | None = None
    blocked: int = 0
    blockers: tuple[Blocker, ...] = ()


@dataclass(frozen=True, slots=True)
class DecommissionRecord:
    """The stored state. `coordinator`: the process that works on it; one that takes over writes its own name here."""

    bookie_id: str
    coordinator: str
    started_ms: int
    updated_ms: int
    phase: Phase = Phase.REQUESTED
    form: Form | None = None
    delete_cookie: bool = True
    accepted_losses: tuple[int, ...] = ()
    """Ledgers that may go on naming the bookie, because a person gave their data up."""
    read_only_by_us: bool = False
    """It was this decommission that made the bookie read-only, or is about to: it was writable when it began."""
    cookie_version: int | None = None
    proof: Proof | None = None
    progress: DrainProgress = DrainProgress()


def advance(record: DecommissionRecord, event: Event, now_ms: int) -> DecommissionRecord:
    """The record after an event. `Refused`: the event cannot happen in this phase."""
    changed = _after(record, event)
    if changed is None:
        raise Refused(
            f"decommission of {record.bookie_id}: {type(event).__name__} is impossible while it is {record.phase.value}"
        )
    return replace(changed, updated_ms=max(now_ms, record.updated_ms))


def _after(record: DecommissionRecord, event: Event) -> DecommissionRecord | None:
    match event, record.phase:
        case Resumed(coordinator), phase if phase not in (Phase.DONE, Phase.UNDOING):
            return replace(_proof_is_void(record), coordinator=coordinator)
        case UndoRequested(), phase if phase is not Phase.DONE:
            return _unproven(record, Phase.UNDOING)
        case Quiescing(), Phase.REQUESTED:
            return replace(record, read_only_by_us=True)
        case Quiesced(form), Phase.REQUESTED:
            return replace(record, phase=Phase.DRAINING, form=form)
        case FormChanged(form), Phase.DRAINING | Phase.PROVING | Phase.REMOVING:
            return replace(record, form=form)
        case SeenWritable(), Phase.DRAINING | Phase.PROVING | Phase.REMOVING:
            return _unproven(record, Phase.REQUESTED)
        case Drained(), Phase.DRAINING:
            return replace(record, phase=Phase.PROVING)
        case Disproved(), Phase.PROVING:
            return _unproven(record, Phase.DRAINING)
        case Proved(proof, version), Phase.PROVING:
            return replace(record, phase=Phase.REMOVING, proof=proof, cookie_version=version)
        case CookieChanged(), Phase.REMOVING:
            return _proof_is_void(record)
        case _:
            return _finished(record, event)


def _finished(record: DecommissionRecord, event: Event) -> DecommissionRecord | None:
    if record.phase is not Phase.REMOVING or not isinstance(event, CookieGone | CookieKept):
        return None
    if isinstance(event, CookieKept) and record.delete_cookie:
        return None
    return replace(record, phase=Phase.DONE)


def _proof_is_void(record: DecommissionRecord) -> DecommissionRecord:
    return _unproven(record, Phase.PROVING) if record.phase is Phase.REMOVING else record


def _unproven(record: DecommissionRecord, phase: Phase) -> DecommissionRecord:
    return replace(record, phase=phase, proof=None, cookie_version=None)


# --- its bytes ------------------------------------------------------------------------------------------------


def encode_record(record: DecommissionRecord) -> bytes:
    """Return the bytes of a record."""
    value = {"format": FORMAT, **asdict(record), "phase": record.phase.value}
    value["form"] = record.form.value if record.form is not None else None
    return json.dumps(value, indent=1).encode()


def decode_record(data: bytes, name: str) -> DecommissionRecord:
    """Return the record in these bytes. `MetadataDamaged` if they are none, or of a later version."""
    try:
        value = json.loads(data)
        found = value.pop("format")
        if found != FORMAT:
            raise MetadataDamaged(f"the decommission record of {name} has format {found}: use a later release")
        value["phase"] = Phase(value["phase"])
        value["form"] = Form(value["form"]) if value["form"] is not None else None
        value["proof"] = Proof(**value["proof"]) if value["proof"] is not None else None
        value["accepted_losses"] = tuple(map(int, value["accepted_losses"]))
        progress: dict[str, Any] = value["progress"]
        progress["blockers"] = tuple(Blocker(**each) for each in progress["blockers"])
        value["progress"] = DrainProgress(**progress)
        record = DecommissionRecord(**value)
        if record.bookie_id != name:
            raise ValueError(f"it is of bookie {record.bookie_id}")
        if not is_well_typed(record):
            raise ValueError("a member has another type")
        return record
    except UNREADABLE as error:
        raise MetadataDamaged(f"the decommission record of {name} cannot be read: {error}") from error
