"""Whatever thread or task of a process ends, those outside hear of it: clients at once, supervisors by the exit code.

The threads are those of the table of docs/architecture.md; one that has no row there is found too.
"""

from __future__ import annotations

import json
import re
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from bookie_protocol.errors import ExitCode
from bookie_protocol.wire.v2 import Flag
from tests.support import killing_parts
from tests.support.bookie_process import free_port
from tests.support.frames import entry, v2_add, v2_read, v3_add, v3_fence, v3_poll, v3_read, v3_write_lac
from tests.support.metadata_process import MetadataProcess
from tests.support.serve_process import ServeProcess, SyncClient
from tests.support.until import until_true
from tests.support.warm import WarmProcess

ARCHITECTURE = Path(__file__).parents[2] / "docs" / "architecture.md"
NOT_IN_A_BOOKIE = {
    "resident-bound": "of processes that serve gRPC",
    "event loop": "the probes that it does not answer",
    "kazoo's threads": "of a library; the driver begins a new session",
    "bookie client": "of clients",
    "a task of Spark": "of Spark",
    "kerberos-bookie-<n>": "of logins by Kerberos, which need its library",
    "kerberos-client-<n>": "the same, of clients",
}
SHORT_LIVED = {"journal-<i>-next-file", "index-headers", "index-rebuild", "storage-<i>-retry"}
SORTED = {
    "ledgerStorageClass": "org.apache.bookkeeper.bookie.SortedLedgerStorage",
    "entryLogPerLedgerEnabled": "true",
}
ENGINE = {"memtable-flush": SORTED}
WAITS_FOR_IT = {
    "storage-<i>": r"the thread checkpoint ended|Killed",
    "memtable-flush": r"the thread (storage-0|checkpoint)\S* ended|Killed",
    "uvloop": r"the thread (uvloop|gc)\S* ended|Killed",
    "entry-log-allocator": r"the thread (storage-0|checkpoint|gc|scrub)\S* ended|Killed",
}
"""Who may end first: a thread that dies in the midst of its work hands its end on to whoever waits for that work."""
LAST = -1
LEDGER = 8
SECONDS = 60.0
PAUSE_S = 0.05
"""Between one thing to do and the next: whatever is to die has work often enough, and nobody computes meanwhile."""


def rows() -> list[str]:
    """The first column of the table of threads."""
    text = ARCHITECTURE.read_text().partition("\n## Threads\n")[2].partition("\n\n**")[0]
    cells = [line.split("|")[1].strip() for line in text.splitlines() if line.startswith("|")][2:]
    return [
        name.strip().strip("`").split(" (")[0] for cell in cells for name in cell.replace("`, `", "`\n`").split("\n")
    ]


def pattern(row: str) -> re.Pattern[str]:
    return re.compile(re.sub(r"<\w>", r"\\d+", row) + r"(_\d+)?")


THREADS = [row for row in rows() if row not in NOT_IN_A_BOOKIE and row not in SHORT_LIVED]
TASKS = [
    "registration",
    "metadata session",
    "metadata events",
    "ends of metadata sessions",
    "gateway beside the bookie",
]


class Killed(ServeProcess):
    """A bookie with every thread that there is, each with something to do every few milliseconds."""

    def __init__(self, work: Path, settings: dict[str, str]) -> None:
        self.http, self.orders = free_port(), str(work / "orders")
        super().__init__(
            work / "b",
            {
                "flushInterval": "20",
                "diskCheckInterval": "20",
                "gcWaitTime": "20",
                "logSizeLimit": "1048576",
                "entryLogFilePreallocationEnabled": "true",
                "numReadWorkerThreads": "1",
                "numHighPriorityWorkerThreads": "1",
                "numLongPollWorkerThreads": "1",
                "numOfMemtableFlushThreads": "2",
                "httpServerEnabled": "true",
                "httpServerHost": "127.0.0.1",
                "httpServerPort": str(self.http),
                "grpcServerEnabled": "true",
                "grpcServerHost": "127.0.0.1",
                "grpcServerPort": str(free_port()),
                **settings,
            },
        )
        self.program = [killing_parts.PROGRAM, self.orders]

    def order(self, line: str) -> list[str]:
        return killing_parts.order(self.orders, line) or []

    def ask(self, path: str, body: object = None) -> int:
        """The status of an answer over HTTP; 0: none."""
        data = None if body is None else json.dumps(body).encode()
        method = "GET" if data is None else "PUT"
        request = urllib.request.Request(f"http://127.0.0.1:{self.http}{path}", data, method=method)
        try:
            with urllib.request.urlopen(request, timeout=5) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code
        except OSError:
            return 0

    def stir(self) -> None:
        """Something for everybody."""
        with suppress(OSError, EOFError), SyncClient(self.port, timeout=2) as client:
            for entry_id in range(4):
                client.ask(v2_add(entry(LEDGER, entry_id, bytes(300_000))))
            client.send(v2_read(LEDGER, LAST), v2_read(LEDGER, 0, Flag.BATCH_CLASS))
        with suppress(OSError, EOFError), SyncClient(self.port, timeout=2) as client:
            client.send(v3_poll(LEDGER, -1), v3_add(entry(LEDGER, 4, lac=3)), v3_write_lac(LEDGER + 2, 0))
            client.send(v3_read(LEDGER, LAST, priority=True), v3_fence(LEDGER + 1))
            client.frame()
        self.ask("/api/v1/bookie/entry_location_compact", {"entryLocationRocksDBCompact": True})
        self.ask("/api/v1/bookie/scrub", {})
        self.ask("/api/v1/bookie/gc", {"forceMajor": True})
        self.ask("/api/v1/bookie/list_disk_file")
        self.ask("/api/v1/bookie/sanity")


