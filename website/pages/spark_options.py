"""`docs/reference/spark-options.md`: every option of Spark's source and sink.

Names and defaults are those of the code, meanings those of the tables in the two pages about Spark.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import Field, fields
from enum import Enum
from pathlib import Path
from typing import Any, Final

from pyspark_bookie.common.options import option_names, other_names
from pyspark_bookie.sink.options import SinkOptions
from pyspark_bookie.source.options import SourceOptions, StreamingOptions
from website.pages.text import code, heading, table

_DOCS: Final = Path(__file__).parents[2] / "docs"
_PAGES: Final = ("spark.md", "spark-streaming.md")
_OF: Final = {"read": SourceOptions, "readStream": StreamingOptions, "write": SinkOptions}
_NONE: Final = "-"
_TABLE: Final = re.compile(r"^\| option \|(?P<rest>[^\n]*)\n(?P<rows>(?:\|[^\n]*\n)+)", re.MULTILINE)
_LINK: Final = re.compile(r"\]\((?P<path>[^)#]*)(?P<anchor>#[^)]*)?\)")
_MEANINGS: Final = {
    "ackQuorum": "copies that an acknowledgement waits for",
    "coalescePartitions": "the driver copies the ledgers of a batch into one if they are tiny",
    "digestType": "digest of the entries",
    "endingPosition": "where to stop",
    "ensembleSize": "bookies of each ledger",
    "failOnDataLoss": "fail where entries are lost; otherwise leave them out",
    "maxLedgersPerPartition": "ledgers that one partition has at most",
    "startingPosition": "where to begin",
    "tinyLedgerBytes": "ledgers below this size are tiny; a warning says when they are so on average",
    "writeQuorum": "copies of each entry",
}
"""Of options whose row in a table has no text, because the prose around it has."""
_INTRODUCTION: Final = f"""\
Options of `format("bookkeeper")`, in alphabetical order; case does not count. The meanings are those of
[reading](../spark.md#options-of-the-source) and of [streaming and writing](../spark-streaming.md), where examples are.
*default* is the value in the code, sizes in bytes and times in seconds; `{_NONE}`: none, or it depends on others."""


def spark_options_page() -> str:
    """Return the page. KeyError: an option is in no table of the two pages."""
    lines = [*heading("Spark options", "the options as they are declared", _INTRODUCTION)]
    told = {name: row for page in reversed(_PAGES) for name, row in _told(page)}
    used: dict[str, list[str]] = {}
    defaults: dict[str, str] = {}
    for of, options in _OF.items():
        names = option_names(options)
        for item, name in zip(fields(options), names, strict=False):
            used.setdefault(name, []).append(of)
            defaults.setdefault(name, _default(item) or told[name][0])
        for also, name in other_names(options).items():
            used.setdefault(also, []).append(of)
            defaults[also], told[also] = defaults[name], (_NONE, f"another name of `{name}`")
    rows = [
        (code(name), ", ".join(map(code, used[name])), defaults[name], told[name][1] or _MEANINGS[name])
        for name in sorted(used, key=str.lower)
    ]
    lines += table(("option", "of", "default", "meaning"), rows)
    return "\n".join(lines).rstrip() + "\n"


def _told(page: str) -> Iterator[tuple[str, tuple[str, str]]]:
    """Yield the names in the tables of a page, each with default and meaning."""

    def link(found: re.Match[str]) -> str:
        return f"](../{found['path'] or page}{found['anchor'] or ''})"

    for found in _TABLE.finditer((_DOCS / page).read_text(encoding="utf-8")):
        for line in found["rows"].splitlines()[1:]:
            names, *cells = (cell.strip() for cell in line.strip("|").split("|"))
            all_names = re.findall(r"`([^`]+)`", names)
            default = cells[0] if len(cells) > 1 and len(all_names) == 1 else _NONE
            yield from ((name, (default or _NONE, _LINK.sub(link, cells[-1]))) for name in all_names)


def _default(item: Field[Any]) -> str:
    """Return the default in the code, or nothing where it is no plain value."""
    value = item.default
    if isinstance(value, Enum):
        value = value.name if isinstance(value.value, int) else value.value
    if isinstance(value, bool):
        return code(str(value).lower())
    return code(str(value)) if isinstance(value, str | int | float) else ""
