"""Where things lie in an archive.

    data/date=2026-11-21/ledger-7-<uuid>-0.parquet    what engines read: `.../data` as one partitioned table
    _manifests/ledger-7-<uuid>.json                   what there is of a ledger; written last
    _instances/<id>                                   the cluster whose archive it is
    _tmp/<uuid>/...                                   what is being written

Engines overlook names that begin with an underscore. The uuid is that of the attempt which wrote a file, so that what
an attempt left behind can be told from what counts, and what is there of one ledger is not replaced by what comes of
another one of the same number. Older versions wrote `_manifests/ledger-7.json`.

Pure; any thread.
"""

from __future__ import annotations

import re
import urllib.parse
from datetime import UTC, datetime
from typing import Final

DATA: Final = "data"
MANIFESTS: Final = "_manifests"
INSTANCES: Final = "_instances"
TEMPORARY: Final = "_tmp"
PARTITIONS: Final = ("date", "stream", "none")
_NOTHING: Final = "__HIVE_DEFAULT_PARTITION__"
_DATA_FILE: Final = re.compile(r"ledger-(\d+)-([0-9a-f]{32})-(\d+)\.parquet")
_MANIFEST: Final = re.compile(r"ledger-(\d+)(?:-([0-9a-f]{32}))?\.json")


def data_file(ledger_id: int, uuid: str, part: int) -> str:
    return f"ledger-{ledger_id}-{uuid}-{part}.parquet"


def parse_data_file(name: str) -> tuple[int, str] | None:
    """Ledger and uuid that a file name tells; None: it is no file of ours."""
    found = _DATA_FILE.fullmatch(name)
    return (int(found[1]), found[2]) if found else None


def temporary_folder(uuid: str) -> str:
    return f"{TEMPORARY}/{uuid}"


def manifest_file(ledger_id: int, uuid: str | None) -> str:
    """`uuid` None: as older versions named it."""
    return f"{MANIFESTS}/ledger-{ledger_id}.json" if uuid is None else f"{MANIFESTS}/ledger-{ledger_id}-{uuid}.json"


def parse_manifest_file(name: str) -> tuple[int, str | None] | None:
    """Ledger and uuid of a manifest by its name; None: it is no manifest."""
    found = _MANIFEST.fullmatch(name)
    return (int(found[1]), found[2]) if found else None


def data_folder(partition: str, created_ms: int | None, stream: str | None) -> str:
    """The folder of a ledger's files, in the way in which Hive names partitions."""
    if partition == "none":
        return DATA
    if partition == "stream":
        return f"{DATA}/stream={urllib.parse.quote(stream, safe='') if stream else _NOTHING}"
    day = _NOTHING if created_ms is None else f"{datetime.fromtimestamp(created_ms / 1000, UTC):%Y-%m-%d}"
    return f"{DATA}/date={day}"
