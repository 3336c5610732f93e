"""A server of the admin API over fake ports, on a thread of its own, for commands that block."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

from bookie_pod.admin.routes import RESOURCES
from bookie_pod.config.sections.service import AccessConfig, HttpConfig
from bookie_pod.metrics.registry import Registry
from bookie_pod.server.http.start import start_http
from tests.support.fake_admin import FakeAdmin
from tests.unit.bookie_pod.server.nodes import FakeNode

TOKEN = "s3cret-token-of-the-bookie"


class ServedAdmin:
    """`stop` it."""

    def __init__(self, token_file: Path, **settings: Any) -> None:
        """`settings`: more of its `HttpConfig`."""
        self.admin = FakeAdmin()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)  # a start that fails is not stopped
        self._thread.start()
        config = HttpConfig(server_port=0, server_host="127.0.0.1", auth_token_file=str(token_file), **settings)
        self.node = FakeNode()
        # Else the lines would stand in what the command of the test prints: both are in this process.
        rules = AccessConfig(audit_log_file=f"{token_file}.audit")
        starting = start_http(config, self.node, Registry(), lambda: self.admin, table=RESOURCES, rules=rules)
        self._server = asyncio.run_coroutine_threadsafe(starting, self._loop).result(10)
        assert self._server is not None
        self.url = f"{'https' if config.tls_enable else 'http'}://127.0.0.1:{self._server.port}"

    def stop(self) -> None:
        assert self._server is not None
        asyncio.run_coroutine_threadsafe(self._server.stop(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()
