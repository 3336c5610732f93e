"""Names of nodes below `<root>/underreplication`, and the path of a ledger's mark.

A mark is `ledgers/<a>/<b>/<c>/<d>/urL%010d`: a to d are the four 16-bit groups of the ledger id, most significant
first, each four lower-case hexadecimal digits. So every leaf directory holds at most one mark, and its path alone
names the ledger. A lock is `locks/urL%010d`.

Pure; any thread.

Sources: reference metadata layout, sections 10 and 10.1.
"""

from __future__ import annotations

import re
from typing import Final

from bookie_protocol.ledger_metadata.model import MAX_LEDGER_ID

LAYOUT: Final = "LAYOUT"
LEDGERS: Final = "ledgers"
LOCKS: Final = "locks"
LEFT_ALONE: Final = "left-alone"
"""Of Podkeeper's own: the children are named as locks are."""
DISABLE: Final = "disable"
LOST_BOOKIE_RECOVERY_DELAY: Final = "lostBookieRecoveryDelay"
AUDITOR_ELECTION: Final = "auditorelection"
VOTE_PREFIX: Final = "V_"

LEVELS: Final = 4
_PREFIX: Final = "urL"
_GROUP: Final = re.compile(r"[0-9a-f]{4}")
_LEAF: Final = re.compile(r"urL([0-9]{10,19})")
_VOTE: Final = re.compile(r"V_(-?[0-9]+)")


def leaf_name(ledger_id: int) -> str:
    """The name of a mark, of a lock, and of a note that the ledger is left alone."""
    return f"{_PREFIX}{ledger_id:010d}"


def mark_path(ledger_id: int) -> str:
    """The path below `ledgers`, with a leading slash. `ValueError`: no ledger has this id."""
    if not 0 <= ledger_id <= MAX_LEDGER_ID:
        raise ValueError(f"ledger id {ledger_id} is outside 0 to 2^63-1")
    digits = f"{ledger_id:016x}"
    return f"/{digits[0:4]}/{digits[4:8]}/{digits[8:12]}/{digits[12:16]}/{leaf_name(ledger_id)}"


def is_group(name: str) -> bool:
    """Whether a child of one of the four levels is a directory of marks."""
    return _GROUP.fullmatch(name) is not None


def directory_ledger_id(directory: str) -> int | None:
    """The id that a leaf directory (its path below `ledgers`) stands for; None: no ledger can have it."""
    ledger_id = int(directory.replace("/", ""), 16)
    return ledger_id if ledger_id <= MAX_LEDGER_ID else None


def lock_ledger_id(name: str) -> int | None:
    """The id behind a child of `locks`; None if it is no lock."""
    match = _LEAF.fullmatch(name)
    return None if match is None else int(match[1])


def vote_number(name: str) -> int | None:
    """The sequence number of a child of `auditorelection`; None if it is no vote."""
    match = _VOTE.fullmatch(name)
    return None if match is None else int(match[1])
