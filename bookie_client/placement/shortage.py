"""The words for "not enough bookies": what was found, and why the rest was refused.

Pure; any thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from bookie_client.distribution import Quorums
from bookie_client.placement.policy import ClusterView
from bookie_client.placement.topology import format_location

MAX_NAMED: Final = 12
"""Bookies named in one message; of the others the number is told."""


def no_ensemble(
    quorums: Quorums, rule: str, candidates: Iterable[str], refusals: Mapping[str, str], cluster: ClusterView
) -> str:
    """A new ensemble cannot be made."""
    found = sorted(candidates)
    size = quorums.ensemble
    named = _named(found, cluster)
    if len(found) < size:
        text = f"an ensemble of {size} needs {size} writable bookies and there are {len(found)} ({named})"
    else:
        text = (
            f"no ensemble of {size} with write quorum {quorums.write} obeys the placement policy ({rule}): "
            f"{len(found)} bookies can be taken ({named})"
        )
    return f"{text}{_refused(refusals)}; start more bookies or ask for a smaller ensemble"


def no_spare(rule: str, candidates: Iterable[str], refusals: Mapping[str, str], cluster: ClusterView) -> str:
    """A failed member cannot be replaced."""
    found = sorted(candidates)
    text = f"no spare bookie that obeys the placement policy ({rule}): " if found else "no spare bookie: "
    return f"{text}{_named(found, cluster)}{_refused(refusals)}"


def _named(bookies: list[str], cluster: ClusterView) -> str:
    place = cluster.topology.location
    return _listed([f"{b} at {format_location(place(b))}" if place(b) else b for b in bookies]) or "none"


def _refused(refusals: Mapping[str, str]) -> str:
    if not refusals:
        return ""
    return f"; refused: {_listed([f'{bookie}: {reason}' for bookie, reason in sorted(refusals.items())])}"


def _listed(items: list[str]) -> str:
    text = ", ".join(items[:MAX_NAMED])
    return text if len(items) <= MAX_NAMED else f"{text} and {len(items) - MAX_NAMED} more"
