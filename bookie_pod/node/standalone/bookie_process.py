"""One bookie of a standalone cluster, in a process of its own, and the check that it is ready.

It is ready when it is registered as writable at its address and answers requests, as clients see it. A bookie that is
being decommissioned is ready as a read-only one. Any other bookie has to become writable within 15 seconds, or 5 if its
disk is full.

Invariants
- A child inherits no pipe and no terminal: input is /dev/null, output a file in the bookie's directory. It has a
  session of its own, and on Linux it ends when this process does, however it ends.
- A process is signalled by its handle alone.
- A bookie that ends before it is ready is an error with the last lines of its output.

Threads: event loop only.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bookie_client.connection.network import Resolver
from bookie_client.connection.pool import ChannelPool
from bookie_client.connection.request import Request
from bookie_client.options import ClientOptions
from bookie_pod.config.sections.gc import DisksConfig
from bookie_protocol.errors import (
    BookieUnavailable,
    MetadataDamaged,
    MetadataNotFound,
    PodkeeperError,
    ServerStartFailed,
)
from bookie_protocol.metadata_service.interface import BookieGroup
from bookie_protocol.metadata_service.records import DECOMMISSION
from bookie_protocol.metadata_service.tree.service import MetadataService

STOP_SECONDS: Final = 20.0
_TAIL_BYTES: Final = 3000
_TO_PEOPLE: Final = "bookie: "
"""The prefix of a line that says why a bookie did not start."""

_CHILD: Final = """\
import ctypes, os, signal, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
    if os.getppid() != int(sys.argv[1]):
        sys.exit("the process that started this bookie has ended")
from bookie_pod.cli.main import main
main(sys.argv[2:])
"""
LOOPBACK: Final = "127.0.0.1"
_RETRY_SECONDS: Final = 0.02
_SEEN_WITHIN_S: Final = 5.0
"""Seconds within which other processes mostly see what a bookie wrote to the metadata service."""
_LOOKS: Final = 3
"""The number of these periods after which a bookie counts as read-only, however much room its disk has."""


async def start_child(configuration: Path, output: Path) -> asyncio.subprocess.Process:
    """Run `bookie serve` with this configuration; what it prints is added to `output`. Raises `OSError`."""
    command = (sys.executable, "-c", _CHILD, str(os.getpid()), "serve", "--config", str(configuration))
    with output.open("ab") as file:
        return await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
            env=child_environment(),
        )


@dataclass(slots=True)
class BookieProcess:
    """One bookie and its process."""

    bookie_id: str
    directory: Path
    port: int
    process: asyncio.subprocess.Process
    grpc_port: int | None = None
    """None: it serves no gRPC."""
    http_port: int | None = None
    """None: it serves no HTTP."""

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def is_running(self) -> bool:
        return self.process.returncode is None

    @property
    def log(self) -> Path:
        """The file with what it prints."""
        return log_of(self.directory)

    def output(self) -> str:
        """Return what it printed last to people; the last lines of its log if that is nothing."""
        return last_words(self.log) or _tail(self.log)

    async def kill(self) -> None:
        """End it as a crash would (SIGKILL) and wait for its end."""
        if self.is_running:
            self.process.kill()
        await self.process.wait()

    async def stop(self) -> int:
        """Ask it to end (SIGTERM), and kill it when it has not after 20 seconds; returns its exit code."""
        if self.is_running:
            self.process.terminate()
        try:
            async with asyncio.timeout(STOP_SECONDS):
                return await self.process.wait()
        except TimeoutError:
            await self.kill()
            return await self.process.wait()


def log_of(directory: Path) -> Path:
    """Return the file for the output of the bookie in this directory."""
    return directory / "bookie.log"


def last_words(log: Path) -> str | None:
    """The last line of a bookie's log if it is one for people, which says why the bookie ended; None if it is not, or
    if the log cannot be read."""
    try:
        last = _tail(log).splitlines()[-1:]
    except OSError:
        return None
    return last[0] if last and last[0].startswith(_TO_PEOPLE) else None


def _tail(log: Path) -> str:
    with log.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
        return file.read().decode(errors="replace").strip()


def child_environment() -> dict[str, str]:
    """Return the environment without keys of the configuration: they would override the bookies' own files."""
    return {name: value for name, value in os.environ.items() if not name.startswith("BK_") and name != "BOOKIE_CONF"}


