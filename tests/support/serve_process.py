"""`bookie serve` as a process, from the outside: its port, its exit code, what it says on standard error.

One embedded metadata service per bookie (a folder that the process owns), unless the settings name another one.
Whoever makes one kills it in the end (`with`).
"""

from __future__ import annotations

import errno
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.support import warm
from tests.support.bookie_process import free_port, loopback_configuration
from tests.support.frames import v2_read
from tests.support.hanging import hang
from tests.support.small_bookie import SMALL_BOOKIE
from tests.support.warm import WarmProcess

PROGRAM = str(Path(sys.executable).with_name("bookie"))
_LENGTH = struct.Struct(">I")
_POLL_S = 0.005
_END_S = 40.0


class ServeProcess:
    """Start, talk to, stop, kill, and start again."""

    def __init__(self, work: Path, settings: Mapping[str, str] | None = None) -> None:
        self.work = work
        self.settings = {
            **loopback_configuration(work, f"file://{work}/metadata", free_port()),
            **SMALL_BOOKIE,
            **(settings or {}),
        }
        self.program = [warm.BOOKIE]
        """What is started, before its other arguments: a function in a warm process, or a command."""
        self.process: subprocess.Popen[bytes] | WarmProcess | None = None
        self._starts = 0
        self._make_cluster()

    def _make_cluster(self) -> None:
        self.work.mkdir(parents=True, exist_ok=True)
        uri = self.settings["metadataServiceUri"]
        if uri.startswith("file:"):
            self.command("cluster", "init", uri)

    @staticmethod
    def command(*arguments: str) -> subprocess.CompletedProcess[str]:
        """Run `bookie <arguments>` to its end."""
        done = warm.run(warm.BOOKIE, arguments, _END_S)
        return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())

    @property
    def port(self) -> int:
        return int(self.settings["bookiePort"])

    @property
    def log(self) -> Path:
        """Standard error of the last start."""
        return self.work / f"stderr.{self._starts}"

    def launch(self) -> None:
        """Start the process, and wait for nothing."""
        self._starts += 1
        file = self.work / "bookie.conf"
        file.write_text("".join(f"{key}={value}\n" for key, value in self.settings.items()))
        program, *arguments = [*self.program, "serve", "--config", str(file)]
        with self.log.open("wb") as errors:
            if ":" in program:
                self.process = WarmProcess(program, arguments, stderr=errors)
            else:
                self.process = subprocess.Popen(
                    [program, *arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=errors,
                    start_new_session=True,
                )

    def start(self) -> None:
        """Start it and wait until it serves."""
        self.launch()
        deadline = time.monotonic() + _END_S
        while not self.is_up():
            if self._running().poll() is not None:
                raise AssertionError(f"the bookie ended with {self._running().returncode}: {self.lines()}")
            assert time.monotonic() < deadline, f"the bookie does not serve: {self.log.read_text()[-2000:]}"
            time.sleep(_POLL_S)

    def is_up(self) -> bool:
        """True if it is registered, and requests are answered, which begins a little before that."""
        return self.serves() and self.logged("bookie serves")

    def serves(self) -> bool:
        """True if a request is answered."""
        try:
            with SyncClient(self.port, timeout=2) as client:
                client.ask(v2_read(2**40, 0))
        except (OSError, EOFError):
            return False
        return True

    def kill(self) -> None:
        """As a crash would."""
        process = self._running()
        process.send_signal(signal.SIGKILL)
        process.wait(_END_S)
        self.process = None

    def pause(self) -> None:
        """As a machine that hangs."""
        hang(self._running().pid)

    def resume(self) -> None:
        self._running().send_signal(signal.SIGCONT)

    def stop(self) -> int:
        """SIGTERM; returns the exit code."""
        self._running().send_signal(signal.SIGTERM)
        return self.ended()

    def ended(self) -> int:
        """Wait for the end of the process; returns its exit code."""
        process = self._running()
        try:
            code = process.wait(_END_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the bookie does not end: {self.log.read_text()[-2000:]}") from None
        self.process = None
        return code

    def refused(self) -> tuple[int, str]:
        """Start it where it must not start; its exit code and the one line that says why."""
        self.launch()
        code = self.ended()
        lines = self.lines()
        assert len(lines) == 1, self.log.read_text()
        assert "Traceback" not in self.log.read_text()
        return code, lines[0]

    def lines(self) -> list[str]:
        """What it said to a person: its lines on standard error that are no log records."""
        return [line for line in self.log.read_text().splitlines() if line and not line.startswith("{")]

    def logged(self, event: str) -> bool:
        return f'"event": "{event}"' in self.log.read_text()

    def _running(self) -> subprocess.Popen[bytes] | WarmProcess:
        assert self.process is not None, "the bookie is not running"
        return self.process

    def __enter__(self) -> ServeProcess:
        return self

    def __exit__(self, *exc: object) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait(_END_S)


class SyncClient:
    """Frames over one blocking connection."""

    def __init__(self, port: int, timeout: float = 20.0) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=timeout)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, *frames: bytes) -> None:
        self._socket.sendall(b"".join(frames))

    def frame(self) -> bytes:
        """The next frame, length word included; EOFError if the connection is closed."""
        head = self._exactly(4)
        return head + self._exactly(_LENGTH.unpack(head)[0])

    def ask(self, *frames: bytes) -> bytes:
        self.send(*frames)
        return self.frame()

    def _exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            piece = self._socket.recv(size - len(data))
            if not piece:
                raise EOFError("the bookie closed the connection")
            data += piece
        return bytes(data)

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> SyncClient:
        return self

    def __exit__(self, *exc: Any) -> None:
        self.close()


class SmallDisk:
    """A file system of a few MB in memory. Needs root, or a user namespace of one's own (`unshare -rm make ...`)."""

    def __init__(self, path: Path, megabytes: int) -> None:
        self.path = path
        path.mkdir(parents=True, exist_ok=True)
        self._mount("-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(path))

    def fill(self, *, leave: int = 0, at: Path | None = None) -> Path:
        """Take all space but `leave` bytes with one file; remove it to have the space back."""
        ballast = at or self.path / "ballast"
        with ballast.open("wb") as out:
            for tries_left in reversed(range(20)):  # a bookie may take some of the space at that very moment
                space = os.statvfs(self.path)
                try:
                    os.posix_fallocate(out.fileno(), 0, max(1, space.f_bavail * space.f_frsize - leave))
                    break
                except OSError as error:
                    if error.errno != errno.ENOSPC or not tries_left:
                        raise
        return ballast

    def remount(self, mode: str) -> None:
        """`ro` or `rw`. Fails while a file is open for writing."""
        self._mount("-o", f"remount,{mode}", str(self.path))

    def close(self) -> None:
        subprocess.run(["umount", "-l", str(self.path)], check=True, capture_output=True)

    @staticmethod
    def _mount(*arguments: str) -> None:
        done = subprocess.run(["mount", *arguments], check=False, capture_output=True, text=True)
        if done.returncode:
            raise OSError(f"mount {' '.join(arguments)}: {done.stderr.strip()}; full disks need somebody who may mount")

    def __enter__(self) -> SmallDisk:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
