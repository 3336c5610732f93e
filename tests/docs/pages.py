"""What pages name: commands, requests of the admin API, and functions of tests."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from msgspec.structs import fields

from bookie_pod.server.http.api.table import Operation, Resource
from tests.support.chart_files import ROOT

_INLINE = re.compile(r"`(bookie [a-z-][^`\n]*)`")
_BLOCK = re.compile(r"^ *```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
_INDENTED = re.compile(r"^    (bookie [a-z].*)$", re.MULTILINE)
_LINE = re.compile(r"^ *(?:\$ )?(?:[^│\n]*\| )?(bookie [a-z].*)$", re.MULTILINE)
_REST = re.compile(r"\s#|\s\[OPTIONS\]|\s?[|&>]|;(?:\s|$)|\s2>|\s?\.\.\.|\$\(|'\)")
"""What comes behind a command in a line of a shell, or stands for what is left out."""
_NO_COMMANDS = {"bookie client", "bookie disk rebuild-"}
"""The name of a thread, and the beginning of some commands' names."""


def commands(page: Path) -> list[str]:
    """Return the command lines of `bookie` in its text, its indented examples and its blocks for a shell."""
    text = page.read_text(encoding="utf-8")
    shell = [block for language, block in _BLOCK.findall(text) if language in ("", "sh", "bash", "console")]
    rest = _BLOCK.sub("", text)
    found = [
        *_INLINE.findall(rest),
        *_INDENTED.findall(rest),
        *(line for block in shell for line in _LINE.findall(block)),
    ]
    return [line for line in (_REST.split(each)[0] for each in found) if "|" not in line and line not in _NO_COMMANDS]


def operation_of(line: str, resources: Iterable[Resource]) -> Operation:
    """Return the operation that a line with `curl` asks for, which has to take the parameters that the line gives."""
    words = shlex.split(line)
    method = words[words.index("-X") + 1] if "-X" in words else "GET"
    url = urlsplit(next(word for word in words if word.startswith("http://")))
    (resource,) = (each for each in resources if each.path == url.path)
    operation = resource.operation(method)
    assert operation is not None
    parameters = fields(operation.route.query)
    required = {each.encode_name for each in parameters if each.required}
    assert required <= set(parse_qs(url.query)) <= {each.encode_name for each in parameters}
    return operation


def functions(path: str) -> frozenset[str]:
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    return frozenset(each.name for each in ast.walk(tree) if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef))
