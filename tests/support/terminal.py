"""A `bookie` command whose standard error is a terminal, and what it drew there."""

from __future__ import annotations

import os
import pty
import tempfile
import threading
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tests.support.warm import BOOKIE, WarmProcess


class Drawn(NamedTuple):
    """Exit code, standard output, and all bytes that reached the terminal."""

    code: int
    output: bytes
    terminal: bytes


def run_on_terminal(arguments: Sequence[str], environment: Mapping[str, str], timeout: float = 60.0) -> Drawn:
    """Run `bookie` with them to its end; `timeout` in seconds. Its standard output is a file."""
    ours, theirs = pty.openpty()
    drawn: list[bytes] = []
    reader = threading.Thread(target=_read_all, args=(ours, drawn))
    try:
        with tempfile.TemporaryFile() as output:
            process = WarmProcess(BOOKIE, arguments, stdout=output, stderr=theirs, env={**environment, "TERM": "xterm"})
            os.close(theirs)
            reader.start()
            try:
                code = process.wait(timeout)
            except BaseException:
                process.kill()
                raise
            output.seek(0)
            reader.join(timeout)
            return Drawn(code, output.read(), b"".join(drawn))
    finally:
        os.close(ours)


def _read_all(terminal: int, drawn: list[bytes]) -> None:
    try:
        while data := os.read(terminal, 65536):
            drawn.append(data)
    except OSError:
        return  # Linux tells the end of the other side so
