"""The storage and the TCP server of a bookie in this process: real files, real sockets, no metadata service.

One event loop uses a `ServedBookie`. `crash` ends it without flushing anything, as SIGKILL would end a process.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bookie_pod.client_memory import MemoryGovernor
from bookie_pod.config.load import load_config
from bookie_pod.config.model import BookieConfig
from bookie_pod.config.sections.journal import current_folders
from bookie_pod.metrics.registry import Registry
from bookie_pod.node.parts import ServerSide, StorageSide, make_journals, make_server, open_storage_side
from bookie_pod.node.processes.background import LoopBridge
from bookie_pod.node.recovery import replay_journals
from bookie_pod.server.tcp.listener import TcpListener
from bookie_pod.storage.checkpoint import CheckpointHandlers, SyncThread
from bookie_pod.storage.files import Files
from bookie_pod.storage.files_posix import PosixFiles
from bookie_pod.storage.journal.journal import Journal
from tests.support.gated_files import GatedFiles

_LENGTH = struct.Struct(">I")


class ServedBookie:
    """Start it, talk to `port`, stop or crash it, start it again on the same directories."""

    def __init__(self, work: Path, settings: Mapping[str, str] | None = None, files: Files | None = None) -> None:
        self.config: BookieConfig = load_config(
            overrides={
                "journalDirectories": str(work / "journal"),
                "ledgerDirectories": str(work / "ledgers"),
                "dbStorage_writeCacheMaxSizeMb": "16",
                "dbStorage_readAheadCacheMaxSizeMb": "16",
                "journalPreAllocSizeMB": "1",
                "memoryBudgetMb": "64",
                "flushInterval": "3600000",
                "numReadWorkerThreads": "2",
                "numHighPriorityWorkerThreads": "1",
                **(settings or {}),
            },
            environ={},
        )
        self.files: Files = files or PosixFiles()
        self.registry = Registry()
        self.failures: list[BaseException] = []
        self.side: StorageSide
        self.server: ServerSide
        self.journals: list[Journal] = []
        self.checkpoints: SyncThread
        self.listener: TcpListener

    @property
    def port(self) -> int:
        return self.listener.port

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        bridge = LoopBridge(loop)
        config = self.config
        self.registry = Registry()
        journal_folders = current_folders(config.directories.journal)
        for folder in journal_folders:
            self.files.makedirs(folder)
        self.side = await asyncio.to_thread(open_storage_side, config, self.files, bridge.run, self.registry)
        replayed = await asyncio.to_thread(
            replay_journals,
            self.files,
            self.side.storage,
            journal_folders=journal_folders,
            ledger_folders=current_folders(config.directories.ledger),
        )
        self.journals = make_journals(config, self.files, self.registry, loop, self.failures.append)
        for journal in self.journals:
            journal.start()
        self.checkpoints = SyncThread(
            self.side.storage,
            self.journals,
            replayed.marks,
            self.side.writable,
            CheckpointHandlers(on_no_writable_directory=self.failures.append, on_failure=self.failures.append),
            flush_interval_ms=config.ledger_storage.flush_interval_ms,
        )
        self.checkpoints.start()
        self.server = make_server(
            *(config, self.files, self.side.storage, self.journals, loop, self.registry, replayed.keys),
            throttled=self.side.throttled,
            memory=MemoryGovernor(config.client_memory_bytes),
        )
        self.listener = TcpListener(loop, "127.0.0.1", 0)
        await self.listener.bind()
        self.listener.serve(self.server.clients)
        self.server.clients.accepting = True

    async def checkpoint(self) -> None:
        await asyncio.to_thread(self.checkpoints.checkpoint)

    async def stop(self) -> None:
        """A clean stop."""
        await self.listener.stop(5.0)
        await asyncio.to_thread(self.server.stop_lanes)
        await asyncio.to_thread(self.checkpoints.shutdown)
        await self._close()

    async def crash(self) -> None:
        """End without a flush: what is not in the journal or a synced file is gone."""
        await self.listener.stop(0.0)
        await asyncio.to_thread(self.server.stop_lanes)
        await asyncio.to_thread(self.checkpoints.stop)
        await self._close()

    async def _close(self) -> None:
        for journal in self.journals:
            await asyncio.to_thread(journal.stop)
        await asyncio.to_thread(self.side.storage.close)

    async def __aenter__(self) -> ServedBookie:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        if isinstance(self.files, GatedFiles):
            self.files.open_all()  # a test that failed before it did would wait for ever here
        await self.stop()


class RawClient:
    """Frames in, frames out; no protocol."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def connect(cls, port: int) -> RawClient:
        return cls(*await asyncio.open_connection("127.0.0.1", port, limit=16 * 1024 * 1024))

    def send(self, *frames: bytes) -> None:
        self.writer.write(b"".join(frames))

    async def frame(self, timeout: float = 10.0) -> bytes:
        """The next frame, length word included; EOFError if the bookie closed the connection."""
        async with asyncio.timeout(timeout):
            try:
                head = await self.reader.readexactly(4)
                return head + await self.reader.readexactly(_LENGTH.unpack(head)[0])
            except (asyncio.IncompleteReadError, ConnectionError) as error:
                raise EOFError("the bookie closed the connection") from error

    async def ask(self, *frames: bytes) -> bytes:
        """Send, and return the next frame."""
        self.send(*frames)
        return await self.frame()

    async def closed(self, timeout: float = 10.0) -> bool:
        """True once the bookie closes the connection without another answer."""
        try:
            await self.frame(timeout)
        except EOFError:
            return True
        return False

    async def close(self) -> None:
        self.writer.close()
        try:
            await self.writer.wait_closed()
        except (ConnectionError, OSError):
            return

    async def __aenter__(self) -> RawClient:
        return self

    async def __aexit__(self, *exc: Any) -> None:
        await self.close()
