"""Objects that do not stay as they were applied: a webhook changes them on their way in, or somebody does so for ever.

What was changed once is put back at once. What has to be put back again and again is left for ever longer, and told:
nothing else waits for it.

Kept in memory: an operator that starts anew may try at once.

Threads: one event loop.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

_AT_ONCE: Final = 2
"""So often the same content is applied without waiting."""
_FIRST_S: Final = 4.0
_MOST_S: Final = 600.0
_REMEMBERED_S: Final = 1800.0


@dataclass(frozen=True)
class _Applied:
    digest: str
    count: int
    at: float

    @property
    def until(self) -> float:
        """When it may be applied again."""
        later = self.count - _AT_ONCE
        return self.at + (min(_MOST_S, _FIRST_S * 2.0 ** min(later, 10)) if later >= 0 else 0.0)


class Repairs:
    """The repairs of all clusters, each known by namespace and name."""

    def __init__(self) -> None:
        self._applied: dict[tuple[str, str], dict[str, _Applied]] = {}

    def applied(self, cluster: tuple[str, str], digests: Mapping[str, str], now: float) -> None:
        """These objects were, with this content each."""
        kept = {key: one for key, one in self._applied.get(cluster, {}).items() if self._remembered(one, now)}
        for key, digest in digests.items():
            before = kept.get(key)
            again = before.count if before is not None and before.digest == digest else 0
            kept[key] = _Applied(digest, again + 1, now)
        self._applied[cluster] = kept

    def unstable(self, cluster: tuple[str, str], now: float) -> dict[str, str]:
        """Objects that are not to be applied again yet, with the content that does not stay."""
        kept = self._applied.get(cluster, {})
        # A clock that was set back makes nobody wait longer.
        return {key: one.digest for key, one in kept.items() if one.at <= now < one.until}

    def forget(self, cluster: tuple[str, str]) -> None:
        self._applied.pop(cluster, None)

    @staticmethod
    def _remembered(one: _Applied, now: float) -> bool:
        return abs(now - one.at) <= _REMEMBERED_S
