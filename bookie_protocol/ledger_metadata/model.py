"""Ledger metadata: the bookies of each segment, the state of the ledger, and the protection of its entries.

Invariants
- Qa <= Qw <= E, and every ensemble has exactly E members; the first ensemble starts at entry 0 and the starts
  ascend strictly. Anything else cannot be constructed (`ValueError`).
- Length and last entry id mean something only when the ledger is CLOSED; otherwise they are 0 and -1.
- Values are immutable: an update is a new object (`dataclasses.replace` or the helpers here).

Any thread.

Sources: docs/internals/metadata-layout.md, sections 8.2 and 8.6; docs/internals/client-protocol.md, section 4
(distribution).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final

from bookie_protocol.digest import DigestType

Ensemble = tuple[str, ...]
"""Bookie ids; the position in the tuple is the bookie's index in the distribution of entries."""

INVALID_ENTRY_ID: Final = -1
CURRENT_FORMAT_VERSION: Final = 3
MAX_LEDGER_ID: Final = 2**63 - 1


class LedgerState(Enum):
    """OPEN: one writer may append.

    IN_RECOVERY: a recoverer is finding the end. CLOSED: length and end are final.
    """

    OPEN = "OPEN"
    IN_RECOVERY = "IN_RECOVERY"
    CLOSED = "CLOSED"


@dataclass(frozen=True, slots=True)
class LedgerMetadata:
    """Metadata of one ledger.

    `format_version` is the encoding it was read in, and will be written in: 1, 2 or 3. `length` is in bytes
    of payload. `ctime` is in ms since the epoch; None: unknown (the store's own creation time is used on
    reading). `digest_type` and `password` are None together: the ledger recorded none and the opener's are
    used unchecked. `store_ctime` tells whether the creation time is part of what is written.
    `creation_token` tells apart two creators of one id; only format 3 carries it.
    """

    ledger_id: int
    ensemble_size: int
    write_quorum_size: int
    ack_quorum_size: int
    ensembles: Mapping[int, Ensemble] = field(hash=False)
    state: LedgerState = LedgerState.OPEN
    last_entry_id: int = INVALID_ENTRY_ID
    length: int = 0
    digest_type: DigestType | None = None
    password: bytes | None = field(default=None, repr=False)
    ctime: int | None = None
    store_ctime: bool = False
    custom_metadata: Mapping[str, bytes] = field(default_factory=dict, hash=False)
    creation_token: int = 0
    format_version: int = CURRENT_FORMAT_VERSION
    first_entry_ids: tuple[int, ...] = field(init=False, repr=False, compare=False, default=())

    def __post_init__(self) -> None:
        _check_sizes(self)
        ordered = {first: tuple(self.ensembles[first]) for first in sorted(self.ensembles)}
        _check_ensembles(self.ledger_id, self.ensemble_size, ordered)
        if (self.digest_type is None) != (self.password is None):
            raise ValueError(f"ledger {self.ledger_id}: digest type and password come together or not at all")
        if self.state is not LedgerState.CLOSED and (self.last_entry_id, self.length) != (
            INVALID_ENTRY_ID,
            0,
        ):
            raise ValueError(f"ledger {self.ledger_id}: only a closed ledger has a last entry and a length")
        object.__setattr__(self, "ensembles", ordered)
        object.__setattr__(self, "custom_metadata", dict(self.custom_metadata))
        object.__setattr__(self, "first_entry_ids", tuple(ordered))

    @property
    def is_closed(self) -> bool:
        return self.state is LedgerState.CLOSED

    @property
    def last_ensemble(self) -> Ensemble:
        return self.ensembles[self.first_entry_ids[-1]]

    def ensemble_for(self, entry_id: int) -> Ensemble:
        """Return the bookies of the segment that covers this entry (a future entry belongs to the last segment)."""
        return self.ensembles[self.first_entry_ids[bisect_right(self.first_entry_ids, max(entry_id, 0)) - 1]]

    def bookies_for(self, entry_id: int) -> Ensemble:
        """The Qw bookies that hold this entry, in the order of its write set."""
        ensemble = self.ensemble_for(entry_id)
        return tuple(ensemble[i] for i in write_set(entry_id, self.ensemble_size, self.write_quorum_size))

    def all_bookies(self) -> frozenset[str]:
        """Every bookie that any segment names."""
        return frozenset(bookie for ensemble in self.ensembles.values() for bookie in ensemble)

    def with_ensemble(self, first_entry_id: int, ensemble: Sequence[str]) -> LedgerMetadata:
        """Add a segment, or replace the one that starts at this very entry."""
        return replace(self, ensembles={**self.ensembles, first_entry_id: tuple(ensemble)})

    def in_recovery(self) -> LedgerMetadata:
        return replace(self, state=LedgerState.IN_RECOVERY, last_entry_id=INVALID_ENTRY_ID, length=0)

    def closed(self, last_entry_id: int, length: int) -> LedgerMetadata:
        """Return the final metadata; `last_entry_id` is -1 for an empty ledger, `length` in bytes."""
        return replace(self, state=LedgerState.CLOSED, last_entry_id=last_entry_id, length=length)


def write_set(entry_id: int, ensemble_size: int, write_quorum_size: int) -> tuple[int, ...]:
    """Positions in the ensemble that hold an entry, first choice first."""
    return tuple((entry_id + i) % ensemble_size for i in range(write_quorum_size))


def holds_entry(position: int, entry_id: int, ensemble_size: int, write_quorum_size: int) -> bool:
    """Return True if the bookie at this position of the ensemble stores the entry."""
    return (position - entry_id) % ensemble_size < write_quorum_size


def _check_sizes(metadata: LedgerMetadata) -> None:
    if not 0 <= metadata.ledger_id <= MAX_LEDGER_ID:
        raise ValueError(f"ledger id {metadata.ledger_id} is outside 0 to 2^63-1")
    sizes = metadata.ack_quorum_size, metadata.write_quorum_size, metadata.ensemble_size
    if not 0 <= sizes[0] <= sizes[1] <= sizes[2] or sizes[1] < 1:
        raise ValueError(
            f"ledger {metadata.ledger_id}: needs ack quorum <= write quorum <= ensemble size, and a write quorum of at "
            f"least 1, not {sizes[0]}, {sizes[1]}, {sizes[2]}"
        )
    if metadata.format_version not in (1, 2, 3):
        raise ValueError(f"ledger {metadata.ledger_id}: metadata format {metadata.format_version} is not 1, 2 or 3")
    if metadata.last_entry_id < INVALID_ENTRY_ID or metadata.length < 0:
        raise ValueError(
            f"ledger {metadata.ledger_id}: last entry {metadata.last_entry_id} or length {metadata.length} is negative"
        )


def _check_ensembles(ledger_id: int, size: int, ensembles: Mapping[int, Ensemble]) -> None:
    if next(iter(ensembles), None) != 0:
        raise ValueError(f"ledger {ledger_id}: the first ensemble does not start at entry 0")
    for first, ensemble in ensembles.items():
        if len(ensemble) != size:
            raise ValueError(
                f"ledger {ledger_id}: the ensemble at entry {first} has {len(ensemble)} bookies instead of {size}"
            )
