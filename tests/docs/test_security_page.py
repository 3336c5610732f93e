"""docs/security.md from its first command to its last, on ports of its own; and the keys that it names."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from bookie_pod.config.model import all_keys
from tests.docs.examples import Newcomer, blocks
from tests.support.bookie_process import free_port

PAGE = Path(__file__).parents[2] / "docs" / "security.md"
FILES = iter(("bookie.conf", "client.conf"))
BLOCKS = [(number, block) for number, block in enumerate(blocks(PAGE)) if block.language != "yaml"]


@pytest.fixture(scope="module")
def folder(newcomer: Newcomer) -> Iterator[Path]:
    """Of the whole page; what still runs there at the end is stopped."""
    yield newcomer.folder
    for file in newcomer.folder.glob("*.pid"):
        with suppress(ProcessLookupError):
            os.kill(int(file.read_text()), signal.SIGKILL)


@pytest.fixture(scope="module")
def ports() -> dict[str, str]:
    return {port: str(free_port()) for port in ("3181", "8000", "3182", "2281")}


@pytest.mark.timeout(300)
def test_the_page(folder: Path, ports: dict[str, str], newcomer: Newcomer) -> None:
    for number, block in BLOCKS:
        if block.language == "properties":
            text = block.code
            for port, other in ports.items():
                text = text.replace(port, other)
            (folder / next(FILES)).write_text(text)
        elif block.language != "text":
            newcomer.check(PAGE, number, ports, f"embedded://127.0.0.1:{ports['2281']}/ledgers", 200)


def test_every_key_exists() -> None:
    text = PAGE.read_text()
    named = {line.partition("=")[0] for _, block in BLOCKS if block.language == "properties"
             for line in block.code.splitlines() if not line.startswith("#")}  # fmt: skip
    named |= set(re.findall(r"`((?:tls|http|grpc|zk|audit|allow)[a-z]*[A-Z]\w+)(?:=\w+)?`", text))
    named |= set(re.findall(r"^    ((?:tls)\w+): \"", text, re.MULTILINE))
    assert len(named) > 30
    assert named - set(all_keys()) == set()
