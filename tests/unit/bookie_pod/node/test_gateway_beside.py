"""What the process beside a bookie goes by."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any, cast

import pytest

from bookie_pod.config.load import load_config
from bookie_pod.metrics.registry import Registry
from bookie_pod.node import gateway_beside
from bookie_pod.node.gateway_beside import GatewayBeside, configuration_of_child
from bookie_pod.node.live_status import LiveStatus
from bookie_protocol.java_properties import line_of, parse

KEYS = {
    "metadataServiceUri": "embedded://127.0.0.1:2281/ledgers",
    "grpcServerPort": "4711",
    "memoryBudgetMb": "64",
    "clientMemoryMb": "32",
    "dbStorage_writeCacheMaxSizeMb": "8",
    "journalDirectories": "/data/journal",
}


def test_it_has_the_keys_of_the_bookie_but_for_its_storage_and_its_memory(tmp_path: Path) -> None:
    given = configuration_of_child(load_config(environ={}, overrides=KEYS))
    (tmp_path / "given.conf").write_text("".join(line_of(*pair) for pair in given.items()))
    child = load_config(str(tmp_path / "given.conf"), environ={})
    assert (child.grpc.server_port, child.metadata.service_uri) == (4711, KEYS["metadataServiceUri"])
    assert child.memory.budget_mb == child.gateway.memory_mb == 128
    assert child.http.listener is None
    assert not {"clientMemoryMb", "dbStorage_writeCacheMaxSizeMb", "journalDirectories"} & given.keys()


@pytest.mark.parametrize(
    ("uri", "served"), [("embedded://127.0.0.1:2281/ledgers", "true"), ("file:///data/m", "false")]
)
def test_ledgers_are_served_only_where_another_process_reaches_the_metadata(uri: str, served: str) -> None:
    config = load_config(environ={}, overrides={**KEYS, "metadataServiceUri": uri})
    assert configuration_of_child(config)["gatewayEnabled"] == served


@pytest.mark.parametrize("value", ["", "plain", " blank", "\ttab", "a\\b", "two\nlines\r", "a=b:c #!", "\f"])
def test_a_line_of_properties_is_read_as_it_was(value: str) -> None:
    (found,) = parse(line_of("key", value))
    assert (found.key, found.value) == ("key", value)


class _Ready:
    opening: str | None = None

    def unready_reason(self) -> str | None:
        return self.opening


async def _hangs(_: object) -> asyncio.subprocess.Process:
    """A child that serves, and whose event loop turns no more."""
    pipe = asyncio.subprocess.PIPE
    code = "import time; print(4711, flush=True); time.sleep(600)"
    return await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdin=pipe, stdout=pipe)


async def test_child_that_hangs_is_killed_and_another_one_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway_beside, "_begin", _hangs)
    monkeypatch.setattr(gateway_beside, "FIRST_PAUSE_S", 0.0)
    monkeypatch.setattr(gateway_beside, "SILENT_S", 0.01, raising=False)
    monkeypatch.setattr(gateway_beside, "STOP_S", 0.0)
    begun: set[int | None] = set()
    beside = GatewayBeside(load_config(environ={}, overrides=KEYS), cast("LiveStatus", _Ready()), Registry())
    beside.start()
    try:
        async with asyncio.timeout(30):
            while len(begun - {None}) < 2:
                begun.add(beside.pid)
                await asyncio.sleep(0.01)
    finally:
        await beside.stop()


async def test_what_the_child_counts_is_shown_by_the_bookie(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = ["bookie_audit_ACTIONS", "counter", 'via="grpc",outcome="refused"', 7]
    writers = ["bookie_gateway_OPEN_WRITERS", "gauge", "", 3]
    registry, code = Registry(), f"print(4711); print({json.dumps([refused, writers])!r}, flush=True); open(0).read()"
    pipe = asyncio.subprocess.PIPE

    async def begin(_: object) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdin=pipe, stdout=pipe)

    monkeypatch.setattr(gateway_beside, "_begin", begin)
    monkeypatch.setattr(gateway_beside, "FIRST_PAUSE_S", 3600.0)
    registry.scope("bookie_audit", via="http", outcome="refused").counter("ACTIONS").add(2)
    beside = GatewayBeside(load_config(environ={}, overrides=KEYS), cast("LiveStatus", _Ready()), registry)
    beside.start()
    try:
        async with asyncio.timeout(60):
            while "OPEN_WRITERS 3" not in registry.render():  # noqa: ASYNC110 - another process tells it
                await asyncio.sleep(0.01)
        shown = registry.render()
        assert 'bookie_audit_ACTIONS{via="grpc",outcome="refused"} 7\n' in shown
        assert 'bookie_audit_ACTIONS{via="http",outcome="refused"} 2' in shown
        assert shown.count("# TYPE bookie_audit_ACTIONS") == 1
        child = beside._child
        assert child is not None
        child.kill()
        async with asyncio.timeout(60):
            while "OPEN_WRITERS 3" in registry.render():  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert 'bookie_audit_ACTIONS{via="grpc",outcome="refused"} 7' in registry.render()
        assert "bookie_gateway_OPEN_WRITERS 0" in registry.render()
    finally:
        await beside.stop()


async def test_child_shows_that_it_does_not_hang(tmp_path: Path) -> None:
    keys = {"gatewayEnabled": "false", "httpServerEnabled": "false", "grpcServerPort": "0"}
    (tmp_path / "given.conf").write_text("".join(line_of(*pair) for pair in keys.items()))
    pipes: dict[str, Any] = {"stdin": asyncio.subprocess.PIPE, "stdout": asyncio.subprocess.PIPE}
    command = ("-m", "bookie_pod.cli.main", "gateway", "--beside", "--config", str(tmp_path / "given.conf"))
    child = await asyncio.create_subprocess_exec(sys.executable, *command, **pipes, env=dict(os.environ))
    assert child.stdin is not None
    assert child.stdout is not None
    async with asyncio.timeout(120):
        assert int(await child.stdout.readline()) > 0
        told = json.loads(await child.stdout.readline())
        assert ["bookie_audit_ACTIONS", "counter", 'via="grpc",outcome="refused"', 0] in told
        child.stdin.close()
        assert await child.wait() == 0
