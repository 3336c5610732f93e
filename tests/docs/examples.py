"""The code blocks of a Markdown page, and running them where a newcomer stands: see `Newcomer`.

    python   run in one namespace for the whole page; `await` may stand outside of functions
    console  `$ command` lines run in one shell for each block, their output in between
    text     what the python block before it prints

In what is expected `...` stands for anything.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import textwrap
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tests.support.installed import Installed
from tests.support.until import until_true

_FENCE = re.compile(r"^(?P<indent> *)```(?P<language>\w+)\n(?P<code>.*?)^(?P=indent)```$", re.MULTILINE | re.DOTALL)
_MARK = "--- end of output ---"


@dataclass(frozen=True)
class Block:
    """`line` in the page, for messages."""

    language: str
    code: str
    line: int


def blocks(page: Path) -> list[Block]:
    text = page.read_text()
    return [
        Block(found["language"], textwrap.dedent(found["code"]), text.count("\n", 0, found.start()) + 2)
        for found in _FENCE.finditer(text)
    ]


def matches(expected: str, actual: str) -> bool:
    pattern = ".*".join(re.escape(part) for part in expected.strip().split("..."))
    return re.fullmatch(pattern, actual.strip(), re.DOTALL) is not None


class Newcomer:
    """Runs the examples of one page in an environment with a wheel. Close it: it has a process."""

    def __init__(self, installed: Installed, folder: Path) -> None:
        self._installed = installed
        self.folder = folder
        self._errors = folder / "program.err"
        self._ran: set[tuple[Path, int]] = set()
        with self._errors.open("wb") as errors:
            self._program = subprocess.Popen(
                [installed.command("python"), str(Path(__file__).with_name("program.py"))],
                env=installed.variables(),
                cwd=folder,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
            )

    def run_python(self, code: str, page: str, line: int) -> str:
        """Run a block, and return what it printed."""
        assert self._program.stdin is not None
        assert self._program.stdout is not None
        self._program.stdin.write(json.dumps({"code": code, "page": page, "line": line}) + "\n")
        self._program.stdin.flush()
        try:
            answer = self._program.stdout.readline()
        except BaseException:  # the test's time-out
            self._program.send_signal(signal.SIGUSR1)
            until_true(lambda: "most recent call first" in self._errors.read_text(), 10)
            print(self._errors.read_text())
            raise
        assert answer, f"{page}:{line} ended the program: {self._errors.read_text()}"
        told = json.loads(answer)
        assert not told["error"], told["error"]
        return told["printed"]

    def run_console(self, code: str, variables: Mapping[str, str], seconds: float = 100) -> list[tuple[str, str, str]]:
        """Command, expected and actual output of each; both streams, as a terminal shows them. `variables` are what
        blocks before have set."""
        expected = commands(code)
        script = "".join(f"{command}echo '{_MARK}'\n" for command, _ in expected)
        done = subprocess.run(
            ["bash", "-c", script],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=seconds,
            check=False,
            cwd=self.folder,
            env={**self._installed.activated(), **variables},
        )
        outputs = done.stdout.split(f"{_MARK}\n")
        return [(command, output, actual) for (command, output), actual in zip(expected, outputs, strict=False)]

    def check(self, page: Path, number: int, replaced: Mapping[str, str], uri: str, seconds: float = 100) -> None:
        """Run a block of a page on the cluster at `uri`, and assert that it gives what the page says.

        What stands before it in the page runs first, unless it has: a block goes on with what those left.
        `replaced` maps texts of the page to those of this run. `seconds` is what a console block may take.
        """
        found = blocks(page)
        for earlier in range(number):
            if found[earlier].language in ("python", "console") and (page, earlier) not in self._ran:
                self.check(page, earlier, replaced, uri, seconds)
        self._ran.add((page, number))
        code = found[number].code
        for text, other in replaced.items():
            code = code.replace(text, other)
        line = found[number].line
        if found[number].language == "console":
            for command, expected, actual in self.run_console(code, {"BK_metadataServiceUri": uri}, seconds):
                assert matches(expected, actual), f"{page.name}:{line}: $ {command}{actual}"
            return
        printed = self.run_python(code, str(page), line)
        after = found[number + 1] if number + 1 < len(found) else None
        expected = after.code if after is not None and after.language == "text" else ""
        assert matches(expected, printed), f"{page.name}:{line} printed:\n{printed}"

    def close(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._program.pid, signal.SIGKILL)
        self._program.communicate()


def commands(code: str) -> list[tuple[str, str]]:
    """Each command with the output that follows it."""
    found: list[tuple[str, str]] = []
    for line in code.splitlines(keepends=True):
        if line.startswith("$ "):
            found.append((line[2:], ""))
        else:
            command, output = found[-1]
            found[-1] = (command, output + line)
    return found
