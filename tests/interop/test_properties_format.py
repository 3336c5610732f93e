"""Our reader of properties files against Java's own."""

from __future__ import annotations

import random
import subprocess
from pathlib import Path

import pytest

from bookie_protocol.java_properties import MalformedPropertiesError, parse
from tests.support.java import find_java

PROGRAM = Path(__file__).with_name("PropertiesDump.java")
STOCK_STYLE = Path(__file__).parents[1] / "unit" / "bookie_pod" / "config" / "data" / "bk_server.conf"
ALPHABET = ["a", "b", "=", ":", " ", "\t", "\f", "\\", "\\", "#", "!", "\r", "\n", "\n", "u", "0041", ",", "\u00e9"]


def read_by_us(text: str) -> dict[str, str] | None:
    try:
        return {pair.key: pair.value for pair in parse(text)}  # the last one wins, as in Java
    except MalformedPropertiesError:
        return None


def read_by_java(files: list[Path]) -> list[dict[str, str] | None]:
    command = [find_java(), "-Dstdout.encoding=UTF-8", str(PROGRAM), *map(str, files)]
    output = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    return [_pairs(line) for line in output.splitlines()]


def _pairs(line: str) -> dict[str, str] | None:
    if line == "refused":
        return None
    texts = (pair.split("=") for pair in line.split()[1:])
    return {bytes.fromhex(key).decode(): bytes.fromhex(value).decode() for key, value in texts}


@pytest.mark.interop
def test_java_reads_the_same_pairs(tmp_path: Path) -> None:
    generator = random.Random(20)
    texts = [STOCK_STYLE.read_text()]
    # Each ends in an ordinary pair: Java takes a lone backslash at the end of a file for an empty pair.
    texts += ["".join(generator.choices(ALPHABET, k=generator.randrange(60))) + "\n\nz=1\n" for _ in range(3000)]
    files = []
    for number, text in enumerate(texts):
        files.append(tmp_path / str(number))
        files[-1].write_bytes(text.encode())
    by_java = read_by_java(files)
    assert len(by_java) == len(texts)
    for text, expected in zip(texts, by_java, strict=True):
        assert read_by_us(text) == expected, repr(text)
    assert sum(expected is None for expected in by_java) > 10
