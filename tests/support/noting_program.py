"""A program of the tests in a process of its own, to be killed and stopped, that notes in a file what happens to it.

The file has a line for each thing that happened, written without a buffer (`note_to`): what a line says is true however
the process ends.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Self

from tests.support.hanging import hang
from tests.support.until import until_true
from tests.support.warm import WarmProcess


def note_to(file: str) -> Callable[..., None]:
    """For the program: a function that notes words."""
    out = os.open(file, os.O_WRONLY | os.O_APPEND)

    def note(*words: object) -> None:
        os.write(out, (" ".join(map(str, words)) + "\n").encode())

    return note


class NotingProgram:
    """The running program, which is `main` of a module with these arguments; a context manager that kills it."""

    def __init__(self, module: str, file: Path, arguments: tuple[object, ...]) -> None:
        self._file = file
        file.touch()
        with file.with_suffix(".out").open("wb") as output:
            self.process = WarmProcess(f"{module}:main", [*map(str, arguments)], stdout=output, stderr=output)

    def lines(self) -> list[list[str]]:
        """What it noted so far, words by line; without a line that is not complete yet."""
        return [line.split() for line in self._file.read_text().rpartition("\n")[0].splitlines()]

    def noted(self, what: str) -> list[list[str]]:
        """The words behind `what` of all such lines."""
        return [words[1:] for words in self.lines() if words[0] == what]

    def wait_for(self, what: str, count: int = 1, seconds: float = 60.0) -> list[list[str]]:
        """Wait until it noted so many of these."""

        def there() -> bool:
            ended = self.process.poll() is not None
            found = len(self.noted(what)) >= count
            assert found or not ended, self._file.with_suffix(".out").read_text()
            return found

        until_true(there, seconds)
        return self.noted(what)

    def acknowledged(self) -> list[int]:
        """The numbers of what was acknowledged, in the order of the acknowledgements."""
        return [int(words[0]) for words in self.noted("acknowledged")]

    def pause(self) -> None:
        hang(self.process.pid)

    def resume(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.kill()
