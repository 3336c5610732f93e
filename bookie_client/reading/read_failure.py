"""Which error counts when all replicas failed. `order` says which one is asked first.

Invariants
- "No such entry" is the outcome only when nobody failed in any other way: a fault, a time-out or a bad digest
  leaves open whether the entry exists.

Pure; any thread.

Source: reference client protocol, section 11.2.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from bookie_protocol.errors import BookieUnavailable, NotThere, PodkeeperError, TooManyRequests

_PASSING: Final = (BookieUnavailable, TooManyRequests)
"""What every replica of an entry may say at one moment and none at the next."""


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
    failure.__cause__ = chosen if len(errors) == 1 else ExceptionGroup("what the replicas said", list(errors.values()))
    return failure


def may_pass(failure: PodkeeperError) -> bool:
    """Whether waiting may help: some replica could not be reached, or had too much to do, whatever the others said."""
    if isinstance(failure, _PASSING):
        return True
    cause = failure.__cause__
    return isinstance(cause, ExceptionGroup) and any(isinstance(error, _PASSING) for error in cause.exceptions)
