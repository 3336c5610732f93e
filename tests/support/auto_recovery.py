"""`bookie autorecovery` as a process, and what tests ask of a cluster that heals."""

from __future__ import annotations

import asyncio
import signal
import urllib.error
import urllib.request
from collections.abc import Iterable, Mapping
from pathlib import Path

from bookie_client import Client
from bookie_client.reading.maintenance import replicas
from tests.support.bookie_process import free_port
from tests.support.until import until
from tests.support.warm import BOOKIE, WarmProcess

_END_S = 40.0
QUICK = {
    "zkTimeout": "4000",
    "lostBookieRecoveryDelay": "0",
    "openLedgerRereplicationGracePeriod": "1000",
    "lockReleaseOfFailedLedgerGracePeriod": "8000",
    "rwRereplicateBackoffMs": "500",
    "auditorSecondLookDelay": "1",
}
"""Keys with which everything happens soon."""


class AutoRecoveryProcess:
    """Whoever makes one kills it in the end (`with`)."""

    def __init__(self, work: Path, metadata_uri: str, settings: Mapping[str, str] | None = None) -> None:
        self.work = work
        self.http_port = free_port()
        self.settings = {
            "metadataServiceUri": metadata_uri,
            "httpServerPort": str(self.http_port),
            "httpServerHost": "127.0.0.1",
            "advertisedAddress": "127.0.0.1",
            "allowLoopback": "true",
            **QUICK,
            **(settings or {}),
        }
        self.process: WarmProcess | None = None
        work.mkdir(parents=True, exist_ok=True)

    @property
    def log(self) -> Path:
        return self.work / "stderr"

    def launch(self) -> None:
        """Start it, and wait for nothing."""
        file = self.work / "autorecovery.conf"
        file.write_text("".join(f"{key}={value}\n" for key, value in self.settings.items()))
        with self.log.open("ab") as errors:
            self.process = WarmProcess(BOOKIE, ["autorecovery", "--config", str(file)], stderr=errors)

    async def ready(self) -> None:
        """Until its readiness probe says so."""

        def is_ready() -> bool:
            assert self.process is not None
            assert self.process.poll() is None, self.log.read_text()[-3000:]
            return self.get("/readyz")[0] == 200

        await until(is_ready, 60)

    def get(self, path: str) -> tuple[int, str]:
        """Status and text of a GET; 0 while nobody listens. Blocks for a moment."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.http_port}{path}", timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()
        except OSError:
            return 0, ""

    def metric(self, name: str) -> float:
        """The value of a metric without labels; 0 if it is not there."""
        for line in self.get("/metrics")[1].splitlines():
            if line.startswith(f"{name} "):
                return float(line.split()[1])
        return 0.0

    def logged(self, event: str) -> bool:
        return f'"event": "{event}"' in self.log.read_text()

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait(_END_S)
        self.process = None

    def stop(self) -> int:
        """SIGTERM; returns the exit code."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(_END_S)
        self.process = None
        return code

    def __enter__(self) -> AutoRecoveryProcess:
        self.launch()
        return self

    def __exit__(self, *exc: object) -> None:
        if self.process is not None:
            self.kill()


async def healed(client: Client, gone: Iterable[str], seconds: float = 90.0) -> None:
    """Until no mark is left and no ledger names a bookie that is gone. TimeoutError tells what is left."""
    missing = frozenset(gone)
    left: object = None
    try:
        async with asyncio.timeout(seconds):
            while left := await _unhealed(client, missing):  # noqa: ASYNC110 - other processes give no event
                await asyncio.sleep(0.2)
    except TimeoutError:
        raise TimeoutError(f"not healed after {seconds} s: {left}") from None


async def _unhealed(client: Client, gone: frozenset[str]) -> list[str]:
    marks = client.metadata_service.under_replication
    left = [f"{mark}" async for mark in marks.list()]
    async for ledger_id in client.list():
        metadata = await client.metadata(ledger_id)
        if metadata.all_bookies() & gone:
            left.append(f"ledger {ledger_id} names {sorted(metadata.all_bookies() & gone)}")
    return left[:10]


async def read_every_replica(client: Client, ledger_ids: Iterable[int]) -> int:
    """Read each copy of each entry from its own bookie; returns how many there are. Fails at the first fault."""
    copies = 0
    for ledger_id in ledger_ids:
        async with client.open(ledger_id, password=None) as handle:
            reader = replicas(handle)
            for entry_id in range(handle.last_add_confirmed + 1):
                answers = await reader.read_all(entry_id)
                assert len(answers) == handle.metadata.write_quorum_size
                for answer in answers:
                    assert answer.error is None, (ledger_id, answer)
                assert len({answer.entry.payload for answer in answers if answer.entry is not None}) == 1
                copies += len(answers)
    return copies
