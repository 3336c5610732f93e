"""Options with a prefix, such as `client.readTimeout`, as fields of a dataclass that belongs to somebody else.

Only fields that one text can tell: numbers, texts, true and false, and names with commas in between.

Pure; any process.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Collection, Mapping
from typing import Any, Final

from pyspark_bookie.common.errors import OPTION, PodkeeperSparkError
from pyspark_bookie.common.options import camel_case, words

_NAMES: Final = "tuple[str, ...]"
_PLAIN: Final = re.compile(r"(int|float|bool|str)( \| None)?|" + re.escape(_NAMES))


def settings(prefix: str, given: Mapping[str, str], of: type[Any], *, but: Collection[str] = ()) -> dict[str, Any]:
    """Values of fields of `of`, whose names may be written in any case, with or without underscores. `but`: fields
    that are not set in this way. Raises `PodkeeperSparkError` (OPTION)."""
    known = {
        item.name.replace("_", ""): item
        for item in dataclasses.fields(of)
        if _PLAIN.fullmatch(str(item.type)) and item.name not in but
    }
    values: dict[str, Any] = {}
    for name, text in given.items():
        item = known.get(name.replace("_", "").lower())
        if item is None:
            raise _unknown(prefix, name, {plain: camel_case(field.name) for plain, field in known.items()})
        values[item.name] = _setting(f"{prefix}{name}", str(item.type), text)
    return values


def _unknown(prefix: str, name: str, names: Mapping[str, str]) -> PodkeeperSparkError:
    near = difflib.get_close_matches(name.replace("_", "").lower(), names, n=1)
    hint = f"did you mean {prefix}{names[near[0]]}?" if near else f"there are {', '.join(names.values())}"
    return PodkeeperSparkError(OPTION, f"there is no option {prefix}{name}: {hint}")


def _setting(name: str, kind: str, text: str) -> object:
    plain = kind.removesuffix(" | None")
    if text.strip().lower() == "none" and plain != kind:
        return None
    try:
        if plain == "bool":
            return {"true": True, "false": False}[text.strip().lower()]
        if plain == _NAMES:
            return words(text)
        return {"int": int, "float": float, "str": str}[plain](text)
    except (KeyError, ValueError):
        wanted = "list of names with commas in between" if plain == _NAMES else kind
        raise PodkeeperSparkError(OPTION, f"option {name}={text}: is no {wanted}") from None
