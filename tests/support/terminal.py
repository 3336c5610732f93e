"""A command whose standard error is a terminal, and what it drew there."""

from __future__ import annotations

import os
import pty
import subprocess
import threading
from collections.abc import Mapping, Sequence
from typing import NamedTuple


class Drawn(NamedTuple):
    """Exit code, standard output, and all bytes that reached the terminal."""

    code: int
    output: bytes
    terminal: bytes


def run_on_terminal(command: Sequence[str], environment: Mapping[str, str], timeout: float = 60.0) -> Drawn:
    """Run it to its end; `timeout` in seconds. Its standard output is a pipe, as when it feeds another command."""
    ours, theirs = pty.openpty()
    drawn: list[bytes] = []
    reader = threading.Thread(target=_read_all, args=(ours, drawn))
    try:
        with subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=theirs,
            env={**environment, "TERM": "xterm"},
        ) as process:
            os.close(theirs)
            reader.start()
            try:
                output, _ = process.communicate(timeout=timeout)
            except BaseException:
                process.kill()
                raise
        reader.join(timeout)
    finally:
        os.close(ours)
    return Drawn(process.returncode, output, b"".join(drawn))


def _read_all(terminal: int, drawn: list[bytes]) -> None:
    try:
        while data := os.read(terminal, 65536):
            drawn.append(data)
    except OSError:
        return  # Linux tells the end of the other side so
