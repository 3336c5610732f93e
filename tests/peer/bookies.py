"""Starts, stops and pauses bookies of ours for a JVM that asks over a socket: one line of words, one line back.

    start FILE      -> serves PID | ended WHY
    stop PID        -> CODE         (as an operator would: it flushes and signs off)
    code PID        -> CODE | none
    pause PID       -> done         (as `suspendProcessing`: it is registered, and answers nobody)
    resume PID      -> done
    port            -> a free one

A server has threads of its own; whoever makes one closes it, which ends all bookies that are left.
"""

from __future__ import annotations

import json
import signal
import socketserver
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from tests.peer.logins import declare
from tests.support.bookie_process import free_port
from tests.support.hanging import hang
from tests.support.small_bookie import SMALL_BOOKIE
from tests.support.warm import WarmProcess

_PROGRAM = "tests.peer.logins:main"
_START_S = 60
_STOP_S = 60
_POLL_S = 0.01
_SERVES = '"event": "bookie serves"'

_OURS = {
    **SMALL_BOOKIE,
    "grpcServerEnabled": "false",
}
"""Set for every bookie, whatever the test says."""


class Bookies:
    """`folder`: their configurations, as the JVM writes them, and their logs."""

    def __init__(self, folder: Path) -> None:
        declare(folder)
        self._processes: dict[str, WarmProcess] = {}
        self._words: dict[str, Callable[..., str]] = {
            "start": self._start,
            "stop": self._stop,
            "code": self._code,
            "pause": self._pause,
            "resume": self._resume,
            "port": lambda: str(free_port()),
        }
        answer = self._answer

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                words = self.rfile.readline().decode().rstrip("\n").split("\t")
                self.wfile.write(answer(words).encode() + b"\n")

        class Server(socketserver.ThreadingTCPServer):
            daemon_threads = True
            request_queue_size = 64

        self._server = Server(("127.0.0.1", 0), Handler)
        self.port: int = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, name="bookies", daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        for process in list(self._processes.values()):
            process.kill()
            process.wait(_STOP_S)

    def _answer(self, words: list[str]) -> str:
        return self._words[words[0]](*words[1:])

    def _start(self, file: str) -> str:
        path = Path(file)
        settings = dict(line.split("=", 1) for line in path.read_text().splitlines()) | _OURS
        # A test that suspends a bookie suspends its requests only: its session lives on.
        settings.setdefault("zkTimeout", "60000")
        # Apache's default is not ours, and a test may open the disks of a bookie that it has stopped with one of Java.
        settings.setdefault("ledgerStorageClass", "org.apache.bookkeeper.bookie.SortedLedgerStorage")
        # Only a start of the whole server checks that these two go together, which Apache's tests do not do.
        settings.setdefault(
            "fileInfoFormatVersionToWrite", "01"[int(settings.get("journalFormatVersionToWrite", 6)) > 5]
        )
        path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        log = path.with_suffix(".log")
        with log.open("wb") as errors:
            process = WarmProcess(_PROGRAM, ["serve", "--config", file], stderr=errors)
        self._processes[str(process.pid)] = process
        deadline = time.monotonic() + _START_S
        while _SERVES not in log.read_text():
            if process.poll() is not None:
                return f"ended\t{_why(log)}"
            if time.monotonic() > deadline:
                process.kill()
                return f"ended\tit does not serve within {_START_S} s: {log}"
            time.sleep(_POLL_S)
        return f"serves\t{process.pid}"

    def _stop(self, pid: str) -> str:
        process = self._processes[pid]
        process.send_signal(signal.SIGCONT)
        process.terminate()
        try:
            return str(process.wait(_STOP_S))
        except subprocess.TimeoutExpired:
            process.kill()
            return str(process.wait(_STOP_S))

    def _code(self, pid: str) -> str:
        code = self._processes[pid].poll()
        return "none" if code is None else str(code)

    def _pause(self, pid: str) -> str:
        if self._processes[pid].poll() is None:
            hang(int(pid))
        return "done"

    def _resume(self, pid: str) -> str:
        self._processes[pid].send_signal(signal.SIGCONT)
        return "done"


def _why(log: Path) -> str:
    """What a bookie that would not start said to a person."""
    lines = [line for line in log.read_text().splitlines() if line]
    told = [line for line in lines if not line.startswith("{")]
    with suppress(ValueError, IndexError):
        told = told or [json.loads(lines[-1])["event"]]
    return " ".join(told).replace("\t", " ") or f"nothing: {log}"
