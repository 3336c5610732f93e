"""Values by Avro schemas, as JSON; and what a schema and a value of strangers may cost.

A few bytes can stand for very many objects: an array of nulls needs none for each, a record of records doubles with
each level, a name of the schema is repeated in each row. So a schema is weighed before it is used: how much JSON the
smallest value of each type is, and how many bytes it takes. What an array may add for each byte bounds all values.

Invariants
- A schema that is recursive, too deep, or has items that take no bytes is refused: the reader of Avro would follow the
  value down its own stack, or make objects until the memory ends.
- No value becomes more than `MAX_TEXT` bytes of JSON.

Pure; any thread. fastavro is imported when a schema is used.
"""

from __future__ import annotations

import base64
import io
import json
import math
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from bookie_protocol.shown import one_line
from pyspark_bookie.common.errors import UndecodableEntry

MAX_TEXT: Final = 128 * 1024 * 1024
MAX_DEPTH: Final = 64
_OF_VALUE: Final = 6
"""Bytes of JSON at most for a byte of text or of bytes: \\u0001."""
_MOST_SAID: Final = 300
_NAMED: Final = frozenset(("record", "error", "enum", "fixed"))


class _Size(NamedTuple):
    """`nbytes`: of the smallest value. `text`: bytes of JSON beyond what its texts have. `growth`: of an item of an
    array or map, for each byte."""

    nbytes: int
    text: int
    growth: float = 0.0


_PRIMITIVES: Final = {
    "null": _Size(0, 4),
    "boolean": _Size(1, 5),
    "int": _Size(1, 40),
    "long": _Size(1, 40),
    "float": _Size(4, 30),
    "double": _Size(8, 30),
    "bytes": _Size(1, 40),
    "string": _Size(1, 40),
}


def avro_reader(definition: bytes) -> Callable[[bytes], str]:
    """Return the function that makes JSON of a value; it raises `UndecodableEntry`, as this does for a schema that
    cannot be used."""
    import fastavro

    try:
        declared = json.loads(definition, object_hook=_without_marks)
        size = _Weighing().of(declared, "", 0)
        parsed = fastavro.parse_schema(declared)
    except (UndecodableEntry, MemoryError):
        raise
    except Exception as error:  # the library raises what its reading of a stranger's schema runs into
        raise _not_usable(said(error)) from None

    def read(value: bytes) -> str:
        if size.text + len(value) * (size.growth + _OF_VALUE) > MAX_TEXT:
            raise UndecodableEntry(f"its value of {len(value)} bytes may be more than {MAX_TEXT} bytes of JSON")
        try:
            found = fastavro.schemaless_reader(io.BytesIO(value), parsed, None)
            return as_json(found)
        except MemoryError:
            raise
        except Exception as error:  # as above, of a stranger's value
            raise UndecodableEntry(f"its value does not fit its Avro schema: {said(error)}") from None

    return read


def as_json(value: Any) -> str:
    """Return plain JSON. Bytes are base64, times ISO 8601; numbers that JSON does not have are texts."""
    try:
        return json.dumps(value, default=_plain, allow_nan=False, separators=(",", ":"), ensure_ascii=False)
    except ValueError:
        return json.dumps(_finite(value), default=_plain, separators=(",", ":"), ensure_ascii=False)


def said(error: Exception) -> str:
    """Return the text of a library's error as a part of one line."""
    return one_line(str(error) or type(error).__name__, _MOST_SAID)


# --- inside -----------------------------------------------------------------------------------------------------


class _Weighing:
    """The sizes of the types of one schema."""

    def __init__(self) -> None:
        self._named: dict[str, _Size | None] = {}
        """None: of one that is being weighed."""

    def of(self, declared: Any, namespace: str, depth: int) -> _Size:
        if depth > MAX_DEPTH:
            raise _not_usable(f"it is deeper than {MAX_DEPTH} levels")
        if isinstance(declared, str):
            return self._by_name(declared, namespace)
        if isinstance(declared, list):
            return self._union(declared, namespace, depth)
        if not isinstance(declared, dict):
            raise _not_usable("a type is neither a name nor an object")
        kind = declared.get("type")
        if kind in ("array", "map"):
            return self._many(declared, str(kind), namespace, depth)
        if isinstance(kind, str) and kind in _NAMED:
            return self._define(declared, kind, namespace, depth)
        return self.of(kind, namespace, depth + 1)

    def _by_name(self, name: str, namespace: str) -> _Size:
        if name in _PRIMITIVES:
            return _PRIMITIVES[name]
        full = name if "." in name or not namespace else f"{namespace}.{name}"
        if full not in self._named and name in self._named:
            full = name
        if full not in self._named:
            raise _not_usable(f"the type {name[:100]!r} is not declared")
        size = self._named[full]
        if size is None:
            raise _not_usable(f"the type {name[:100]!r} contains itself, which is not supported")
        return size

    def _union(self, branches: list[Any], namespace: str, depth: int) -> _Size:
        sizes = [self.of(branch, namespace, depth + 1) for branch in branches]
        if not sizes:
            raise _not_usable("a union is empty")
        return _Size(1 + min(s.nbytes for s in sizes), max(s.text for s in sizes), max(s.growth for s in sizes))

    def _many(self, declared: dict[str, Any], kind: str, namespace: str, depth: int) -> _Size:
        item = self.of(declared.get("items" if kind == "array" else "values"), namespace, depth + 1)
        nbytes, text = (item.nbytes, item.text + 1) if kind == "array" else (item.nbytes + 1, item.text + 5)
        if not nbytes:
            raise _not_usable("items of an array take no bytes")
        return _Size(1, 2, max(item.growth, text / nbytes))

    def _define(self, declared: dict[str, Any], kind: str, namespace: str, depth: int) -> _Size:
        name, inner = str(declared.get("name", "")), declared.get("namespace", namespace)
        if "." in name:
            inner = name.rpartition(".")[0]
        full = name if "." in name or not inner else f"{inner}.{name}"
        self._named[full] = None
        if kind == "fixed":
            size = _Size(int(declared["size"]), 40)
            if size.nbytes < 0:
                raise _not_usable("a type has a negative size")
        elif kind == "enum":
            size = _Size(1, max(_text_of(symbol) for symbol in declared["symbols"]))
        else:
            size = self._record(declared, str(inner or ""), depth)
        self._named[full] = size
        return size

    def _record(self, declared: dict[str, Any], namespace: str, depth: int) -> _Size:
        nbytes, text, growth = 0, 2, 0.0
        for each in declared["fields"]:
            size = self.of(each["type"], namespace, depth + 1)
            nbytes, text = nbytes + size.nbytes, text + size.text + _text_of(each["name"]) + 2
            growth = max(growth, size.growth)
            if text > MAX_TEXT:
                raise _not_usable(f"its smallest value is more than {MAX_TEXT} bytes of JSON")
        return _Size(nbytes, text, growth)


def _without_marks(declared: dict[str, Any]) -> dict[str, Any]:
    """Leave out the marks by which fastavro would take a schema for one that it has checked before."""
    return {key: value for key, value in declared.items() if not key.startswith("__")}


def _text_of(name: Any) -> int:
    return len(json.dumps(str(name)))


def _plain(value: Any) -> Any:
    if isinstance(value, (bytes, bytearray)):
        return base64.b64encode(value).decode()
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    return [_finite(each) for each in value] if isinstance(value, list) else value


def _not_usable(why: str) -> UndecodableEntry:
    return UndecodableEntry(f"its Avro schema cannot be used: {why}")
