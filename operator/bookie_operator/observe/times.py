"""Times as Kubernetes writes them. Threads: pure functions, any thread."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any


def seconds(text: Any) -> float | None:
    """RFC 3339 as seconds since 1970; None for what is no time."""
    if not isinstance(text, str) or not text:
        return None
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return None


def created_at(obj: Mapping[str, Any]) -> float:
    return seconds(obj["metadata"].get("creationTimestamp")) or 0.0


def condition(obj: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    """Return the condition of this type in its status; empty if it has none."""
    for found in (obj.get("status") or {}).get("conditions") or ():
        if found.get("type") == kind:
            return dict(found)
    return {}


def told_at(event: Mapping[str, Any]) -> float:
    """Seconds since 1970, the last time; 0: it does not say."""
    series = event.get("series") or {}
    times = (series.get("lastObservedTime"), event.get("lastTimestamp"), event.get("eventTime"))
    return max((seconds(each) or 0.0 for each in times), default=0.0)
