"""A stored value with its version token, and with what tells it from one that is made anew under its name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Generic, TypeVar

ANY_VERSION: Final = -1
"""Matches every stored version: an unconditional update or delete."""

T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Versioned(Generic[T_co]):
    """What was stored, with the token that a compare-and-set needs."""

    value: T_co
    version: int


@dataclass(frozen=True, slots=True)
class Identity:
    """Which one it is of those that bore the name. Versions begin anew with each, so that they alone do not tell.

    `session_id`: in which it was read; whoever sleeps longer than the session does not delete it any more.
    """

    version: int
    created_ms: int
    session_id: int


@dataclass(frozen=True, slots=True)
class Identified(Versioned[T_co]):
    """What was stored, its version token and its identity."""

    identity: Identity
