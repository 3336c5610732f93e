"""Options of the data source, and arguments of the jobs, as typed dataclasses.

    @dataclass(frozen=True, kw_only=True)
    class Options:
        min_partitions: int = option(1, read=at_least(1))
        max_bytes: int = option(128 * MIB, read=size, name="maxBytesPerPartition")
        client: Mapping[str, str] = option(factory=dict, prefix="client.")

    parse({"minpartitions": "4"}, Options)

A field `min_partitions` is the option `minPartitions`. Spark does not keep the case of option names, so names are
compared without it. The reader of a field is chosen by its type (str, int, float, bool, Enum) or given.

Invariants
- An unknown option is an error that names the nearest known one.
- A value that cannot be read is an error that names the option, the value and what would be right.
- No option takes a password: options show in plans, logs and the web page of Spark. `passwordFile` names a file.

Pure; any process.
"""

from __future__ import annotations

import difflib
import os
import re
import types
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, field, fields
from enum import Enum
from typing import Any, Final, TypeVar, Union, get_args, get_origin, get_type_hints

from bookie_protocol.digest import DigestType
from bookie_protocol.errors import BadRequest, PodkeeperError
from pyspark_bookie.common.errors import OPTION, PodkeeperSparkError

MIB: Final = 1024 * 1024

T = TypeVar("T")
Read = Callable[[str], Any]

_META: Final = "podkeeper"
_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?", re.IGNORECASE)
_FACTORS: Final = {"": 1, "k": 1024, "m": 1024**2, "g": 1024**3, "t": 1024**4}
_SECONDS: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|min|h|d)?", re.IGNORECASE)
_SECOND_FACTORS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_LONGEST_DAYS: Final = 36_500
_BOOLEANS: Final = {"true": True, "false": False}
_SECRET_NAMES: Final = frozenset({"password", "ledgerpassword", "passwd"})
_VIEW: Final = "make a view, CREATE TEMPORARY VIEW name USING bookkeeper OPTIONS (...)"
_NO_END: Final = "only a start is found by time; use endingPosition"
_OF_KAFKA: Final = {
    "kafka.bootstrap.servers": "use metadataServiceUri",
    "subscribe": "use stream, or streams for several",
    "subscribepattern": "use streamPattern",
    "topic": "use stream",
    "assign": "use streams",
    "startingoffsets": "use startingPosition",
    "endingoffsets": "use endingPosition",
    "endingtimestamp": _NO_END,
    "endingoffsetsbytimestamp": _NO_END,
    "includeheaders": "entries have no headers",
}
"""Options of a source that users know, and what serves instead."""


class _Meta:
    """The way in which a field is read; kept in the metadata of the dataclass field."""

    def __init__(
        self,
        name: str | None,
        read: Read | None,
        prefix: str | None,
        variable: str | None,
        required: bool,
        also: str | None = None,
    ) -> None:
        self.name, self.read, self.prefix, self.variable, self.required = name, read, prefix, variable, required
        self.also = also


def option(
    default: Any = MISSING,
    *,
    factory: Callable[[], Any] | Any = MISSING,
    name: str | None = None,
    read: Read | None = None,
    prefix: str | None = None,
    variable: str | None = None,
    also: str | None = None,
) -> Any:
    """A dataclass field that is an option. Without `default` and `factory` it must be given.

    `name` in place of the field's own in camel case; `read` turns the text into the value and raises `ValueError` with
    what would be right; `prefix` takes every option that begins so, without it, as a mapping; `variable` is the
    environment variable that counts where the option is not given; `also` is the name that Spark's Kafka source has for
    the same.
    """
    required = default is MISSING and factory is MISSING
    metadata = {_META: _Meta(name, read, prefix, variable, required, also)}
    if required:
        return field(metadata=metadata)
    if factory is not MISSING:
        return field(default_factory=factory, metadata=metadata)
    return field(default=default, metadata=metadata)


