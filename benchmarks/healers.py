"""Auto-recovery as a process of its own, ours or Apache's, from one configuration.

Invariants
- Both kinds get the same file, with Apache's keys only; what a caller does not set is each kind's own default.
- Whoever starts one stops it.

One thread uses a `Healer`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from benchmarks.environment import DIRECT_MB, HEAP_MB, Environment
from tests.support.bookie_process import free_port
from tests.support.java import BOOKKEEPER_OPTIONS, find_java

_STOP_S: Final = 30.0
_COLLECTOR: Final = ("-XX:+UseG1GC", "-XX:MaxGCPauseMillis=10", "-XX:+ParallelRefProcEnabled")


class Healer:
    """An auditor's candidate and a replication worker; not started."""

    def __init__(self, kind: str, environment: Environment, settings: Mapping[str, str]) -> None:
        self.kind = kind
        self._environment = environment
        port = free_port()
        self._work = environment.directory / f"healer-{kind}-{port}"
        self._settings = {
            "metadataServiceUri": environment.metadata_uri,
            "bookiePort": str(port),
            "advertisedAddress": "127.0.0.1",
            "allowLoopback": "true",
            "httpServerEnabled": "false",
            "httpServerHost": "127.0.0.1",
            "httpServerPort": str(free_port()),
            # Checks that read from bookies are not what is measured.
            "auditorPeriodicCheckInterval": "0",
            "auditorReplicasCheckInterval": "0",
            **settings,
        }
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Of the process that runs."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start it; waits for nothing."""
        self._work.mkdir()
        file = self._work / "autorecovery.conf"
        file.write_text("".join(f"{key}={value}\n" for key, value in self._settings.items()))
        with self.log.open("wb") as output:
            self._process = subprocess.Popen(
                self._command(file),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )

    def stop(self) -> None:
        """SIGTERM, and after a while SIGKILL."""
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    @property
    def log(self) -> Path:
        return self._work / "log"

    def check(self) -> None:
        """Raises `RuntimeError` with the end of its output if it has ended."""
        if self._process is None or self._process.poll() is not None:
            raise RuntimeError(f"auto-recovery of {self.kind} ended: {self.log.read_text()[-1500:]}")

    def _command(self, file: Path) -> list[str]:
        if self.kind == "ours":
            return [str(Path(sys.executable).with_name("bookie")), "autorecovery", "--config", str(file)]
        return [
            find_java(),
            f"-Xms{HEAP_MB}m",
            f"-Xmx{HEAP_MB}m",
            f"-XX:MaxDirectMemorySize={DIRECT_MB}m",
            *_COLLECTOR,
            *BOOKKEEPER_OPTIONS,
            "-cp",
            self._environment.class_path,
            "org.apache.bookkeeper.replication.AutoRecoveryMain",
            "--conf",
            str(file),
        ]
