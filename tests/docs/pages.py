"""What pages name: commands, and functions of tests."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from tests.support.chart_files import ROOT

_INLINE = re.compile(r"`(bookie [a-z-][^`\n]*)`")
_BLOCK = re.compile(r"^ *```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
_LINE = re.compile(r"^ *(?:\$ )?(?:[^│\n]*\| )?(bookie [a-z].*)$", re.MULTILINE)
_REST = re.compile(r"\s#|\s?[|&>]|;(?:\s|$)|\s2>|\s?\.\.\.|\$\(|'\)")
"""What comes behind a command in a line of a shell, or stands for what is left out."""
_NO_COMMANDS = {"bookie client", "bookie disk rebuild-"}
"""The name of a thread, and the beginning of some commands' names."""


def commands(page: Path) -> list[str]:
    text = page.read_text(encoding="utf-8")
    shell = [block for language, block in _BLOCK.findall(text) if language in ("", "sh", "bash", "console")]
    found = [*_INLINE.findall(_BLOCK.sub("", text)), *(line for block in shell for line in _LINE.findall(block))]
    return [line for line in (_REST.split(each)[0] for each in found) if "|" not in line and line not in _NO_COMMANDS]


def functions(path: str) -> frozenset[str]:
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    return frozenset(each.name for each in ast.walk(tree) if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef))