def parse(raw: Mapping[str, str], of: type[T]) -> T:
    """The options as an object of the dataclass `of`. Raises `PodkeeperSparkError` (OPTION)."""
    given = {name.lower(): (name, value) for name, value in raw.items()}
    if "provider" in given:  # what CREATE TABLE hands over beside the options
        raise PodkeeperSparkError(OPTION, f"there is no table of a catalogue here: {_VIEW}")
    hints = get_type_hints(of)
    values: dict[str, Any] = {}
    for item in fields(of):  # type: ignore[arg-type] # `of` is a dataclass
        meta = _meta(item)
        if meta.prefix is not None:
            values[item.name] = _taken(given, meta.prefix.lower())
            continue
        name = _name_given(given, item)
        text = given.pop(name.lower(), (name, os.environ.get(meta.variable) if meta.variable else None))[1]
        if text is not None:
            values[item.name] = _value(name, text, meta.read or _reader(hints[item.name]))
        elif meta.required:
            table = "" if raw else f". Spark hands a table of its catalogue no options: {_VIEW}"
            raise PodkeeperSparkError(OPTION, f"option {name} is missing{_or_variable(meta)}{table}")
    if given:
        raise _unknown(next(iter(given.values()))[0], of)
    try:
        return of(**values)
    except (ValueError, PodkeeperError) as error:  # of its __post_init__: options that do not fit together
        raise PodkeeperSparkError(OPTION, str(error)) from None


def option_name(item: Field[Any]) -> str:
    """Return the name that users write for the option of a dataclass field."""
    return _meta(item).name or camel_case(item.name)


def option_names(of: type[Any]) -> tuple[str, ...]:
    """All options of a dataclass; those with a prefix as `client.*`, and other names of theirs at the end."""
    names = [f"{prefix}*" if (prefix := _meta(item).prefix) else option_name(item) for item in fields(of)]
    return (*names, *other_names(of))


def other_names(of: type[Any]) -> Mapping[str, str]:
    """Return the names that options have besides their own, with that."""
    return {also: option_name(item) for item in fields(of) if (also := _meta(item).also) is not None}


def camel_case(name: str) -> str:
    """`min_partitions` is `minPartitions`."""
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


# --- readers: a text in, a value out, ValueError with what would be right ------------------------------------


def size(text: str) -> int:
    """Bytes: `1048576`, `64m`, `1g` (powers of 1024)."""
    found = _SIZE.fullmatch(text.strip())
    value = int(float(found[1]) * _FACTORS[found[2].lower()]) if found else 0
    if value < 1:
        raise ValueError("must be a positive number of bytes, such as 1048576, 64m or 1g")
    return value


def size_at_most(most: int) -> Callable[[str], int]:
    """Return a reader of sizes, as `size`, with an upper bound."""

    def read(text: str) -> int:
        value = size(text)
        if value > most:
            raise ValueError(f"must be at most {most} bytes")
        return value

    return read


def seconds(text: str) -> float:
    """Seconds: `5`, `500ms`, `15m`, `3d`; at most a hundred years, which any clock can be set back by."""
    found = _SECONDS.fullmatch(text.strip())
    if found is None:
        raise ValueError("must be a time, such as 5s, 500ms, 15m or 3d")
    value = float(found[1]) * _SECOND_FACTORS[(found[2] or "s").lower()]
    if value > _LONGEST_DAYS * _SECOND_FACTORS["d"]:
        raise ValueError(f"must be a time of at most {_LONGEST_DAYS}d")
    return value


