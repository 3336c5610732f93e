"""`bookie standalone` as a test's cluster: it and its bookies are forks of a warm process, or the installed command."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from bookie_pod.cli.main import main as bookie
from bookie_pod.node.standalone import cluster as standalone
from tests.support import warm
from tests.support.until import until_true
from tests.support.warm import WarmProcess

BOOKIE = str(Path(sys.executable).with_name("bookie"))
_PARENT = "PODKEEPER_TEST_WARM_PARENT"
_START_S = 240


class StandaloneCommand:
    """The running command, on ports of its own; a context manager that stops it with Ctrl-C's signal. `command`: the
    program that is started with `variables`, as its users start it; without one it is a fork of a warm process."""

    def __init__(
        self, data: Path, *arguments: str, command: str = "", variables: Mapping[str, str] | None = None
    ) -> None:
        self._data = data
        self._arguments = arguments
        self._command = command
        self._variables = variables
        self.ready: dict = {}
        self.process: subprocess.Popen[bytes] | WarmProcess

    def __enter__(self) -> StandaloneCommand:
        self._data.mkdir(parents=True, exist_ok=True)
        self.output = self._data.with_name(self._data.name + ".out")
        self.errors = self._data.with_name(self._data.name + ".err")
        ports = [word for option in ("--metadata-port", "--grpc-port", "--http-port") for word in (option, "0")]
        words = ["standalone", "--data", str(self._data), "--json", *ports, *self._arguments]
        with self.output.open("wb") as output, self.errors.open("wb") as errors:
            if self._command:
                self.process = subprocess.Popen(
                    [self._command, *words],
                    env=self._variables,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=errors,
                    start_new_session=True,
                )
            else:
                environment = {**os.environ, _PARENT: str(warm.parent_of_bookies())}
                self.process = WarmProcess(f"{__name__}:main", words, stdout=output, stderr=errors, env=environment)
        until_true(lambda: b"\n" in self.output.read_bytes() or self.process.poll() is not None, _START_S)
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

    @property
    def http(self) -> list[str]:
        """Addresses of the HTTP servers."""
        return [f"127.0.0.1:{bookie['http_port']}" for bookie in self.ready["bookies"]]

    def stop(self, number: int = signal.SIGINT) -> int:
        """Send a signal, and return the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        try:
            return self.process.wait(60)
        finally:
            self.process.kill()
            self.process.wait()


def main(arguments: Sequence[str]) -> None:
    """In the fork."""
    warm.share_parent_of_bookies(Path(os.environ.pop(_PARENT)))
    standalone.start_child = warm.start_bookie  # type: ignore[assignment]
    bookie(arguments)
