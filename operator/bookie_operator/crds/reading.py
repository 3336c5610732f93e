"""Faults of a custom resource that cannot be read: one line for each, with field and remedy.

Invariants
- Each message is one line: field, what is wrong, what to do.
- Order and wording depend on the resource alone.

Threads: pure functions, any thread.
"""

from __future__ import annotations

import copy
import difflib
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ValidationError

MESSAGES: Final = 20
"""Number of messages that are shown; more are only counted."""
_LENGTH: Final = 1000

M = TypeVar("M", bound=BaseModel)


def parsed_spec(model: type[M], spec: Mapping[str, Any], page: str) -> tuple[M | None, tuple[str, ...]]:
    """The typed spec; or None, and why it cannot be read. `page`: where its fields are explained."""
    try:
        return model.model_validate(spec), ()
    except ValidationError as error:
        messages = [_unreadable(model, fault["loc"], fault["type"], fault["msg"], page) for fault in error.errors()]
        return None, bounded(messages)


def known_part(model: type[BaseModel], spec: Mapping[str, Any]) -> tuple[Mapping[str, Any], tuple[str, ...]]:
    """The spec without fields that this release does not know, and a line for each of these.

    The API server stores a field only if the definition has it, and may have filled it in itself: a newer definition
    than the operator's is no mistake of anybody.
    """
    try:
        model.model_validate(spec)
        return spec, ()
    except ValidationError as error:
        unknown = [fault["loc"] for fault in error.errors() if fault["type"] == "extra_forbidden"]
    kept, own = dict(spec), set[tuple[int | str, ...]]()
    for location in unknown:
        parent: Any = kept
        for depth, part in enumerate(location[:-1], 1):  # no more than that: the rest may be as deep as people like
            if location[:depth] not in own:
                parent[part] = copy.copy(parent[part])
                own.add(location[:depth])
            parent = parent[part]
        del parent[location[-1]]
    why = "this release of the operator does not know it, and goes on without; upgrade the operator"
    return kept, bounded([f"{_path('spec', location)}: {why}" for location in unknown]) if unknown else ()


def known_status(
    model: type[BaseModel], status: Mapping[str, Any], needed: Collection[str]
) -> tuple[Mapping[str, Any], str]:
    """The status without what this release cannot read; and what is wrong with a field that is needed, empty: nothing.

    Items of lists are left out one by one.
    """
    kept = dict(status)
    while True:
        try:
            model.model_validate(kept)
            return kept, ""
        except ValidationError as error:
            faults = error.errors()
        for fault in faults:
            if fault["loc"][0] in needed:
                return kept, f"{_path('status', fault['loc'])}: {fault['msg']}"
        for field, items in _items(faults).items():
            if items and isinstance(kept[field], list):
                kept[field] = [item for number, item in enumerate(kept[field]) if number not in items]
            else:
                del kept[field]


def _items(faults: Iterable[Any]) -> dict[str, set[int]]:
    """Numbers of the items that cannot be read, by their field; none: the field itself cannot."""
    found: dict[str, set[int]] = {}
    for fault in faults:
        numbers = found.setdefault(str(fault["loc"][0]), set())
        if len(fault["loc"]) > 1 and isinstance(fault["loc"][1], int):
            numbers.add(fault["loc"][1])
    return found


def parsed_status(model: type[M], status: Mapping[str, Any]) -> M:
    """The typed status; an empty one stands for one that does not exist. Raises ValueError with one line for one that
    this operator cannot read: it must not be taken for an empty one."""
    try:
        return model.model_validate(status)
    except ValidationError as error:
        fault = error.errors()[0]
        path = _path("status", fault["loc"])
        raise ValueError(
            f"{path}: {fault['msg']}; a newer operator may have written it: use that version, or mend the field"
        ) from None


def bounded(messages: list[str]) -> tuple[str, ...]:
    """The messages as a status may have them: at most `MESSAGES` of them, each one line."""
    shown = [_plain(message) for message in messages[:MESSAGES]]
    if len(messages) > MESSAGES:
        shown[-1] = f"and {len(messages) - MESSAGES + 1} more; mend these first"
    return tuple(shown)


def _plain(message: str) -> str:
    """One line, whatever a user's key is called."""
    line = "".join(character if character.isprintable() else "?" for character in message)
    return line if len(line) <= _LENGTH else line[: _LENGTH - 1] + "…"


def _unreadable(model: type[BaseModel], location: tuple[int | str, ...], kind: str, message: str, page: str) -> str:
    path = _path("spec", location)
    match kind:
        case "missing":
            return f"{path}: is required; give it"
        case "extra_forbidden":
            near = difflib.get_close_matches(str(location[-1]), _fields_beside(model, location), n=1, cutoff=0.6)
            remedy = f"did you mean {near[0]}?" if near else "remove it, or upgrade the operator that should know it"
            return f"{path}: there is no such field; {remedy}"
    return f"{path}: {message[:1].lower()}{message[1:]}; see {page}"


def _path(root: str, location: tuple[int | str, ...]) -> str:
    return root + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location)


def _fields_beside(root: type[BaseModel], location: tuple[int | str, ...]) -> list[str]:
    """Names of the fields that there are where `location` ends."""
    model: Any = root
    for part in location[:-1]:
        if isinstance(part, int):
            continue
        fields = {field.alias: field.annotation for field in model.model_fields.values()}
        model = _model_in(fields.get(part))
        if model is None:
            return []
    return [field.alias for field in model.model_fields.values()]


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """The model of an annotation such as `Volume | None` or `list[Zone]`."""
    for each in (annotation, *getattr(annotation, "__args__", ())):
        if isinstance(each, type) and issubclass(each, BaseModel):
            return each
    return None
