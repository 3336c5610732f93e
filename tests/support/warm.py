"""Our programs without the price of Python's start and of their imports: forks of a process that has imported them.

What a test starts with `WarmProcess` or `run` is a process in a session of its own, which is killed, paused and waited
for as any other, and runs what the installed command runs. Tests of the start itself, and of a command's imports, start
the command. One warm parent of a kind serves a process of the tests; it ends with it, and what it started ends with it.

    process = WarmProcess("bookie_pod.cli.main:main", ["serve", "--config", file], stderr=file)
    done = run("bookie_pod.cli.main:main", ["cluster", "init", uri])

One thread at a time uses a `WarmProcess`; any thread may start one.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import importlib
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

BOOKIE = "bookie_pod.cli.main:main"
_IMPORTED = (
    "bookie_pod.cli.main",
    "bookie_pod.config.load",
    "bookie_pod.node.processes.bookie",
    "bookie_pod.node.processes.auto_recovery",
    "bookie_pod.node.processes.metadata_service",
    "bookie_pod.server.http.server",
    "bookie_pod.server.grpc.server",
    "bookie_pod.gateway.service",
    "bookie_pod.cli.tables",
    "bookie_pod.cli.progress",
    "bookie_client",
    "bookie_client.streams",
    "bookie_protocol.metadata_service.embedded.server",
    "bookie_protocol.metadata_service.zookeeper.driver",
)
_WORD = struct.Struct(">i")
_LOOK_S = 0.01
"""Between two looks whether a child has ended."""


class WarmProcess:
    """As `subprocess.Popen`, as far as tests ask. `program`: a module and its function, which has the arguments."""

    def __init__(
        self,
        program: str,
        arguments: Sequence[str],
        *,
        stdin: IO[bytes] | int = subprocess.DEVNULL,
        stdout: IO[bytes] | int = subprocess.DEVNULL,
        stderr: IO[bytes] | int = subprocess.DEVNULL,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.returncode: int | None = None
        environment = dict(os.environ if env is None else env)
        request = json.dumps([program, list(arguments), environment, os.getcwd()]).encode()
        with Path(os.devnull).open("r+b") as nothing:
            given = (nothing if file == subprocess.DEVNULL else file for file in (stdin, stdout, stderr))
            self._parent = warm_parent(_IMPORTED).connect()
            files = [file if isinstance(file, int) else file.fileno() for file in given]
            socket.send_fds(self._parent, [_WORD.pack(len(request))], files)
            self._parent.sendall(request)
        self.pid: int = _WORD.unpack(_exactly(self._parent, _WORD.size))[0]

    def poll(self) -> int | None:
        return self._told(0)

    def wait(self, timeout: float | None = None) -> int:
        code = self._told(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(f"the warm process {self.pid}", timeout or 0.0)
        return code

    def _told(self, timeout: float | None) -> int | None:
        if self.returncode is None and select.select([self._parent], [], [], timeout)[0]:
            self.returncode = _WORD.unpack(_exactly(self._parent, _WORD.size))[0]
            self._parent.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def run(
    program: str, arguments: Sequence[str], timeout: float, *, given: bytes = b"", env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[bytes]:
    """As `subprocess.run`, with what it prints. `given`: what it reads."""
    with tempfile.TemporaryFile() as entered, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        entered.write(given)
        entered.seek(0)
        process = WarmProcess(program, arguments, stdin=entered, stdout=out, stderr=err, env=env)
        try:
            code = process.wait(timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        return subprocess.CompletedProcess([program, *arguments], code, _content(out), _content(err))


class WarmChild:
    """As `asyncio.subprocess.Process`, as far as tests ask. `files`: those of its outputs, for `communicate`."""

    def __init__(self, process: WarmProcess, *files: IO[bytes]) -> None:
        self._process = process
        self._files = files
        self.pid = process.pid
        self.send_signal, self.terminate, self.kill = process.send_signal, process.terminate, process.kill

    @property
    def returncode(self) -> int | None:
        return self._process.poll()

    async def wait(self) -> int:
        while (code := self._process.poll()) is None:  # noqa: ASYNC110 - it is nobody's child here
            await asyncio.sleep(_LOOK_S)
        return code

    async def communicate(self) -> list[bytes]:
        await self.wait()
        found = [_content(file) for file in self._files]
        for file in self._files:
            file.close()
        return found


async def start(program: str, arguments: Sequence[str]) -> WarmChild:
    """As `asyncio.create_subprocess_exec`, with pipes."""
    out, err = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115 - `communicate` closes them
    return WarmChild(WarmProcess(program, arguments, stdout=out, stderr=err), out, err)


async def start_bookie(configuration: Path, output: Path) -> WarmChild:
    """Stands for the `start_child` of `bookie_pod.node.standalone.cluster`."""
    from bookie_pod.node.standalone.bookie_process import child_environment

    words, environment = ["serve", "--config", str(configuration)], child_environment()
    with output.open("ab") as file:
        return WarmChild(WarmProcess(BOOKIE, words, stdout=file, stderr=file, env=environment))


def _content(file: IO[bytes]) -> bytes:
    file.seek(0)
    return file.read()


class WarmParent:
    """A process that has imported what its forks need, and forks when it is asked: it listens at `path`."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def folder(self) -> Path:
        """Ends with whoever started the parent."""
        return self.path.parent

    def connect(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(str(self.path))
        return connection


class _Started(WarmParent):
    """It ends when this process does."""

    def __init__(self, imported: Sequence[str], variables: Mapping[str, str]) -> None:
        self._made = tempfile.TemporaryDirectory(prefix="warm-")
        super().__init__(Path(self._made.name) / "parent")
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(self.path))
            listener.listen(64)
            # It ends when its standard input does, which is when this process has ended, however that was.
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(listener.fileno()), *imported],
                stdin=subprocess.PIPE,
                pass_fds=[listener.fileno()],
                cwd=Path(__file__).parents[2],
                # NumPy starts no threads, which a fork would lose.
                env={**os.environ, "OPENBLAS_NUM_THREADS": "1", **variables},
                start_new_session=True,
            )


