"""Where the time of the tests goes: a plug-in of pytest, and the table that is made of what it notes.

    pytest -p tests.support.times --times=FILE tests/unit       notes one JSON line for each test and each fixture
    python -m tests.support.times FILE                          prints the table (`make times` does both)

Of each test and of each set-up of a fixture it notes the time by the clock, the processor time of this process, that
of the processes below it, and how many of these were started. What is left of the clock is waiting: for an event, an
interval, a time-out, or, on a busy machine, for a processor. Set-ups are taken out of the tests and the fixtures that
asked for them, so times add up. Workers of a parallel run append to the same file.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import sys
import time
from collections import defaultdict
from collections.abc import Generator, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

_STARTS = ("subprocess.Popen", "os.fork", "os.posix_spawn")
_LEAST_S = 0.005
"""A set-up that is shorter is counted where it was asked for."""
_ROWS = 40


@dataclass
class Times:
    """Seconds, and the number of processes started."""

    clock: float = 0.0
    own: float = 0.0
    below: float = 0.0
    starts: float = 0.0

    def __add__(self, other: Times) -> Times:
        return Times(
            self.clock + other.clock, self.own + other.own, self.below + other.below, self.starts + other.starts
        )

    def __sub__(self, other: Times) -> Times:
        return Times(
            self.clock - other.clock, self.own - other.own, self.below - other.below, self.starts - other.starts
        )

    @property
    def waiting(self) -> float:
        return max(0.0, self.clock - self.own - self.below)


class Notes:
    """The plug-in: what runs now, and the set-ups within it that are counted by themselves."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._starts = 0
        self._within: list[Times] = []
        sys.addaudithook(self._hear)

    def _hear(self, event: str, _arguments: tuple[object, ...]) -> None:
        if event in _STARTS:
            self._starts += 1

    def _now(self) -> Times:
        own = resource.getrusage(resource.RUSAGE_SELF)
        below = 0.0
        if self._starts:
            ended = resource.getrusage(resource.RUSAGE_CHILDREN)
            below = ended.ru_utime + ended.ru_stime + _of_those_that_live()
        return Times(time.monotonic(), own.ru_utime + own.ru_stime, below, self._starts)

    def _measured(self, least: float = 0.0, **what: str) -> Generator[None, Any, Any]:
        before = self._now()
        self._within.append(Times())
        try:
            return (yield)
        finally:
            whole = self._now() - before
            within = self._within.pop()
            if whole.clock < least:
                whole = within
            elif whole.clock > within.clock:
                with self._file.open("a") as out:
                    out.write(json.dumps({**what, **asdict(whole - within)}) + "\n")
            if self._within:
                self._within[-1] += whole

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, Any]:
        return (yield from self._measured(test=item.nodeid))

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(
        self, fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
    ) -> Generator[None, Any, Any]:
        what = {"fixture": fixturedef.argname, "scope": fixturedef.scope, "test": request.node.nodeid}
        return (yield from self._measured(_LEAST_S, **what))


def _of_those_that_live(pid: int | None = None) -> float:
    """Without a look at all processes of the machine, which would take longer than most tests."""
    total = 0.0
    for file in Path(f"/proc/{pid or 'self'}/task").glob("*/children"):
        with contextlib.suppress(OSError, psutil.Error):  # it has ended meanwhile
            for child in map(int, file.read_text().split()):
                spent = psutil.Process(child).cpu_times()
                total += spent.user + spent.system + spent.children_user + spent.children_system
                total += _of_those_that_live(child)
    return total


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--times", type=Path, help="append the times of each test and fixture to this file")


def pytest_configure(config: pytest.Config) -> None:
    file: Path | None = config.getoption("--times")
    if file is not None:
        config.pluginmanager.register(Notes(file.absolute()), "times-of-tests")


# -- the table


def _folder(name: str) -> str:
    parts = Path(name.partition("::")[0]).parts
    return "/".join(parts[:3] if parts[1:2] == ("unit",) else parts[:2]) or "(shared)"


def _row(*cells: object) -> str:
    return f"| {' | '.join(str(cell) for cell in cells)} |"


def _table(title: str, of_what: dict[str, list[Times]], rows: int) -> Iterable[str]:
    yield _row(title, "how many", "clock, s", "waiting, s", "own CPU, s", "CPU of processes, s", "processes")
    yield _row(*["---"] * 7)
    sums = sorted(((sum(times, Times()), name) for name, times in of_what.items()), key=lambda pair: -pair[0].clock)
    for spent, name in sums[:rows]:
        seconds = (f"{value:.1f}" for value in (spent.clock, spent.waiting, spent.own, spent.below))
        yield _row(f"`{name}`", len(of_what[name]), *seconds, round(spent.starts))
    yield ""


def tables(lines: Iterable[str], rows: int = _ROWS) -> Iterable[str]:
    """The folders, the fixtures, the files and the tests that took the most time, as Markdown."""
    folders, fixtures, files, tests = (defaultdict[str, list[Times]](list) for _ in range(4))
    for line in lines:
        note = json.loads(line)
        spent = Times(note["clock"], note["own"], note["below"], note["starts"])
        file = note["test"].partition("::")[0]
        if "fixture" in note:
            place = _folder(file) if note["scope"] == "session" else file
            fixtures[f"{note['fixture']} of a {note['scope']}, {place}"].append(spent)
        else:
            tests[note["test"]].append(spent)
        folders[_folder(file)].append(spent)
        files[file or "(shared)"].append(spent)
    for title, of_what in (("folder", folders), ("fixture", fixtures), ("file", files), ("test", tests)):
        yield from _table(title, of_what, rows)


if __name__ == "__main__":
    with Path(sys.argv[1]).open() as notes:
        sys.stdout.write("\n".join(tables(notes, int(os.environ.get("ROWS", _ROWS)))))
