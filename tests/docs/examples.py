"""The code blocks of a Markdown page, and running them.

    python   run in one namespace for the whole page; `await` may stand outside of functions
    console  `$ command` lines run in one shell for each block, their output in between
    text     what the python block before it prints

In what is expected `...` stands for anything.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import io
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path

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


async def run_python(code: str, page: str, line: int, namespace: dict) -> str:
    """Run a block, and return what it printed."""
    printed = io.StringIO()
    tree = compile("\n" * (line - 1) + code, page, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    with redirect_stdout(printed):
        if tree.co_flags & inspect.CO_COROUTINE:
            await eval(tree, namespace)
        else:
            await asyncio.to_thread(exec, tree, namespace)
    return printed.getvalue()


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


def run_console(code: str, variables: dict[str, str], seconds: float = 100) -> list[tuple[str, str, str]]:
    """Command, expected and actual output of each; both streams, as a terminal shows them. `variables` are what blocks
    before have set."""
    expected = commands(code)
    script = "".join(f"{command}echo '{_MARK}'\n" for command, _ in expected)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", script],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=seconds,
        check=False,
        env={**os.environ, **variables, "PATH": path},
    )
    outputs = done.stdout.split(f"{_MARK}\n")
    return [(command, output, actual) for (command, output), actual in zip(expected, outputs, strict=False)]


async def check_example(
    page: Path, number: int, replaced: Mapping[str, str], uri: str, namespace: dict, seconds: float = 100
) -> None:
    """Run a block of a page, on the cluster at `uri`, and assert that it gives what the page says. `replaced`: texts of
    the page that stand for others here. `seconds`: what a console block may take."""
    found = blocks(page)
    code = found[number].code
    for text, other in replaced.items():
        code = code.replace(text, other)
    line = found[number].line
    if found[number].language == "console":
        for command, expected, actual in run_console(code, {"BK_metadataServiceUri": uri}, seconds):
            assert matches(expected, actual), f"{page.name}:{line}: $ {command}{actual}"
        return
    printed = await run_python(code, str(page), line, namespace)
    after = found[number + 1] if number + 1 < len(found) else None
    expected = after.code if after is not None and after.language == "text" else ""
    assert matches(expected, printed), f"{page.name}:{line} printed:\n{printed}"
