"""The declaration of one configuration key, and the way from its text to a value.

Each field of a section dataclass carries a `Key` in its metadata: Apache BookKeeper's name, the limits and
what the documentation needs. The field's annotation decides how the text is read, so a key is declared in
exactly one place.

Invariants
- `parse` returns a value of the annotated type within the limits or raises `BadValueError` with the rule.
- Text is what a properties file, an environment variable or a flag holds; blanks around it do not count.

Pure functions; any thread may call them.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

_METADATA: Final = "key"
_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,19}")
_NUMBER: Final = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]{1,2})?")
_TRUE: Final = frozenset({"true", "yes", "on"})
_FALSE: Final = frozenset({"false", "no", "off"})
INT_MAX: Final = 2**31 - 1
LONG_MAX: Final = 2**63 - 1
MIB: Final = 1024 * 1024


class BadValueError(ValueError):
    """The text of one key is refused; `str(error)` is the rule that it broke."""


@dataclass(frozen=True, slots=True)
class Key:
    """The declaration of one configuration key, besides its type and its text."""

    name: str
    """Apache BookKeeper's name, or our own for a key that Apache does not have."""
    default: Any
    """Value if the key is not set and nothing is derived, in the unit of the text."""
    unit: int = 1
    """The field holds the number in the text times this: sizes are fields of bytes. Limits are those of the text."""
    at_least: float | None = None
    at_most: float | None = None
    above: float | None = None
    """Exclusive lower limit."""
    below: float | None = None
    """Exclusive upper limit."""
    choices: tuple[str, ...] = ()
    legacy: tuple[str, ...] = ()
    """Older names of the same key; they lose against `name` when one source sets both."""
    derived: str = ""
    """Description of what the default is computed from. Empty if `default` is the default."""
    own: bool = False
    """Apache BookKeeper does not know this key."""
    secret: bool = False
    """Never printed."""
    dynamic: bool = False
    """A running bookie takes a change over its admin API. Any other key counts from the next start on."""
    no_effect: bool = False
    """Accepted, so that a file of Apache BookKeeper works as it is; named at start-up if it asks for another value."""

    def shown(self, value: Any) -> str:
        """Return the text of a value as a properties file would hold it."""
        return render(value // self.unit if self.unit != 1 else value)


def key(name: str, default: Any, **rules: Any) -> Any:
    """A dataclass field for configuration key `name`; `rules` are further attributes of `Key`."""
    declared = Key(name, default, **rules)
    value = default * declared.unit if declared.unit != 1 else default
    return dataclasses.field(default=value, metadata={_METADATA: declared})


def keys_of(section: type) -> Iterator[tuple[dataclasses.Field[Any], Key]]:
    """Fields of a section dataclass with their keys, in the order of declaration."""
    for field in dataclasses.fields(section):
        declared = field.metadata.get(_METADATA)
        if isinstance(declared, Key):
            yield field, declared


def parse(declared: Key, annotation: str, text: str) -> Any:
    """Return the value of `text` for a field annotated `annotation`; raises `BadValueError`.

    A class name without its package means the one choice that ends in it.
    """
    text = text.strip()
    matches = [choice for choice in declared.choices if "." in choice and choice.rpartition(".")[2] == text]
    text = matches[0] if len(matches) == 1 else text
    if "${" in text:
        raise BadValueError("a reference ${...} is not expanded here; write the value itself")
    value = _READERS[annotation](text)
    _check_limits(declared, value)
    return value * declared.unit if declared.unit != 1 else value


def render(value: Any) -> str:
    """Return the text of a value in the unit of the text."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return ",".join(value)
    return "" if value is None else str(value)


def _check_limits(declared: Key, value: Any) -> None:
    if declared.choices and value is not None and value not in declared.choices:
        raise BadValueError(f"must be one of {', '.join(declared.choices)}")
    if isinstance(value, bool) or not isinstance(value, int | float):
        return
    if declared.at_least is not None and value < declared.at_least:
        raise BadValueError(f"must be at least {declared.at_least}")
    if declared.at_most is not None and value > declared.at_most:
        raise BadValueError(f"must be at most {declared.at_most}")
    if declared.above is not None and value <= declared.above:
        raise BadValueError(f"must be greater than {declared.above}")
    if declared.below is not None and value >= declared.below:
        raise BadValueError(f"must be less than {declared.below}")


def _read_int(text: str) -> int:
    if not _INTEGER.fullmatch(text) or abs(int(text)) > LONG_MAX:
        raise BadValueError("must be a whole number")
    return int(text)


def _read_float(text: str) -> float:
    if not _NUMBER.fullmatch(text):
        raise BadValueError("must be a number")
    return float(text)


def read_bool(text: str) -> bool:
    """Raises `BadValueError`."""
    word = text.strip().lower()
    if word in _TRUE:
        return True
    if word in _FALSE:
        return False
    raise BadValueError("must be true or false")


def _read_text(text: str) -> str:
    if not text:
        raise BadValueError("must not be empty")
    return text


def _read_optional_text(text: str) -> str | None:
    return text or None


def _read_list(text: str) -> tuple[str, ...]:
    if "\\," in text:
        raise BadValueError("holds a comma with a backslash: no value of a list may have a comma in it")
    return tuple(item for item in (part.strip() for part in text.split(",")) if item)


_READERS: Final[dict[str, Callable[[str], Any]]] = {
    "int": _read_int,
    "float": _read_float,
    "bool": read_bool,
    "str": _read_text,
    "str | None": _read_optional_text,
    "tuple[str, ...]": _read_list,
}
