"""What is wrong with a custom resource that cannot be read: one line for each fault, with field and remedy.

Invariants
- Each message is one line: field, what is wrong, what to do.
- Order and wording depend on the resource alone.

Threads: pure functions, any thread.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ValidationError

MESSAGES: Final = 20
"""More are counted, not told."""
_LENGTH: Final = 1000

M = TypeVar("M", bound=BaseModel)


def parsed_spec(model: type[M], spec: Mapping[str, Any], page: str) -> tuple[M | None, tuple[str, ...]]:
    """The typed spec; or None, and why it cannot be read. `page`: where its fields are explained."""
    try:
        return model.model_validate(spec), ()
    except ValidationError as error:
        messages = [_unreadable(model, fault["loc"], fault["type"], fault["msg"], page) for fault in error.errors()]
        return None, bounded(messages)


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
    """At most `MESSAGES` of them, each one line."""
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