async def wait_ready(metadata: MetadataService, bookie: BookieProcess, timeout: float) -> None:
    """Wait until the bookie is ready.

    Raises `ServerStartFailed` when the bookie ends first, or is not ready within `timeout` seconds, and the metadata
    service's error when the state cannot be determined.
    """
    ready = asyncio.ensure_future(_serves(metadata, bookie))
    ended = asyncio.ensure_future(bookie.process.wait())
    try:
        await asyncio.wait({ready, ended}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        if ready.done():
            ready.result()
        elif ended.done():
            raise ServerStartFailed(
                f"{bookie.bookie_id} ended with exit code {ended.result()} at start: {bookie.output()}"
            )
        else:
            raise ServerStartFailed(f"{bookie.bookie_id} is not ready after {timeout:g} s: {bookie.output()}")
    finally:
        for task in (ready, ended):
            task.cancel()
        await asyncio.wait({ready, ended})


async def _serves(metadata: MetadataService, bookie: BookieProcess) -> None:
    """Return once the bookie is registered at its new address and answers a request. Raises `ServerStartFailed` if it
    does so as a read-only one, and stays one."""
    may_be_read_only = bookie.bookie_id in await metadata.records(DECOMMISSION).names()
    registered = [
        asyncio.ensure_future(_registered(metadata, bookie, group))
        for group in (BookieGroup.WRITABLE, BookieGroup.READ_ONLY)
    ]
    writable = registered[0]
    try:
        await asyncio.wait(registered, return_when=asyncio.FIRST_COMPLETED)
        await _answers(bookie)
        # Each bookie is read-only for a moment, until it is let in; one that answers is in its place.
        looks = 0
        while True:
            for task in registered:
                if task.done():
                    task.result()
            if writable.done() or may_be_read_only:
                break
            if looks == _LOOKS:
                raise ServerStartFailed(f"{bookie.bookie_id} takes no writes: it stays read-only: {bookie.output()}")
            await asyncio.wait({writable}, timeout=_SEEN_WITHIN_S)
            looks += 1
            if not writable.done():
                _check_disk(bookie)
    finally:
        for task in registered:
            task.cancel()
        await asyncio.wait(registered)
    if bookie.grpc_port is not None:
        await _listens(bookie.grpc_port)


async def _answers(bookie: BookieProcess) -> None:
    pool = ChannelPool(_resolver(bookie.port), ClientOptions(reconnect_delay=_RETRY_SECONDS, read_timeout=1.0))
    try:
        # It drops connections until its start is over, and gives no sign when that is.
        while isinstance(await _ask(pool, bookie.bookie_id), BookieUnavailable):  # noqa: ASYNC110
            await asyncio.sleep(_RETRY_SECONDS)
    finally:
        await pool.close()


def _check_disk(bookie: BookieProcess) -> None:
    """Raise `ServerStartFailed` if the bookie's disk is so full that it takes no writes."""
    disk = shutil.disk_usage(bookie.directory)
    used = 1 - disk.free / disk.total
    if used >= DisksConfig().usage_threshold:
        raise ServerStartFailed(
            f"{bookie.bookie_id} takes no writes: it started as read-only; {100 * used:.0f} % of the disk of"
            f" {bookie.directory} is used: free some space, or take another disk (--data, for a trial TMPDIR)"
        )


async def _registered(metadata: MetadataService, bookie: BookieProcess, group: BookieGroup) -> None:
    async with metadata.bookies.watch(group) as snapshots:
        async for snapshot in snapshots:
            if bookie.bookie_id in snapshot.bookies and await _address(metadata, bookie.bookie_id) == bookie.port:
                return


async def _address(metadata: MetadataService, bookie_id: str) -> int | None:
    try:
        address = (await metadata.bookies.service_info(bookie_id)).bookie_address()
    except MetadataNotFound:
        return None  # gone again: the watch tells more
    if address is None:
        raise MetadataDamaged(f"{bookie_id} is registered without an address")
    return address[1]


class _Answer(Request):
    """Resolves with None or the error, whatever the bookie answered."""

    __slots__ = ("outcome",)

    def __init__(self) -> None:
        self.outcome: asyncio.Future[PodkeeperError | None] = asyncio.get_running_loop().create_future()

    def answered(self, entry: bytes, max_lac: int | None) -> None:
        self.outcome.set_result(None)

    def failed(self, error: PodkeeperError) -> None:
        self.outcome.set_result(error)

    def describe(self) -> str:
        return "the first request"


async def _ask(pool: ChannelPool, bookie_id: str) -> PodkeeperError | None:
    answer = _Answer()
    key, frame = pool.dialect.read(1, 0, 0)
    pool.channel(bookie_id).send_read(frame, key, answer)
    return await answer.outcome


async def _listens(port: int) -> None:
    """Return once a server listens there; gRPC is loaded when the bookie serves already."""
    while True:
        try:
            _, writer = await asyncio.open_connection(LOOPBACK, port)
        except OSError:
            await asyncio.sleep(_RETRY_SECONDS)
        else:
            writer.close()
            return


def _resolver(port: int) -> Resolver:
    async def resolve(bookie_id: str) -> tuple[str, int]:
        return LOOPBACK, port

    return resolve