@pytest.fixture
def bookie(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Killed]:
    settings = ENGINE.get(getattr(request, "param", ""), {})
    with Killed(tmp_path, settings) as made:
        made.start()
        yield made


def named(threads: list[str]) -> set[str]:
    return {name for name in threads if not name.startswith("Thread-") and name != "MainThread"}


def test_every_thread_of_a_bookie_has_a_row(bookie: Killed) -> None:
    for _ in range(3):
        bookie.stir()
    known = [pattern(row) for row in rows()]
    assert [name for name in named(bookie.order("threads")) if not any(row.fullmatch(name) for row in known)] == []


@pytest.mark.parametrize(("bookie", "row"), [(row, row) for row in THREADS], indirect=["bookie"])
def test_a_bookie_ends_when_a_thread_ends(bookie: Killed, row: str) -> None:
    bookie.stir()
    wanted = pattern(row)

    def alive() -> list[str]:
        bookie.stir()
        return [name for name in bookie.order("threads") if wanted.fullmatch(name)]

    found: list[str] = []
    until_true(lambda: found.extend(alive()) or found, SECONDS)
    until_true(lambda: bookie.ask("/readyz") == 200, SECONDS)  # once gRPC is served too
    assert bookie.ask("/healthz") == 200
    with SyncClient(bookie.port) as waiting:
        waiting.ask(v2_add(entry(LEDGER + 3, 0)))
        for name in found:
            bookie.order(f"thread {name}")
        over = threading.Event()
        stirring = threading.Thread(target=_stir_until, args=(bookie, over))
        stirring.start()
        try:
            with pytest.raises((EOFError, ConnectionError)):
                for entry_id in range(1, 1 << 30):
                    waiting.ask(v2_add(entry(LEDGER + 3, entry_id)))
                    time.sleep(PAUSE_S / 10)
            assert bookie.ask("/readyz") != 200
            assert bookie.ask("/healthz") != 200
            assert bookie.ended() == ExitCode.BOOKIE_EXCEPTION
        finally:
            over.set()
            stirring.join()
    (line,) = bookie.lines()[-1:]
    handed_on = re.search(WAITS_FOR_IT.get(row, wanted.pattern), line)
    assert wanted.search(line) or handed_on or row.startswith(("journal", "metadata")), line


def _stir_until(bookie: Killed, over: threading.Event) -> None:
    while not over.wait(PAUSE_S):
        bookie.stir()


@pytest.mark.parametrize("task", TASKS)
def test_a_bookie_ends_when_a_lasting_task_ends(bookie: Killed, task: str) -> None:
    until_true(lambda: task in bookie.order("tasks"), SECONDS)
    bookie.order(f"task {task}")
    assert bookie.ended() == ExitCode.BOOKIE_EXCEPTION
    (line,) = bookie.lines()
    assert line.startswith(f"bookie: the task of the {task} ended: Killed()")


def test_sigterm_ends_a_bookie_whose_flushes_have_nobody_to_make_them(bookie: Killed) -> None:
    """The stop waits for a flush; it begins before anybody has looked."""
    bookie.stir()
    bookie.order("thread storage-0_0")
    assert bookie.stop() in (ExitCode.OK, ExitCode.BOOKIE_EXCEPTION)


def listens_to_orders(path: str) -> bool:
    try:
        return bool(killing_parts.order(path, "threads"))
    except OSError:
        return False


@pytest.mark.parametrize("process", ["gateway", "autorecovery", "metadata-service"])
def test_other_processes_end_likewise(tmp_path: Path, metadata: MetadataProcess, process: str) -> None:
    uri, orders = metadata.uri(), str(tmp_path / "orders")
    assert ServeProcess.command("cluster", "init", uri).returncode == 0
    keys = {
        "metadataServiceUri": uri,
        "grpcServerHost": "127.0.0.1",
        "grpcServerPort": str(free_port()),
        "httpServerHost": "127.0.0.1",
        "httpServerPort": str(free_port()),
        "allowLoopback": "true",
        "advertisedAddress": "127.0.0.1",
    }
    arguments = [f"--set={key}={value}" for key, value in keys.items()]
    if process == "metadata-service":
        arguments = ["--data", str(tmp_path / "store"), "--port", str(free_port()), "--http-port", str(free_port())]
    task = {"gateway": "end of idle writers", "metadata-service": "ends of metadata sessions"}.get(
        process, "metadata session"
    )
    with (tmp_path / "output").open("wb") as output:
        started = WarmProcess(killing_parts.PROGRAM, [orders, process, *arguments], stdout=output, stderr=output)
    try:
        until_true(lambda: listens_to_orders(orders) and task in killing_parts.order(orders, "tasks"), SECONDS)
        killing_parts.order(orders, f"task {task}")
        assert started.wait(SECONDS) == ExitCode.BOOKIE_EXCEPTION
    finally:
        started.kill()
        started.wait()
    told = [line for line in (tmp_path / "output").read_text().splitlines() if line.startswith("bookie: ")]
    (line,) = told
    assert line.startswith(f"bookie: the task of the {task} ended: Killed()")