_making = threading.Lock()
_parents: dict[tuple[str, ...], WarmParent] = {}


def warm_parent(imported: Sequence[str], **variables: str) -> WarmParent:
    """The parent that has imported these modules; the first call starts it, with these variables of its environment."""
    key = tuple(imported)
    with _making:
        if key not in _parents:
            _parents[key] = _Started(key, variables)
        return _parents[key]


def parent_of_bookies() -> Path:
    """Where the parent of bookies and commands listens."""
    return warm_parent(_IMPORTED).path


def share_parent_of_bookies(path: Path) -> None:
    """What this process starts is forked by the parent of another one, which it is a fork of itself."""
    _parents[_IMPORTED] = WarmParent(path)


def _exactly(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = connection.recv(size - len(data))
        if not piece:
            raise EOFError("the warm parent has ended")
        data += piece
    return data


# -- the parent


class _Parent:
    """Forks when it is asked, and tells of each child how it ended. `serve` returns in a child, with its request."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._children: dict[int, socket.socket] = {}
        self._awake, self._wake = socket.socketpair()
        self._wake.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wake.fileno())

    def serve(self) -> list[Any]:
        while True:
            ready = select.select([self._listener, self._awake, sys.stdin], [], [])[0]
            if sys.stdin in ready:
                for pid in self._children:
                    os.kill(pid, signal.SIGKILL)
                sys.exit()
            if self._awake in ready:
                self._awake.recv(4096)
                self._reap()
            if self._listener in ready:
                asked = self._take(self._listener.accept()[0])
                if asked is not None:
                    return asked

    def _take(self, connection: socket.socket) -> list[Any] | None:
        """Fork; what is asked for in the child, nothing in the parent."""
        word, files, _, _ = socket.recv_fds(connection, _WORD.size, 3)
        request = json.loads(_exactly(connection, _WORD.unpack(word)[0]))
        pid = os.fork()
        if pid == 0:
            self._leave(connection, files)
            return list(request)
        for file in files:
            os.close(file)
        self._children[pid] = connection
        connection.sendall(_WORD.pack(pid))
        return None

    def _reap(self) -> None:
        while self._children:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            with self._children.pop(pid) as connection, contextlib.suppress(OSError):  # nobody may wait for it
                connection.sendall(_WORD.pack(os.waitstatus_to_exitcode(status)))

    def _leave(self, connection: socket.socket, files: list[int]) -> None:
        """The child becomes a process of its own, with nothing of its parent's but what is imported."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for mine in (self._listener, self._awake, self._wake, connection, *self._children.values()):
            mine.close()
        os.setsid()
        for number, file in enumerate(files):
            os.dup2(file, number)
            os.close(file)


def main() -> None:
    for module in sys.argv[2:]:
        importlib.import_module(module)
    threads = os.listdir("/proc/self/task")
    assert len(threads) == 1, f"a fork would lose the threads that imports have started: {threads}"
    gc.collect()
    gc.freeze()
    program, arguments, environment, folder = _Parent(socket.socket(fileno=int(sys.argv[1]))).serve()
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.argv = [program, *arguments]
    module, _, function = program.partition(":")
    sys.exit(getattr(importlib.import_module(module), function)(arguments))


if __name__ == "__main__":
    main()
