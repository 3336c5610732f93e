"""Which error counts when all replicas failed. `order` says which one is asked first.

Invariants
- "No such entry" is the outcome only when nobody failed in any other way: a fault, a time-out or a bad digest
  leaves open whether the entry exists.

Pure; any thread.

Source: reference client protocol, section 11.2.
"""

from __future__ import annotations

from collections.abc import Mapping

from bookie_protocol.errors import BookieUnavailable, NotThere, PodkeeperError


def outcome_of(errors: Mapping[str, PodkeeperError]) -> PodkeeperError:
    """The error that stands for all of them, in the order in which they came."""
    chosen: PodkeeperError | None = None
    for error in errors.values():
        if (
            chosen is None
            or isinstance(chosen, NotThere)
            or (isinstance(chosen, BookieUnavailable) and not isinstance(error, NotThere))
        ):
            chosen = error
    if chosen is None:
        raise ValueError("no replica was asked")
    return chosen


def read_failure(ledger_id: int, entry_id: int, errors: Mapping[str, PodkeeperError]) -> PodkeeperError:
    """The error for the application: of the type that counts, naming every replica and what it said."""
    chosen = outcome_of(errors)
    said = "; ".join(f"{bookie}: {error}" for bookie, error in errors.items())
    failure = type(chosen)(f"entry {entry_id} of ledger {ledger_id}: no replica could serve it ({said})")
    failure.__cause__ = chosen
    return failure
