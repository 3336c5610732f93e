"""No module of the storage touches files but through the seam."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import bookie_pod.storage

ROOT = Path(bookie_pod.storage.__path__[0])
THE_SEAM = ROOT / "files_posix.py"

PURE_OS_NAMES = {"path", "strerror", "fspath", "fsencode", "fsdecode", "urandom", "getpid", "cpu_count", "sep"}
PURE_PATH_NAMES = {"join", "dirname", "basename", "normpath", "split", "splitext", "commonpath", "relpath", "isabs"}
FILE_MODULES = {"shutil", "tempfile", "pathlib", "glob", "fileinput", "fcntl", "io", "aiofiles"}


def offences(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] in FILE_MODULES:
                    yield node.lineno, f"import {alias.name}"
        elif isinstance(node, ast.ImportFrom) and not allowed_from(node):
            yield node.lineno, f"from {node.module} import …"
        elif isinstance(node, ast.Name) and node.id == "open":
            yield node.lineno, "open"
        elif isinstance(node, ast.Call) and names(node.func) == ["mmap", "mmap"]:
            if not node.args or ast.unparse(node.args[0]) != "-1":  # anonymous memory is no file
                yield node.lineno, "mmap of a file"
        elif isinstance(node, ast.Attribute) and not allowed_attribute(names(node)):
            yield node.lineno, ast.unparse(node)


def names(node: ast.expr) -> list[str]:
    """Of `os.path.join` the three; nothing of what does not begin with a name."""
    if isinstance(node, ast.Attribute):
        before = names(node.value)
        return [*before, node.attr] if before else []
    return [node.id] if isinstance(node, ast.Name) else []


def allowed_attribute(chain: list[str]) -> bool:
    if not chain:
        return True
    if chain[0] == "posixpath":
        return chain[1] in PURE_PATH_NAMES
    if chain[0] != "os":
        return True
    if chain[1] == "path" and len(chain) > 2:
        return chain[2] in PURE_PATH_NAMES
    return chain[1] in PURE_OS_NAMES


def allowed_from(node: ast.ImportFrom) -> bool:
    module = (node.module or "").split(".")[0]
    if module in ("os", "posixpath"):
        allowed = PURE_OS_NAMES if node.module == "os" else PURE_PATH_NAMES
        return {alias.name for alias in node.names} <= allowed
    return module not in FILE_MODULES


def test_only_the_seam_touches_files() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {what}"
        for path in sorted(ROOT.rglob("*.py"))
        if path != THE_SEAM
        for line, what in offences(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert found == []


def test_the_search_finds_what_it_looks_for() -> None:
    assert list(offences(ast.parse(THE_SEAM.read_text(encoding="utf-8"))))
    for source in (
        "open('x')",
        "import os\nos.rename('a', 'b')",
        "import os\nf = os.fsync",
        "import os.path\nos.path.exists('x')",
        "from os import unlink",
        "from os.path import getsize",
        "from pathlib import Path",
        "import shutil",
        "import mmap\nmmap.mmap(fd, 4096)",
    ):
        assert list(offences(ast.parse(source))), source
    for source in ("import os\nos.path.join('a', 'b')", "import os\nos.strerror(5)", "files.open('x')"):
        assert not list(offences(ast.parse(source))), source
