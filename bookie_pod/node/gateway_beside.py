"""The process that serves the gRPC port beside a bookie: the bookie starts, watches and restarts `bookie gateway`.

gRPC keeps what strangers send before any interceptor runs, and has no bound for it: a connection that sends a few
megabytes of headers can make a process hold a gigabyte. So no bookie serves gRPC itself. The child is a client of the
cluster like any other; its end costs no acknowledged entry, and the memory of the bookie is the bookie's.

    bookie -> child   its configuration, as properties, over a pipe of its own (`--config /dev/fd/N`)
    bookie -> child   standard input: a line whenever the readiness of the bookie changes, empty if it is ready, else
                      the reason; the end of it, also that of a bookie which was killed, stops the child
    child -> bookie   standard output: the port, once it is served, then every `BEAT_S` its metrics, which the bookie
                      shows with its own: a list in JSON, which a pipe takes whole or not at all
    child             standard error: that of the bookie

A child that serves and then is silent for `SILENT_LOOKS` times `SILENT_S` hangs, and is killed. A child that ends is
started again after `FIRST_PAUSE_S`, ever later while it does not last. The port of the bookie's configuration is held
meanwhile (`hold_grpc_port`), so no other process takes it.

Threads: event loop.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import msgspec
import structlog

from bookie_pod.config.model import BookieConfig, all_keys
from bookie_pod.logs import FewLines
from bookie_pod.metrics.registry import Number, Registry
from bookie_protocol.errors import ExitCode
from bookie_protocol.java_properties import line_of
from bookie_protocol.lasting import lasting_task
from bookie_protocol.metadata_service.options import MetadataDriver
from bookie_protocol.metadata_service.uri_parser import parse_metadata_service_uri

if TYPE_CHECKING:
    from bookie_pod.node.live_status import LiveStatus

FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 30.0
LASTED_S: Final = 60.0
"""Seconds after which a child counts as stable: its next restart comes after the first pause again."""
BEAT_S: Final = 2.0
SILENT_S: Final = 20.0
SILENT_LOOKS: Final = 3
"""Several looks: a bookie that was suspended itself finds one of them over when it goes on."""
LOOK_S: Final = 0.2
"""Seconds between two looks at the readiness of the bookie."""
STOP_S: Final = 10.0
"""Seconds for the child to close the ledgers that are written through it, when the bookie stops."""
_STORAGE: Final = ("directories", "journal", "ledger_storage", "db_storage", "rocksdb", "sorted_storage", "gc", "disks")
_ELSEWHERE: Final = frozenset({*_STORAGE, "integrity", "memory"})
"""Sections of the configuration that are the bookie's alone."""
TOLD: Final = ("bookie_gateway", "bookie_audit")
"""Metrics of the child that the bookie shows."""
_OWN: Final = frozenset({"clientMemoryMb"})
"""Keys of which the child has a value of its own."""
_log = structlog.get_logger(__name__)


