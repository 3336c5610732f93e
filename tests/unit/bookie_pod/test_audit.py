"""What stands in the audit trail, however its file ends and whoever is refused how often."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from bookie_pod import logs
from bookie_pod.audit import MOST_KNOWN, Audit, append
from bookie_pod.metrics.registry import Registry
from bookie_pod.roles import Caller, Role
from bookie_protocol.errors import Unauthorized

VIEWER = frozenset({Role.VIEWER})


@pytest.fixture
def trail(tmp_path: Path) -> Path:
    return tmp_path / "audit.log"


def lines(trail: Path) -> list[dict[str, Any]]:
    return [json.loads(each) for each in trail.read_text().splitlines()]


def test_a_line_that_the_disk_took_in_part_ends_before_the_next(trail: Path) -> None:
    append(str(trail), '{"a": 1}\n')
    with trail.open("a") as file:
        file.write('{"half')
    append(str(trail), '{"b": 2}\n')
    append(str(trail), '{"c": 3}\n')
    assert trail.read_text().splitlines() == ['{"a": 1}', '{"half', '{"b": 2}', '{"c": 3}']


def test_refusals_of_each_who_is_known_are_a_few_lines_a_minute(trail: Path) -> None:
    registry = Registry()
    audit = Audit("http", registry, str(trail))
    for number in range(logs.MOST + 50):
        audit.refused(Caller("loud", "10.0.0.1", VIEWER), Role.ADMIN, "DELETE /x", "r")
        with pytest.raises(Unauthorized), audit.act(Caller("loud", "10.0.0.1", VIEWER), Role.WRITER, "PUT /x", "r"):
            raise Unauthorized("no")
        assert number < logs.MOST // 2 or len(lines(trail)) == logs.MOST
    audit.refused(Caller("quiet", "10.0.0.2", VIEWER), Role.ADMIN, "DELETE /x", "r")
    assert [each["who"] for each in lines(trail)] == ["loud"] * logs.MOST + ["quiet"]
    assert f'outcome="refused"}} {2 * (logs.MOST + 50) + 1}' in registry.render()


def test_names_are_no_way_round_the_limit(trail: Path) -> None:
    audit = Audit("http", Registry(), str(trail))
    for number in range(5 * MOST_KNOWN):
        audit.refused(Caller(f"name {number}", "10.0.0.1", VIEWER), Role.ADMIN, "DELETE /x", "r")
    assert len(lines(trail)) == MOST_KNOWN + logs.MOST


def test_what_was_left_out_is_told_with_whose_it_was(trail: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    audit = Audit("http", Registry(), str(trail))
    caller = Caller("loud", "10.0.0.1", VIEWER)
    for _ in range(logs.MOST + 3):
        audit.refused(caller, Role.ADMIN, "DELETE /x", "r")
    audit._refusals["loud"]._until = 0.0
    audit.refused(caller, Role.ADMIN, "DELETE /x", "r")
    (told,) = [each for each in lines(trail) if "lines" in each]
    assert (told["who"], told["lines"]) == ("loud", 3)


async def test_what_was_left_out_is_told_though_nobody_comes_again(
    trail: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    timers: list[Any] = []
    loop = asyncio.get_running_loop()
    monkeypatch.setattr(loop, "call_later", lambda seconds, tell, name: timers.append((seconds, tell, name)))
    audit = Audit("http", Registry(), str(trail))
    for _ in range(logs.MOST + 3):
        audit.refused(Caller("loud", "10.0.0.1", VIEWER), Role.ADMIN, "DELETE /x", "r")
    ((seconds, tell, name),) = timers
    assert 0 < seconds <= logs.PER_S
    audit._refusals["loud"]._until = 0.0
    tell(name)
    assert (lines(trail)[-1]["who"], lines(trail)[-1]["lines"]) == ("loud", 3)


async def test_what_was_left_out_is_told_though_the_timer_fires_early(
    trail: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Loops count in milliseconds, and a clock of their own."""
    timers: list[Any] = []
    loop = asyncio.get_running_loop()
    monkeypatch.setattr(loop, "call_later", lambda seconds, tell, name: timers.append((tell, name)))
    audit = Audit("http", Registry(), str(trail))
    for _ in range(logs.MOST + 3):
        audit.refused(Caller("loud", "10.0.0.1", VIEWER), Role.ADMIN, "DELETE /x", "r")
    for until in (audit._refusals["loud"]._until, 0.0):
        audit._refusals["loud"]._until = until
        tell, name = timers.pop()
        tell(name)
    assert (lines(trail)[-1]["who"], lines(trail)[-1]["lines"]) == ("loud", 3)
    assert not timers


def test_the_bookies_own_port_tells_the_log_by_itself(trail: Path) -> None:
    registry = Registry()
    Audit("bookie", registry).kept_out("10.0.0.1", "a login", "wrong")
    assert not trail.exists()
    assert 'via="bookie"' in registry.render()
    Audit("bookie", Registry(), str(trail)).kept_out("10.0.0.1", "a login", "wrong")
    (line,) = lines(trail)
    assert (line["via"], line["who"], line["from"], line["what"], line["outcome"], line["reason"]) == (
        *("bookie", "a stranger", "10.0.0.1"),
        *("a login", "refused", "wrong"),
    )


@pytest.mark.parametrize("end", ["\n", "\r\n", "\x0b", "\x85", "\u2028", "\0", "\ud800"])
def test_a_name_makes_no_second_line(trail: Path, end: str) -> None:
    forged = f'x{end}{{"who": "ops", "outcome": "done"}}'
    audit = Audit("http", Registry(), str(trail))
    audit.refused(Caller(forged, forged, VIEWER), Role.ADMIN, forged, forged)
    audit.kept_out(forged, forged, forged)
    with audit.act(Caller(forged, forged, VIEWER), Role.WRITER, forged, forged):
        pass
    found = lines(trail)
    assert [each["outcome"] for each in found] == ["refused", "refused", "done"]
    assert {each["what"] for each in found} == {forged.replace(end, "?" * len(end))}
