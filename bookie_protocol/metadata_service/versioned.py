"""A stored value with its version token."""

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
