"""What must hold, judged as things happen (reference client protocol, section 20).

Each function is given the history, looks at one report, and tells the history of a breach. The names of the rules
are those of that section; F is the freshness of a LAC that was asked for with coverage, and A the order of
acknowledgements on one handle.
"""

from __future__ import annotations

from bookie_client.distribution import Quorums
from bookie_protocol.ledger_metadata.model import LedgerMetadata, LedgerState, holds_entry
from tests.support.simulation.history import History, LedgerHistory

_ORDER = {LedgerState.OPEN: 0, LedgerState.IN_RECOVERY: 1, LedgerState.CLOSED: 2}


# --- metadata -------------------------------------------------------------------------------------------------


def metadata_changed(
    history: History, ledger: LedgerHistory, host: str, before: LedgerMetadata, after: LedgerMetadata
) -> None:
    """S1, S2, S3, S10, S14 and what a change of segments does to acknowledged entries (S5)."""
    if before.is_closed:
        if (before.last_entry_id, before.length, before.state) != (after.last_entry_id, after.length, after.state):
            history.violated("S2 one end", ledger, f"{host} changed a closed ledger from {before} to {after}")
        return
    if _ORDER[after.state] < _ORDER[before.state]:
        history.violated("S1 state order", ledger, f"{host}: {before.state.value} became {after.state.value}")
    _segments_changed(history, ledger, host, before, after)
    if after.is_closed:
        _closed(history, ledger, host, before, after)


def written_blindly(history: History, ledger: LedgerHistory, host: str) -> None:
    """The metadata were replaced without a word on what they replace. S15."""
    history.violated("S15 CAS discipline", ledger, f"{host} wrote its metadata whatever their version was")


def _segments_changed(
    history: History, ledger: LedgerHistory, host: str, before: LedgerMetadata, after: LedgerMetadata
) -> None:
    old, new = dict(before.ensembles), dict(after.ensembles)
    for first, members in new.items():
        if len(set(members)) != len(members):
            history.violated("S10 segments", ledger, f"{host}: a bookie stands twice in {members} at {first}")
    last = max(old)
    kept = {first: members for first, members in old.items() if first < last}
    if {first: members for first, members in new.items() if first < last} != kept or last not in new:
        history.violated("S10 segments", ledger, f"{host} changed segments before the last: {old} became {new}")
    if old != new and before.state is LedgerState.OPEN and after.state is LedgerState.OPEN:
        changed = [first for first in new if old.get(first) != new[first]]
        if changed != [max(new)] or len(new) > len(old) + 1:
            history.violated("S10 segments", ledger, f"{host} changed more than one segment: {old} became {new}")
        elif ledger.writer_lac is not None and changed != [ledger.writer_lac() + 1]:
            history.violated(
                "S10 segments", ledger, f"{host}: a segment starts at {changed}, the LAC is {ledger.writer_lac()}"
            )
    for entry_id in _durable_ids(ledger):
        if before.ensemble_for(entry_id) != after.ensemble_for(entry_id):
            _must_be_durable(history, ledger, entry_id, after, f"{host} changed its segment")


def _closed(history: History, ledger: LedgerHistory, host: str, before: LedgerMetadata, after: LedgerMetadata) -> None:
    if ledger.confirmed > after.last_entry_id:
        history.violated(
            "S3 no truncation",
            ledger,
            f"{host} closed it at {after.last_entry_id}, entry {ledger.confirmed} was acknowledged",
        )
    if before.state is not LedgerState.IN_RECOVERY or host.startswith("writer"):
        return
    quorums = _quorums(after)
    entry_id = after.last_entry_id + 1
    denied = ledger.negatives.get(entry_id, {})
    needed = quorums.write - quorums.ack + 1
    # The ensemble that holds now, or the one that recovery began with.
    asked = (before.ensemble_for(entry_id), after.ensemble_for(entry_id))
    best = max(sum(members[p] in denied for p in quorums.write_set(entry_id)) for members in asked)
    if best < needed:
        history.violated(
            "S14 negative evidence",
            ledger,
            f"{host} closed it at {after.last_entry_id} on {best} answers that entry {entry_id} does not exist, "
            f"{needed} are needed (from {', '.join(denied) or 'nobody'})",
        )


# --- bookies --------------------------------------------------------------------------------------------------