class GatewayBeside:
    """Starts the child, and another one whenever it ends, until `stop`."""

    def __init__(self, config: BookieConfig, status: LiveStatus, registry: Registry) -> None:
        self._config = config
        self._status = status
        self._lines = FewLines(_log)
        self._registry = registry
        self._restarts = registry.scope("bookie_gateway").counter("RESTARTS")
        self._child: asyncio.subprocess.Process | None = None
        self._task: asyncio.Task[None] | None = None
        self.port = 0
        """The port that the child serves; 0: it does not."""

    @property
    def pid(self) -> int | None:
        """Return the process id of the child, while it runs."""
        return None if self._child is None else self._child.pid

    def start(self) -> None:
        """The bookie is not ready until the port is served for the first time, or the first child has ended."""
        if self._config.gateway.enabled and _owns_its_metadata(self._config):
            _log.warning(
                "no ledgers are served over gRPC, health alone",
                reason="the metadata is a folder of this process",
                remedy="run `bookie metadata-service`, or bookie standalone, and set metadataServiceUri to its URI",
            )
        self._status.opening = "the gRPC port is not served yet"
        self._task = lasting_task(self._run(), "gateway beside the bookie")

    async def stop(self) -> None:
        """Let the child end in an orderly way, for `STOP_S` at most. May be called more than once."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        child, self._child = self._child, None
        if child is None or child.returncode is not None:
            return
        assert child.stdin is not None
        child.stdin.close()
        try:
            async with asyncio.timeout(STOP_S):
                await child.wait()
        except TimeoutError:
            with suppress(ProcessLookupError):
                child.kill()
            await child.wait()

    async def _run(self) -> None:
        clock = asyncio.get_running_loop().time
        pause = FIRST_PAUSE_S
        while True:
            began = clock()
            try:
                self._child = child = await _begin(self._config)
                code = await self._follow(child)
                self._lines.warning("the gateway process ended: another one is started", code=code, seconds=pause)
            except OSError as error:
                self._lines.warning("the gateway process cannot be started: another try follows", reason=str(error))
            self.port, self._status.opening = 0, None
            self._restarts.add(1)
            pause = FIRST_PAUSE_S if clock() - began > LASTED_S else pause
            await asyncio.sleep(pause)
            pause = min(LONGEST_PAUSE_S, 2 * pause)

    async def _follow(self, child: asyncio.subprocess.Process) -> int:
        """Tell it how ready the bookie is until it ends; its exit code."""
        telling = asyncio.create_task(self._tell(child))
        try:
            assert child.stdout is not None
            if line := await child.stdout.readline():
                self.port, self._status.opening = int(line), None
                await self._hear(child.stdout)
            return await child.wait()
        except (TimeoutError, ValueError) as error:
            self._lines.warning("the gateway process hangs or says what it must not: it is killed", reason=repr(error))
            with suppress(ProcessLookupError):
                child.kill()
            await child.wait()
            return ExitCode.BOOKIE_EXCEPTION
        finally:
            telling.cancel()

    async def _hear(self, lines: asyncio.StreamReader) -> None:
        """Read the child's lines until it ends. Raises `TimeoutError` if it hangs, `ValueError` for an invalid line."""
        silent, told = 0, list[Number]()
        try:
            while True:
                try:
                    async with asyncio.timeout(SILENT_S):
                        if not (line := await lines.readline()):
                            return
                    silent, told = 0, msgspec.json.decode(line, type=list[Number])
                    self._registry.show(told)
                except TimeoutError:
                    silent += 1
                    if silent == SILENT_LOOKS:
                        raise
        finally:
            self._registry.show(each._replace(value=0) for each in told if each.kind == "gauge")

    async def _tell(self, child: asyncio.subprocess.Process) -> None:
        told, pipe = None, child.stdin
        assert pipe is not None
        with suppress(OSError):
            while True:
                reason = self._status.unready_reason() or ""
                if reason != told:
                    told = reason
                    pipe.write(reason.replace("\n", " ").encode() + b"\n")
                    await pipe.drain()
                await asyncio.sleep(LOOK_S)


def configuration_of_child(config: BookieConfig) -> dict[str, str]:
    """Return the configuration of the child: the keys that were set, but for those of the storage.

    The child has memory of its own.
    """
    known = all_keys()
    keys = {
        name: text
        for name, text in config.set_keys.items()
        if name in known and known[name][0] not in _ELSEWHERE and name not in _OWN
    }
    return keys | {
        "memoryBudgetMb": str(config.gateway.memory_mb),
        "gatewayEnabled": str(config.gateway.enabled and not _owns_its_metadata(config)).lower(),
        "httpServerEnabled": "false",
        "prometheusStatsHttpEnable": "false",
        "autoRecoveryDaemonEnabled": "false",
    }


def _owns_its_metadata(config: BookieConfig) -> bool:
    """Return whether its metadata is a folder that the bookie's process has open, which no other process can open."""
    uri = config.metadata.service_uri
    return uri is not None and parse_metadata_service_uri(uri).driver is MetadataDriver.OWNED


async def _begin(config: BookieConfig) -> asyncio.subprocess.Process:
    reads, writes = os.pipe()
    try:
        text = "".join(line_of(name, value) for name, value in configuration_of_child(config).items()).encode()
        os.set_blocking(writes, False)  # a configuration that no pipe holds is an error: do not wait
        if os.write(writes, text) != len(text):
            raise OSError(f"the configuration has {len(text)} bytes, more than a pipe holds")
        os.close(writes)
        writes = -1
        return await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "bookie_pod.cli.main", "gateway", "--beside", "--config", f"/dev/fd/{reads}"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            pass_fds=(reads,),
            start_new_session=True,  # a terminal's interrupt is for the bookie, which stops the child in its turn
            env=_environment(os.environ),
        )
    finally:
        for descriptor in (reads, writes):
            if descriptor >= 0:
                os.close(descriptor)


def _environment(given: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without keys of the configuration: they would override what the child is given."""
    return {name: value for name, value in given.items() if not name.startswith("BK_") and name != "BOOKIE_CONF"}
