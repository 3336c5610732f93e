"""`kubectl bookie plan`."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from bookie_operator.plugin.connection import Api, Connection, connects

if TYPE_CHECKING:
    from bookie_operator.planner.decision import Decision
    from bookie_operator.plugin.planning import Planned

_WORDS = 300
"""Characters of one value of an action."""


@click.command()
@click.argument("name", required=False)
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
@connects
def plan(connection: Connection, name: str | None, output: str) -> None:
    """Show what the operator would do next with cluster NAME, and why.

    Nothing is changed. It looks with your rights: what you may not read is missing in the plan, which says so.
    """
    decided = connection.run(lambda api: _planned(api, name))
    if output == "json":
        click.echo(json.dumps(as_json(decided), indent=2))
        return
    for line in as_text(decided):
        click.echo(line)


async def _planned(api: Api, name: str | None) -> Planned:
    from bookie_operator.plugin.clusters import find_cluster
    from bookie_operator.plugin.forwarding import opener
    from bookie_operator.plugin.planning import planned

    return await planned(api, await find_cluster(api, name), opener(api))


def as_text(decided: Planned) -> Iterator[str]:
    """Lines for people."""
    for doubt in decided.doubts:
        yield f"note: {doubt}"
    for error in decided.spec_errors:
        yield f"spec is wrong: {error}"
    if decided.plan is None:
        yield "nothing is changed until spec is mended"
        return
    yield from _decision(decided.plan.decision)
    for note in decided.plan.notes:
        yield f"wanted, but {_state(note.stalled)}: {note.reason}: {note.message}"
    for violation in decided.violations:
        yield f"the operator would refuse this by itself: {violation}"


def as_json(decided: Planned) -> dict[str, Any]:
    """The decision's type and content, for programs."""
    plan = decided.plan
    return {
        "decision": _content(plan.decision) if plan else None,
        "notes": [_content(note) for note in plan.notes] if plan else [],
        "specErrors": list(decided.spec_errors),
        "violations": list(decided.violations),
        "doubts": list(decided.doubts),
    }


def _decision(decision: Decision) -> Iterator[str]:
    from bookie_operator.planner.decision import Act, Finish, Record, Rest, Wait

    match decision:
        case Act(action=action, reason=reason):
            yield f"would do now: {type(action).__name__}{_arguments(action)}"
            yield f"because: {reason}"
        case Record(operation=operation, reason=reason):
            about = f" of {operation.bookie}" if operation.bookie else ""
            yield f"would record: {operation.type.value}{about}, step {operation.step}"
            yield f"because: {reason}"
        case Finish(operation=operation, outcome=outcome, message=message):
            yield f"would end {operation.id}: {outcome}: {message}"
        case Wait(reason=reason, message=message, stalled=stalled):
            yield f"{_state(stalled)}: {reason}: {message}"
        case Rest():
            yield "nothing to do: everything is as it should be"


def _state(stalled: bool) -> str:
    return "needs a person" if stalled else "waits"


def _arguments(action: Any) -> str:
    shown = [
        f"{field.name}={_shortened(getattr(action, field.name))}"
        for field in dataclasses.fields(action)
        if getattr(action, field.name) not in ("", None, ())
    ]
    return f" ({', '.join(shown)})" if shown else ""


def _shortened(value: Any) -> str:
    text = ", ".join(value) if isinstance(value, tuple) and all(isinstance(each, str) for each in value) else str(value)
    return text if len(text) <= _WORDS else text[: _WORDS - 1] + "…"


def _content(decision: Any) -> dict[str, Any]:
    """Type and fields; times and models as JSON has them."""
    fields = {
        field.name: _plain(getattr(decision, field.name))
        for field in dataclasses.fields(decision)
        if getattr(decision, field.name) is not None
    }
    return {"type": type(decision).__name__, **fields}


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _content(value)
    if hasattr(value, "model_dump"):
        return value.model_dump(by_alias=True, exclude_none=True, mode="json")
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(each) for each in value]
    return value if isinstance(value, str | int | float | bool) else str(value)
