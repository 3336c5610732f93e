"""`config_keys.json` of the operator, made of the bookie's own declarations.

    python -m tests.support.config_keys          writes the file

The operator may not import the bookie, so this stands beside both. A test compares the file with what is made here.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from bookie_pod.config import ignored
from bookie_pod.config.keys import Key
from bookie_pod.config.model import all_keys

FILE: Final = Path(__file__).parents[2] / "operator" / "bookie_operator" / "crds" / "config_keys.json"
DYNAMIC: Final = frozenset(
    {
        "minorCompactionThreshold",
        "minorCompactionInterval",
        "minorCompactionMaxTimeMillis",
        "majorCompactionThreshold",
        "majorCompactionInterval",
        "majorCompactionMaxTimeMillis",
        "forceAllowCompaction",
        "isThrottleByBytes",
        "compactionRateByBytes",
        "compactionRateByEntries",
        "gcMetadataOpRateLimit",
        "useTargetEntryLogSizeForGc",
        "gcWaitTime",
    }
)
"""Keys that count at once when they are set with `PUT /api/v1/config/server_config`; a test compares them with what
`docs/http-api.md` promises."""


def document() -> dict[str, Any]:
    """What the file holds."""
    keys = {declared.name: _facts(kind, declared) for _, _, kind, declared in all_keys().values()}
    return {
        "keys": dict(sorted(keys.items())),
        "ignored": sorted(ignored._NAMES | ignored._CLIENT_NAMES),
        "ignoredPrefixes": sorted(ignored._PREFIXES),
    }


def text() -> str:
    return json.dumps(document(), indent=1) + "\n"


def _facts(kind: str, declared: Key) -> dict[str, Any]:
    words = {
        "dynamic": declared.name in DYNAMIC,
        "secret": declared.secret,
        "legacy": list(declared.legacy),
        "choices": list(declared.choices),
    }
    limits = {
        "atLeast": declared.at_least,
        "atMost": declared.at_most,
        "above": declared.above,
        "below": declared.below,
    }
    return (
        {"kind": kind}
        | {name: value for name, value in words.items() if value}
        | {name: limit for name, limit in limits.items() if limit is not None}
    )


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
