"""Names of nodes below the cluster's root, and the paths of ledgers in each layout.

With `s` the id as ten digits and `l` as nineteen:

| layout | path below the root |
|---|---|
| flat | `/L` s |
| legacy hierarchical (short) | `/` s[0:2] `/` s[2:6] `/L` s[6:10] |
| long hierarchical | `/` l[0:3] `/` l[3:7] `/` l[7:11] `/` l[11:15] `/L` l[15:19] |
| hierarchical | short if the id is below 2^31 - 1, else long |

Pure; any thread.

Sources: docs/internals/metadata-layout.md, sections 3.1 and 7.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from bookie_protocol.metadata_service.interface import LedgerLayout

LAYOUT: Final = "LAYOUT"
INSTANCE_ID: Final = "INSTANCEID"
AVAILABLE: Final = "available"
READ_ONLY: Final = "readonly"
COOKIES: Final = "cookies"
ID_GENERATION: Final = "idgen"
LONG_ID_GENERATION: Final = "idgen-long"
ID_PREFIX: Final = "ID-"
UNDER_REPLICATION: Final = "underreplication"
DISABLE_HEALTH_CHECK: Final = "disableHealthCheck"
PODKEEPER: Final = "podkeeper"
"""Parent of what is none of BookKeeper's: records."""
HOLDER: Final = "podkeeper-copier"
"""Ephemeral: the process that formats or removes the cluster, or writes its metadata from a copy or a backup."""
PULSAR_BOOKIES: Final = "bookies"
"""Apache Pulsar's, beside the root and not below it."""

SHORT_ID_LIMIT: Final = 2**31 - 1
"""The first id that the hierarchical layout stores under a long path."""

_SHORT_TOP: Final = re.compile(r"[0-9]{2}")
_LONG_TOP: Final = re.compile(r"[0-9]{3}")
_INNER: Final = re.compile(r"[0-9]{4}")
_LEAF: Final = re.compile(r"L([0-9]{4})")
_FLAT_LEAF: Final = re.compile(r"L([0-9]{10,19})")
_LEDGER: Final = re.compile(r"/(?:L([0-9]{10,19})|([0-9]{2}/[0-9]{4}/|[0-9]{3}(?:/[0-9]{4}){3}/)L([0-9]{4}))")

SHORT_LEVELS: Final = (_SHORT_TOP, _INNER)
LONG_LEVELS: Final = (_LONG_TOP, _INNER, _INNER, _INNER)


def flat_path(ledger_id: int) -> str:
    return f"/L{ledger_id:010d}"


def short_path(ledger_id: int) -> str:
    digits = f"{ledger_id:010d}"
    return f"/{digits[0:2]}/{digits[2:6]}/L{digits[6:10]}"


def long_path(ledger_id: int) -> str:
    digits = f"{ledger_id:019d}"
    return f"/{digits[0:3]}/{digits[3:7]}/{digits[7:11]}/{digits[11:15]}/L{digits[15:19]}"


def ledger_path(layout: LedgerLayout, ledger_id: int) -> str:
    """Return the path below the root. `ValueError`: this layout cannot hold the id."""
    if not 0 <= ledger_id < 2**63:
        raise ValueError(f"ledger id {ledger_id} is outside 0 to 2^63-1")
    if layout is LedgerLayout.FLAT:
        return flat_path(ledger_id)
    if layout is LedgerLayout.LONG_HIERARCHICAL:
        return long_path(ledger_id)
    if ledger_id < SHORT_ID_LIMIT:
        return short_path(ledger_id)
    if layout is LedgerLayout.LEGACY_HIERARCHICAL:
        raise ValueError(f"ledger id {ledger_id} does not fit the legacy hierarchical layout (31 bits)")
    return long_path(ledger_id)


def first_digits(levels: Sequence[re.Pattern[str]], ledger_id: int) -> str:
    """The digits of an id as directories of these levels have them; behind all of theirs if it has more digits."""
    width = 10 if levels is SHORT_LEVELS else 19
    digits = f"{ledger_id:0{width}d}"
    return digits if len(digits) == width else ":"


def is_ledger_parent(name: str) -> bool:
    """Return True if a child of the root holds ledgers, or (flat layout) is one."""
    return any(pattern.fullmatch(name) for pattern in (_SHORT_TOP, _LONG_TOP, _FLAT_LEAF))


def is_id_generation(name: str) -> bool:
    """Return True if a child of the root is used to generate ledger ids."""
    return name in (ID_GENERATION, LONG_ID_GENERATION) or name.startswith(ID_PREFIX)


def ledger_id_of(path: str) -> int | None:
    """The id of the ledger whose node has this path below the root, in whichever layout; None if it is no ledger."""
    match = _LEDGER.fullmatch(path)
    return None if match is None else int("".join(part for part in match.groups() if part).replace("/", ""))


def flat_ledger_id(name: str) -> int | None:
    """Return the id behind a child of the root in the flat layout; None if it is no ledger."""
    match = _FLAT_LEAF.fullmatch(name)
    return None if match is None else int(match[1])


def leaf_ledger_id(directory: str, name: str) -> int | None:
    """Return the id behind a child of a leaf directory (given below the root); None if it is no ledger."""
    match = _LEAF.fullmatch(name)
    return None if match is None else int(directory.replace("/", "") + match[1])