def at_least(minimum: int) -> Callable[[str], int]:
    """Whole numbers from `minimum` on."""

    def read(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = minimum - 1
        if value < minimum:
            raise ValueError(f"must be a whole number of at least {minimum}")
        return value

    return read


def words(text: str) -> tuple[str, ...]:
    """Names with commas in between."""
    found = tuple(word.strip() for word in text.split(","))
    if not all(found):
        raise ValueError("must be names with commas in between")
    return found


def pattern(text: str) -> re.Pattern[str]:
    """A regular expression, which must match the whole name."""
    try:
        return re.compile(text)
    except re.error as error:
        raise ValueError(f"is not a regular expression: {error}") from None


def digest_type(text: str) -> DigestType:
    """Read a digest type by its name in the metadata."""
    try:
        return DigestType.parse(text)
    except BadRequest as error:
        raise ValueError(str(error)) from None


# --- inside ---------------------------------------------------------------------------------------------------


def _meta(item: Field[Any]) -> _Meta:
    meta = item.metadata.get(_META)
    if meta is not None:
        return meta  # type: ignore[no-any-return] # only this module uses the key
    return _Meta(None, None, None, None, item.default is MISSING and item.default_factory is MISSING)


def _name_given(given: Mapping[str, tuple[str, str]], item: Field[Any]) -> str:
    """Return the one of an option's names that was given, or its own."""
    name, also = option_name(item), _meta(item).also
    if also is None or also.lower() not in given:
        return name
    if name.lower() in given:
        raise PodkeeperSparkError(OPTION, f"{name} and {also} are one option: give one of them")
    return also


def _taken(given: dict[str, tuple[str, str]], prefix: str) -> dict[str, str]:
    """Takes the options with this prefix out; their names without it, in lower case as Spark gives them."""
    names = [name for name in given if name.startswith(prefix)]
    return {name.removeprefix(prefix): given.pop(name)[1] for name in names}


def _value(name: str, text: str, read: Read) -> Any:
    try:
        return read(text)
    except ValueError as error:
        raise PodkeeperSparkError(OPTION, f"option {name}={text}: {error}") from None


def _reader(hint: Any) -> Read:
    if get_origin(hint) in (Union, types.UnionType):
        hint = next(part for part in get_args(hint) if part is not type(None))
    if hint is bool:
        return _boolean
    if isinstance(hint, type) and issubclass(hint, Enum):
        return _choice(hint)
    if hint is int:
        return _number(int, "a whole number")
    if hint is float:
        return _number(float, "a number")
    return str


def _boolean(text: str) -> bool:
    try:
        return _BOOLEANS[text.strip().lower()]
    except KeyError:
        raise ValueError("must be true or false") from None


def _choice(kind: type[Enum]) -> Read:
    def read(text: str) -> Enum:
        for member in kind:
            if str(member.value).lower() == text.strip().lower():
                return member
        raise ValueError(f"must be one of {', '.join(str(member.value) for member in kind)}")

    return read


def _number(kind: type[int] | type[float], what: str) -> Read:
    def read(text: str) -> int | float:
        try:
            return kind(text)
        except ValueError:
            raise ValueError(f"must be {what}") from None

    return read


def _or_variable(meta: _Meta) -> str:
    return f" (or set {meta.variable} in the environment)" if meta.variable else ""


def _unknown(name: str, of: type[Any]) -> PodkeeperSparkError:
    if name.lower() in _SECRET_NAMES:
        text = "a password in an option shows in plans and logs: write it to a file and set passwordFile to its path"
        return PodkeeperSparkError(OPTION, f"option {name}: {text}")
    if name.lower() == "path":
        return PodkeeperSparkError(
            OPTION, "no path is needed: say by options what is meant, then call load() or save()"
        )
    if (instead := _OF_KAFKA.get(name.lower())) is not None:
        return PodkeeperSparkError(OPTION, f"there is no option {name}, which is of Spark's Kafka source: {instead}")
    names = {known.lower(): known for known in option_names(of)}
    longer = [known for known in names if known.startswith(f"{name.lower()}.")]
    near = difflib.get_close_matches(name.lower(), names, n=1) or longer
    hint = f"did you mean {names[near[0]]}?" if near else f"there are {', '.join(sorted(names.values()))}"
    return PodkeeperSparkError(OPTION, f"there is no option {name}: {hint}")
