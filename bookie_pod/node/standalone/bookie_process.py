"""One bookie of a standalone cluster, in a process of its own.

Invariants
- A child inherits no pipe and no terminal: input is /dev/null, output a file in the bookie's directory. It has a
  session of its own, and on Linux it ends when this process does, however it ends.
- A process is signalled by its handle alone.

Threads: event loop only.
"""

from __future__ import annotations

import asyncio
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

STOP_SECONDS: Final = 20.0
_TAIL_BYTES: Final = 3000
_TO_PEOPLE: Final = "bookie: "
"""What a line begins with that says why a bookie did not start."""

_CHILD: Final = """\
import ctypes, os, signal, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
    if os.getppid() != int(sys.argv[1]):
        sys.exit("the process that started this bookie has ended")
from bookie_pod.cli.main import main
main(sys.argv[2:])
"""


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
            env=_child_environment(),
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
        """What it printed last to people; the last lines of its log if that is nothing."""
        with self.log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
            tail = file.read().decode(errors="replace").strip()
        last = tail.splitlines()[-1:]
        return last[0] if last and last[0].startswith(_TO_PEOPLE) else tail

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
    """Where the output of the bookie in this directory goes."""
    return directory / "bookie.log"


def _child_environment() -> dict[str, str]:
    """Without keys of the configuration: what a user sets for clients would win over the bookies' own files."""
    return {name: value for name, value in os.environ.items() if not name.startswith("BK_") and name != "BOOKIE_CONF"}
