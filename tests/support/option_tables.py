"""Tables of options in documents, held against the declarations of the options."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any

from pyspark_bookie.common.errors import PodkeeperSparkError
from pyspark_bookie.common.options import option_name, parse

_NAME = re.compile(r"`([A-Za-z][A-Za-z.]*)`")
_CODE = re.compile(r"`[^`]+`|\d+")
_NOTHING = frozenset(("none", "–", "", "all"))


def wrong_defaults(page: str, of: type[Any], given: Mapping[str, str]) -> list[str]:
    """Return what rows of a page say of defaults that is not so. `given`: options that make a valid set of them."""
    names = {option_name(item): item.name for item in fields(of)}
    default = parse(given, of)
    found = []
    for name, cell in _defaults(page):
        if name not in names or name in given:
            continue
        actual = getattr(default, names[name])
        if cell in _NOTHING:
            is_so = not actual
        elif _CODE.fullmatch(cell) is None or actual is None:
            continue  # it is told in words, or decided where it is used
        else:
            try:
                is_so = getattr(parse({**given, name: cell.strip("`")}, of), names[name]) == actual
            except PodkeeperSparkError:
                is_so = False
        if not is_so:
            found.append(f"{name}: the page says {cell}, and the default is {actual!r}")
    return found


def _defaults(page: str) -> Iterator[tuple[str, str]]:
    """Names with the defaults of their rows; a row may have several of both."""
    for line in page.splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if len(cells) != 3:
            continue
        names = _NAME.findall(re.sub(r"\(.*?\)", "", cells[0]))
        defaults = re.split(r", (?=[`–])", cells[1]) if len(names) > 1 else [cells[1]]
        if len(names) == len(defaults) or len(defaults) == 1:
            yield from zip(names, defaults * len(names) if len(defaults) == 1 else defaults, strict=True)
