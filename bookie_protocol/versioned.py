"""Stored values, and the condition of a later write or delete: this state of this object.

A name can be used again, and the versions of its object then start again. So a reader holds the `Identity`, and every
conditional write and delete demands one. A bare version is not enough, and cannot be passed.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, Generic, TypeVar

if TYPE_CHECKING:
    from bookie_protocol.ledger_metadata.model import LedgerMetadata

T_co = TypeVar("T_co", covariant=True)

NO_SESSION: Final = -1
"""The id of the session while there is none."""


@dataclass(frozen=True, slots=True)
class Identity:
    """One state of one stored thing.

    Two of them are equal if they name the same state, in whichever sessions it was read.
    """

    version: int
    """The writes of this life before this state. It begins with 0 in each life, and is only compared."""
    creation: int
    """The life: what the metadata service gave the thing when it was made. It is opaque, never changes, and no other
    thing under that name gets it again. It is no time."""
    session_id: int = field(default=NO_SESSION, compare=False)
    """The session in which it was read or written. A write that depends on this session comes too late when the process
    slept for longer."""


UNSTORED: Final = Identity(0, -1)
"""Names nothing that is stored."""


def moved(creation: int) -> int:
    """Convert a creation to that of the same thing behind a live move to another metadata service, and back.

    The other service gives creations of its own kind. So they are negative, and no creation of the service before.
    """
    return UNSTORED.creation - 1 - creation


def is_moved(creation: int) -> bool:
    return creation < UNSTORED.creation


def may_be_one_life(one: int, other: int) -> bool:
    """Return False if these creations belong to two things.

    A creation from before a move cannot be compared with one from after it, so such two may be one thing.
    """
    return one == other or is_moved(one) != is_moved(other)


@dataclass(frozen=True, slots=True)
class Versioned(Generic[T_co]):
    """A stored value and its identity, which a compare-and-set needs."""

    value: T_co
    identity: Identity

    @property
    def version(self) -> int:
        """Which of the states of one life. Compare it only where the creation is known to be the same."""
        return self.identity.version


@dataclass(frozen=True, slots=True, eq=False)
class LedgerLife:
    """One of the ledgers that bear an id one after the other.

    Plans, offsets and handles keep it in the place of the id. Two of them are equal if they name the same ledger. The
    token decides, where both have one: it stays with a ledger that is moved to another metadata service. Formats before
    3 have none, and clients of the reference lose it with their first update: then `creation` decides, as far as it can
    (`may_be_one_life`). So without tokens equality is not transitive: a life from before a move of the metadata equals
    each of its id from behind it. Compare two of them, and build no classes of equal ones.
    """

    ledger_id: int
    creation: int
    token: int = 0
    """The creation token; 0: the ledger has none."""

    @staticmethod
    def of(stored: Versioned[LedgerMetadata]) -> LedgerLife:
        """Return the life of a ledger whose metadata were read."""
        metadata = stored.value
        return LedgerLife(metadata.ledger_id, stored.identity.creation, metadata.creation_token)

    def unnamed(self) -> LedgerLife:
        """Return the same ledger, named to bookies by its id alone."""
        return replace(self, token=0)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, LedgerLife):
            return NotImplemented
        if self.ledger_id != other.ledger_id:
            return False
        if self.token and other.token:
            return self.token == other.token
        return may_be_one_life(self.creation, other.creation)

    def __hash__(self) -> int:
        return hash(self.ledger_id)
