"""Ledgers that are here but not in the metadata service: since when, and which of them may be deleted.

The service may be wrong for a while: an administrator restores an older state, and the newest a few hours later. So a
ledger stays for a grace after it was missed first, and one that is listed again in the meantime never was in danger.
And a pass that misses an unusual part of what is here deletes nothing before a person has allowed it, with the number,
or the ledgers have been missing for a day: rarely are so many deleted at once on purpose.

Invariants
- A person who asks for a pass, and a disk that has no room, need no grace. They need the permission all the same.
- A permission is for one pass, also if that could not tell what is absent, and for so many ledgers at most.
- What is remembered ends with the process: the grace begins again then.

Threads: the garbage collection thread; `held` and `waiting` may be read by any, `allow` called.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import structlog

from bookie_pod.config.sections.gc import GcConfig

USUAL_LEDGERS: Final = 1000
"""The number of ledgers that may always be deleted at once: of few ledgers any part is usual."""

_log = structlog.get_logger(__name__)


class AbsentLedgers:
    """The absent ledgers of one storage. `options` returns the current settings; times are in ms."""

    def __init__(self, options: Callable[[], GcConfig], now_ms: Callable[[], int]) -> None:
        self._options = options
        self._now_ms = now_ms
        self._since: dict[int, int] = {}
        self._allowed = 0
        """The number of ledgers that an administrator allowed this pass to delete, even if that is unusual."""
        self._allowed_next = 0
        self.held: str | None = None
        """The reason why the last pass deleted none of them; None if only their grace holds them."""

    @property
    def waiting(self) -> int:
        """Return how many ledgers the last pass missed in the metadata service and are still here."""
        return len(self._since)

    def allow(self, ledgers: int) -> None:
        """Let the next pass delete up to so many ledgers, however unusual that is."""
        self._allowed_next = ledgers

    def begin_pass(self) -> None:
        """Take the permission for the pass that begins; that of the pass before has ended."""
        self._allowed, self._allowed_next = self._allowed_next, 0

    def missed(self, absent: Sequence[int], *, compared: Sequence[int], at_once: bool) -> Sequence[int]:
        """Return those of the absent ledgers that may be deleted now. `compared`: all that are here up to where the
        listing came, ascending; `at_once`: without a grace."""
        now, before, options = self._now_ms(), self._since, self._options()
        upto = compared[-1] if compared else -1
        self._since = {ledger_id: since for ledger_id, since in before.items() if ledger_id > upto}
        self._since |= {ledger_id: before.get(ledger_id, now) for ledger_id in absent}
        grace = 0 if at_once or self._allowed else options.deletion_grace_ms
        self.held = None
        if len(absent) > self._allowed and self._is_unusual(len(absent), len(compared)):
            self.held = (
                f"{len(absent)} of {len(compared)} ledgers here are not in the metadata service any more, which is"
                " unusual: they are kept. Check that no older metadata was restored. To delete them:"
                f" `bookie gc allow-deletions --ledgers {len(absent)}`"
            )
            _log.error("garbage collection keeps ledgers", reason=self.held)
            grace = options.unusual_deletion_wait_ms
            if grace < 0:
                return []
        return [ledger_id for ledger_id in absent if now - self._since[ledger_id] >= grace]

    def _is_unusual(self, absent: int, compared: int) -> bool:
        return absent > USUAL_LEDGERS and absent * 100 > compared * self._options().unusual_deletion_percent

    def gone(self, ledger_ids: Sequence[int]) -> None:
        """Forget these ledgers, which are not here any more."""
        for ledger_id in ledger_ids:
            self._since.pop(ledger_id, None)
