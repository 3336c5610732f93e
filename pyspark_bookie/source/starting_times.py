"""Starts by time: `startingTimestamp`, `startingOffsetsByTimestamp`, and what happens if nothing is so new.

    startingTimestamp=1700000000000
    startingOffsetsByTimestamp={"orders": 1700000000000, "payments": 1700000500000}

Times are milliseconds since 1970, as in Spark's Kafka source. Names are those of streams and topics, or ids of ledgers
where ledgers are selected by themselves; what is not named is read from its beginning.

Pure; any process.
"""

from __future__ import annotations

import json
from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from pyspark_bookie.common.errors import OPTION, PodkeeperSparkError
from pyspark_bookie.source.positions import LATEST, Positions, positions

LATEST_MS: Final = (1 << 63) // 1000 - 1
"""Greatest time that a timestamp of Spark's can hold."""
_SINCE: Final = "since"
_OTHERWISE: Final = "otherwise"


class NoMatch(Enum):
    """The start where no entry is known to be so new. ERROR: the query fails. LATEST: the end."""

    ERROR = "error"
    LATEST = "latest"


@dataclass(frozen=True)
class StartingTimes:
    """`everywhere` counts for all, or `named` for those that it names."""

    everywhere: int | None = None
    named: Mapping[str, int] = field(default_factory=dict, hash=False)
    otherwise: NoMatch = NoMatch.ERROR

    def of(self, name: str) -> int | None:
        """Return the time in ms since 1970 for a stream, topic or ledger; None: it is read from its beginning."""
        return self.named.get(name, self.everywhere)

    @property
    def option(self) -> str:
        """The name of the option that was given."""
        return "startingOffsetsByTimestamp" if self.everywhere is None else "startingTimestamp"

    def text(self) -> str:
        """The times as the first offset of a query tells them; `start_of` reads it."""
        since = dict(sorted(self.named.items())) if self.everywhere is None else self.everywhere
        return json.dumps({_SINCE: since, _OTHERWISE: self.otherwise.value})

    def no_match(self, name: str, what: str) -> int:
        """Return LATEST if that is the start of what has no entry that is so new. Raises `PodkeeperSparkError`
        (OPTION) otherwise, with `what` as the reason."""
        if self.otherwise is NoMatch.LATEST:
            return LATEST
        raise PodkeeperSparkError(
            OPTION,
            f"option {self.option}={self.of(name)}: {what}; give an earlier time, or set"
            " startingOffsetsByTimestampStrategy=latest to begin at the end there",
        )

    def check_named(self, names: Container[str], where: str) -> None:
        """Check that each name is one of what is read; `where` says what that is. Raises `PodkeeperSparkError`
        (OPTION)."""
        strangers = sorted(name for name in self.named if name not in names)
        if strangers:
            raise PodkeeperSparkError(
                OPTION, f"option {self.option} names {', '.join(strangers[:10])}, which is not part of {where}"
            )


def start_of(text: str) -> Positions | StartingTimes:
    """Read the start of a query from its first offset. Raises `ValueError`."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or _SINCE not in found:
        return positions(text)
    since, otherwise = found[_SINCE], NoMatch(found[_OTHERWISE])
    if isinstance(since, dict):
        return StartingTimes(named=since, otherwise=otherwise)
    return StartingTimes(everywhere=since, otherwise=otherwise)


def begins_at_end(text: str) -> bool:
    """Return True if the place where a query begins may move until it is written down."""
    start = start_of(text)
    return isinstance(start, StartingTimes) or start.everywhere == LATEST


def milliseconds(text: str) -> int:
    """Read a time. Raises `ValueError` with what would be right."""
    if not text.strip().isdecimal() or not text.isascii() or int(text) > LATEST_MS:
        raise ValueError("must be milliseconds since 1970, such as 1700000000000")
    return int(text)


def times_by_name(text: str) -> Mapping[str, int]:
    """Read times by the names of streams or ids of ledgers. Raises `ValueError` with what would be right."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or not found or not all(map(_is_time, found.values())):
        raise ValueError('must be milliseconds since 1970 by stream or ledger, such as {"orders": 1700000000000}')
    return found


def _is_time(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= LATEST_MS
