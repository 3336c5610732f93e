"""A bookie as a process, whose garbage collection a test drives through the admin API, and ledgers that share its
entry logs in chosen proportions.

Invariants
- Passes come only when a test asks for one, unless its settings say otherwise; a pass flushes the storage, so entries
  lie in entry logs where `fill_log` means them to be.
- A payload says which ledger, entry and byte it is, so what is read back can be told from everything else.

One thread uses a `CollectedBookie`, but for `SurvivorReader`, which is a thread.
"""

from __future__ import annotations

import json
import re
import threading
import time
import urllib.request
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bookie_client.blocking import BlockingClient
from tests.support.bookie_process import free_port
from tests.support.frames import v2_code, v2_entry, v2_read
from tests.support.serve_process import ServeProcess, SyncClient
from tests.support.until import until_true

LOG_LIMIT = 1 << 20
ENTRY = 1000
"""Bytes of a payload, unless a test says otherwise."""
OVERHEAD = 40
"""Bytes that an entry takes in a log beside its payload: size word, four numbers of the head, CRC32C."""
PATIENCE_S = 60.0

_HEADER = 1024
_ROOM_LEFT = 200
_QUIET = 3_600_000
ON_REQUEST = {
    "gcWaitTime": str(_QUIET),
    "minorCompactionInterval": "7200",
    "majorCompactionInterval": "86400",
    "flushInterval": str(_QUIET),
    "logSizeLimit": str(LOG_LIMIT),
    "compactionRateByBytes": "1000000000",
    "gcOverreplicatedLedgerWaitTime": "-1",
    "zkTimeout": "1000",  # after a kill the next process waits so long for the registration
    "dbStorage_readAheadCacheMaxSizeMb": "0",  # or reads of logs would be answered from memory
}


class CollectedBookie(ServeProcess):
    """`collect` makes one pass and tells what it did."""

    def __init__(self, work: Path, metadata_uri: str, settings: Mapping[str, str] | None = None) -> None:
        made = self.command("cluster", "init", metadata_uri)
        assert made.returncode == 0 or "holds a cluster already" in made.stderr, made.stderr
        super().__init__(
            work,
            {
                "metadataServiceUri": metadata_uri,
                "httpServerEnabled": "true",
                "httpServerHost": "127.0.0.1",
                "httpServerPort": str(free_port()),
                "prometheusStatsHttpEnable": "true",
                **ON_REQUEST,
                **(settings or {}),
            },
        )

    @property
    def uri(self) -> str:
        return self.settings["metadataServiceUri"]

    # --- admin API ------------------------------------------------------------------------------------------

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(f"{self._url}/api/v1/bookie/{path}", timeout=30) as answer:
            return json.loads(answer.read())

    def put(self, path: str, body: Mapping[str, object]) -> Any:
        request = urllib.request.Request(f"{self._url}/api/v1/bookie/{path}", json.dumps(body).encode(), method="PUT")
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.loads(answer.read())

    @property
    def _url(self) -> str:
        return f"http://127.0.0.1:{self.settings['httpServerPort']}"

    def metric(self, name: str) -> float:
        """The sum of a metric over its labels."""
        with urllib.request.urlopen(f"{self._url}/metrics", timeout=30) as answer:
            text = answer.read().decode()
        found = re.findall(rf"^{name}(?:\{{[^}}]*\}})? (\S+)$", text, re.MULTILINE)
        assert found, f"no metric {name}"
        return sum(map(float, found))

    def force(self, *, major: bool = False, minor: bool = False) -> None:
        """Ask for a pass, with these compactions and no other."""
        self.put("gc", {"forceMajor": major, "forceMinor": minor})

    def collect(self, *, major: bool = False, minor: bool = False) -> dict[str, Any]:
        """One pass; what it did."""
        self.force(major=major, minor=minor)
        until_true(lambda: self.get("gc") == {"is_in_force_gc": "false"}, PATIENCE_S)
        (progress,) = self.get("gc/progress")
        return dict(progress["lastPass"])

    def details(self) -> dict[str, Any]:
        (details,) = self.get("gc_details")
        return dict(details)

    def why(self, name: str) -> dict[str, Any]:
        """Why this entry log is still there."""
        (answer,) = self.get(f"gc/why?entryLog={name}")
        return dict(answer)

    def quarantined(self) -> dict[str, str]:
        return {each["entryLog"]: each["detail"] for each in self.get("gc/quarantine")}

    # --- entry logs -----------------------------------------------------------------------------------------

    @property
    def folder(self) -> Path:
        return Path(self.settings["ledgerDirectories"]) / "current"

    def log_path(self, name: str) -> Path:
        return self.folder / name

    def logs(self) -> dict[str, int]:
        """Entry logs on disk and their sizes."""
        found = {}
        for path in self.folder.glob("*.log"):
            try:
                found[path.name] = path.stat().st_size
            except FileNotFoundError:  # removed meanwhile
                continue
        return found

    def fill_log(self, client: BlockingClient, counts: Sequence[int], *, size: int = ENTRY) -> tuple[str, list[int]]:
        """A log that is rotated, synced and measured, and in which so many entries of each of these ledgers lie.

        Another ledger lies behind it and fills the log that is written now, so the next call begins a log too.
        Returns the log's name and the ledgers.
        """
        assert _HEADER + sum(counts) * (size + OVERHEAD) < LOG_LIMIT - _ROOM_LEFT, "more than a log takes"
        before = set(self.logs())
        ledger_ids = write(client, counts, size)
        self.collect()
        written = set(self.logs()) - before
        write(client, [1], LOG_LIMIT - _HEADER - OVERHEAD - _ROOM_LEFT)
        self.collect()  # rotates the log
        (name,) = (each for each in written if set(self.owners(each)) == set(ledger_ids))
        self.collect()
        assert self.why(name)["usage"] == 1.0
        return name, ledger_ids

    def owners(self, name: str) -> list[int]:
        """The ledgers that live in this entry log; nothing while it is written."""
        return [each["ledgerId"] for each in self.why(name)["owners"] or ()]


