"""`bookie standalone` as a test's cluster."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

from tests.support.until import until_true

BOOKIE = str(Path(sys.executable).with_name("bookie"))


class StandaloneCommand:
    """The running command, on ports of its own; a context manager that stops it with Ctrl-C's signal."""

    def __init__(self, data: Path, *arguments: str) -> None:
        self._data = data
        self._arguments = arguments
        self.ready: dict = {}
        self.process: subprocess.Popen[bytes]

    def __enter__(self) -> StandaloneCommand:
        self._data.mkdir(parents=True, exist_ok=True)
        self.output = self._data.with_name(self._data.name + ".out")
        self.errors = self._data.with_name(self._data.name + ".err")
        ports = ("--metadata-port", "0", "--grpc-port", "0")
        command = (BOOKIE, "standalone", "--data", str(self._data), "--json", *ports, *self._arguments)
        with self.output.open("wb") as output, self.errors.open("wb") as errors:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=errors, start_new_session=True
            )
        until_true(lambda: b"\n" in self.output.read_bytes() or self.process.poll() is not None, 60)
        assert self.process.poll() is None, self.errors.read_text()
        self.ready = json.loads(self.output.read_text())
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    @property
    def uri(self) -> str:
        return self.ready["metadata_service"]

    @property
    def grpc(self) -> list[str]:
        """Addresses of the gRPC servers."""
        return [f"127.0.0.1:{bookie['grpc_port']}" for bookie in self.ready["bookies"]]

    def stop(self, number: int = signal.SIGINT) -> int:
        """Send a signal, and return the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        try:
            return self.process.wait(60)
        finally:
            self.process.kill()
            self.process.wait()
