"""`bookie gateway` as a process of its own.

One thread at a time may use a `GatewayCommand`. Whoever starts one ends it (`with`).
"""

from __future__ import annotations

import contextlib
import os
import signal
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from tests.support.bookie_process import free_port
from tests.support.until import until_true
from tests.support.warm import BOOKIE, WarmProcess

_READY_S = 30.0
_STOP_S = 30.0


class GatewayCommand:
    """With its output in a file of `work`; `settings` are further keys."""

    def __init__(self, work: Path, metadata_uri: str, settings: Mapping[str, str] | None = None) -> None:
        self.grpc_port = free_port()
        self.http_port = free_port()
        self._output = work / "gateway.log"
        self._keys = {
            "metadataServiceUri": metadata_uri,
            "grpcServerHost": "127.0.0.1",
            "grpcServerPort": str(self.grpc_port),
            "httpServerHost": "127.0.0.1",
            "httpServerPort": str(self.http_port),
            **(settings or {}),
        }
        self._process: WarmProcess | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.grpc_port}"

    @property
    def pid(self) -> int:
        assert self._process is not None, "the gateway is not running"
        return self._process.pid

    def __enter__(self) -> GatewayCommand:
        self.start()
        try:
            until_true(self.is_ready, _READY_S)
        except BaseException as error:
            self.kill()
            raise RuntimeError(f"the gateway is not ready in time:\n{self.tail()}") from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    def start(self) -> None:
        """Not waiting for anything."""
        assignments = [f"--set={key}={value}" for key, value in self._keys.items()]
        self._output.parent.mkdir(parents=True, exist_ok=True)
        with self._output.open("ab") as output:
            self._process = WarmProcess(BOOKIE, ["gateway", *assignments], stdout=output, stderr=output)

    def is_ready(self) -> bool:
        """Raises when it has ended."""
        assert self._process is not None
        assert self._process.poll() is None, self.tail()
        try:
            return self.probe("/readyz") == 200
        except OSError:
            return False

    def probe(self, path: str) -> int:
        """The status of the answer; `OSError`: there is none."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.http_port}{path}", timeout=5) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code

    def metrics(self) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.http_port}/metrics", timeout=5) as answer:
            return str(answer.read().decode())

    def wait(self) -> int:
        """Until it ends by itself: its exit code."""
        assert self._process is not None
        return self._process.wait(_STOP_S)

    def stop(self) -> int:
        """Its exit code after SIGTERM."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        return self.wait()

    def kill(self) -> None:
        """As a crash would; it may have ended by itself."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def tail(self) -> str:
        """The end of the output, for messages."""
        return self._output.read_text(errors="replace")[-4000:] if self._output.exists() else ""