def entry_stored(history: History, ledger: LedgerHistory, bookie_id: str, entry_id: int, entry: bytes) -> None:
    """S8 content and S11 metadata before data."""
    payload = ledger.payloads.get(entry_id)
    if payload is None:
        history.violated("S8 content", ledger, f"{bookie_id} was given entry {entry_id}, which nobody appended")
    elif not entry.endswith(payload):
        history.violated("S8 content", ledger, f"{bookie_id} was given entry {entry_id} with another payload")
    if ledger.metadata.state is not LedgerState.OPEN:
        return  # a recovery may use bookies that it has not stored yet
    for version in reversed(ledger.versions):
        if _stands_for(version.metadata, bookie_id, entry_id):
            return
    history.violated(
        "S11 metadata before data",
        ledger,
        f"{bookie_id} was given entry {entry_id} and never stood in an ensemble for it",
    )


def _stands_for(metadata: LedgerMetadata, bookie_id: str, entry_id: int) -> bool:
    ensemble = metadata.ensemble_for(entry_id)
    return bookie_id in ensemble and holds_entry(
        ensemble.index(bookie_id), entry_id, metadata.ensemble_size, metadata.write_quorum_size
    )


def _durable_ids(ledger: LedgerHistory) -> range:
    return range(ledger.confirmed + 1)


def copies(history: History, metadata: LedgerMetadata, entry_id: int) -> list[str]:
    """The bookies of the entry's write set that hold it durably, or held it when their disk was lost."""
    return [
        bookie
        for bookie in metadata.bookies_for(entry_id)
        if bookie in history.bookies and history.bookies[bookie].holds(metadata.ledger_id, entry_id) is not None
    ]


def _must_be_durable(
    history: History, ledger: LedgerHistory, entry_id: int, metadata: LedgerMetadata, when: str
) -> None:
    holders = copies(history, metadata, entry_id)
    if len(holders) < metadata.ack_quorum_size:
        history.violated(
            "S5 durability",
            ledger,
            f"entry {entry_id} is on {', '.join(holders) or 'no bookie'} only, of {metadata.bookies_for(entry_id)}, "
            f"and {metadata.ack_quorum_size} are needed: {when}",
        )


def stored_by_writer(history: History, ledger: LedgerHistory, bookie_id: str, entry_id: int) -> None:
    """A bookie took an ordinary add. S9: its fence is never forgotten."""
    if bookie_id in ledger.fenced_by:
        history.violated(
            "S9 fencing", ledger, f"{bookie_id}, which had fenced it, stores entry {entry_id} for its writer"
        )


def fenced(history: History, ledger: LedgerHistory, bookie_id: str) -> None:
    """A fencing read is answered. From coverage on the writer is cut off (reference client protocol, section 14.3).

    Judged by what the bookies of the last segment have said, so no later than any recoverer can believe in it."""
    ledger.fenced_by[bookie_id] = None
    metadata = ledger.metadata
    if metadata.state is not LedgerState.IN_RECOVERY or ledger.is_cut_off:
        return
    quorums, members = _quorums(metadata), metadata.last_ensemble
    write_sets = map(quorums.write_set, range(quorums.ensemble))
    ledger.is_cut_off = all(
        sum(members[position] not in ledger.fenced_by for position in write_set) < quorums.ack
        for write_set in write_sets
    )


# --- writers --------------------------------------------------------------------------------------------------


def acknowledged(history: History, ledger: LedgerHistory, entry_id: int) -> None:
    """An append succeeded. A, S3, S5 and S9."""
    if ledger.writer_failed:
        history.violated("A order", ledger, f"entry {entry_id} was acknowledged after an append had failed")
    if entry_id != len(ledger.acked):
        history.violated("A order", ledger, f"entry {entry_id} was acknowledged as number {len(ledger.acked)}")
    if entry_id in ledger.late:
        history.violated(
            "S9 fencing", ledger, f"entry {entry_id} was acknowledged, and was appended when the ledger was cut off"
        )
    ledger.acked[entry_id] = None
    if not ledger.deferred_sync:
        confirmed(history, ledger, entry_id)


def confirmed(history: History, ledger: LedgerHistory, entry_id: int) -> None:
    """Everything up to this entry counts from now on: it was acknowledged or, with deferred sync, forced."""
    first, ledger.confirmed = ledger.confirmed + 1, max(ledger.confirmed, entry_id)
    metadata = ledger.metadata
    if metadata.is_closed and metadata.last_entry_id < entry_id:
        history.violated(
            "S3 no truncation",
            ledger,
            f"entry {entry_id} was acknowledged to a fenced writer, the ledger is closed at {metadata.last_entry_id}",
        )
    for each in range(first, entry_id + 1):
        _must_be_durable(history, ledger, each, metadata, "when it was acknowledged")


