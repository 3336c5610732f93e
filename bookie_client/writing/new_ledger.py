"""What an application may ask for when it creates a ledger, and how the `create` methods of clients take it.

Invariants
- These parameters, their types and their defaults stand here only. `takes_new_ledger` gives a method the parameters of
  `NewLedger`: type checkers, editors and `help` see them as if the method listed them.
- What can never be is refused before anybody is asked.

Immutable; any thread.

Source: reference client protocol, section 3.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar

from bookie_client.distribution import Quorums
from bookie_protocol.digest import DigestType
from bookie_protocol.errors import BadRequest
from bookie_protocol.ledger_metadata.model import MAX_LEDGER_ID

P = ParamSpec("P")
Maker = TypeVar("Maker")
Made = TypeVar("Made")


@dataclass(frozen=True, slots=True, kw_only=True)
class NewLedger:
    """What the application asks for. Raises `BadRequest` for what can never be."""

    ensemble: int = 3
    """Bookies that the ledger is striped over."""
    write_quorum: int = 2
    """Bookies that each entry is sent to."""
    ack_quorum: int = 2
    """Bookies that must have stored an entry before it counts."""
    password: bytes = field(default=b"", repr=False)
    """Bookies take adds and fencing only from who knows it."""
    digest: DigestType = DigestType.CRC32C
    """How readers find out that an entry is damaged; `MAC` also proves who wrote it."""
    metadata: Mapping[str, bytes] | None = None
    """Custom metadata: kept with the ledger's own and never looked at."""
    ledger_id: int | None = None
    """From 0 to 2^63-1; None: the cluster gives a new one."""
    deferred_sync: bool = False
    """Entries are acknowledged before bookies synced them (`LedgerWriter.force`)."""

    def __post_init__(self) -> None:
        _ = self.quorums  # raises when they do not fit
        if self.ledger_id is not None and not 0 <= self.ledger_id <= MAX_LEDGER_ID:
            raise BadRequest(f"ledger id {self.ledger_id} is outside 0 to 2^63-1")
        for key, value in self.custom_metadata.items():
            if not isinstance(key, str) or not isinstance(value, bytes):
                raise BadRequest(f"custom metadata maps names to bytes; {key!r} does not: {value!r}")

    @property
    def quorums(self) -> Quorums:
        """Ensemble size and quorums. Raises `BadRequest` when they do not fit each other."""
        return Quorums(self.ensemble, self.write_quorum, self.ack_quorum)

    @property
    def custom_metadata(self) -> Mapping[str, bytes]:
        """`metadata`, empty if there is none."""
        return self.metadata or {}


def _taking(
    describe: Callable[P, NewLedger],
) -> Callable[[Callable[[Maker, NewLedger], Made]], Callable[Concatenate[Maker, P], Made]]:
    def decorate(method: Callable[[Maker, NewLedger], Made]) -> Callable[Concatenate[Maker, P], Made]:
        @wraps(method)
        def create(self: Maker, /, *args: P.args, **kwargs: P.kwargs) -> Made:
            return method(self, describe(*args, **kwargs))

        own = inspect.signature(method)
        parameters = [next(iter(own.parameters.values())), *inspect.signature(describe).parameters.values()]
        create.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
        return create

    return decorate


takes_new_ledger = _taking(NewLedger)
"""Decorator of a method `(self, new: NewLedger)`: callers give the parameters of `NewLedger` by name instead."""