def payload(ledger_id: int, entry_id: int, size: int = ENTRY) -> bytes:
    mark = b"%d/%d;" % (ledger_id, entry_id)
    return (mark * (size // len(mark) + 1))[:size]


def write(client: BlockingClient, counts: Sequence[int], size: int = ENTRY) -> list[int]:
    """Closed ledgers of so many entries, which come by turns."""
    writers = [client.create(ensemble=1, write_quorum=1, ack_quorum=1) for _ in counts]
    for entry_id in range(max(counts)):
        for writer, count in zip(writers, counts, strict=True):
            if entry_id < count:
                writer.submit(payload(writer.ledger_id, entry_id, size))
    for writer in writers:
        writer.close()
    return [writer.ledger_id for writer in writers]


def check(client: BlockingClient, ledger_id: int, count: int, size: int = ENTRY) -> None:
    """The ledger holds exactly what `write` has written; the client verifies the digests."""
    with client.open(ledger_id) as reader:
        found = [each.payload for each in reader.entries()]
    assert found == [payload(ledger_id, entry_id, size) for entry_id in range(count)]


def delete(client: BlockingClient, ledger_ids: Iterable[int]) -> None:
    for ledger_id in ledger_ids:
        client.delete(ledger_id)


class SurvivorReader(threading.Thread):
    """Reads one ledger round and round until `end`, or until the bookie dies; every answer must be the entry."""

    def __init__(self, port: int, ledger_id: int, count: int, size: int = ENTRY) -> None:
        super().__init__(daemon=True)
        self.rounds = 0
        """How often the whole ledger was read."""
        self.fault: BaseException | None = None
        self._port, self._ledger_id, self._count, self._size = port, ledger_id, count, size
        self._end = threading.Event()

    def run(self) -> None:
        try:
            with SyncClient(self._port) as client:
                while not self._end.is_set():
                    for entry_id in range(self._count):
                        self._read(client, entry_id)
                    self.rounds += 1
                    time.sleep(0.001)
        except (OSError, EOFError):
            return
        except BaseException as error:
            self.fault = error

    def _read(self, client: SyncClient, entry_id: int) -> None:
        answer = client.ask(v2_read(self._ledger_id, entry_id))
        code = v2_code(answer)
        assert code == 0, f"entry {entry_id}: code {code}"
        stored = v2_entry(answer)
        assert stored.endswith(payload(self._ledger_id, entry_id, self._size)), f"entry {entry_id} is another one"

    def end(self) -> None:
        """Stop, and fail if any answer was wrong."""
        self._end.set()
        self.join(PATIENCE_S)
        assert not self.is_alive()
        assert self.fault is None, self.fault