def writer_closed(history: History, ledger: LedgerHistory, lac: int, length: int) -> None:
    """`close` of the writer returned without an error. S2, S16."""
    metadata = ledger.metadata
    if not metadata.is_closed or (metadata.last_entry_id, metadata.length) != (lac, length):
        history.violated("S2 one end", ledger, f"its writer closed it at {lac} ({length} bytes), stored is {metadata}")
    # Entries of a bulk append that failed as a whole count although nobody was told.
    if lac != ledger.confirmed and not (ledger.bulk and lac > ledger.confirmed):
        history.violated("S7 order", ledger, f"its writer closed it at {lac}, confirmed was {ledger.confirmed}")


# --- readers --------------------------------------------------------------------------------------------------


class ReaderView:
    """What one reader's handle has told so far."""

    def __init__(self, history: History, ledger: LedgerHistory, who: str) -> None:
        self._history = history
        self._ledger = ledger
        self._who = who
        self._lac = -1

    def lac(self, lac: int, at_least: int = -1) -> None:
        """The handle names this LAC. S7, F."""
        ledger, history = self._ledger, self._history
        if lac < self._lac:
            history.violated("S7 order", ledger, f"the LAC of {self._who} went from {self._lac} to {lac}")
        if lac < at_least:
            history.violated(
                "F freshness", ledger, f"{self._who} asked for the LAC and heard {lac}, {at_least} had travelled before"
            )
        self._lac = max(self._lac, lac)
        ledger.heard_lac = max(ledger.heard_lac, lac)
        confirmed = ledger.confirmed if ledger.writer_lac is None else max(ledger.confirmed, ledger.writer_lac())
        if not ledger.was_recovered and lac > confirmed:
            history.violated("S7 order", ledger, f"{self._who} believes in LAC {lac}, confirmed is {confirmed}")
        metadata = ledger.metadata
        if metadata.is_closed and lac > metadata.last_entry_id:
            history.violated(
                "S7 order", ledger, f"{self._who} believes in LAC {lac}, the ledger ends at {metadata.last_entry_id}"
            )

    def entry(self, entry_id: int, payload: bytes, *, confirmed: bool = True) -> None:
        """The reader was given an entry. S8, S13."""
        ledger, history = self._ledger, self._history
        if ledger.payloads.get(entry_id) != payload:
            history.violated("S8 content", ledger, f"{self._who} was given another payload for entry {entry_id}")
        if confirmed:
            ledger.read_up_to = max(ledger.read_up_to, entry_id)
            metadata = ledger.metadata
            if metadata.is_closed and entry_id > metadata.last_entry_id:
                history.violated(
                    "S13 reader safety",
                    ledger,
                    f"{self._who} was given entry {entry_id}, the ledger ends at {metadata.last_entry_id}",
                )
        history.count("entries read")


def travelled_lac(ledger: LedgerHistory) -> int:
    """The least LAC that a covered question must be answered with from now on: the one in the header of the last
    acknowledged entry."""
    return ledger.headers.get(ledger.confirmed, -1) if ledger.confirmed >= 0 else -1


# --- the end --------------------------------------------------------------------------------------------------


def ledger_ended(history: History, ledger: LedgerHistory) -> None:
    """The ledger is closed and everything is quiet. S4, S7, S13, S16."""
    metadata = ledger.metadata
    last = metadata.last_entry_id
    if ledger.confirmed > last:
        history.violated("S3 no truncation", ledger, f"it ends at {last}, entry {ledger.confirmed} was acknowledged")
    if ledger.heard_lac > last:
        history.violated("S7 order", ledger, f"a reader believed in LAC {ledger.heard_lac}, the ledger ends at {last}")
    if ledger.read_up_to > last:
        history.violated(
            "S13 reader safety", ledger, f"a reader was given entry {ledger.read_up_to}, it ends at {last}"
        )
    length = 0
    for entry_id in range(last + 1):
        length += len(ledger.payloads.get(entry_id, b""))
        holders = copies(history, metadata, entry_id)
        if len(holders) < metadata.ack_quorum_size:
            history.violated(
                "S4 no holes", ledger, f"entry {entry_id} is on {', '.join(holders) or 'no bookie'} only, in {metadata}"
            )
    if metadata.length != length and ledger.ledger_id not in history.inexact_lengths:
        history.violated("S16 length", ledger, f"{metadata.length} bytes are stored, its entries have {length}")


def _quorums(metadata: LedgerMetadata) -> Quorums:
    return Quorums(metadata.ensemble_size, metadata.write_quorum_size, metadata.ack_quorum_size)
